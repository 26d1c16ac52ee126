"""Pictures are learned from, by the small CNN: the least that goes through it, wider than high, channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from p2prl.learn.evaluation import evaluate
from p2prl.learn.spaces import env_spec
from p2prl.registry import make_agent, resolve_agent
from tests.learning.bare import Bare
from tests.learning.worlds import Picture

pytest.importorskip("torch")

SPEC = env_spec(Picture(), "picture")
#: Rounds have nothing to do with each other, and the CNN's own units are enough.
ROUNDS: dict[str, Any] = {"hidden": [], "gamma": 0.0, "reward_scale": float(Picture.ROUNDS)}
POLICY = {**ROUNDS, "decay": 0.0, "learning_rate": 1e-3, "shared": True}
AGENTS = {
    "ppo": {**POLICY, "epochs": 4},
    "vtrace": {**POLICY, "learning_rate": 2e-3},
    "dqn": {
        **ROUNDS,
        "learning_rate": 1e-3,
        "n_step": 1,
        "batch": 32,
        "min_ticks": 500,
        "samples_per_insert": 2.0,
        "epsilon_low": 0.05,
        "epsilon_updates": 100,
    },
}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize("agent", AGENTS)
def test_a_block_s_quarter_is_told(agent: str, seed: int) -> None:
    bound = make_agent(resolve_agent(agent), SPEC, AGENTS[agent])
    bare = Bare(bound, Picture, SPEC, slots=16, seed=seed)
    bare.run(0.9, 10**9, 8000)
    bare.actor.load(bare.learner.weights())
    returns = [total for total, _ in evaluate(Picture, SPEC, bare.actor, 20, seed=9)]
    assert np.mean(returns) > 0.95


@pytest.mark.parametrize("agent", AGENTS)
def test_untrained_it_is_a_guess(agent: str) -> None:
    """One in four, over twenty networks: one of them may well tell some quarters apart."""
    returns = []
    for seed in range(20):
        bound = make_agent(resolve_agent(agent), SPEC, AGENTS[agent])
        actor = bound.actor()
        actor.load(bound.learner("cpu", seed).weights())
        returns += [total for total, _ in evaluate(Picture, SPEC, actor, 4, seed=9)]
    assert np.mean(returns) < 0.45
