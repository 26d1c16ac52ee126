"""scripts/bench memory: memory that processes share is counted once, whoever has touched it."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
from bench_parts.memory import own_bytes

_SIZE = 32_000_000
#: Maps the memory; and then, if it is told to, writes all of it, or reads it.
_CHILD = """
import mmap, sys
def told():
    sys.stdout.write("."); sys.stdout.flush()
    return sys.stdin.readline().strip()
with mmap.mmap(int(sys.argv[1]), int(sys.argv[2])) as shared:
    what = told()
    for at in range(0, int(sys.argv[2]), 100_000):
        if what == "write": shared[at:at + 100_000] = b"x" * 100_000
        if what == "read": shared[at:at + 100_000].count(b"x")
    told()
"""


class Child:
    """A process that maps the memory, and nothing else."""

    def __init__(self, memory: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(memory), str(_SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(memory,),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._told, self._says = self.process.stdin, self.process.stdout
        self._says.read(1)

    def does(self, what: str) -> int:
        """How much memory of its own it takes to do it, in bytes."""
        before = own_bytes(psutil.Process(self.process.pid))
        self._told.write(what.encode() + b"\n")
        self._told.flush()
        self._says.read(1)
        return own_bytes(psutil.Process(self.process.pid)) - before


@pytest.mark.skipif(sys.platform != "linux", reason="p2prl shares memory on Linux alone")
def test_memory_that_processes_share_is_counted_once() -> None:
    """USS alone loses it as soon as a second one has touched it."""
    memory = os.memfd_create("p2prl-test")
    children: list[Child] = []
    try:
        os.ftruncate(memory, _SIZE)
        children = [Child(memory), Child(memory)]
        writer, reader = children
        assert writer.does("write") == pytest.approx(_SIZE, rel=0.1)
        alone = own_bytes(psutil.Process(writer.process.pid))
        read = reader.does("read")
        assert read == pytest.approx(_SIZE / 2, rel=0.2)
        assert own_bytes(psutil.Process(writer.process.pid)) - alone + read == pytest.approx(
            0, abs=_SIZE / 10
        )
    finally:
        for child in children:
            child.process.communicate(b"")
        os.close(memory)
