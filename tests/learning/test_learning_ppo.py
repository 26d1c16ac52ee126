"""PPO learns: CartPole to the criterion on several seeds, in bounded steps; what is too old it never sees."""

from __future__ import annotations

import gymnasium as gym
import pytest

from p2prl.learn.spaces import env_spec
from tests.learning.bare import Bare

pytest.importorskip("torch")

from p2prl_agents.ppo import PPO, PPOSettings


def make_cartpole() -> gym.Env:
    return gym.make("CartPole-v1")


SPEC = env_spec(make_cartpole(), "CartPole-v1")
SETTINGS = PPOSettings()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_ppo_solves_cartpole(seed: int) -> None:
    bare = Bare(PPO(SPEC, SETTINGS), make_cartpole, SPEC, slots=SETTINGS.batch, seed=seed)
    progress = bare.run(475.0, max_updates=10**9, max_steps=120_000)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.steps} steps"
    assert set(progress.lags) == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ppo_solves_cartpole_as_late_as_it_allows(seed: int) -> None:
    bare = Bare(
        PPO(SPEC, SETTINGS), make_cartpole, SPEC, slots=SETTINGS.batch, seed=seed, lag=SETTINGS.max_lag
    )
    progress = bare.run(475.0, max_updates=10**9, max_steps=200_000)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.steps} steps"
    assert progress.stale == 0
    assert set(progress.lags[SETTINGS.max_lag :]) == {float(SETTINGS.max_lag)}


def test_ppo_learns_nothing_from_what_is_later_than_it_allows() -> None:
    settings = PPOSettings(max_lag=2, epochs=1)
    bare = Bare(PPO(SPEC, settings), make_cartpole, SPEC, slots=settings.batch, seed=1, lag=3)
    progress = bare.run(float("inf"), max_updates=10, max_steps=5_000)
    # Three updates, until the players' weights are three versions old; then all is stale.
    assert progress.updates == 3
    assert progress.lags == [0.0, 1.0, 2.0]
    assert progress.stale >= settings.batch
