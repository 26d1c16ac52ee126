"""What a Q-network's last layer says of each action: its value, quantiles of its return, or a categorical return.

Each kind gives `atoms` Z numbers per action, `[..., actions * Z]` in all, turns them into values, and knows its loss
against an n-step target `partial + discount * following`. Sources: Huber loss, Mnih et al. 2015
(doi:10.1038/nature14236); quantile regression, Dabney et al. 2018 (arXiv:1710.10044); C51, Bellemare et al. 2017
(arXiv:1707.06887); dueling heads, Wang et al. 2016 (arXiv:1511.06581).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from p2prl.learn.contracts import Array
from p2prl_agents.maths import project
from p2prl_agents.ops import Ops, Tensor

Distribution = Literal["none", "quantile", "c51"]


@dataclass(frozen=True)
class Values:
    """One number per action: the value itself."""

    atoms: int = 1
    #: Values are a linear function of the outputs, so that a player's last layer can give them alone.
    linear: bool = True

    def values(self, ops: Ops, outputs: Tensor) -> Tensor:
        """Q `[..., actions]` of outputs `[..., actions * Z]`."""
        return outputs

    def loss(
        self, torch: Any, outputs: Tensor, partial: Tensor, discount: Tensor, following: Tensor
    ) -> Tensor:
        """Of each of M ticks, `[M, 1]`.

        Args:
            outputs: `[M, Z]` of the action that was done.
            partial, discount: `[M, 1]`, see `maths.n_step`.
            following: `[M, Z]`, the target network's, of the action that it bootstraps from.
        """
        target = torch.addcmul(partial, discount, following)
        return torch.nn.functional.smooth_l1_loss(outputs, target, reduction="none")


@dataclass(frozen=True)
class Quantiles:
    """Z quantiles of the return; the value is their mean."""

    #: `[Z]`, each quantile's place in (0, 1).
    levels: Tensor
    linear: bool = True

    @property
    def atoms(self) -> int:
        """Z."""
        return len(self.levels)

    def values(self, ops: Ops, outputs: Tensor) -> Tensor:
        """As in Values."""
        return _apart(outputs, self.atoms).mean(-1)

    def loss(
        self, torch: Any, outputs: Tensor, partial: Tensor, discount: Tensor, following: Tensor
    ) -> Tensor:
        """Quantile Huber loss (Dabney et al., equation 10, kappa 1): over targets the mean, over quantiles the sum."""
        target = torch.addcmul(partial, discount, following)
        error = target[:, None, :] - outputs[:, :, None]
        size = error.abs()
        close = size.clamp(max=1.0)
        huber = close * (size - 0.5 * close)
        slope = (self.levels[:, None] - (error.detach() < 0).float()).abs()
        return (slope * huber).mean(-1).sum(-1, keepdim=True)


@dataclass(frozen=True)
class Categories:
    """Shares of Z fixed returns, as logits; the value is the mean."""

    #: `[Z]`, the returns.
    support: Tensor
    linear: bool = False

    @property
    def atoms(self) -> int:
        """Z."""
        return len(self.support)

    def values(self, ops: Ops, outputs: Tensor) -> Tensor:
        """As in Values."""
        return ops.softmax(_apart(outputs, self.atoms)) @ self.support

    def loss(
        self, torch: Any, outputs: Tensor, partial: Tensor, discount: Tensor, following: Tensor
    ) -> Tensor:
        """Cross-entropy with the projected target (Bellemare et al., algorithm 1)."""
        places = torch.addcmul(partial, discount, self.support)
        target = project(torch.softmax(following, dim=-1), places, self.support)
        return -(target * torch.log_softmax(outputs, dim=-1)).sum(-1, keepdim=True)


Head = Values | Quantiles | Categories


def make_head(
    kind: Distribution, atoms: int, low: float, high: float, put: Callable[[Array], Tensor] = np.asarray
) -> Head:
    """The head of a kind; its constants as `put` places them."""
    if kind == "quantile":
        return Quantiles(put(((np.arange(atoms) + 0.5) / atoms).astype(np.float32)))
    if kind == "c51":
        return Categories(put(np.linspace(low, high, atoms, dtype=np.float32)))
    return Values()


def of_actions(outputs: Tensor, actions: Tensor, atoms: int) -> Tensor:
    """`[M, Z]` of torch outputs `[M, actions * Z]` and int64 actions `[M, 1]`."""
    if atoms == 1:
        return outputs.gather(1, actions)
    return _apart(outputs, atoms).gather(1, actions[:, :, None].expand(-1, 1, atoms)).squeeze(1)


def dueling(weights: Mapping[str, Tensor], part: str, atoms: int) -> Tensor:
    """The last layer's `part`, `weight` `[H, actions * Z]` or `bias` `[actions * Z]`, of dueling heads.

    Source: Wang et al. 2016, equation 9: Q = V + A - mean over actions of A. Both heads are linear in the same hidden
    units, so the two are one linear layer, and whoever acts with it needs nothing new.
    """
    advantage = weights[f"q/action/{part}"]
    each, value = _apart(advantage, atoms), weights[f"q/value/{part}"][..., None, :]
    return (each - each.mean(-2, keepdims=True) + value).reshape(advantage.shape)


def means(last: Array, atoms: int) -> Array:
    """`[..., actions]` of a last layer `[..., actions * Z]` whose values are the mean of Z outputs."""
    mean: Array = _apart(last, atoms).mean(-1)
    return mean


def _apart(outputs: Tensor, atoms: int) -> Tensor:
    """`[..., actions, Z]`."""
    return outputs.reshape(*outputs.shape[:-1], -1, atoms)
