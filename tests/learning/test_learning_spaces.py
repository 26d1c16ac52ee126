"""PPO and V-trace learn every kind of action: to echo what they see, in each part, where chance is right in few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from p2prl.learn.evaluation import evaluate
from p2prl.learn.spaces import env_spec
from p2prl.registry import make_agent, resolve_agent
from tests.learning.bare import Bare, Progress
from tests.learning.worlds import Crowd, Echo

pytest.importorskip("torch")

SPACES: dict[str, spaces.Space[Any]] = {
    "MultiDiscrete": spaces.MultiDiscrete([3, 4, 2], start=[1, 0, 5]),
    "MultiBinary": spaces.MultiBinary(4),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
    "Dict": spaces.Dict(
        {
            "legs": spaces.Dict({"gait": spaces.Discrete(3, start=1), "speed": spaces.Box(-1, 1, (2,))}),
            "lamp": spaces.Discrete(2),
        }
    ),
}
#: The best that a policy can expect which does not look, see Echo.
BLIND = {
    "MultiDiscrete": (1 / 3 + 1 / 4 + 1 / 2) / 3,
    "MultiBinary": 1 / 2,
    "Box": 1 / 2,
    "Dict": (1 / 3 + 1 / 2 + 1 / 2 + 1 / 2) / 4,
}
#: Rounds have nothing to do with each other.
ROUNDS = {"hidden": [32], "gamma": 0.0, "decay": 0.0, "reward_scale": float(Echo.ROUNDS)}
AGENTS = {
    "ppo": {**ROUNDS, "learning_rate": 3e-3, "learning_rate_updates": 200, "epochs": 4},
    "vtrace": {**ROUNDS, "learning_rate": 1e-2, "learning_rate_updates": 1000, "entropy": 0.0},
}


def bare_of(agent: str, make: Callable[[], gym.Env[Any, Any]], seed: int, **settings: Any) -> Bare:
    spec = env_spec(make(), "echo")
    return Bare(make_agent(resolve_agent(agent), spec, settings), make, spec, slots=16, seed=seed)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("agent", AGENTS)
def test_every_part_of_an_action_is_learned(agent: str, space: str, seed: int) -> None:
    def make() -> gym.Env[Any, Any]:
        return Echo(SPACES[space])

    bare = bare_of(agent, make, seed, **AGENTS[agent])
    bare.run(0.9, 10**9, 32_000)
    bare.actor.load(bare.learner.weights())
    spec = env_spec(make(), "echo")
    assert np.mean([total for total, _ in evaluate(make, spec, bare.actor, 20, seed=9)]) > 0.9


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("agent", AGENTS)
def test_untrained_it_is_no_better_than_chance(agent: str, space: str) -> None:
    """The policy's last layer begins small, so it hardly looks."""
    bare = bare_of(agent, lambda: Echo(SPACES[space]), 1, **AGENTS[agent])
    bundles = [bare.rollout.collect() for _ in range(10)]
    bare.rollout.close()
    assert np.mean([total for bundle in bundles for total, _, _ in bundle.episodes]) < BLIND[space] + 0.05


def until_most_is_right(seed: int, apart: bool) -> Progress:
    """Twenty parts; chance is right in a third."""
    settings = {**ROUNDS, "hidden": [64], "learning_rate": 3e-3, "learning_rate_updates": 1000}
    space = spaces.MultiDiscrete([3] * 20)
    return bare_of("ppo", lambda: Echo(space), seed, **settings, apart=apart).run(0.85, 10**9, 40_000)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_ppo_needs_fewer_updates_for_many_parts_when_it_clips_them_apart(seed: int) -> None:
    """About 40 against 65: the ratio of twenty parts together is clipped after few steps of an epoch."""
    together, apart = until_most_is_right(seed, apart=False), until_most_is_right(seed, apart=True)
    assert together.solved_at is not None
    assert apart.solved_at is not None
    assert apart.solved_at < 0.8 * together.solved_at


def until_the_crowd_is_right(seed: int, rows: bool, max_updates: int) -> Progress:
    settings = {**ROUNDS, "hidden": [32], "learning_rate": 3e-3, "learning_rate_updates": 1000, "apart": True}
    return bare_of("ppo", Crowd, seed, **settings, rows=rows).run(0.8, max_updates, 10**9)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_a_network_for_all_rows_learns_what_one_for_all_at_once_does_not_yet(seed: int) -> None:
    rows = until_the_crowd_is_right(seed, rows=True, max_updates=60)
    assert rows.solved_at is not None, f"mean return {rows.mean}"
    assert until_the_crowd_is_right(seed, rows=False, max_updates=2 * rows.solved_at).solved_at is None
