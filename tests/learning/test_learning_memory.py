"""What takes memory is learned with a core, and cannot be without one."""

from __future__ import annotations

from typing import Any

import pytest

from p2prl.learn.spaces import env_spec
from p2prl.registry import make_agent, resolve_agent
from p2prl.settings import find_experiment
from tests.learning.bare import Bare
from tests.learning.worlds import Junction

SETTINGS = {
    "ticks": 16,
    "batch": 16,
    "hidden": [64],
    "reward_scale": 1.0,
    "learning_rate": 0.005,
}
#: What each agent has beside SETTINGS, or instead.
VTRACE = {"activation": "relu", "learning_rate_updates": 100_000}
PPO = {**VTRACE, "learning_rate": 0.002, "epochs": 4, "gamma": 0.99, "decay": 0.95}
#: Sessions of four episodes.
DQN = {
    "hidden": [32],
    "core_units": 32,
    "ticks": 24,
    "batch": 64,
    "sessions": 16,
    "n_step": 3,
    "gamma": 0.95,
    "samples_per_insert": 8.0,
    "target_interval": 20,
    "epsilon_updates": 200,
    "epsilon_low": 0.01,
}


def learn(agent: str, seed: int, max_steps: int, **settings: Any) -> float:
    """The mean return of the last hundred episodes, when it reached 0.95 or the steps ended."""
    spec = env_spec(Junction(), "junction")
    bound = make_agent(resolve_agent(agent), spec, {**SETTINGS, **settings})
    return Bare(bound, Junction, spec, slots=16, seed=seed, lag=1).run(0.95, 10**9, max_steps).mean


CASES = [("gru", 1), ("gru", 2), ("gru", 3), ("lstm", 2), ("lstm", 1), ("lstm", 3)]
#: These learn in a few seconds.
QUICK = (("gru", 2), ("lstm", 3))


@pytest.mark.parametrize(
    ("core", "seed"),
    [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES],
)
def test_vtrace_remembers(core: str, seed: int) -> None:
    assert learn("vtrace", seed, 250_000, core=core, **VTRACE) >= 0.95


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_vtrace_remembers_soon_with_several_passes(seed: int) -> None:
    """As the preset `minigrid-memory` has it: eight clipped passes in minibatches, advantages of one scale."""
    settings = {
        **find_experiment("minigrid-memory").agent.settings,
        "ticks": 16,
        "batch": 16,
        "minibatch": 64,
    }
    assert settings["passes"] > 1
    assert settings["clip"] > 0
    assert learn("vtrace", seed, 40_000, **{**settings, "hidden": [16], "core_units": 16}) >= 0.95


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_ppo_remembers(seed: int) -> None:
    assert learn("ppo", seed, 250_000, core="gru", **PPO) >= 0.95


DQN_CASES = [("gru", 6, 1), ("gru", 0, 2), ("gru", 6, 3), ("lstm", 0, 1), ("lstm", 6, 2), ("lstm", 0, 3)]


@pytest.mark.parametrize(
    ("core", "burn_in", "seed"),
    [
        pytest.param(*case, marks=[] if case in (("gru", 6, 1), ("lstm", 0, 1)) else [pytest.mark.slow])
        for case in DQN_CASES
    ],
)
def test_dqn_remembers(core: str, burn_in: int, seed: int) -> None:
    assert learn("dqn", seed, 40_000, **{**DQN, "core": core, "burn_in": burn_in}) >= 0.95


def test_dqn_without_a_core_gets_half_of_them() -> None:
    assert learn("dqn", 1, 20_000, **DQN) < 0.75


def test_without_a_core_half_is_all_there_is() -> None:
    assert learn("vtrace", 1, 60_000, **VTRACE) < 0.75
