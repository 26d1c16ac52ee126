"""Environments with one fault or one trait each."""

from __future__ import annotations

import os
import threading
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Noise(gym.Env[Any, Any]):
    """Bytes that nothing can compress, so that a bundle's size is known; no episode ends.

    Args:
        size: bytes of one observation.
        limit: after so many steps the environment hangs for ever, as some do; 0 for never.
    """

    def __init__(self, size: int = 1200, limit: int = 0) -> None:
        self.observation_space = spaces.Box(0, 255, (size,), np.uint8)
        self.action_space = spaces.Discrete(2)
        self._size, self._limit = size, limit
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """New noise."""
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """More noise, until the limit."""
        if self._limit and self._steps >= self._limit:
            threading.Event().wait()
        self._steps += 1
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> Any:
        return np.frombuffer(self.np_random.bytes(self._size), np.uint8)


class Unseeded(gym.Env[Any, Any]):
    """Random starts from a generator of its own, which `reset(seed=)` does not touch; episodes of 10 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._rng = np.random.default_rng(0)
        self._ticks = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The next start of its own generator."""
        self._ticks = 0
        return self._rng.random(3, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Nothing depends on the action."""
        self._ticks += 1
        return self._rng.random(3, np.float32), 1.0, self._ticks >= 10, False, {}


class Paced(Noise):
    """Noise at a pace, so that many players cost a machine next to nothing, in episodes that each give their length.

    Args:
        tick_s: seconds of one step: the environment is slow.
        episode: steps of an episode.
    """

    def __init__(self, size: int = 64, tick_s: float = 0.005, episode: int = 100) -> None:
        super().__init__(size)
        self._tick_s, self._episode = tick_s, episode
        self._never = threading.Event()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The next episode."""
        self._steps = 0
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The next tick."""
        self._never.wait(self._tick_s)
        obs, _, _, _, info = super().step(action)
        return obs, 1.0, self._steps >= self._episode, False, info


#: Steps of an episode of Tally.
TALLY_STEPS = 10


class Tally(Paced):
    """Episodes of TALLY_STEPS steps, at a pace; an action of 1 earns 1, and 0 nothing."""

    def __init__(self, tick_s: float = 0.002) -> None:
        super().__init__(8, tick_s, TALLY_STEPS)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The next tick."""
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(action), terminated, truncated, info


class Fragile(Paced):
    """Fails as real simulators do.

    Args:
        raises: chance that a step raises.
        exits: chance that a step ends the whole process, with a last word on standard error.
        exit_code: of that end.
        broken: each reset raises, but where P2PRL_TEST_SIMULATOR is set.
        tick_s: as in Paced.
    """

    def __init__(
        self,
        raises: float = 0.0,
        exits: float = 0.0,
        broken: bool = False,
        tick_s: float = 0.005,
        exit_code: int = 3,
    ) -> None:
        super().__init__(tick_s=tick_s)
        self._raises, self._exits, self._broken = raises, exits, broken
        self._exit_code = exit_code

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Raises if it is broken."""
        if self._broken and "P2PRL_TEST_SIMULATOR" not in os.environ:
            raise OSError("no simulator on this machine")
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Raises or exits now and then."""
        chance = float(self.np_random.random())
        if chance < self._exits:
            os.write(2, b"simulator: assertion failed in solver.c\n")
            os._exit(self._exit_code)
        if chance < self._exits + self._raises:
            raise RuntimeError("the contact solver diverged")
        return super().step(action)


class Odd(gym.Env[Any, Any]):
    """Gives what it should not, at a pace; its generator is seeded by reset.

    Args:
        nan: chance that a step's reward is NaN.
        nan_obs: chance that a step's observation is NaN.
        obs: in each observation; 1 is the most that its space says.
        reward: of each step; 1 is the most that it declares.
        limit: after so many steps it hangs for ever; 0 for never.
        warns: of its age, in Gymnasium's way.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        nan: float = 0.0,
        nan_obs: float = 0.0,
        obs: float = 1.0,
        reward: float = 1.0,
        limit: int = 0,
        warns: bool = False,
    ) -> None:
        if warns:
            gym.logger.warn("this world is out of date")
        self.observation_space = spaces.Dict(place=spaces.Box(0.0, 1.0, (2,)), lamp=spaces.Discrete(2))
        self.action_space = spaces.Discrete(2)
        self._nan, self._nan_obs, self._obs, self._reward, self._limit = nan, nan_obs, obs, reward, limit
        self._ticks = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A random place."""
        super().reset(seed=seed)
        self._ticks = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The next, until 20 are done."""
        self._steps += 1
        self._ticks += 1
        if self._limit and self._steps >= self._limit:
            threading.Event().wait()
        threading.Event().wait(0.002)
        obs = self._observe()
        if self.np_random.random() < self._nan_obs:
            obs["place"][1] = np.nan
        reward = float("nan") if self.np_random.random() < self._nan else self._reward
        return obs, reward, self._ticks == 20, False, {}

    def _observe(self) -> dict[str, Any]:
        return {"place": np.array([self.np_random.random(), self._obs], np.float32), "lamp": 1}


class Acts(Noise):
    """Takes actions of any kind.

    Args:
        space: a name of ACTIONS in tests/unit/test_unfit_agents.py.
    """

    def __init__(self, space: str) -> None:
        super().__init__(size=4)
        from tests.unit.test_unfit_agents import ACTIONS

        self.action_space = ACTIONS[space]
