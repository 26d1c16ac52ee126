"""Does an environment keep to the spaces and the reward range that it declares? If not, that is said, once for each.

Environments are often wrong about the bounds of what is observed, and nothing depends on them: such play is used as it
is. A reward outside the declared range is another matter, since a host refuses it (with one number a stranger could
spoil a run): it is taken as the nearest one inside. What is not finite is no play at all; see rollout.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from p2prl.core.spaces import EnvSpec, Leaf, leaves
from p2prl.learn.contracts import Array
from p2prl.learn.environments import NotFinite, writers_of

_LARGEST = float(np.finfo(np.float32).max)
#: A column is looked at in the first few bundles, and then in one of _SELDOM: environments that are wrong are so often.
_FIRST, _SELDOM = 8, 16


class SpaceWatch:
    """Looks at what one player's environments give.

    Attributes:
        writers: how to read each leaf out of an observation; they are to be used, because some take notes.
        low, high: a reward between these is passed on as it is.
        safe_squares: rewards whose squares' sum is not beyond this all are; a quick question, with a vague answer.
        warnings: one line each, in the order in which they were noticed.
    """

    def __init__(self, spec: EnvSpec, together: bool = False) -> None:
        """`together`: one observation is of all slots, `[slots, ...]` per leaf."""
        self.warnings: list[str] = []
        self.low, self.high = _reward_bounds(spec.reward_range)
        nearest = min(-self.low, self.high)
        self.safe_squares = nearest * nearest if nearest > 0 else -1.0
        self._env_id, self._range, self._together = spec.id, spec.reward_range, together
        self._said: set[str] = set()
        self._bundles = 0
        parts = dict(leaves(spec.observation, "obs"))
        self._bounded = {name: leaf for name, leaf in parts.items() if _bounds_something(leaf)}
        #: Integer leaves, and what was observed of them last: it may not even fit the dtype that it is stored in.
        self._integers = {name: leaf for name, leaf in parts.items() if _is_integer(leaf)}
        self._bounds = {name: _sides(leaf) for name, leaf in parts.items()}
        self._noted: dict[str, Any] = {}
        self.writers = [
            (name, self._noting(name, read) if name in self._integers else read)
            for name, read in writers_of(spec.observation, "obs")
        ]

    def looks_at(self, name: str) -> bool:
        """True if `see` may look at this leaf of an observation in whole bundles."""
        return name in self._bounded

    def all_rewarded(self, values: Array) -> bool:
        """True if rewards, float64, are all to be passed on as they are."""
        return b"\0" not in ((values >= self.low) & (values <= self.high)).tobytes()

    def reward(self, value: float) -> float:
        """What is passed on of a reward: the value itself, or the nearest one in the range.

        Raises:
            NotFinite: it is NaN, infinite, or too large for float32.
        """
        if not abs(value) <= _LARGEST:
            raise NotFinite(f"the reward {value:g}")
        if self.low <= value <= self.high:
            return value
        taken = min(max(value, self.low), self.high)
        low, high = self._range or (self.low, self.high)
        text = f"a reward of {value:g}, and its reward_range is {low:g} to {high:g}"
        self._say("reward", f"{text}: it is taken as {taken:g}; correct one of them")
        return taken

    def see(self, columns: Mapping[str, Array]) -> None:
        """Look at a bundle's observations, `[T+1, B, ...]` by leaf, which are finite; other columns are left alone."""
        self._bundles += 1
        if self._bundles <= _FIRST or self._bundles % _SELDOM == 0:
            for name, leaf in list(self._bounded.items()):
                self._look(name, leaf, columns[name])
        for name, leaf in list(self._integers.items()):
            values = np.asarray(self._noted.get(name))
            if values.dtype != leaf.dtype and values.dtype.kind in "iuf":
                self._look(name, leaf, values[None] if self._together else values[None, None])

    def _noting(self, name: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        noted = self._noted

        def note(obs: Any) -> Any:
            noted[name] = value = read(obs)
            return value

        return note

    def _look(self, name: str, leaf: Leaf, column: Array) -> None:
        """`column` is `[rows, slots, ...]`."""
        low, high = self._bounds[name]
        if low.ndim == high.ndim == 0 and column.min() >= low and column.max() <= high:
            return  # much cheaper than what follows
        outside = (column < low) | (column > high)
        if not outside.any():
            return
        self._bounded.pop(name, None)
        self._integers.pop(name, None)
        at = np.unravel_index(int(outside.argmax()), outside.shape)
        index = tuple(int(place) for place in at[2:])
        least, most = (float(np.broadcast_to(side, leaf.shape)[index]) for side in (low, high))
        place = f"[{', '.join(map(str, index))}]" if index else ""
        self._say(name, f"{name}{place} was {float(column[at]):g}, and its space says {least:g} to {most:g}")

    def _say(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self.warnings.append(f"{self._env_id}: {text}")


def _reward_bounds(declared: tuple[float, float] | None) -> tuple[float, float]:
    """Rounded outwards to float32, as which rewards are stored: what a host accepts stays as it is."""
    if declared is None:
        return -_LARGEST, _LARGEST
    with np.errstate(over="ignore"):
        low, high = (float(np.float32(side)) for side in declared)
    return max(min(declared[0], low), -_LARGEST), min(max(declared[1], high), _LARGEST)


def _sides(leaf: Leaf) -> tuple[Array, Array]:
    """Low and high, each one number for all elements or one for each."""
    low, high = (
        np.array(side).reshape(leaf.shape if len(side) > 1 else ()) for side in (leaf.low, leaf.high)
    )
    return low, high


def _is_integer(leaf: Leaf) -> bool:
    return np.dtype(leaf.dtype).kind in "iu" and 0 not in leaf.shape


def _bounds_something(leaf: Leaf) -> bool:
    """False if each value of the leaf's dtype is inside its bounds."""
    kind = np.dtype(leaf.dtype).kind
    if kind == "b" or 0 in leaf.shape:
        return False
    info = np.iinfo(leaf.dtype) if kind in "iu" else None
    least, most = (info.min, info.max) if info else (-np.inf, np.inf)
    return any(low > least for low in leaf.low) or any(high < most for high in leaf.high)
