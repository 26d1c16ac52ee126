"""Each of DQN's options learns what it is for, and DQN without it does not; values become the exact ones.

Most worlds here are small enough for a table: one layer over a one-hot place, which can hold any values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from p2prl_agents.dqn import DQN, DQNActor, DQNSettings
from p2prl_envs.chain import make_chain

from p2prl.learn.contracts import Array
from p2prl.learn.evaluation import evaluate
from p2prl.learn.spaces import env_spec
from tests.learning.bare import Bare
from tests.learning.worlds import Coin, Faint, Lock, chain_values

#: One quick seed; the others when there is time.
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]
GAMMA = 0.9
#: A table, one-step targets, and a third of the actions, or all of them, at random.
TABLE: dict[str, Any] = {
    "hidden": (),
    "normalise": False,
    "gamma": GAMMA,
    "reward_scale": 1.0,
    "n_step": 1,
    "batch": 32,
    "learning_rate": 0.02,
    "learning_rate_updates": 1000,
    "target_interval": 10,
    "min_ticks": 256,
    "epsilon_low": 0.3,
    "epsilon_high": 0.3,
    "epsilon_updates": 100,
}
RANDOM = {"epsilon_low": 1.0, "epsilon_high": 1.0}


def learned(
    make: Callable[[], gym.Env[Any, Any]], seed: int, updates: int, *, steps: int = 10**9, **settings: Any
) -> Bare:
    """After so many updates, or at the end of the bundle in which they were done; or after so many steps."""
    spec = env_spec(make(), "world")
    bare = Bare(DQN(spec, DQNSettings(**{**TABLE, **settings})), make, spec, slots=8, seed=seed)
    bare.run(float("inf"), updates, steps)
    bare.actor.load(bare.learner.weights())
    return bare


def values(bare: Bare, places: int) -> Array:
    """Q `[places, 2]` of the first places, as a player has it."""
    assert isinstance(bare.actor, DQNActor)
    return bare.actor.values(np.arange(places), {})[0]


def earned(bare: Bare, make: Callable[[], gym.Env[Any, Any]], episodes: int = 1) -> float:
    """The mean return, played greedily."""
    spec = env_spec(make(), "world")
    return float(np.mean([total for total, _ in evaluate(make, spec, bare.actor, episodes, seed=9)]))


# --- what is learned of each action


LENGTH, COST = 6, -0.05
KINDS: dict[str, dict[str, Any]] = {
    "mean": {},
    "dueling": {"dueling": True, "hidden": (32,), "learning_rate": 0.005},
    "quantile": {"distribution": "quantile", "atoms": 8},
    "c51": {"distribution": "c51", "atoms": 21, "value_low": -1.0, "value_high": 1.0},
    "c51, dueling": {
        "distribution": "c51",
        "atoms": 21,
        "value_low": -1.0,
        "value_high": 1.0,
        "dueling": True,
    },
    "priorities": {"priority_exponent": 0.6},
    "tightening": {"tightening": 1.0},
}


def make_walk() -> gym.Env[Any, Any]:
    """Its values are between 0.39 and 1; untrained networks' are about 0. Most episodes are cut off, which says nothing
    about what a place is worth.
    """
    return make_chain(length=LENGTH, random_start=True, step_reward=COST, max_steps=4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_a_chain_become_the_exact_ones(kind: str, seed: int) -> None:
    bare = learned(make_walk, seed, 1500, samples_per_insert=8.0, **KINDS[kind])
    assert np.abs(values(bare, LENGTH - 1) - chain_values(LENGTH, COST, GAMMA)).max() < 0.02


def outputs_of_the_toss(bare: Bare) -> Array:
    """`[Z]`, the last layer's of action 1, from the one place there is."""
    weights = bare.learner.save()["parameters"]
    rows = weights.reshape(2, 2, -1)  # weight and bias, of one place; of both actions
    return rows.sum(axis=0)[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_quantiles_are_those_of_a_coin(seed: int) -> None:
    """Of 0 or 20, half each. Under Huber loss the lower half lie where two pulls are alike, tau * 1 = (1 - tau) * q."""
    bare = learned(
        Coin,
        seed,
        800,
        **{**RANDOM, "gamma": 0.0, "reward_scale": 20.0 * Coin.ROUNDS, "batch": 64},
        distribution="quantile",
        atoms=8,
        learning_rate=0.2,
        learning_rate_updates=800,
        learning_rate_end=0.0,
    )
    low = (np.arange(4) + 0.5) / 8
    low = low / (1 - low)
    assert outputs_of_the_toss(bare) == pytest.approx([*low, *(20 - low[::-1])], abs=0.15)
    assert values(bare, 1)[0] == pytest.approx([10.0, 10.0], abs=0.2)


@pytest.mark.parametrize("seed", SEEDS)
def test_c51_knows_both_sides_of_a_coin(seed: int) -> None:
    """Of 0 or 1, half each; at first every atom has a like share of one in eleven."""
    bare = learned(
        Coin,
        seed,
        600,
        **{**RANDOM, "gamma": 0.0, "reward_scale": float(Coin.ROUNDS), "batch": 64},
        distribution="c51",
        atoms=11,
        value_low=0.0,
        value_high=1.0,
    )
    shares = np.exp(outputs_of_the_toss(bare))
    shares /= shares.sum()
    assert shares[[0, -1]] == pytest.approx([0.5, 0.5], abs=0.08)
    assert shares[1:-1].max() < 0.02


# --- from what is learned


LOCK = Lock(8)


def make_lock() -> gym.Env[Any, Any]:
    return Lock(LOCK.length)


#: The target network is copied so seldom that one-step targets say what five of the eight places are worth, no more.
FEW_COPIES = {"target_interval": 100, "min_ticks": 4000}


@pytest.mark.parametrize("seed", SEEDS)
def test_n_steps_reach_further_than_the_copies_of_the_target(seed: int) -> None:
    """An untrained or random policy opens the lock once in 256 times."""
    few = {**FEW_COPIES, "batch": 64, "epsilon_low": 0.1, "epsilon_high": 0.1, "epsilon_updates": 1}
    assert earned(learned(make_lock, seed, 500, n_step=3, **few), make_lock) == 1.0
    assert earned(learned(make_lock, seed, 500, n_step=1, **few), make_lock) == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_tightening_reaches_further_than_the_copies_of_the_target(seed: int) -> None:
    few = {**FEW_COPIES, **RANDOM}
    assert earned(learned(make_lock, seed, 500, tightening=4.0, sessions=16, **few), make_lock) == 1.0
    assert earned(learned(make_lock, seed, 500, batch=512, **few), make_lock) == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_with_priorities_what_is_rare_is_learned_sooner(seed: int) -> None:
    """A random policy opens this lock in one of 1024 times, so that 8000 ticks have a few such ends."""
    lock = Lock(10)
    off: dict[float, float] = {}
    for exponent in (0.0, 0.8):
        bare = learned(
            lambda: Lock(lock.length),
            seed,
            3000,
            priority_exponent=exponent,
            **{**RANDOM, "batch": 16, "min_ticks": 8000, "samples_per_insert": 6.0, "learning_rate": 0.002},
            learning_rate_updates=10**6,
        )
        off[exponent] = float(np.abs(values(bare, lock.length) - lock.best(GAMMA)).max())
    assert off[0.8] < 0.05
    assert off[0.0] > 0.15


# --- what is seen, and what is new


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_faint_is_seen_when_it_is_normalised_and_not_else(seed: int) -> None:
    """Half of the rounds is what a policy gets that cannot see."""
    bandit = {"hidden": (32,), "gamma": 0.0, "reward_scale": float(Faint.ROUNDS), "learning_rate": 0.005}
    assert earned(learned(Faint, seed, 400, **{**bandit, "normalise": True}), Faint, 20) > 0.95
    assert earned(learned(Faint, seed, 400, **bandit), Faint, 20) < 0.65


@pytest.mark.parametrize("seed", SEEDS)
def test_curiosity_opens_a_lock_that_chance_does_not(seed: int) -> None:
    """Chance opens it once in 16 million times; ten thousand steps are fewer than five thousand tries."""

    def make() -> gym.Env[Any, Any]:
        return Lock(24)

    settings = {
        "hidden": (64,),
        "learning_rate": 2e-3,
        "epsilon_low": 0.02,
        "epsilon_high": 0.2,
        "target_interval": 20,
    }
    curious = learned(make, seed, 10**9, steps=10_000, curiosity=0.3, **settings)
    assert earned(curious, make) == 1.0
    plain = learned(make, seed, 10**9, steps=10_000, **settings)
    assert earned(plain, make) == 0.0
    assert not any(plain.progress.returns)
