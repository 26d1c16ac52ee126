"""Networks: what numpy and torch give is the same, and the same as torch's own layers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from p2prl_agents.networks import CONV_UNITS, Network, Observations
from p2prl_agents.ops import NumpyOps, TorchOps

from p2prl.core.spaces import EnvSpec
from p2prl.learn.spaces import plain_space
from p2prl.testing import sample_columns

SPACES: dict[str, gym.Space[Any]] = {
    "vector": gs.Box(-1, 1, (5,), np.float32),
    "picture": gs.Box(0, 255, (36, 40, 3), np.uint8),
    "frames": gs.Box(0, 255, (4, 84, 84), np.uint8),
    "dict": gs.Dict({"eye": gs.Box(0, 255, (36, 36, 1), np.uint8), "place": gs.Discrete(3)}),
}


def spec(space: gym.Space[Any]) -> EnvSpec:
    return EnvSpec("test", plain_space(space, "obs", "test"), plain_space(gs.Discrete(2), "action", "test"))


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(values)) for name, values in arrays.items()}


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_player_and_a_learner_compute_the_same(kind: str, core: Any, activation: Any) -> None:
    """Tick by tick in numpy, a reset on the way, against one unrolled pass in torch."""
    env = spec(SPACES[kind])
    observations = Observations(env)
    net = Network(
        observations,
        "p/",
        (16,),
        {"logits": 3, "value": 1},
        activation=activation,
        core=core,
        core_units=8,
        after=6,
    )
    weights = net.initial(7)
    rng = np.random.default_rng(1)
    rows, ticks = 3, 4
    columns = sample_columns(env.observation, "obs", (rows, ticks + 1), rng)
    keep = np.ones((rows, ticks), np.float32)
    keep[1, 1] = 0
    state = {
        name: rng.normal(size=values.shape).astype(np.float32) for name, values in net.start(rows).items()
    }
    inputs = observations.of_columns(columns)
    whole = net.unroll(TorchOps(), tensors(weights), tensors(inputs), tensors(state), torch.from_numpy(keep))
    for tick in range(ticks + 1):
        now = observations.of_columns({name: values[:, tick] for name, values in columns.items()})
        out, state = net.step(NumpyOps(), weights, now, state)
        for head, values in out.items():
            np.testing.assert_allclose(values, whole[head][:, tick].numpy(), atol=2e-5)
        if tick < ticks:  # what the rollout does at a RESET
            state = {name: values * keep[:, tick, None] for name, values in state.items()}


@pytest.mark.parametrize("rows", [3, 200])
def test_tanh_of_many_is_a_players_and_has_torchs_gradient(rows: int) -> None:
    """Few go through torch, many through numpy: nobody can tell."""
    values = torch.linspace(-9, 9, rows * 64).reshape(rows, 64)
    ours, theirs = (values.clone().requires_grad_(True) for _ in range(2))
    out, plain = TorchOps().tanh(ours), torch.tanh(theirs)
    (out * values).sum().backward()
    (plain * values).sum().backward()
    torch.testing.assert_close(out, plain, atol=1e-6, rtol=1e-5)
    np.testing.assert_allclose(out.detach().numpy(), NumpyOps().tanh(values.numpy()), atol=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(TorchOps().tanh(values), torch.tanh(values), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_the_core_is_torchs_own(core: Any) -> None:
    """The same numbers as torch.nn.GRU and LSTM with the same weights."""
    observations = Observations(spec(SPACES["vector"]))
    net = Network(observations, "", (), {"out": 2}, core=core, core_units=6)
    weights = net.initial(3)
    theirs = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[core](5, 6, batch_first=True)
    order = slice(None) if core == "gru" else [*range(12), *range(18, 24), *range(12, 18)]  # theirs: i f g o
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(torch.from_numpy(weights["core/input/weight"].T[order]))
        theirs.weight_hh_l0.copy_(torch.from_numpy(weights["core/state/weight"].T[order]))
        theirs.bias_ih_l0.copy_(torch.from_numpy(weights["core/input/bias"][order]))
        theirs.bias_hh_l0.copy_(torch.from_numpy(weights["core/state/bias"][order]))
        x = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(1))
        expected = theirs(x)[0] @ torch.from_numpy(weights["out/weight"]) + torch.from_numpy(
            weights["out/bias"]
        )
        ours = net.unroll(
            TorchOps(), tensors(weights), {"features": x}, tensors(net.start(2)), torch.ones(2, 6)
        )
    torch.testing.assert_close(ours["out"], expected, atol=1e-5, rtol=1e-5)


def test_no_gradient_flows_into_the_burn_in() -> None:
    observations = Observations(spec(SPACES["vector"]))
    net = Network(observations, "", (), {"out": 1}, core="gru", core_units=4)
    weights = tensors(net.initial(3))
    for burn_in, flows in ((0, True), (2, False)):
        x = torch.ones(1, 5, 5, requires_grad=True)
        out = net.unroll(
            TorchOps(), weights, {"features": x}, tensors(net.start(1)), torch.ones(1, 4), burn_in
        )
        out["out"][:, 2:].sum().backward()
        assert x.grad is not None
        assert bool(x.grad[:, :2].any()) is flows
        assert x.grad[:, 2:].any()


def test_pictures_are_told_apart_from_vectors_whichever_way_their_channels_lie() -> None:
    assert Observations(spec(SPACES["picture"])).pictures == {"obs": (3, 36, 40)}
    assert Observations(spec(SPACES["frames"])).pictures == {"obs": (4, 84, 84)}
    both = Observations(spec(SPACES["dict"]))
    assert (both.pictures, both.size) == ({"obs.eye": (1, 36, 36)}, 3)
    grid = Observations(spec(gs.Box(0, 1, (7, 7, 20), np.uint8)))
    assert (grid.pictures, grid.size) == ({}, 980)


def test_the_cnn_is_the_papers() -> None:
    net = Network(Observations(spec(SPACES["frames"])), "", (), {"out": 2})
    assert net.shapes["obs/conv0/weight"] == (16, 4, 8, 8)
    assert net.shapes["obs/conv1/weight"] == (32, 16, 4, 4)
    assert net.shapes["obs/units/weight"] == (32 * 9 * 9, CONV_UNITS)


def test_a_layer_after_the_core_is_only_there_with_one() -> None:
    observations = Observations(spec(SPACES["vector"]))
    with_core = Network(observations, "", (), {"out": 2}, core="gru", core_units=4, after=6)
    assert with_core.shapes["after/weight"] == (4, 6)
    assert with_core.shapes["out/weight"] == (6, 2)
    without = Network(observations, "", (), {"out": 2}, after=6)
    assert without.shapes.keys() == {"out/weight", "out/bias"}


def test_orthogonal_weights_are() -> None:
    net = Network(Observations(spec(SPACES["vector"])), "", (64, 32), {"out": 3})
    weights = net.initial(1, {"out": 0.01}, orthogonal=True)
    np.testing.assert_allclose(
        weights["dense1/weight"].T @ weights["dense1/weight"], 2 * np.eye(32), atol=1e-5
    )
    np.testing.assert_allclose(weights["out/weight"].T @ weights["out/weight"], 1e-4 * np.eye(3), atol=1e-8)
    assert not weights["dense0/bias"].any()
    drawn = net.initial(1)["dense1/weight"]
    assert np.abs(drawn).max() <= 1 / 8
    assert np.abs(drawn).max() > 0.12
