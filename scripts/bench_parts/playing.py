"""How near playing is to its limit: a player's rollout and encoding, beside the same environments and actor alone.

Ours is `collect()` and `encode`, as a player does them. The limit is a loop that acts and steps and does nothing
else: it keeps no bundle, no flags, no returns. Its environments are as `gym.make` gives them, as in anybody's loop;
a player steps past those of Gymnasium's wrappers that only count and check, and does their work itself. Both have
the same weights, those that a learner begins with, so that the play is near random: episodes are short, and each end
of one costs ours most.

Steps a second are per second of processor time of this one thread, which a busy machine does not change; on an idle
machine they are those of the clock. Turns of both follow each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench_parts.kinds import Bar, Case
from p2prl.core.schema import SessionSchema
from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Agent, Explore, Weights
from p2prl.learn.playing import Playing
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import agent_schema, env_spec, for_env
from p2prl.learn.vector_rollout import VectorRollout
from p2prl.registry import EnvFactory, make_agent, make_env_factory, resolve_agent
from p2prl.wire.bundle import BundleEncoder

#: Plays about so many seconds and says how many steps it made in each.
Turn = Callable[[float], float]
#: (environment, agents, slots, stepped together)
_CASES = (
    ("CartPole-v1", 16, True),
    ("CartPole-v1", 64, True),
    ("CartPole-v1", 16, False),
    ("CartPole-v1", 64, False),
    ("Acrobot-v1", 16, False),
)
_AGENTS = ("vtrace", "dqn")


@dataclass(frozen=True)
class Setting:
    """One environment with one agent, and so many slots of it."""

    make: EnvFactory
    spec: EnvSpec
    agent: Agent
    weights: Weights
    schema: SessionSchema
    slots: int

    def rollout(self, together: bool) -> Playing:
        """With an actor of its own."""
        actor = self.agent.actor()
        actor.load(self.weights)
        places = {"slots": self.slots, "ladder": self.agent.ladder, "rank": 0, "seed": 1}
        if not together:
            return Rollout(self.make, self.spec, self.schema, actor, **places)
        make_vector = self.make.vector(self.spec, self.slots)
        assert make_vector is not None
        return VectorRollout(make_vector, self.spec, self.schema, actor, **places)


def setting(env_id: str, agent_name: str, slots: int) -> Setting:
    """With the weights that a learner begins with."""
    make = make_env_factory(env_id, {})
    env = make()
    spec = env_spec(env, env_id)
    env.close()
    agent = make_agent(resolve_agent(agent_name), spec, {})
    schema = agent_schema(spec, agent, agent.replay().ticks)
    return Setting(make, spec, agent, agent.learner("cpu", 1).weights(), schema, slots)


def ours(what: Setting, together: bool) -> Turn:
    """As a player plays."""
    rollout = what.rollout(together)
    encoder = BundleEncoder(what.schema, what.slots)

    def bundle() -> int:
        played = rollout.collect()
        encoder.encode(
            played.packable, version=1, rank=0, serial=1, steps=played.steps, episodes=played.episodes
        )
        return played.steps

    return lambda seconds: _rate(bundle, seconds)


def alone(what: Setting, together: bool) -> Turn:
    """Acting and stepping, and nothing else."""
    actor = what.agent.actor()
    actor.load(what.weights)
    explore = Explore(np.random.default_rng(1), np.zeros(what.slots))
    play = _all_together(what, actor, explore) if together else _one_by_one(what, actor, explore)
    return lambda seconds: _rate(play, seconds)


def _all_together(what: Setting, actor: Any, explore: Explore) -> Callable[[], int]:
    make_vector = what.make.vector(what.spec, what.slots)
    assert make_vector is not None
    env = make_vector()
    obs, _ = env.reset(seed=1)
    state, over = actor.start(what.slots), np.zeros(what.slots, np.bool_)

    def play() -> int:
        nonlocal obs, state, over
        resets = 0
        for _ in range(what.schema.ticks):
            actions, state, _ = actor.act(obs, state, explore)
            obs, _, terminated, truncated, _ = env.step(actions)
            # The step after an end is none. Without this count it could not be said how many there were.
            resets += np.count_nonzero(over)
            over = terminated | truncated
        return what.schema.ticks * what.slots - resets

    return play


def _one_by_one(what: Setting, actor: Any, explore: Explore) -> Callable[[], int]:
    envs = [what.make() for _ in range(what.slots)]
    obs = np.stack([env.reset(seed=slot)[0] for slot, env in enumerate(envs)])
    state, native = actor.start(what.slots), for_env(envs[0].action_space)

    def play() -> int:
        nonlocal obs, state
        for _ in range(what.schema.ticks):
            actions, state, _ = actor.act(obs, state, explore)
            chosen, obs = native(actions), np.empty_like(obs)
            for slot, env in enumerate(envs):
                seen, _, terminated, truncated, _ = env.step(chosen[slot])
                if terminated or truncated:
                    seen, _ = env.reset()
                obs[slot] = seen
        return what.schema.ticks * what.slots

    return play


def _rate(play: Callable[[], int], seconds: float) -> float:
    start, steps, took = time.process_time(), 0, 0.0
    while took < seconds:
        steps += play()
        took = time.process_time() - start
    return steps / took


def cases(quick: bool) -> Iterator[Case]:
    """Both side by side, turn by turn."""
    turns, seconds = (2, 0.1) if quick else (5, 0.5)
    for env_id, slots, together in _CASES:
        for agent_name in _AGENTS:
            what = setting(env_id, agent_name, slots)
            both = ours(what, together), alone(what, together)
            for turn in both:
                turn(0.1)  # the first calls do what later ones need not
            rates = [[turn(seconds) for turn in both] for _ in range(turns)]
            own, limit = ([pair[side] for pair in rates] for side in (0, 1))
            how = "together" if together else "one by one"
            yield {
                "case": f"{env_id}, {agent_name}, {slots} slots {how}",
                "unit": "env steps/s",
                "ours": own,
                "limit": limit,
                "bar": Bar(limit=0.6 if together else 0.9),
            }
