"""ES learns: CartPole on several seeds, with few slots and with many; Acrobot; hidden layers; a Box action."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from p2prl_agents.es import ES, ESSettings

from p2prl.learn.evaluation import evaluate
from p2prl.learn.spaces import env_spec
from tests.learning.bare import Bare

SLOW = pytest.mark.slow


def learn(
    env_id: str,
    target: float,
    max_steps: int,
    *,
    seed: int,
    slots: int = 16,
    lag: int = 0,
    delay: int = 1,
    **settings: Any,
) -> float:
    """The mean return of greedy play once the candidates reached `target`."""

    def make() -> gym.Env:
        return gym.make(env_id)

    spec = env_spec(make(), env_id)
    bare = Bare(ES(spec, ESSettings(**settings)), make, spec, slots=slots, seed=seed, lag=lag, delay=delay)
    progress = bare.run(target, max_updates=10**9, max_steps=max_steps)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.steps} steps"
    bare.actor.load(bare.learner.weights())
    return sum(total for total, _ in evaluate(make, spec, bare.actor, 20, seed=9)) / 20


@pytest.mark.parametrize("seed", [1, 2, 3, *(pytest.param(seed, marks=SLOW) for seed in range(4, 11))])
def test_es_solves_cartpole(seed: int) -> None:
    assert learn("CartPole-v1", 475.0, 300_000, seed=seed) >= 475


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=SLOW) for seed in (2, 3))])
def test_es_solves_cartpole_with_many_slots_and_late_weights(seed: int) -> None:
    """As many slots as four players have, and weights that are eight bundles old when they arrive."""
    assert learn("CartPole-v1", 475.0, 800_000, seed=seed, slots=64, delay=8) >= 475


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=SLOW) for seed in (2, 3))])
def test_es_solves_cartpole_from_generations_that_are_always_old(seed: int) -> None:
    assert learn("CartPole-v1", 475.0, 400_000, seed=seed, lag=5, fresh=0.0) >= 475


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=SLOW) for seed in (2, 3))])
def test_es_trains_hidden_layers(seed: int) -> None:
    settings = {"hidden": (16,), "learning_rate": 0.05}
    assert learn("CartPole-v1", 475.0, 500_000, seed=seed, **settings) >= 475


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=SLOW) for seed in (2, 3))])
def test_es_solves_acrobot(seed: int) -> None:
    assert learn("Acrobot-v1", -100.0, 200_000, seed=seed) >= -120


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=SLOW) for seed in (2, 3))])
def test_es_drives_up_the_mountain(seed: int) -> None:
    settings = {"sigma": 0.5, "learning_rate": 0.3}
    assert learn("MountainCarContinuous-v0", 90.0, 400_000, seed=seed, **settings) >= 90
