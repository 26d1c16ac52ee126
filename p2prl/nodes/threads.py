"""How many threads the trainer's arithmetic gets: as many as its updates are faster with.

Small networks are no faster with two threads than with one, and on a machine that does other work far slower: each
operation waits for a thread that waits for a core. Large ones want all there are. Which it is the first updates tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from statistics import median

from p2prl.words import many

log = logging.getLogger("p2prl")

#: Updates that are not counted, because a first one does what later ones need not; and that each number gets in a turn.
_WARM, _TURN, _TURNS = 5, 5, 4
#: How much faster more threads must be: they take cores from others.
_WORTH = 1.2


class Threads:
    """Tries one thread and `most`, turn by turn, over the first updates, and keeps what is faster.

    Args:
        most: threads there could be.
        use: takes how many threads there shall be.

    Attributes:
        count: how many there are now.
        settled: the trial is over.
    """

    def __init__(self, most: int, use: Callable[[int], None]) -> None:
        self._most, self._use = most, use
        self._took: list[float] = []
        self.settled = most <= 1
        self.count = most
        self._set(1)

    def updated(self, seconds: float) -> None:
        """An update took so long."""
        if self.settled:
            return
        self._took.append(seconds)
        counted = self._took[_WARM:]
        if len(counted) == _TURN * _TURNS:
            self.settled = True
            self._set(self._faster(counted))
            log.info("updates are computed with %s, tried 1 and %d", many(self.count, "thread"), self._most)
        else:
            self._set(self._most if len(counted) // _TURN % 2 else 1)

    def _faster(self, counted: list[float]) -> int:
        one, many = (
            median(took for at, took in enumerate(counted) if at // _TURN % 2 == odd) for odd in (0, 1)
        )
        return self._most if one > _WORTH * many else 1

    def _set(self, count: int) -> None:
        if count != self.count:
            self.count = count
            self._use(count)
