"""A multilayer perceptron in torch whose gradient is written out: products of matrices, and little between them.

What autograd does beside the products of a small network (a graph each time, fresh memory for each gradient, adding it
up) costs about as much as they do. Here gradients go straight to where the optimiser reads them.

Source: back-propagation, Rumelhart et al. 1986, doi:10.1038/323533a0. Where g is the gradient of a layer's y = x W + b,
that of W is x^T g, that of b the sum of g's rows, and that of x is g W^T. Of y = tanh(x) that of x is g (1 - y^2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from p2prl_agents.networks import Activation
from p2prl_agents.ops import Tensor


class Perceptron:
    """Dense layers with ReLU or tanh between them, as `Network.chain` names them. On the CPU.

    Args:
        layers: their names, in order.
        weights: `NAME/weight` `[inputs, outputs]` and `NAME/bias` `[outputs]`, tensors that gather no gradients
            themselves. They may change between two calls.
        gradients: where `backward` writes those of `weights`; None if it is not called.
        activation: between layers.
    """

    def __init__(
        self,
        layers: Sequence[str],
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor] | None = None,
        activation: Activation = "relu",
    ) -> None:
        import torch  # here, so that a player never pays for it

        self._torch = torch
        self._weights = [(weights[f"{name}/weight"], weights[f"{name}/bias"]) for name in layers]
        self._gradients = [
            (gradients[f"{name}/weight"], gradients[f"{name}/bias"])
            for name in layers
            if gradients is not None
        ]
        aten = torch.ops.aten
        relu = activation == "relu"
        self._activate = _relu if relu else _tanh
        #: From the gradient of its outputs and the outputs themselves makes that of its inputs.
        self._activated = (
            partial(aten.threshold_backward.grad_input, threshold=0)
            if relu
            else aten.tanh_backward.grad_input
        )
        #: What each layer was given last.
        self._inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """`[rows, outputs]` of `[rows, inputs]`."""
        self._inputs = [x]
        *hidden, (weight, bias) = self._weights
        for each, its_bias in hidden:
            x = self._activate(self._torch.addmm(its_bias, x, each))
            self._inputs.append(x)
        return self._torch.addmm(bias, x, weight)

    def backward(self, gradient: Tensor) -> None:
        """Write each weight's gradient.

        Args:
            gradient: that of the outputs, `[M, outputs]`, of the first M rows that `forward` was given last; of others
                it is taken to be 0.
        """
        mm, rows = self._torch.mm, gradient.shape[0]
        for at in reversed(range(len(self._weights))):
            x = self._inputs[at][:rows]
            of_weight, of_bias = self._gradients[at]
            mm(x.t(), gradient, out=of_weight)
            self._torch.sum(gradient, 0, out=of_bias)
            if at:
                gradient = mm(gradient, self._weights[at][0].t())
                self._activated(gradient, x, grad_input=gradient)


def _relu(x: Tensor) -> Tensor:
    return x.relu_()


def _tanh(x: Tensor) -> Tensor:
    """Numpy's is the faster one of many; see ops.py."""
    there = x.numpy()
    np.tanh(there, out=there)
    return x
