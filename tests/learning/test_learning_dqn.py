"""DQN learns: the chain exactly, CartPole to the criterion on several seeds, in bounded updates."""

from __future__ import annotations

import gymnasium as gym
import pytest
from p2prl_agents.dqn import DQN, DQNSettings
from p2prl_envs.chain import make_chain

from p2prl.learn.evaluation import evaluate
from p2prl.learn.spaces import env_spec
from tests.learning.bare import Bare


def make_cartpole() -> gym.Env:
    return gym.make("CartPole-v1")


SPEC = env_spec(make_cartpole(), "CartPole-v1")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4, 5))])
def test_dqn_solves_cartpole(seed: int) -> None:
    bare = Bare(DQN(SPEC, DQNSettings()), make_cartpole, SPEC, slots=16, seed=seed, lag=3)
    progress = bare.run(475.0, max_updates=20_000, max_steps=1_000_000)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.updates} updates"
    bare.actor.load(bare.learner.weights())
    returns = [total for total, _ in evaluate(make_cartpole, SPEC, bare.actor, 20, seed=9)]
    assert sum(returns) / 20 >= 475


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_dqn_solves_cartpole_with_weights_that_were_rounded_and_sent_as_changes(seed: int) -> None:
    """Within the updates of the exact ones."""
    bare = Bare(DQN(SPEC, DQNSettings()), make_cartpole, SPEC, slots=16, seed=seed, lag=3, wire=True)
    progress = bare.run(475.0, max_updates=20_000, max_steps=1_000_000)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.updates} updates"
    assert bare.rounded == bare.version + 1
    assert bare.changes > 0.9 * bare.version


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_dqn_solves_cartpole_for_players_that_are_twenty_versions_behind(seed: int) -> None:
    """A random policy balances about 20 ticks."""
    bare = Bare(DQN(SPEC, DQNSettings()), make_cartpole, SPEC, slots=16, seed=seed, lag=20)
    progress = bare.run(475.0, max_updates=20_000, max_steps=1_000_000)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.updates} updates"
    # A sample is as late as its players were, and then waits in the buffer.
    assert min(progress.lags[-1000:]) > 20
    bare.actor.load(bare.learner.weights())
    returns = [total for total, _ in evaluate(make_cartpole, SPEC, bare.actor, 20, seed=9)]
    assert sum(returns) / 20 >= 475


def test_dqn_walks_the_chain_the_short_way() -> None:
    """Known best: 1 - 6 * 0.01 in 7 steps."""

    def make() -> gym.Env:
        return make_chain(length=8, step_reward=-0.01, max_steps=40)

    spec = env_spec(make(), "chain")
    settings = DQNSettings(hidden=(32,), min_ticks=256, epsilon_updates=200, learning_rate_updates=2000)
    bare = Bare(DQN(spec, settings), make, spec, slots=8, seed=1)
    bare.run(float("inf"), max_updates=600, max_steps=100_000)
    bare.actor.load(bare.learner.weights())
    results = evaluate(make, spec, bare.actor, 2, seed=1)
    assert results == [(pytest.approx(0.94), 7)] * 2
