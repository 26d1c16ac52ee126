"""Is a decoded bundle what an honest player could have sent? The last check before it is stored.

Observations outside their bounds are not refused: environments are often wrong about those, and nothing
depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from p2prl.core.messages import BundleHeader
from p2prl.core.schema import DTYPE_SIZES, RESET, TERMINATED, TRUNCATED, Column, SessionSchema
from p2prl.errors import RemoteProtocolError
from p2prl.wire.blocks import Array
from p2prl.wire.bundle import Opened
from p2prl.wire.columns import developed
from p2prl.wire.pictures import Slots

FLAGS, REWARD = "flags", "reward"
#: The least and the largest reward of one step; either may be infinite.
RewardRange = tuple[float, float]
#: Of an action: one for all of its numbers, or float64 `[*shape]`.
Bound = Array | float | None
_DONE = TERMINATED | TRUNCATED
#: More than any episode lasts, so that sums of lengths stay far from 2**63.
_MAX_LENGTH = 1 << 40
#: A return is a sum in float64, and may be off by so much of what its largest term and its length could make it.
_SUM_ERROR = 1e-6


class Rules:
    """What every bundle of a run has to keep to; worked out once, because each bundle is asked.

    Args:
        reward_range, max_episode_steps: what the environment declares (core/spaces.py); None for nothing.
    """

    def __init__(
        self,
        schema: SessionSchema,
        reward_range: RewardRange | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        self._ticks = schema.ticks
        self._floats = [column.name for column in schema.columns if column.dtype.startswith("float")]
        self._actions = [
            (column.name, (schema.rows(column), column.shape), *_bounds(column))
            for column in schema.columns
            if (column.name == "action" or column.name.startswith("action."))
            and any(bound is not None for bound in _bounds(column))
        ]
        self._reward_range = reward_range
        self._max_length = _MAX_LENGTH if max_episode_steps is None else max_episode_steps

    def check(self, header: BundleHeader, arrays: Opened) -> None:
        """Raise RemoteProtocolError if a bundle, whose sizes and dtypes are those of the schema, breaks a rule.

        Args:
            arrays: from `open_bundle`.

        Raises:
            RemoteProtocolError: `not_finite` (also for the header's episodes), `out_of_space` for an action,
                `out_of_bounds` for what the environment says cannot be, `malformed` for flags, counts or rewards
                that contradict each other.
        """
        for name in self._floats:
            values = _numbers(arrays, name)
            if values is not None and np.count_nonzero(np.isfinite(values)) != values.size:
                raise RemoteProtocolError("not_finite", f"column {name!r} holds NaN or infinity")
        for name, (rows, row), low, high in self._actions:
            actions = arrays[name]
            if isinstance(actions, Slots):  # large ones may have come as pictures do
                actions = developed(actions, (rows, header.slots, *row))
            if actions.size and _outside(actions, low, high):
                raise RemoteProtocolError(
                    "out_of_space", f"column {name!r} holds an action outside its space"
                )
        resets, ends = _check_flags(_numbers(arrays, FLAGS))
        _check_rewards(_numbers(arrays, REWARD), resets, self._reward_range)
        steps = self._ticks * header.slots - (0 if resets is None else np.count_nonzero(resets))
        if header.steps != steps:
            raise RemoteProtocolError("malformed", f"{header.steps} steps claimed, {steps} made")
        if len(header.episodes) != ends:
            raise RemoteProtocolError("malformed", f"{len(header.episodes)} episodes claimed, {ends} ended")
        if ends:
            _check_episodes(header.episodes, self._max_length, self._reward_range)


def check_bundle(
    schema: SessionSchema,
    header: BundleHeader,
    arrays: Opened,
    reward_range: RewardRange | None = None,
    max_episode_steps: int | None = None,
) -> None:
    """`Rules.check` for one bundle by itself."""
    Rules(schema, reward_range, max_episode_steps).check(header, arrays)


def _numbers(arrays: Opened, name: str) -> Array | None:
    """None where there is no such column, or one of pictures: bytes, of which any is as good as another."""
    found = arrays.get(name)
    return None if isinstance(found, Slots) else found


def _bounds(column: Column) -> tuple[Bound, Bound]:
    """The column's low and high. None for what its dtype keeps anyway."""
    bits = 8 * DTYPE_SIZES[column.dtype]
    least, most = -math.inf, math.inf
    if column.dtype.startswith("int"):
        least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    elif not column.dtype.startswith("float"):
        least, most = 0, 2**bits - 1
    low = None if all(value <= least for value in column.low) else _bound(column.low, column.shape)
    high = None if all(value >= most for value in column.high) else _bound(column.high, column.shape)
    return low, high


def _bound(values: Sequence[float], shape: tuple[int, ...]) -> Array | float:
    return np.asarray(values, np.float64).reshape(shape) if len(values) > 1 else float(values[0])


def _outside(values: Array, low: Bound, high: Bound) -> bool:
    """Whether one is below `low` or above `high`: the least and the largest speak for the others.

    Also of the unused actions of RESET ticks: a learner may index with them before it masks them.
    """
    if isinstance(low, float):
        below = float(values.min()) < low
    else:
        below = low is not None and bool((values.min(axis=(0, 1)) < low).any())
    if below or high is None:
        return below
    if isinstance(high, float):
        return float(values.max()) > high
    return bool((values.max(axis=(0, 1)) > high).any())


def _check_flags(flags: Array | None) -> tuple[Array | None, int]:
    """Which ticks are RESET, bool as `flags`, or None if none has a flag; and how many end an episode."""
    highest = 0 if flags is None else flags.max()
    if flags is None or not highest:
        return None, 0
    if highest > RESET:  # it is the highest flag, and has no other beside it
        raise RemoteProtocolError(
            "malformed", "unknown bits in flags, or a tick that is RESET and ends an episode"
        )
    resets, ends = flags == RESET, flags & _DONE != 0
    if np.count_nonzero(ends[:-1] > resets[1:]):
        raise RemoteProtocolError("malformed", "an episode's end that is not followed by a RESET tick")
    return resets, int(np.count_nonzero(ends))


def _check_episodes(
    episodes: Sequence[tuple[float, int, float]], max_length: int, reward_range: RewardRange | None
) -> None:
    """At least one episode of a header."""
    totals, lengths, levels = zip(*episodes, strict=True)
    # A sum is finite only if all of it is; where it is not, it may just be large.
    if not math.isfinite(sum(totals) + sum(levels)) and not all(map(math.isfinite, totals + levels)):
        raise RemoteProtocolError("not_finite", "an episode's return or level is NaN or infinite")
    longest = max(lengths)
    if min(lengths) < 1 or longest > _MAX_LENGTH or min(levels) < 0.0 or max(levels) > 1.0:
        raise RemoteProtocolError(
            "malformed",
            f"episodes of {min(lengths)} to {longest} ticks at levels {min(levels)} to {max(levels)}",
        )
    if longest > max_length:
        raise RemoteProtocolError(
            "out_of_bounds", f"an episode of {longest} ticks; the environment ends one after {max_length}"
        )
    if reward_range is not None:
        _check_returns(totals, lengths, reward_range)


def _check_returns(totals: Sequence[float], lengths: Sequence[int], reward_range: RewardRange) -> None:
    slack = _SUM_ERROR * max([1.0, *(abs(side) for side in reward_range if math.isfinite(side))])
    low, high = reward_range[0] - slack, reward_range[1] + slack
    for total, length in zip(totals, lengths, strict=True):
        if not low * length <= total <= high * length:
            raise RemoteProtocolError(
                "out_of_bounds",
                f"a return of {total} in {length} ticks; the environment declares {reward_range}",
            )


@lru_cache(maxsize=8)
def _rounded(reward_range: RewardRange) -> tuple[np.float32, np.float32]:
    """The bounds rounded as the rewards were. Rounding keeps the order, so what was inside stays inside."""
    with np.errstate(over="ignore"):  # a bound beyond float32 is none
        return np.float32(reward_range[0]), np.float32(reward_range[1])


def _check_rewards(rewards: Array | None, resets: Array | None, reward_range: RewardRange | None) -> None:
    """`resets` is as of `_check_flags`."""
    if rewards is None:
        return
    if resets is not None and np.count_nonzero(np.logical_and(rewards, resets)):
        raise RemoteProtocolError("malformed", "a reward in a RESET tick, where no step is made")
    if reward_range is None:
        return
    low, high = _rounded(reward_range)
    if resets is not None and not low <= 0 <= high:
        rewards = rewards[~resets]
    if rewards.size and not low <= rewards.min() <= rewards.max() <= high:
        outside = rewards[(rewards < low) | (rewards > high)]
        raise RemoteProtocolError(
            "out_of_bounds", f"a reward of {outside.flat[0]}; the environment declares {reward_range}"
        )
