"""Returns of finished episodes, over the last hundred."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

WINDOW = 100
#: Return, length in steps, ladder level.
Episode = tuple[float, int, float]


def last_that_count(episodes: Sequence[Episode]) -> Sequence[Episode]:
    """Those of many, oldest first, that `EpisodeStats` would look at: the last 100 of all, and of level 0."""
    older, newest = episodes[:-WINDOW], episodes[-WINDOW:]
    missing = WINDOW - sum(level == 0.0 for _, _, level in newest)
    found = list(islice((one for one in reversed(older) if one[2] == 0.0), missing))
    return [*reversed(found), *newest]


class EpisodeStats:
    """Means over the last 100 episodes: of the least exploring slots (ladder level 0), and of all slots."""

    def __init__(self) -> None:
        self.count = 0
        self._best: deque[float] = deque(maxlen=WINDOW)
        self._all: deque[float] = deque(maxlen=WINDOW)

    def ended(
        self, episodes: Sequence[Episode], also: Sequence[EpisodeStats] = (), count: int | None = None
    ) -> None:
        """Episodes ended. They count in others `also`: looked at once.

        Args:
            count: how many, if `episodes` are but `last_that_count` of them.
        """
        newest = [value for value, _, _ in episodes[-WINDOW:]]
        best = [value for value, _, level in episodes if level == 0.0]
        for stats in (self, *also):
            stats.count += len(episodes) if count is None else count
            stats._all.extend(newest)
            stats._best.extend(best)

    @property
    def mean(self) -> float | None:
        """Mean return of the last 100 episodes of the least exploring slots; None before the first."""
        return _mean(self._best)

    @property
    def mean_count(self) -> int:
        """How many episodes `mean` is over."""
        return len(self._best)

    @property
    def mean_all(self) -> float | None:
        """Mean return of the last 100 episodes of all slots; None before the first."""
        return _mean(self._all)

    def save(self) -> dict[str, list[float]]:
        """For the broker's state file."""
        return {"count": [float(self.count)], "best": list(self._best), "all": list(self._all)}

    def load(self, state: dict[str, list[float]]) -> None:
        """Take back what `save` gave."""
        self.count = int(state.get("count", [0.0])[0])
        self._best.extend(state.get("best", []))
        self._all.extend(state.get("all", []))


def _mean(values: deque[float]) -> float | None:
    return sum(values) / len(values) if values else None
