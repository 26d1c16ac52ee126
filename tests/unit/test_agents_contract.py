"""Every registered agent keeps its contract in every space that it can act in, and says so where it cannot."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from p2prl.core.spaces import EnvSpec
from p2prl.errors import UsageError
from p2prl.learn.spaces import env_spec
from p2prl.registry import agent_names, make_agent, resolve_agent
from p2prl.testing import check_agent

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": VECTOR,
    "image": IMAGE,
    "dict": spaces.Dict({"camera": IMAGE, "mode": spaces.Discrete(3), "speed": VECTOR}),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-2.0, 2.0, (2,), np.float32),
    "dict": spaces.Dict({"push": spaces.Box(-1.0, 1.0, (1,), np.float32), "turn": spaces.Discrete(3)}),
}
#: What each agent can act in; of the others it says that it cannot.
ACTS_IN = {
    "cem": {"discrete", "box"},
    "dqn": {"discrete"},
    "ppo": set(ACTIONS),
    "vtrace": set(ACTIONS),
}
#: Variants that have parts of their own.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "ppo": [{"core": "gru"}, {"core": "lstm", "burn_in": 2}, {"shared": True, "normalise": True}],
    "vtrace": [{"core": "gru"}, {"core": "lstm", "burn_in": 2}, {"shared": True, "normalise": True}],
}
_UPDATES = 3


class Spaces(gym.Env[Any, Any]):
    """Nothing but its spaces."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action


def _spec(observation: str, action: str) -> EnvSpec:
    return env_spec(Spaces(OBSERVATIONS[observation], ACTIONS[action]), f"{observation}-{action}")


def test_all_registered_agents_are_here() -> None:
    ours = {name for name in agent_names() if resolve_agent(name).__module__.startswith("p2prl_agents.")}
    assert ours == set(ACTS_IN)


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", agent_names())
def test_agents_keep_their_contract(name: str, action: str, observation: str) -> None:
    spec = _spec(observation, action)
    if action in ACTS_IN.get(name, ACTIONS):
        check_agent(resolve_agent(name), spec, updates=_UPDATES)
    else:
        with pytest.raises(UsageError, match=spec.id) as caught:
            make_agent(resolve_agent(name), spec, {})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, settings) for name, variants in VARIANTS.items() for settings in variants],
    ids=str,
)
@pytest.mark.parametrize(("observation", "action"), [("vector", "dict"), ("dict", "multi_discrete")])
def test_variants_keep_it_too(name: str, settings: dict[str, Any], observation: str, action: str) -> None:
    check_agent(resolve_agent(name), _spec(observation, action), settings, updates=_UPDATES)
