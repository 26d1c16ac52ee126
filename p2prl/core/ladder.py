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


def has_lowest(rank: int, slots: int, rungs: int) -> bool:
    """True if one of the slots of the player with this rank explores least; those alone count for the mean return.

    >>> [has_lowest(rank, 1, 4) for rank in range(5)], has_lowest(1, 4, 4)
    ([True, False, False, False, True], True)
    """
    first = rank * slots
    return any(ladder_level(index, rungs) == 0.0 for index in range(first, first + slots))
