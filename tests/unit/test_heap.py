"""Freed memory that stays: no page is asked for twice."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Arrays that come and go, each larger than what glibc keeps by itself (32 MB).
_FAULTS = """
import resource, sys
import numpy as np
from p2prl.nodes.heap import keep_freed_memory
if sys.argv[1] == "kept":
    print(keep_freed_memory())
else:
    print(None)
def turn():
    one = np.ones(40_000_000, np.uint8)
    two = np.ones(30_000_000, np.uint8)
turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _run(how: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True
    ).stdout.split()
    return done[0], int(done[1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_freed_memory_is_used_again_where_the_allocator_can_be_told() -> None:
    told, faults = _run("kept")
    if told == "False":
        pytest.skip("no glibc that takes so much")
    assert faults < 50
    assert _run("as it is")[1] > faults


@pytest.mark.skipif(sys.platform.startswith("linux"), reason="see above")
def test_elsewhere_nothing_is_done() -> None:
    from p2prl.nodes.heap import keep_freed_memory

    assert not keep_freed_memory()
