"""Observations of any supported space as one float32 vector, alike on players (trees) and trainers (columns)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from p2prl.core.spaces import EnvSpec, Leaf, leaves
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Tree
from p2prl.learn.spaces import split

#: One-hot vectors longer than this are not an MLP's business.
MAX_CATEGORIES = 4096


class Features:
    """Flattens an environment's observations. Discrete leaves become one-hot, bytes are scaled to [0, 1].

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
    if leaf.dtype == "uint8" and leaf.kind == "box":
        return elements, lambda values: values.astype(np.float32) / np.float32(255)
    return elements, lambda values: values.astype(np.float32, copy=False)


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
