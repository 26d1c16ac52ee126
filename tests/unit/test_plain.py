"""V-trace's gradient that is written out: torch's own, by another way."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from p2prl_agents.maths import clipped
from p2prl_agents.plain import PlainActorCritic
from p2prl_agents.policies import surrogate
from p2prl_agents.vtrace import VTrace, VTraceLearner

from p2prl.core.schema import RESET, TERMINATED, TRUNCATED
from p2prl.core.spaces import EnvSpec
from p2prl.learn.spaces import env_spec
from p2prl.registry import make_agent


def spec(
    observation: gym.Space[Any] = Box(-9, 9, (5,), np.float32),  # noqa: B008 - no state
    action: gym.Space[Any] = Discrete(3, start=2),  # noqa: B008
) -> EnvSpec:
    env: Any = gym.make("CartPole-v1").unwrapped
    env.observation_space, env.action_space = observation, action
    return env_spec(env, "like-cartpole")


def sessions(seed: int, count: int = 7, ticks: int = 9) -> dict[str, np.ndarray]:
    """Of an older policy, with ends of both kinds and RESET ticks; one session has nothing else."""
    rng = np.random.default_rng(seed)
    flags = rng.choice([0, TERMINATED, TRUNCATED, RESET], (count, ticks), p=[0.6, 0.15, 0.1, 0.15])
    flags[3] = RESET
    return {
        "obs": rng.normal(size=(count, ticks + 1, 5)).astype(np.float32),
        "action": rng.integers(2, 5, (count, ticks)),
        "reward": rng.normal(3, 2, (count, ticks)).astype(np.float32),
        "flags": flags.astype(np.uint8),
        "log_prob": rng.normal(-1.1, 0.5, (count, ticks)).astype(np.float32),
        "version": np.zeros(count, np.int64),
    }


def learner(settings: dict[str, Any], written_out: bool) -> VTraceLearner:
    """Whose heads are far from zero, so that each layer has a gradient to speak of."""
    made = make_agent(VTrace, spec(), {"ticks": 9, "reward_scale": 1.0, **settings}).learner("cpu", 4)
    assert made._plain is not None
    if not written_out:
        made._plain = None
    with torch.no_grad():
        made.trainable.tensors["policy/logits/weight"].mul_(100)
    return made


SETTINGS: list[dict[str, Any]] = [
    {},
    {"entropy": 0.5, "value_weight": 0.7, "clip_rho": 1.3, "decay": 0.9},
    {"hidden": [], "entropy": 0.1},
    {"hidden": [12], "activation": "relu", "scale_advantages": True},
    {"normalise": True, "passes": 3, "minibatch": 18},
    {"clip": 0.05, "passes": 3, "learning_rate": 0.02, "scale_advantages": True},
]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_update_is_that_of_autograd(settings: dict[str, Any], seed: int) -> None:
    """Its last gradient, its metrics, and the weights in the end."""
    ours, theirs = (learner(settings, written_out) for written_out in (True, False))
    batch = sessions(seed)
    metrics, expected = ours.update(batch).metrics, theirs.update(batch).metrics
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert expected["grad_norm"] > 0.1
    for name, tensor in ours.trainable.tensors.items():
        assert theirs.trainable.tensors[name].grad.abs().max() > 1e-4, name
        torch.testing.assert_close(
            tensor.grad, theirs.trainable.tensors[name].grad, rtol=1e-3, atol=1e-5, msg=name
        )
    np.testing.assert_allclose(ours.save()["parameters"], theirs.save()["parameters"], rtol=1e-3, atol=1e-4)


def test_an_update_that_is_not_finite_changes_nothing() -> None:
    ours = learner({}, written_out=True)
    before = {name: values.copy() for name, values in ours.save().items()}
    batch = sessions(1)
    batch["reward"][0, 0], batch["flags"][0, 0] = np.inf, 0
    assert "nan" in ours.update(batch).skipped
    for name, values in ours.save().items():
        np.testing.assert_array_equal(values, before[name])
    assert ours.update(sessions(1)).skipped == ""


def test_the_clipped_objective_and_its_slope() -> None:
    """Below, within and above the clip, for both signs."""
    logs = torch.linspace(-0.7, 0.7, 20).repeat(2).requires_grad_()
    advantage = torch.tensor([1.5] * 20 + [-0.5] * 20)
    gain = surrogate(torch, logs.exp(), advantage, 0.2)
    gain.sum().backward()
    ours, slope = clipped(np.exp(logs.detach().numpy()), advantage.numpy(), 0.2)
    np.testing.assert_allclose(ours, gain.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(slope, logs.grad.numpy(), rtol=1e-6)
    assert 0 < (slope == 0).sum() < 20


def test_what_it_fits() -> None:
    """Two perceptrons and one categorical action, on the CPU."""
    pictures, rows = Box(0, 255, (36, 36, 1), np.uint8), Box(-9, 9, (1, 5), np.float32)
    cases: list[tuple[dict[str, Any], EnvSpec, str, bool]] = [
        ({}, spec(), "cpu", True),
        ({"normalise": True}, spec(), "cpu", True),
        ({}, spec(), "cuda", False),
        ({"core": "gru"}, spec(), "cpu", False),
        ({"shared": True}, spec(), "cpu", False),
        ({}, spec(pictures), "cpu", False),
        ({}, spec(action=MultiDiscrete([3, 3])), "cpu", False),
        ({}, spec(action=Box(-1, 1, (2,), np.float32)), "cpu", False),
        ({"rows": True}, spec(rows, MultiDiscrete([3])), "cpu", False),
    ]
    for settings, env, device, fits in cases:
        assert PlainActorCritic.fits(make_agent(VTrace, env, settings).nets, device) == fits, (settings, env)
