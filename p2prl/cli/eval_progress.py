"""How far `p2prl eval` is, on stderr: in place on a terminal, else a line now and then. It never touches stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from p2prl.cli.output import complain, duration
from p2prl.words import many

if TYPE_CHECKING:
    from p2prl.nodes.evaluate import Played

_TERMINAL_S = 0.25
_PIPE_S = 10.0


@contextmanager
def eval_progress(now: Callable[[], float] = time.monotonic) -> Iterator[Callable[[Played], None]]:
    """What takes the news; a play that Ctrl-C ends says what was played until then.

    Args:
        now: a clock in seconds; only differences matter.
    """
    progress = _EvalProgress(sys.stderr, now)
    try:
        yield progress.tell
    except KeyboardInterrupt:
        progress.wipe()
        progress.stopped()
        raise
    finally:
        progress.wipe()


class _EvalProgress:
    def __init__(self, stream: TextIO, now: Callable[[], float]) -> None:
        self._stream, self._now = stream, now
        self._in_place = stream.isatty()
        self._played: Played | None = None
        self._began = self._told = 0.0

    def tell(self, played: Played) -> None:
        now = self._now()
        if self._played is None:
            self._began = now
            # On a terminal the first line comes at once.
            self._told = now - _TERMINAL_S if self._in_place else now
        self._played = played
        if now - self._told < (_TERMINAL_S if self._in_place else _PIPE_S):
            return
        self._told = now
        if self._in_place:
            self._stream.write(f"\r{self._so_far(played)} \x1b[K")
            self._stream.flush()
        else:
            complain(self._so_far(played))

    def wipe(self) -> None:
        if self._in_place:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def stopped(self) -> None:
        if self._played is None:
            return
        returns = self._played.returns
        # Those that end early are ahead: no score of the policy.
        mean = f"; mean return of those: {sum(returns) / len(returns):.1f}" if returns else ""
        complain(f"stopped after {self._so_far(self._played)}{mean}")

    def _so_far(self, played: Played) -> str:
        episodes = f"{len(played.returns):,} of {many(played.episodes, 'episode')}"
        return f"{episodes}, {many(played.steps, 'step')}, {duration(self._now() - self._began)}"
