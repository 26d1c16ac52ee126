"""Features by their running mean and deviation. In numpy alone: players apply what a learner has seen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from p2prl.learn.contracts import Array


class Normaliser:
    """Running mean and variance of feature vectors, merged batch by batch (Chan et al. 1979), in float64.

    It lives in the learner; what actors need of it travels with the weights.

    Attributes:
        count: rows taken in so far.
    """

    #: Normalised values are clipped to this.
    CLIP = 10.0

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self._mean, self._m2 = np.zeros(size), np.zeros(size)

    @property
    def seen(self) -> bool:
        """True once there is something to scale by."""
        return self.count > 0

    def see(self, x: Array) -> None:
        """Take in features `[rows, size]`."""
        if not len(x):
            return
        rows, off_mean = len(x), x.astype(np.float64)
        ones = np.ones(rows)  # products: numpy's sums along a first axis are slow where rows are short
        mean = ones @ off_mean / rows
        off_mean -= mean
        off_mean *= off_mean
        m2 = ones @ off_mean
        total, off = self.count + rows, mean - self._mean
        self._m2 += m2 + off**2 * (self.count * rows / total)
        self._mean += off * (rows / total)
        self.count = total

    def scale(self) -> dict[str, Array]:
        """`norm/mean` and `norm/scale`, float32 `[size]`, for `normalised`. What never varies keeps its unit."""
        std = np.sqrt(self._m2 / max(self.count, 1.0))
        scale = np.where(std > 1e-6, 1.0 / np.maximum(std, 1e-6), 1.0)
        return {"norm/mean": self._mean.astype(np.float32), "norm/scale": scale.astype(np.float32)}

    def save(self) -> dict[str, Array]:
        """All of it."""
        return {
            "norm_mean": self._mean.copy(),
            "norm_m2": self._m2.copy(),
            "norm_count": np.array(self.count),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Take back what `save` gave."""
        self._mean, self._m2 = np.array(state["norm_mean"]), np.array(state["norm_m2"])
        self.count = float(state["norm_count"])


def normalised(x: Array, weights: Mapping[str, Array]) -> Array:
    """Features `[..., size]` by a Normaliser's `scale`, if `weights` has one."""
    if "norm/mean" not in weights:
        return x
    scaled: Array = x - weights["norm/mean"]
    scaled *= weights["norm/scale"]
    np.maximum(scaled, -Normaliser.CLIP, out=scaled)  # a quarter of what np.clip costs
    return np.minimum(scaled, Normaliser.CLIP, out=scaled)
