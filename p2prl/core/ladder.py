"""The exploration ladder: which share of exploring each slot of a run takes. Slots are numbered over all players."""

from __future__ import annotations


def ladder_level(index: int, rungs: int) -> float:
    """The place of global slot `index` on a ladder: floor(rungs * v) / rungs, v van der Corput's number in base 2.

    Each aligned block of `rungs` slots (a power of two) holds every rung once, and slot 0 explores least.

    >>> [ladder_level(index, 4) for index in range(5)]
    [0.0, 0.5, 0.25, 0.75, 0.0]
    """
    value, unit = 0.0, 0.5
    while index:
        value += unit * (index & 1)
        index >>= 1
        unit /= 2
    return int(rungs * value) / rungs


def levels_of(rank: int, slots: int, rungs: int) -> tuple[float, float]:
    """The least and the most exploring slot of the player with this rank, by their places on the ladder.

    >>> levels_of(0, 2, 4), levels_of(1, 2, 4), levels_of(5, 16, 1)
    ((0.0, 0.5), (0.25, 0.75), (0.0, 0.0))
    """
    levels = [ladder_level(index, rungs) for index in range(rank * slots, (rank + 1) * slots)]
    return min(levels, default=0.0), max(levels, default=0.0)
