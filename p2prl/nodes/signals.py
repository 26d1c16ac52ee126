"""SIGINT and SIGTERM: the first ends the command in order, the second at once."""

from __future__ import annotations

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


@contextmanager
def end_on_signals(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` on the first signal; exit at once on the second. The old handlers come back afterwards."""
    first: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            end()
        elif now - first > _ECHO_S:
            os._exit(_INTERRUPTED)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGBREAK"):  # Windows: Ctrl-Break, and what a parent can send there
        numbers.append(signal.SIGBREAK)
    if hasattr(signal, "SIGHUP"):  # the terminal was closed
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
