"""nodes/signals.py: the second signal ends at once, says so, and gives the terminal back."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from tests.conftest import wait_until

_PROGRAM = """
import signal, sys
from p2prl.nodes.signals import end_on_signals
began = []
with end_on_signals(lambda: began.append(sys.stderr.write("first\\n")), lambda: "last words"):
    sys.stdout.write("\\x1b[?25lready, in the middle of a line")
    sys.stdout.flush()
    while True:
        signal.pause()
"""

_HANGUP = """
import signal, sys
from p2prl.nodes.signals import end_on_signals
if "default" in sys.argv:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
began = []
with end_on_signals(lambda: began.append("ends"), lambda: "last words"):
    signal.raise_signal(signal.SIGHUP)
print(*began or ["goes on"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_second_signal_is_told_below_the_view_and_the_cursor_comes_back() -> None:
    ours, theirs = os.openpty()
    seen = b""

    def shows(text: bytes) -> bool:
        nonlocal seen
        if select.select([ours], [], [], 0.1)[0]:
            seen += os.read(ours, 4096)
        return text in seen

    with subprocess.Popen([sys.executable, "-u", "-c", _PROGRAM], stdout=theirs, stderr=theirs) as program:
        os.close(theirs)
        wait_until(lambda: shows(b"of a line"))
        program.send_signal(signal.SIGINT)
        wait_until(lambda: shows(b"first"))
        while program.poll() is None and b"last words" not in seen:
            program.send_signal(signal.SIGINT)  # one that comes at once is taken for an echo
            shows(b"last words")
        assert program.wait(10.0) == 130
    os.close(ours)
    assert seen.endswith(b"\x1b[?25h\r\nlast words\r\n"), seen


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_a_closed_terminal_ends_it_but_not_under_nohup() -> None:
    program = [sys.executable, "-c", _HANGUP]
    for command, told in (([*program, "default"], "ends"), (["nohup", *program], "goes on")):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout.strip()) == (0, told), done.stderr
