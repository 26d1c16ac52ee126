"""A sum tree: many weights, of which one is drawn as likely as its share of all, in logarithmic time.

As in Schaul et al. 2016 (arXiv:1511.05952, appendix B.2.1), but laid out for numpy: a node has `FAN` children instead
of two, and the uppermost level is searched as one. Each sum is computed from its children anew whenever one of them
changes, so that no error adds up.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from p2prl.wire.blocks import Array

#: Children per node: more cost time, fewer cost memory.
FAN = 16
#: The uppermost level has at most so many nodes.
_TOP = 1024


class SumTree:
    """Float32 leaves and their float64 sums.

    A leaf below 0 is set aside: it weighs nothing, and keeps its value for the day on which it counts again.

    Args:
        leaves: how many; all 0 at first.

    Attributes:
        leaves: float32 `[leaves]`, to be read; written with `put` and `fill` alone.
    """

    def __init__(self, leaves: int) -> None:
        sizes = _level_sizes(leaves)
        #: The leaves, then the sums over them, and so on. All but the uppermost are padded to whole nodes.
        self._levels: list[Array] = [np.zeros(sizes[0], np.float32)]
        self._levels += [np.zeros(size, np.float64) for size in sizes[1:]]
        self.leaves: Array = self._levels[0][:leaves]

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(_weights(self._levels[-1]).sum(dtype=np.float64))

    def put(self, at: Array, values: Array) -> None:
        """Set scattered leaves. Where one is named twice, the last value holds."""
        self.leaves[at] = values
        node = at // FAN
        for lower, upper in pairwise(self._levels):
            upper[node] = _sums(lower.reshape(-1, FAN)[node])
            node = node // FAN

    def fill(self, start: int, values: Array) -> None:
        """Set neighbouring leaves, from `start` on."""
        if not len(values):
            return
        self.leaves[start : start + len(values)] = values
        first, last = start // FAN, (start + len(values) - 1) // FAN
        for lower, upper in pairwise(self._levels):
            upper[first : last + 1] = _sums(lower[first * FAN : (last + 1) * FAN].reshape(-1, FAN))
            first, last = first // FAN, last // FAN

    def find(self, places: Array) -> Array:
        """The leaves on which these places fall, int64 `[n]`, if all weights are laid end to end from 0 to `total`.

        A leaf without weight is never found. There must be one with weight.

        Args:
            places: float64 `[n]`, each in [0, total).
        """
        ends = np.cumsum(_weights(self._levels[-1]), dtype=np.float64)
        places = np.minimum(places, np.nextafter(ends[-1], 0.0))
        node = np.searchsorted(ends, places, side="right")
        places = places - np.where(node > 0, ends[node - 1], 0.0)
        for level in self._levels[-2::-1]:
            child, places = _child(_weights(level.reshape(-1, FAN).take(node, axis=0)), places)
            node = node * FAN + child
        return node


def draw(tree: SumTree, count: int, rng: np.random.Generator) -> Array:
    """`count` leaves, int64, with replacement, each as likely as its share of the total.

    One from each of `count` equal parts of it: stratified, as in the paper. The likelihood is the same, the noise less.
    """
    return tree.find((np.arange(count) + rng.random(count)) * (tree.total / count))


def tree_bytes(leaves: int) -> int:
    """Memory of a tree with so many leaves: about 4.5 bytes a leaf."""
    sizes = _level_sizes(leaves)
    return 4 * sizes[0] + 8 * sum(sizes[1:])


def _level_sizes(leaves: int) -> list[int]:
    sizes = [max(1, leaves)]
    while sizes[-1] > _TOP:
        nodes = -(-sizes[-1] // FAN)
        sizes[-1:] = [nodes * FAN, nodes]
    return sizes


def _weights(values: Array) -> Array:
    """What the values weigh: those below 0 nothing."""
    return np.maximum(values, 0.0)


def _sums(blocks: Array) -> Array:
    sums: Array = _weights(blocks).sum(axis=1, dtype=np.float64)
    return sums


def _child(weights: Array, places: Array) -> tuple[Array, Array]:
    """Of each row `[n, FAN]` the child on which its place falls, and the place inside that child."""
    ends = np.empty((FAN, len(places)))
    ends[0] = weights[:, 0]
    for k in range(1, FAN):  # much faster than a cumsum over so short an axis
        np.add(ends[k - 1], weights[:, k], out=ends[k])
    # A sum and a running sum may round apart: a place beyond the last child with weight belongs to that child.
    places = np.minimum(places, np.nextafter(ends[-1], 0.0))
    child = (ends > places).argmax(axis=0)
    before = ends[child - 1, np.arange(len(places))]
    return child, places - np.where(child > 0, before, 0.0)
