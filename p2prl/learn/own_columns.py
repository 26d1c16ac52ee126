"""What an agent itself puts into a bundle: its actions and fields. A host refuses what is outside the action space, or
not finite; the agent's author is told here, in words that name it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from p2prl.core.schema import Column, SessionSchema
from p2prl.learn.contracts import Array
from p2prl.learn.finite import all_finite
from p2prl.learn.spaces import OutsideSpace


class OwnColumns:
    """Looks at each bundle of one player, before it is handed over."""

    def __init__(self, schema: SessionSchema) -> None:
        theirs = [column for column in schema.columns if not _of_environment(column.name)]
        self._floats = [column.name for column in theirs if np.dtype(column.dtype).kind == "f"]
        self._bounded = [(column.name, *_bounds(column)) for column in theirs if column.low or column.high]

    def check(self, columns: Mapping[str, Array]) -> None:
        """Raises OutsideSpace: the text names the column and the value, and says what would be right."""
        for name in self._floats:
            if not all_finite(columns[name]):
                bad = columns[name][~np.isfinite(columns[name])]
                raise OutsideSpace(f"{name} was {bad[0]:g}, and must be finite")
        for name, low, high in self._bounded:
            values = columns[name]
            if low.ndim == high.ndim == 0 and values.size and low <= values.min() and values.max() <= high:
                continue  # much cheaper than what follows
            outside = (values < low) | (values > high)
            if outside.any():
                least, most = (np.broadcast_to(side, values.shape)[outside][0] for side in (low, high))
                raise OutsideSpace(
                    f"{name} was {values[outside][0]:g}, and its space says {least:g} to {most:g}"
                )


def _of_environment(name: str) -> bool:
    return name in ("reward", "flags") or name.partition(".")[0] == "obs"


def _bounds(column: Column) -> tuple[Array, Array]:
    """As arrays that broadcast to `[rows, slots, ...]`."""
    low, high = (
        np.array(side, np.float64).reshape(column.shape if len(side) > 1 else ())
        for side in (column.low, column.high)
    )
    return low, high
