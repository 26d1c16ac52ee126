"""Is a decoded bundle what an honest player could have sent? The last check before it is stored.

Observations outside their bounds are not refused: environments are often wrong about those, and nothing
depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from p2prl.core.messages import BundleHeader
from p2prl.core.schema import RESET, TERMINATED, TRUNCATED, Column, SessionSchema
from p2prl.errors import RemoteProtocolError
from p2prl.wire.blocks import Array

FLAGS = "flags"
_DONE = TERMINATED | TRUNCATED
_KNOWN = _DONE | RESET
#: More than any episode lasts, so that sums of lengths stay far from 2**63.
_MAX_LENGTH = 1 << 40


def check_bundle(schema: SessionSchema, header: BundleHeader, arrays: Mapping[str, Array]) -> None:
    """Raise RemoteProtocolError if a bundle, whose sizes and dtypes are those of `schema`, breaks a rule.

    Args:
        arrays: from `decode_bundle`, `[rows, slots, *shape]` per column.

    Raises:
        RemoteProtocolError: `not_finite` (also for the header's episodes), `out_of_space` for an action,
            `malformed` for flags or counts that contradict each other.
    """
    for column in schema.columns:
        array = arrays[column.name]
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RemoteProtocolError("not_finite", f"column {column.name!r} holds NaN or infinity")
        if column.name == "action" or column.name.startswith("action."):
            _check_action(column, array)
    resets, ends = _check_flags(arrays.get(FLAGS))
    _check_header(header, schema.ticks * header.slots - resets, ends)


@lru_cache(maxsize=256)
def _bounds(column: Column) -> tuple[Array | None, Array | None]:
    """The column's low and high as arrays that broadcast to one row; None for no bound on that side."""

    def side(values: tuple[float, ...], infinite: float) -> Array | None:
        if not values or all(value == infinite for value in values):
            return None
        array = np.asarray(values, np.float64)
        return array.reshape(column.shape) if len(values) > 1 else array.reshape(())

    return side(column.low, -math.inf), side(column.high, math.inf)


def _check_action(column: Column, array: Array) -> None:
    """Also the unused actions of RESET ticks: a learner may index with them before it masks them."""
    low, high = _bounds(column)
    if array.size == 0:
        return
    if (low is not None and (array < low).any()) or (high is not None and (array > high).any()):
        raise RemoteProtocolError("out_of_space", f"column {column.name!r} holds an action outside its space")


def _check_flags(flags: Array | None) -> tuple[int, int]:
    """How many ticks are RESET, and how many end an episode."""
    if flags is None:
        return 0, 0
    if (flags & ~np.uint8(_KNOWN)).any():
        raise RemoteProtocolError("malformed", "unknown bits in flags")
    reset, done = flags & RESET != 0, flags & _DONE != 0
    if (reset & done).any():
        raise RemoteProtocolError("malformed", "a tick that is RESET and ends an episode")
    if (done[:-1] & ~reset[1:]).any():
        raise RemoteProtocolError("malformed", "an episode's end that is not followed by a RESET tick")
    return int(np.count_nonzero(reset)), int(np.count_nonzero(done))


def _check_header(header: BundleHeader, steps: int, ends: int) -> None:
    """The header's counts are those of the flags."""
    if header.steps != steps:
        raise RemoteProtocolError("malformed", f"{header.steps} steps claimed, {steps} made")
    if len(header.episodes) != ends:
        raise RemoteProtocolError("malformed", f"{len(header.episodes)} episodes claimed, {ends} ended")
    for total, length, level in header.episodes:
        if not math.isfinite(total) or not math.isfinite(level):
            raise RemoteProtocolError("not_finite", "an episode's return or level is NaN or infinite")
        if not 1 <= length <= _MAX_LENGTH or not 0.0 <= level <= 1.0:
            raise RemoteProtocolError("malformed", f"an episode of {length} ticks at level {level}")
