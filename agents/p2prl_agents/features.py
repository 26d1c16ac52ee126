"""Observations of any supported space as one float32 vector, alike on players (trees) and trainers (columns)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from p2prl.core.spaces import EnvSpec, Leaf, leaves
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Tree
from p2prl.learn.spaces import split

#: One-hot vectors longer than this are not an MLP's business.
MAX_CATEGORIES = 4096
#: A Box of integers must have bounds; those who have none to give say what its dtype holds.
MAX_RANGE = 2**31


class Features:
    """Flattens an environment's observations.

    Discrete leaves become one-hot. Boxes of integers are scaled by their own bounds to [0, 1]: bytes from 0 to 255 too,
    while planes of 0 and 1 stay as they are. Floats stay as they are: an agent that wants them normalised does so.

    Attributes:
        size: the vector's length.
    """

    def __init__(self, env: EnvSpec, names: Collection[str] | None = None) -> None:
        """Of all leaves, or of those in `names`. Raises UsageError where a discrete leaf has too many categories."""
        self._space = env.observation
        self._parts: list[tuple[str, Leaf, Callable[[Array], Array]]] = []
        self.size = 0
        for name, leaf in leaves(env.observation, "obs"):
            if names is not None and name not in names:
                continue
            size, convert = _converter(env.id, name, leaf)
            self._parts.append((name, leaf, convert))
            self.size += size

    def of_tree(self, obs: Tree) -> Array:
        """float32 `[slots, size]` of an observation tree `[slots, ...]`."""
        return self.of_columns(split(self._space, "obs", obs))

    def of_columns(self, columns: Mapping[str, Array]) -> Array:
        """float32 `[..., size]` of columns `[..., *shape]` by name."""
        parts = [self._flat(columns[name], leaf, convert) for name, leaf, convert in self._parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)

    def _flat(self, values: Array, leaf: Leaf, convert: Callable[[Array], Array]) -> Array:
        batch = values.shape[: values.ndim - len(leaf.shape)]
        return convert(values.reshape(*batch, -1))


def _converter(env_id: str, name: str, leaf: Leaf) -> tuple[int, Callable[[Array], Array]]:
    """The length of a leaf's vector, and what makes it out of `[..., elements]`."""
    elements = int(np.prod(leaf.shape, dtype=np.int64))
    if leaf.kind in ("discrete", "multi_discrete"):
        low = np.broadcast_to(np.array(leaf.low, np.int64), elements)
        count = np.broadcast_to(np.array(leaf.high, np.int64), elements) - low + 1
        if count.sum() > MAX_CATEGORIES:
            raise UsageError(
                f"{env_id}: {name} has {count.sum()} categories; this agent takes {MAX_CATEGORIES}"
            )
        return int(count.sum()), _one_hot(low, count)
    if leaf.kind == "box" and np.dtype(leaf.dtype).kind in "iu":
        return elements, _scaled(leaf)
    return elements, lambda values: values.astype(np.float32, copy=False)


def _scaled(leaf: Leaf) -> Callable[[Array], Array]:
    """To [0, 1] by the leaf's bounds, those elements that have any: a range of 32 bits is none."""
    low, high = np.broadcast_arrays(np.array(leaf.low), np.array(leaf.high))
    bounded = high - low < MAX_RANGE
    # Where float32 holds every integer, it is enough.
    exact = np.float32 if np.abs([low, high]).max(initial=0.0, where=bounded) < 2**24 else np.float64
    first = np.where(bounded, low, 0.0).astype(exact)
    span = np.where(bounded & (high > low), high - low, 1.0).astype(exact)
    shifted, stretched = bool(first.any()), bool((span != 1).any())

    def convert(values: Array) -> Array:
        out: Any = values.astype(exact)
        if shifted:
            out -= first
        if stretched:
            out /= span
        return np.asarray(out, np.float32)

    return convert


def _one_hot(low: Array, count: Array) -> Callable[[Array], Array]:
    first = np.concatenate(([0], np.cumsum(count)[:-1]))
    size = int(count.sum())

    def convert(values: Array) -> Array:
        # An observation outside its space would address another leaf's places.
        place = first + np.clip(values.astype(np.int64) - low, 0, count - 1)
        out = np.zeros((*values.shape[:-1], size), np.float32)
        np.put_along_axis(out, place, np.float32(1), axis=-1)
        return out

    return convert
