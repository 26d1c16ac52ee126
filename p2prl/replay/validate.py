"""Is a decoded bundle what an honest player could have sent? The last check before it is stored.

Observations outside their bounds are not refused: environments are often wrong about those, and nothing
depends on them.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from p2prl.core.messages import BundleHeader
from p2prl.core.schema import RESET, TERMINATED, TRUNCATED, Column, SessionSchema
from p2prl.errors import RemoteProtocolError
from p2prl.wire.blocks import Array
from p2prl.wire.bundle import Opened
from p2prl.wire.pictures import Slots

FLAGS, REWARD = "flags", "reward"
#: The least and the largest reward of one step; either may be infinite.
RewardRange = tuple[float, float]
_DONE = TERMINATED | TRUNCATED
_KNOWN = _DONE | RESET
#: More than any episode lasts, so that sums of lengths stay far from 2**63.
_MAX_LENGTH = 1 << 40
#: A return is a sum in float64, and may be off by so much of what its largest term and its length could make it.
_SUM_ERROR = 1e-6


def check_bundle(
    schema: SessionSchema,
    header: BundleHeader,
    arrays: Opened,
    reward_range: RewardRange | None = None,
    max_episode_steps: int | None = None,
) -> None:
    """Raise RemoteProtocolError if a bundle, whose sizes and dtypes are those of `schema`, breaks a rule.

    Args:
        arrays: from `open_bundle`.
        reward_range, max_episode_steps: what the environment declares (core/spaces.py); None for nothing.

    Raises:
        RemoteProtocolError: `not_finite` (also for the header's episodes), `out_of_space` for an action,
            `out_of_bounds` for what the environment says cannot be, `malformed` for flags, counts or rewards
            that contradict each other.
    """
    for column in schema.columns:
        array = arrays[column.name]
        if isinstance(array, Slots):
            continue  # bytes, of which any is as good as another
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RemoteProtocolError("not_finite", f"column {column.name!r} holds NaN or infinity")
        if column.name == "action" or column.name.startswith("action."):
            _check_action(column, array)
    flags, rewards = (_numbers(arrays, name) for name in (FLAGS, REWARD))
    resets, ends = _check_flags(flags)
    _check_rewards(rewards, flags if resets else None, reward_range)
    _check_header(header, schema.ticks * header.slots - resets, ends)
    for total, length, _ in header.episodes:
        _check_episode(total, length, reward_range, max_episode_steps)


def _numbers(arrays: Opened, name: str) -> Array | None:
    found = arrays.get(name)
    return None if isinstance(found, Slots) else found


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


def reward_outside(rewards: Array, reward_range: RewardRange) -> float | None:
    """The first of some rewards, float32, that lies outside the range; None if there is none.

    The bounds are rounded as the rewards were. Rounding keeps the order, so what was inside stays inside.
    """
    with np.errstate(over="ignore"):  # a bound beyond float32 is none
        low, high = np.float32(reward_range[0]), np.float32(reward_range[1])
    outside = (rewards < low) | (rewards > high)
    return float(rewards[outside][0]) if outside.any() else None


def _check_rewards(rewards: Array | None, flags: Array | None, reward_range: RewardRange | None) -> None:
    """`flags` is None if no tick is RESET."""
    if rewards is None:
        return
    if flags is not None:
        reset = flags & RESET != 0
        if rewards[reset].any():
            raise RemoteProtocolError("malformed", "a reward in a RESET tick, where no step is made")
        rewards = rewards[~reset]
    value = None if reward_range is None else reward_outside(rewards, reward_range)
    if value is not None:
        raise RemoteProtocolError(
            "out_of_bounds", f"a reward of {value}; the environment declares {reward_range}"
        )


def _check_episode(
    total: float, length: int, reward_range: RewardRange | None, max_episode_steps: int | None
) -> None:
    if max_episode_steps is not None and length > max_episode_steps:
        raise RemoteProtocolError(
            "out_of_bounds",
            f"an episode of {length} ticks; the environment ends one after {max_episode_steps}",
        )
    if reward_range is None:
        return
    low, high = reward_range
    slack = _SUM_ERROR * length * max([1.0, *(abs(side) for side in reward_range if math.isfinite(side))])
    if not low * length - slack <= total <= high * length + slack:
        raise RemoteProtocolError(
            "out_of_bounds", f"a return of {total} in {length} ticks; the environment declares {reward_range}"
        )
