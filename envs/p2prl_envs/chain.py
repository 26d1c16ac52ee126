"""A tiny deterministic chain: known returns, known lengths, every kind of observation. For tests and first steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

OBSERVATIONS = ("discrete", "box", "dict", "tuple")


class Chain(gym.Env[Any, Any]):
    """Walk from the left end of a chain to its right end.

    Action 1 steps right, 0 steps left (or stays at the left end). Reaching the right end gives 1 and terminates; every
    other step gives `step_reward`. The best return is `1 + (length - 2) * step_reward`, in `length - 1` steps; a chain
    of length 2 has episodes of one step.

    The observation is the position: Discrete, a Box `[2]` of position and ticks so far, or a Dict or Tuple of both.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (Gymnasium's type)

    def __init__(
        self,
        length: int = 5,
        observation: str = "discrete",
        step_reward: float = 0.0,
        random_start: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if length < 2 or observation not in OBSERVATIONS:
            raise ValueError(f"length must be at least 2, and observation one of {', '.join(OBSERVATIONS)}")
        self.length, self.step_reward, self.random_start = length, step_reward, random_start
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(2)
        place = spaces.Discrete(length)
        ticks = spaces.Box(0, np.inf, (1,), np.float32)
        self._kind = observation
        self.observation_space = {
            "discrete": place,
            "box": spaces.Box(0, np.inf, (2,), np.float32),
            "dict": spaces.Dict({"place": place, "ticks": ticks}),
            "tuple": spaces.Tuple((place, ticks)),
        }[observation]
        self._place = self._ticks = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Back to the left end, or with `random_start` anywhere but the right end."""
        super().reset(seed=seed)
        self._place = int(self.np_random.integers(self.length - 1)) if self.random_start else 0
        self._ticks = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step along the chain."""
        self._place = max(0, self._place + (1 if action else -1))
        self._ticks += 1
        arrived = self._place == self.length - 1
        return self._observe(), 1.0 if arrived else self.step_reward, arrived, False, {}

    def render(self) -> Any:
        """The chain as a row of 32-pixel squares, uint8 `[32, 32 * length, 3]`; ours is white, the goal green."""
        frame = np.full((32, 32 * self.length, 3), 40, np.uint8)
        frame[:, -32:] = (0, 140, 0)
        frame[4:28, 32 * self._place + 4 : 32 * self._place + 28] = 255
        return frame

    def _observe(self) -> Any:
        ticks = np.array([self._ticks], np.float32)
        if self._kind == "discrete":
            return self._place
        if self._kind == "box":
            return np.array([self._place, self._ticks], np.float32)
        return {"place": self._place, "ticks": ticks} if self._kind == "dict" else (self._place, ticks)


def make_chain(max_steps: int = 20, **args: Any) -> gym.Env[Any, Any]:
    """The chain with a time limit of `max_steps`, after which it truncates; other arguments are `Chain`'s."""
    return gym.wrappers.TimeLimit(Chain(**args), max_episode_steps=max_steps)
