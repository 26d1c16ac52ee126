"""scripts/bench memory: memory that processes share is counted once, whoever has touched it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import psutil
import pytest
from bench_parts.memory import own_bytes

_SIZE, _PIECE = 32_000_000, b"\1" * 100_000
_READ = """
import mmap, sys
with mmap.mmap(int(sys.argv[1]), int(sys.argv[2]), access=mmap.ACCESS_READ) as shared:
    if len(sys.argv) > 3: shared[:].count(1)
    sys.stdout.write("."); sys.stdout.flush(); sys.stdin.read()
"""


def reader(memory: int, *reads: str) -> subprocess.Popen[bytes]:
    found = subprocess.Popen(
        [sys.executable, "-c", _READ, str(memory), str(_SIZE), *reads],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(memory,),
    )
    assert found.stdout is not None
    found.stdout.read(1)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="p2prl shares memory on Linux alone")
def test_memory_that_processes_share_is_counted_once() -> None:
    """USS alone loses it as soon as a second one has touched it."""
    memory = os.memfd_create("p2prl-test")
    readers: list[subprocess.Popen[bytes]] = []
    try:
        os.ftruncate(memory, _SIZE)
        me = psutil.Process()
        with mmap.mmap(memory, _SIZE) as shared:
            before = own_bytes(me)
            for at in range(0, _SIZE, len(_PIECE)):  # a copy of all would stay with this process
                shared[at : at + len(_PIECE)] = _PIECE
            alone = own_bytes(me) - before
            assert alone == pytest.approx(_SIZE, rel=0.1)
            readers = [reader(memory), reader(memory, "reads")]
            idle, other = (own_bytes(psutil.Process(one.pid)) for one in readers)
            together = own_bytes(me) - before + other - idle
            assert together == pytest.approx(_SIZE, rel=0.1)
            assert me.memory_full_info().uss - before < _SIZE / 2
    finally:
        for one in readers:
            one.communicate()
        os.close(memory)
