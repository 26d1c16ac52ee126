"""Policies' distributions over any action space: categorical parts and Gaussian parts, drawn together.

A Discrete action is one categorical part, a MultiDiscrete one part per element, a MultiBinary one of two per element, a
float Box one Gaussian per element with a standard deviation that does not depend on the state. Dict and Tuple actions
are all the parts of their leaves. Parts are independent given the observation, so log-probabilities and entropies add
up.

With `apart` the log-probabilities of the parts stay apart, for a learner that clips each part's ratio by itself.

A Gaussian draw may lie outside the box; what the environment gets is clipped to it, and what the policy drew travels
beside it as the field `drawn`, because its probability is the one that counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi, prod
from typing import Any

import numpy as np

from p2prl.core.spaces import EnvSpec, Leaf, leaves
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Batch, Field, Tree
from p2prl.learn.spaces import join
from p2prl_agents.ops import Tensor

#: Of a categorical part's padding: never drawn, and no gradient.
_NEVER = np.float32(-1e9)
#: Added to a time that may be drawn as 0.
_TINY = np.float32(1e-30)
_HALF_LOG_2PI = 0.5 * log(2 * pi)


@dataclass(frozen=True)
class _Place:
    """Where a leaf's parts are: columns of the categorical (or Gaussian) actions. Bounds are one number a part."""

    leaf: Leaf
    parts: slice
    low: Array
    high: Array


