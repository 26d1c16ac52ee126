"""What takes memory is learned with a core, and cannot be without one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from p2prl.learn.spaces import env_spec
from p2prl.registry import make_agent, resolve_agent
from tests.learning.bare import Bare

SETTINGS = {
    "ticks": 16,
    "batch": 16,
    "hidden": [64],
    "activation": "relu",
    "reward_scale": 1.0,
    "learning_rate": 0.005,
}
#: PPO's own: the rest is SETTINGS.
PPO = {"learning_rate": 0.002, "epochs": 4, "gamma": 0.99, "decay": 0.95, "learning_rate_updates": 100_000}


class Junction(gym.Env[Any, Any]):
    """A hint at the start, four ticks in which nothing is seen, and a sign: right is what the hint and the sign say
    together (their exclusive or). One look at either tells nothing, so without memory every other choice is wrong.
    """

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._hint, self._sign = (int(bit) for bit in self.np_random.integers(2, size=2))
        self._tick = 0
        return np.array([self._hint, 1 - self._hint, 0, 0], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._tick += 1
        at_sign = self._tick == 5
        obs = np.array([0, 0, at_sign, at_sign and self._sign], np.float32)
        over = self._tick == 6
        return obs, float(over and action == self._hint ^ self._sign), over, False, {}


def learn(agent: str, seed: int, max_steps: int, **settings: Any) -> float:
    """The mean return of the last hundred episodes, when it reached 0.95 or the steps ended."""
    spec = env_spec(Junction(), "junction")
    bound = make_agent(resolve_agent(agent), spec, {**SETTINGS, **settings})
    return Bare(bound, Junction, spec, slots=16, seed=seed, lag=1).run(0.95, 10**9, max_steps).mean


CASES = [("gru", 1), ("gru", 2), ("gru", 3), ("lstm", 2), ("lstm", 1), ("lstm", 3)]
#: These learn in a few seconds.
QUICK = (("gru", 2), ("lstm", 3))


@pytest.mark.parametrize(
    ("core", "seed"),
    [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES],
)
def test_vtrace_remembers(core: str, seed: int) -> None:
    assert learn("vtrace", seed, 250_000, core=core, learning_rate_updates=100_000) >= 0.95


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_ppo_remembers(seed: int) -> None:
    assert learn("ppo", seed, 250_000, core="gru", **PPO) >= 0.95


def test_without_a_core_half_is_all_there_is() -> None:
    assert learn("vtrace", 1, 60_000, learning_rate_updates=100_000) < 0.75
