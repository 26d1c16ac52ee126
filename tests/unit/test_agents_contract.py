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
    "integers": spaces.Box(0, 5, (2,), np.int32),
    "dict": spaces.Dict({"push": spaces.Box(-1.0, 1.0, (1,), np.float32), "turn": spaces.Discrete(3)}),
}
_ALL_BUT_INTEGERS = set(ACTIONS) - {"integers"}
#: What each agent can act in; of the others it says that it cannot.
ACTS_IN = {
    "cem": _ALL_BUT_INTEGERS,
    "dqn": {"discrete"},
    "es": _ALL_BUT_INTEGERS,
    "ppo": _ALL_BUT_INTEGERS,
    "vtrace": _ALL_BUT_INTEGERS,
}
_POLICIES: list[dict[str, Any]] = [
    {"core": "gru"},
    {"core": "lstm", "burn_in": 2},
    {"shared": True, "normalise": True},
]
#: Variants that have parts of their own, and the actions in which each is tried.
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (name, action, settings)
        for name in ("ppo", "vtrace")
        for action in ("dict", "box")
        for settings in _POLICIES
    ),
    ("cem", "dict", {"hidden": 8}),
    ("dqn", "discrete", {"dueling": True, "distribution": "quantile", "atoms": 8}),
    ("dqn", "discrete", {"distribution": "c51", "priority_exponent": 0.6}),
    ("dqn", "discrete", {"core": "gru", "burn_in": 4, "priority_exponent": 0.6}),
    ("dqn", "discrete", {"tightening": 1.0, "curiosity": 0.5}),
]
#: Small, so that all of this takes seconds.
SMALL: dict[str, dict[str, Any]] = {
    "dqn": {"hidden": [16], "batch": 8, "sessions": 2},
    "ppo": {"hidden": [16], "batch": 4, "epochs": 2, "minibatch": 32},
    "vtrace": {"hidden": [16], "batch": 4},
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
        check_agent(resolve_agent(name), spec, SMALL.get(name), updates=_UPDATES)
    else:
        with pytest.raises(UsageError, match=spec.id) as caught:
            make_agent(resolve_agent(name), spec, {})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("observation", ["vector", "dict"])
@pytest.mark.parametrize(("name", "action", "settings"), VARIANTS, ids=str)
def test_variants_keep_it_too(name: str, action: str, settings: dict[str, Any], observation: str) -> None:
    settings = {**SMALL.get(name, {}), **settings}
    check_agent(resolve_agent(name), _spec(observation, action), settings, updates=_UPDATES)