class Actions:
    """The joint distribution over an environment's actions, given a vector of outputs.

    Attributes:
        outputs: K, how many outputs of the network it takes: logits of all categorical parts, then means.
        categories: sizes of the categorical parts.
        gaussians: D, the number of Gaussian parts.
        log_probs: the shape of a draw's log-probability: `()`, or with `apart` `(parts,)`, categorical ones first.
    """

    def __init__(self, env: EnvSpec, agent: str, apart: bool = False) -> None:
        """Raises UsageError for an action it cannot draw."""
        self._space = env.action
        self._categorical: dict[str, _Place] = {}
        self._gaussian: dict[str, _Place] = {}
        sizes: list[int] = []
        self.gaussians = 0
        for name, leaf in leaves(env.action, "action"):
            if leaf.kind in ("discrete", "multi_discrete", "multi_binary"):
                place = _place(leaf, len(sizes), np.int64)
                self._categorical[name] = place
                sizes += (place.high - place.low + 1).tolist()
            elif leaf.dtype.startswith("float"):
                self._gaussian[name] = _place(leaf, self.gaussians, np.float64)
                self.gaussians += prod(leaf.shape)
            else:
                raise UsageError(f"{agent} cannot draw {name} of {env.id}: a Box of {leaf.dtype}")
        self.categories = tuple(sizes)
        self.log_probs = (len(sizes) + self.gaussians,) if apart else ()
        self._index, self._mask = _layout(sizes)
        #: All parts have as many categories: then their logits lie as they are to lie, without padding.
        self._alike = len(set(sizes)) == 1
        self.outputs = sum(sizes) + self.gaussians

    def fields(self) -> dict[str, Field]:
        """`log_prob` of what was drawn, and `drawn` where there are Gaussians."""
        fields = {"log_prob": Field("float32", self.log_probs)}
        if self.gaussians:
            fields["drawn"] = Field("float32", (self.gaussians,))
        return fields

    # --- on the player

    def draw(
        self, outputs: Array, log_std: Array | None, rng: np.random.Generator | None
    ) -> tuple[Tree, dict[str, Array]]:
        """Actions and the fields of `[rows, K]` outputs; without a generator the likeliest action."""
        rows = len(outputs)
        picked, drawn = np.zeros((rows, 0), np.int64), np.zeros((rows, 0), np.float32)
        parts: list[Array] = [] if self.outputs else [np.zeros((rows, 0), np.float32)]
        if self.categories:
            logits = self._logits(outputs)
            chances = np.exp(logits)
            # Among exponential variables of these rates each is the first with its share of the chances: as the Gumbel
            # trick, and faster.
            times = None if rng is None else rng.standard_exponential(logits.shape, np.float32)
            picked = (logits if times is None else chances / (times + _TINY)).argmax(axis=-1)
            first = np.arange(0, logits.size, logits.shape[-1]).reshape(picked.shape)
            parts.append(logits.ravel()[first + picked] - np.log(chances.sum(axis=-1)))
        if self.gaussians:
            assert log_std is not None
            mean, std = outputs[:, -self.gaussians :], np.exp(log_std)
            noise = np.zeros_like(mean) if rng is None else rng.standard_normal(mean.shape, np.float32)
            drawn = mean + std * noise
            parts.append(-0.5 * noise**2 - log_std - _HALF_LOG_2PI)
        log_prob: Array = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        if not self.log_probs:
            log_prob = log_prob[:, 0] if log_prob.shape[1] == 1 else log_prob.sum(axis=-1)
        fields = {"log_prob": log_prob.astype(np.float32, copy=False)}
        if self.gaussians:
            fields["drawn"] = drawn.astype(np.float32)
        return self._tree(picked, drawn), fields

    def _tree(self, picked: Array, drawn: Array) -> Tree:
        columns: dict[str, Array] = {}
        for name, place in self._categorical.items():
            values = picked[:, place.parts] + place.low
            columns[name] = values.astype(place.leaf.dtype).reshape(len(picked), *place.leaf.shape)
        for name, place in self._gaussian.items():
            values = np.clip(drawn[:, place.parts], place.low, place.high)
            columns[name] = values.astype(place.leaf.dtype).reshape(len(drawn), *place.leaf.shape)
        return join(self._space, "action", columns)

    def _logits(self, outputs: Array) -> Array:
        """`[rows, parts, most]`: padded, and moved so that each part's largest is 0."""
        if self._alike:
            logits = outputs[:, : self._index.size].reshape(len(outputs), *self._index.shape)
        else:
            logits = outputs[:, self._index] + self._mask
        moved: Array = logits - logits.max(axis=-1, keepdims=True)
        return moved

    # --- in the learner

    def taken(self, batch: Batch) -> tuple[Array, Array]:
        """What was drawn: categories int64 `[N, T, parts]` and Gaussians float32 `[N, T, D]`."""
        shape = batch["flags"].shape
        picked = np.zeros((*shape, len(self.categories)), np.int64)
        for name, place in self._categorical.items():
            values = batch[name].reshape(*shape, len(place.low)).astype(np.int64)
            picked[..., place.parts] = values - place.low
        drawn = batch["drawn"] if self.gaussians else np.zeros((*shape, 0), np.float32)
        return picked, drawn

    def judge(
        self, torch: Any, outputs: Tensor, log_std: Tensor | None, picked: Tensor, drawn: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of what was taken, `[rows, *log_probs]`, and entropies, `[rows]`; outputs `[rows, K]`."""
        parts: list[Tensor] = [torch.zeros((outputs.shape[0], 0), device=outputs.device)]
        entropy: Tensor = torch.zeros(outputs.shape[0], device=outputs.device)
        if self.categories:
            index = torch.from_numpy(self._index).to(outputs.device)
            mask = torch.from_numpy(self._mask).to(outputs.device)
            logp = torch.log_softmax(outputs[:, index] + mask, dim=-1)
            parts.append(logp.gather(-1, picked[..., None]).squeeze(-1))
            entropy = entropy - (logp.exp() * logp).sum(dim=(-1, -2))
        if self.gaussians:
            mean = outputs[:, -self.gaussians :]
            assert log_std is not None
            off = (drawn - mean) / log_std.exp()
            parts.append(-0.5 * off**2 - log_std - _HALF_LOG_2PI)
            entropy = entropy + (log_std + 0.5 + _HALF_LOG_2PI).sum()
        log_prob: Tensor = torch.cat(parts, dim=-1)
        return log_prob if self.log_probs else log_prob.sum(dim=-1), entropy


def _layout(sizes: list[int]) -> tuple[Array, Array]:
    """Which outputs are each part's logits, int64 `[parts, most]`, and what is added, float32: 0, or never."""
    most = max(sizes, default=0)
    index, mask = np.zeros((len(sizes), most), np.int64), np.full((len(sizes), most), _NEVER)
    at = 0
    for part, size in enumerate(sizes):
        index[part, :size], mask[part, :size] = np.arange(at, at + size), 0
        at += size
    return index, mask


def _place(leaf: Leaf, first: int, dtype: type[np.generic]) -> _Place:
    count = prod(leaf.shape)
    low, high = (np.full(count, bound, np.float64).astype(dtype) for bound in (leaf.low, leaf.high))
    return _Place(leaf, slice(first, first + count), low, high)
