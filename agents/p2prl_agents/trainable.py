"""What torch learners share: weights in one flat tensor, Adam, a gradient that is judged before it is used.

All weights lie end to end in one tensor, so that optimiser, norm and target networks cost one kernel each, however many
layers there are. The named weights are views into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from p2prl.learn.contracts import Array
from p2prl_agents.adam import Adam
from p2prl_agents.finite import FiniteSteps

_SAVED = ("parameters", "adam_mean", "adam_variance")


class Trainable:
    """Named weights that Adam moves (Kingma & Ba 2015, arXiv:1412.6980).

    Args:
        initial: float32 arrays by name.
        eps: Adam's.

    Attributes:
        flat: all weights, `[P]`.
        tensors: each weight by name, a view into `flat` that gathers gradients.
    """

    def __init__(self, initial: Mapping[str, Array], device: str, eps: float = 1e-5) -> None:
        import torch  # here, so that a player never pays for it

        self._torch = torch
        self._device = torch.device(device)
        self._shapes = {name: np.shape(values) for name, values in initial.items()}
        drawn = np.concatenate([np.ravel(values) for values in initial.values()]).astype(np.float32)
        self.flat = torch.from_numpy(drawn).to(self._device)
        self._grad = torch.zeros_like(self.flat)
        self.tensors = self.views(self.flat)
        for (name, tensor), grad in zip(self.tensors.items(), self.views(self._grad).values(), strict=True):
            self.tensors[name] = tensor.detach().requires_grad_(True)
            self.tensors[name].grad = grad
        self._adam = Adam(self.flat, self._grad, eps)
        self._norm = torch.linalg.vector_norm
        self._steps = FiniteSteps(self._adam, self._device.type)

    def views(self, flat: Any) -> dict[str, Any]:
        """Each weight by name as a view into a flat tensor or array `[P]`, such as a target network's."""
        named, at = {}, 0
        for name, shape in self._shapes.items():
            size = prod(shape)
            named[name] = flat[at : at + size].reshape(shape)
            at += size
        return named

    def step(self, loss: Any, learning_rate: float, max_norm: float) -> float:
        """One step of Adam down `loss`, its gradient scaled down to `max_norm`.

        Returns:
            The gradient's norm; not finite if it is not or the loss is not. Then nothing was changed.
        """
        if not np.isfinite(loss.item()):
            return float("nan")
        self.differentiate(loss)
        return self.descend(learning_rate, max_norm)

    def descend(self, learning_rate: float, max_norm: float) -> float:
        """As `step`, but with the gradient that is there already, of a loss that is finite."""
        norm = float(self._norm(self._grad))
        if not np.isfinite(norm):
            return norm
        if norm > max_norm:
            self._grad.mul_(max_norm / norm)
        self._adam.step(learning_rate)
        return norm

    def differentiate(self, loss: Any) -> None:
        """The gradient of `loss`, for `step_ahead`."""
        self._grad.zero_()
        loss.backward()

    def step_ahead(self, loss: Any, learning_rate: float, max_norm: float) -> str:
        """As `step`, but with the gradient that is there already; and a GPU is not waited for: see finite.py.

        Args:
            loss: a number, or a scalar tensor.

        Returns:
            Why nothing was changed, or an empty string. A GPU says so once in a while for several steps.
        """
        norm = self._norm(self._grad)
        if self._device.type != "cpu":
            self._grad.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
        elif norm.item() > max_norm:
            self._grad.mul_(max_norm / norm.item())
        return self._steps.step(loss, norm, learning_rate)

    def snapshot(self) -> tuple[Any, ...]:
        """The weights, Adam's moments and count as they are now, for `restore`."""
        return tuple(tensor.clone() for tensor in self._state())

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """As if nothing had been done since `snapshot`."""
        for tensor, before in zip(self._state(), snapshot, strict=True):
            tensor.copy_(before)

    def arrays(self) -> dict[str, Array]:
        """Copies of the weights by name."""
        return self.views(self.flat.detach().to("cpu", copy=True).numpy())

    def save(self) -> dict[str, Array]:
        """The weights, Adam's moments and count, as flat arrays."""
        *tensors, count = self._state()
        saved = {
            name: tensor.to("cpu", copy=True).numpy() for name, tensor in zip(_SAVED, tensors, strict=True)
        }
        return {**saved, "adam_steps": np.array(int(count.item()), np.int64)}

    def load(self, state: Mapping[str, Array]) -> None:
        """Take back what `save` gave."""
        *tensors, count = self._state()
        for name, tensor in zip(_SAVED, tensors, strict=True):
            tensor.copy_(self._torch.from_numpy(np.array(state[name])))
        count.fill_(float(state["adam_steps"]))

    def _state(self) -> tuple[Any, ...]:
        return self.flat, self._adam.mean, self._adam.variance, self._adam.count
