"""Gradient steps that keep a loss or gradient that is not finite away from the parameters, without slowing a device.

To read a number from a GPU is to wait for it. So on the CPU each update is looked at before it is made. On a device the
optimiser's kernel is told, by a tensor that lies there too, to change nothing (as torch.amp.GradScaler does), and we
look once in so many updates whether that happened; after it did at each one, until as many went well.
"""

from __future__ import annotations

import math
from typing import Any

from p2prl_agents.adam import Adam


class FiniteSteps:
    """Makes Adam's steps, or says why not.

    Args:
        adam: where it is not `fused`, each update is waited for.
        device: where the parameters are, `cpu` or another.
        every: updates between two looks at a device.
    """

    def __init__(self, adam: Adam, device: str, every: int = 50) -> None:
        self._adam = adam
        self._look_first = device == "cpu" or not adam.fused
        self._every = every
        #: Updates since the last look at the device, and how many more are to be looked at one by one.
        self._unseen = self._watched = 0
        #: On the device: how many steps it left out since the last look.
        self._left_out: Any = None

    def step(self, loss: Any, norm: Any, learning_rate: float) -> str:
        """One step with the gradients as they are; why it was left out, or an empty string.

        Args:
            loss, norm: scalar tensors, or numbers on the CPU: the loss, and the norm of its gradient before clipping.

        Returns:
            A text for `Update.skipped`. Of several steps that a device left out between two looks, the first look says
            so for all of them, once.
        """
        if not self._look_first:
            return self._step_on_device(loss, norm, learning_rate)
        why = _why(float(loss), float(norm))
        if not why:
            self._adam.step(learning_rate)
        return why

    def _step_on_device(self, loss: Any, norm: Any, learning_rate: float) -> str:
        bad = (loss + norm).isfinite().logical_not().float()
        self._left_out = bad if self._left_out is None else self._left_out + bad
        self._adam.step(learning_rate, left_out=bad)
        self._unseen += 1
        self._watched = max(0, self._watched - 1)
        if self._unseen < self._every and not self._watched:
            return ""
        return self._look(loss, norm)

    def _look(self, loss: Any, norm: Any) -> str:
        """Wait for the device."""
        left_out, seen = int(self._left_out.item()), self._unseen
        self._left_out, self._unseen = None, 0
        if not left_out:
            return ""
        self._watched = self._every + 1
        why = _why(float(loss), float(norm)) or "the loss or the gradient was not finite"
        return why if seen == 1 else f"{why} ({left_out} of the last {seen} updates)"


def _why(loss: float, norm: float) -> str:
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    return "" if math.isfinite(norm) else f"the gradient's norm is {norm}"
