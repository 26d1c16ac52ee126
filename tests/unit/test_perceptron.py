"""A perceptron whose gradient is written out: torch's own, by another way."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from p2prl_agents.networks import Activation, Network, Observations
from p2prl_agents.ops import TorchOps
from p2prl_agents.perceptron import Perceptron
from p2prl_agents.rows import RowNetwork

from p2prl.learn.spaces import env_spec

CARTPOLE = env_spec(gym.make("CartPole-v1"), "CartPole-v1")
PICTURES = env_spec(
    gym.wrappers.TransformObservation(
        gym.make("CartPole-v1"),
        lambda obs: np.zeros((36, 36, 1), np.uint8),
        gym.spaces.Box(0, 255, (36, 36, 1), np.uint8),
    ),
    "pictures",
)


@pytest.mark.parametrize("hidden", [(), (7,), (9, 6), (8, 8, 5)])
@pytest.mark.parametrize("rows", [10, 4])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_its_outputs_and_gradients_are_those_of_autograd(
    hidden: tuple[int, ...], rows: int, activation: Activation
) -> None:
    """Also where some of the rows have no part in the loss."""
    network = Network(Observations(CARTPOLE), "q/", hidden, {"action": 3}, activation=activation)
    weights = {name: torch.from_numpy(each) for name, each in network.initial(1).items()}
    rng = np.random.default_rng(2)
    x, slope = (torch.from_numpy(rng.normal(size=(10, size)).astype(np.float32)) for size in (4, 3))
    # What was there before is written over.
    gradients = {name: torch.full_like(each, 9.0) for name, each in weights.items()}
    ours = Perceptron(network.chain(), weights, gradients, network.activation)
    outputs = ours.forward(x)
    ours.backward(slope[:rows])

    leaves = {name: each.clone().requires_grad_() for name, each in weights.items()}
    theirs = network.step(TorchOps(), leaves, {"features": x}, {})[0]["action"]
    (theirs[:rows] * slope[:rows]).sum().backward()
    torch.testing.assert_close(outputs, theirs.detach())
    for name, each in gradients.items():
        torch.testing.assert_close(each, leaves[name].grad)
    assert gradients["q/action/weight"].abs().max() > 0.01


def test_only_layers_in_a_row_are_a_chain() -> None:
    plain = Observations(CARTPOLE)
    assert Network(plain, "q/", (8, 6), {"a": 2}).chain() == ("q/dense0", "q/dense1", "q/a")
    others = [
        Network(plain, "q/", (8,), {"a": 2}, core="gru"),
        RowNetwork(plain, "q/", (8,), {"a": 2}, rows=1),
        Network(plain, "q/", (8,), {"a": 2, "b": 1}),
        Network(Observations(PICTURES), "q/", (8,), {"a": 2}),
    ]
    assert [other.chain() for other in others] == [()] * 4
