"""The few operations that networks are made of, once for numpy and once for torch.

A network's forward pass is written once, over these (networks.py). Players run it in numpy and never import torch;
learners run it in torch, which differentiates it. Weights are `[inputs, outputs]`, except of convolutions, which are
`[outputs, channels, height, width]` as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

#: A numpy array, or a torch tensor.
Tensor = Any
#: Elements from which on numpy's tanh on the CPU is worth the way there: torch's takes about 2 ns each, numpy's 0.2.
_MANY = 8192


class Ops(Protocol):
    """What both sides can do."""

    def dense(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x @ weight + bias, `[rows, inputs]` to `[rows, outputs]`."""

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        """A convolution without padding, `[rows, channels, height, width]`."""

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0); may reuse x."""

    def tanh(self, x: Tensor) -> Tensor:
        """tanh(x)."""

    def softmax(self, x: Tensor) -> Tensor:
        """Shares along the last axis."""

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """Joined along the last axis."""

    def stack(self, parts: Sequence[Tensor]) -> Tensor:
        """Stacked along a new first axis."""

    def detach(self, x: Tensor) -> Tensor:
        """x, through which no gradient flows."""


class NumpyOps:
    """In numpy, on a player."""

    def dense(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """As in Ops."""
        out = x @ weight
        out += bias
        return out

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        """As in Ops: patches laid out as rows, one matrix product."""
        count, kernel = len(weight), weight.shape[2:]
        patches = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3))[:, :, ::stride, ::stride]
        rows, _, height, width = patches.shape[:4]
        flat = patches.transpose(0, 2, 3, 1, 4, 5).reshape(rows * height * width, -1)
        out = flat @ weight.reshape(count, -1).T + bias
        return out.reshape(rows, height, width, count).transpose(0, 3, 1, 2)

    def relu(self, x: Tensor) -> Tensor:
        """As in Ops, in place."""
        return np.maximum(x, 0, out=x)

    def tanh(self, x: Tensor) -> Tensor:
        """As in Ops."""
        return np.tanh(x)

    def softmax(self, x: Tensor) -> Tensor:
        """As in Ops."""
        raised = np.exp(x - x.max(axis=-1, keepdims=True))
        return raised / raised.sum(axis=-1, keepdims=True)

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """As in Ops."""
        return np.concatenate(parts, axis=-1)

    def stack(self, parts: Sequence[Tensor]) -> Tensor:
        """As in Ops."""
        return np.stack(parts)

    def detach(self, x: Tensor) -> Tensor:
        """As in Ops: there are none here."""
        return x


class TorchOps:
    """In torch, in a learner."""

    def __init__(self) -> None:
        import torch  # here, so that a player never pays for it

        self._torch = torch
        self._many_tanh = _through_numpy(torch)

    def dense(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """As in Ops."""
        return self._torch.addmm(bias, x, weight)

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        """As in Ops."""
        return self._torch.nn.functional.conv2d(x, weight, bias, stride=stride)

    def relu(self, x: Tensor) -> Tensor:
        """As in Ops, in place."""
        return x.relu_()

    def tanh(self, x: Tensor) -> Tensor:
        """As in Ops."""
        if x.numel() < _MANY or x.device.type != "cpu":
            return self._torch.tanh(x)
        return self._many_tanh.apply(x)

    def softmax(self, x: Tensor) -> Tensor:
        """As in Ops."""
        return self._torch.softmax(x, dim=-1)

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """As in Ops."""
        return self._torch.cat(list(parts), dim=-1)

    def stack(self, parts: Sequence[Tensor]) -> Tensor:
        """As in Ops."""
        return self._torch.stack(list(parts))

    def detach(self, x: Tensor) -> Tensor:
        """As in Ops."""
        return x.detach()


def _through_numpy(torch: Any) -> Any:
    """tanh as a player computes it, which torch can differentiate."""

    class Tanh(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            out = torch.from_numpy(np.tanh(x.detach().numpy()))
            context.save_for_backward(out)
            return out

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            (out,) = context.saved_tensors
            return torch.ops.aten.tanh_backward(gradient, out)

    return Tanh
