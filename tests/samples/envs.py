"""Environments with one fault or one trait each."""

from __future__ import annotations

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
