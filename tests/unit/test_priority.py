"""Niceness that counts in a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from p2prl.nodes import priority

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="niceness is not by session on this system"
)
_SHOWN = "print(open('/proc/self/autogroup').read().split()[-1])"


def in_a_session(code: str, niceness: int) -> str:
    """What `code` prints in a process with a session and a niceness of its own."""
    line = f"import os; os.nice({niceness}); from p2prl.nodes import priority; {code}; {_SHOWN}"
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True, start_new_session=True
    )
    return done.stdout.strip()


@pytest.mark.skipif(os.nice(0) > 0, reason="these tests run with a niceness of their own")
def test_the_niceness_that_a_person_gave_counts_in_each_session() -> None:
    assert in_a_session("priority.keep_niceness()", 0) == "0"
    assert in_a_session("priority.keep_niceness()", 7) == "7"
    assert in_a_session("priority.step_back()", 0) == "10"
    assert in_a_session("priority.step_back()", 19) == "19"


def test_where_others_start_at_the_same_time_it_is_written_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The system refuses one write in a tenth of a second to all but root, who runs these tests."""

    class Busy(type(tmp_path)):  # type: ignore[misc]
        refusals = 2

        def write_text(self, text: str) -> int:
            if Busy.refusals:
                Busy.refusals -= 1
                raise BlockingIOError(11, "try again")
            return int(super().write_text(text))

    file = Busy(tmp_path / "autogroup")
    (tmp_path / "autogroup").touch()
    monkeypatch.setattr(priority, "_AUTOGROUP", file)
    monkeypatch.setattr(priority, "_AGAIN_S", 0.001)
    niceness = iter([5, 5, 5, 15, 15, 15, 15])
    monkeypatch.setattr(priority.os, "nice", lambda by: next(niceness))
    priority.keep_niceness()
    for thread in threading.enumerate():
        if thread.name == "niceness":
            thread.join(10)
    assert (tmp_path / "autogroup").read_text() == "15", "the player has stepped back meanwhile"
    assert Busy.refusals == 0
