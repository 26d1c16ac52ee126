"""Rows of pictures for tests: what a game shows, and how a frame stack gives it."""

from __future__ import annotations

import numpy as np

from p2prl.wire.blocks import Array


def stacked(films: Array, stack: int, begins: Array, last: bool = False) -> Array:
    """Rows `[rows, slots, stack, *picture]` as a frame stack gives them; where an episode begins it is filled anew.

    Args:
        films: uint8 `[rows, slots, *picture]`. begins: bool `[rows, slots]`.
    """
    rows, slots, *picture = films.shape
    out = np.zeros((rows, slots, stack, *picture), np.uint8)
    for row in range(rows):
        for slot in range(slots):
            if row == 0 or begins[row, slot]:
                out[row, slot] = films[row, slot]
            else:
                out[row, slot, :-1] = out[row - 1, slot, 1:]
                out[row, slot, -1] = films[row, slot]
    return np.ascontiguousarray(np.moveaxis(out, 2, -1)) if last else out


def film(rng: np.random.Generator, rows: int, slots: int, picture: tuple[int, ...]) -> Array:
    """A still background on which a small thing moves."""
    back = rng.integers(0, 4, picture).astype(np.uint8) * 60
    out = np.broadcast_to(back, (rows, slots, *picture)).copy()
    for row in range(rows):
        for slot in range(slots):
            at = (3 * row + 5 * slot) % (picture[0] - 4)
            out[row, slot, at : at + 4, at % picture[1] : at % picture[1] + 4] = 200
    return out
