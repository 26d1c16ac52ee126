"""SIGINT, SIGTERM and SIGHUP: the first ends the command in order, the second at once, with a line that says so."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: What shells report for a program ended by Ctrl-C.
_INTERRUPTED = 130
#: `timeout` and some shells signal a command and then its group: one request that arrives twice at once.
_ECHO_S = 0.05
#: A live view hides the cursor, and ends without a line's end.
_TERMINAL_BACK = b"\x1b[?25h\n"


@contextmanager
def end_on_signals(end: Callable[[], None], last_words: Callable[[], str]) -> Iterator[None]:
    """Call `end` on the first signal; exit at once on the second. The old handlers come back afterwards.

    Args:
        last_words: what to say in an end at once, one or more lines; called in the signal's handler.
    """
    first: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            end()
        elif now - first > _ECHO_S:
            _say(last_words())
            os._exit(_INTERRUPTED)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGBREAK"):  # Windows: Ctrl-Break, and what a parent can send there
        numbers.append(signal.SIGBREAK)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)  # the terminal was closed; nohup has it ignored
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    """Without Python's files, whose locks and buffers may be in use where the signal came."""
    with contextlib.suppress(OSError):  # nobody reads it any more, and we end all the same
        if os.isatty(1):
            os.write(1, _TERMINAL_BACK)
        os.write(2, f"{text}\n".encode(errors="replace"))
