"""What tests of cem, es and populations.py share: CartPole, rollouts, and sessions as batches of one."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from p2prl.learn.contracts import Agent, Array, Weights
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import agent_schema, env_spec

CARTPOLE = env_spec(gym.make("CartPole-v1"), "CartPole-v1")
#: (return, length, ladder level), as a rollout tells it.
Ended = tuple[float, int, float]


def rollout_of(agent: Agent, weights: Weights, *, ticks: int = 8, slots: int = 4, seed: int = 1) -> Rollout:
    """One player's slots."""
    actor = agent.actor()
    actor.load(weights)
    schema = agent_schema(CARTPOLE, agent, ticks)
    return Rollout(
        lambda: gym.make("CartPole-v1"), CARTPOLE, schema, actor, slots=slots, ladder=1, rank=0, seed=seed
    )


def sessions(rollout: Rollout, bundles: int) -> tuple[list[dict[str, Array]], list[Ended]]:
    """Each slot's sessions with a batch axis of 1, and the episodes that ended."""
    found, episodes = [], []
    for _ in range(bundles):
        bundle = rollout.collect()
        episodes += bundle.episodes
        found += [
            {name: values[None, :, slot] for name, values in bundle.columns.items()}
            for slot in range(bundle.columns["flags"].shape[1])
        ]
    return found, episodes


def one_tick(candidate: int, reward: float, generation: int) -> dict[str, Array]:
    """A batch of one session of one tick, a whole episode."""
    return {
        "reward": np.array([[reward]], np.float32),
        "flags": np.array([[1]], np.uint8),
        "candidate": np.array([[candidate]], np.int64),
        "generation": np.array([[generation]], np.int64),
        "tick": np.array([[0]], np.int32),
        "sample": np.zeros((1, 1, CARTPOLE.observation.shape[0]), np.float32),  # type: ignore[union-attr]
    }


def generation_of(weights: Weights) -> int:
    """The id of the generation that the weights are of."""
    return int(weights["generation"])
