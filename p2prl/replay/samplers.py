"""Where windows may begin, and drawing such places at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2prl.core.schema import RESET
from p2prl.wire.blocks import Array

#: Rounds of drawing again what fell on a RESET tick, before all valid places are listed instead.
_ROUNDS = 4


@dataclass(frozen=True)
class Places:
    """Those of a ring that may be drawn.

    Attributes:
        count: how many.
        listed: int64 `[count]`, which; None for `count` of them from `first` on, around the end of the ring.
        capacity: places of the ring; unused where `first` is 0.
    """

    count: int
    listed: Array | None = None
    first: int = 0
    capacity: int = 0

    def at(self, drawn: Array) -> Array:
        """From int64 numbers below `count` to places."""
        if self.listed is not None:
            return self.listed[drawn]
        return (drawn + self.first) % self.capacity if self.first else drawn


def start_counts(flags: Array | None, block: slice, ticks: int, window: int) -> Array | int:
    """In how many places of each session of `block` a window may begin; a whole session counts all its ticks.

    Args:
        flags: uint8 `[sessions, ticks]`, or None if no tick is ever RESET.
    """
    if window == 0:
        return ticks
    places = max(0, ticks - window + 1)
    if flags is None or places == 0:
        return places
    counts: Array = np.add.reduce(flags[block, :places] & RESET == 0, axis=1)
    return counts


def uniform_starts(
    rng: np.random.Generator,
    flags: Array | None,
    held: Places,
    ticks: int,
    window: int,
    count: int,
) -> tuple[Array, Array]:
    """`count` places (session, offset) with replacement, each valid one equally likely; or none at all.

    Rejection: the few draws that fell on a RESET tick are drawn again. Where nearly all ticks are RESET,
    which no honest environment plays, the places are listed, so this ends whatever was stored.

    Args:
        flags: uint8 `[capacity, ticks]`, or None if no tick is ever RESET.
        held: sessions to draw from.
    """
    places = ticks - window + 1
    if held.count == 0 or places <= 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)

    def draw(size: int) -> tuple[Array, Array]:
        drawn, offset = np.divmod(rng.integers(held.count * places, size=size), places)
        return held.at(drawn), offset

    session, offset = draw(count)
    if flags is None:
        return session, offset
    rejected = np.flatnonzero(flags[session, offset] & RESET)
    for _ in range(_ROUNDS):
        if not rejected.size:
            return session, offset
        session[rejected], offset[rejected] = draw(rejected.size)
        rejected = rejected[flags[session[rejected], offset[rejected]] & RESET != 0]
    if not rejected.size:
        return session, offset
    rows = flags[held.at(np.arange(held.count))]
    valid = np.flatnonzero(rows[:, :places] & RESET == 0)
    if not valid.size:
        return valid, valid
    drawn, offset[rejected] = np.divmod(valid[rng.integers(valid.size, size=rejected.size)], places)
    session[rejected] = held.at(drawn)
    return session, offset
