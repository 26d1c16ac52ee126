"""CEM learns: CartPole to the criterion on several seeds, in bounded steps."""

from __future__ import annotations

import gymnasium as gym
import pytest
from p2prl_agents.cem import CEM, CEMSettings

from p2prl.learn.evaluation import evaluate
from p2prl.learn.spaces import env_spec
from tests.learning.bare import Bare


def make_cartpole() -> gym.Env:
    return gym.make("CartPole-v1")


SPEC = env_spec(make_cartpole(), "CartPole-v1")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cem_solves_cartpole(seed: int) -> None:
    bare = Bare(CEM(SPEC, CEMSettings()), make_cartpole, SPEC, slots=16, seed=seed, delay=1)
    progress = bare.run(475.0, max_updates=10**9, max_steps=400_000)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.steps} steps"
    assert bare.learner.weights()["std"].mean() < 0.6
    bare.actor.load(bare.learner.weights())
    returns = [total for total, _ in evaluate(make_cartpole, SPEC, bare.actor, 20, seed=9)]
    assert sum(returns) / 20 >= 475
