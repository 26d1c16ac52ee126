"""Environments that hide a part of what they see: whoever plays them well remembers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

#: Of CartPole's observation: the cart's position and the pole's angle, without their velocities.
POSITIONS = (0, 2)


class Masked(gym.ObservationWrapper[Any, Any, Any]):
    """Keeps some elements of a flat Box observation; rewards and episodes stay as they are."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        keep: Sequence[int],
        reward_range: tuple[float, float] | None = None,
    ) -> None:
        """`keep` are indices into the observation, in the order wanted. Raises ValueError unless it is a flat Box."""
        super().__init__(env)
        full = env.observation_space
        if not isinstance(full, spaces.Box) or len(full.shape) != 1:
            raise ValueError(f"only a flat Box observation can be masked, not {full}")
        self._keep = np.array(keep, np.intp)
        low, high = full.low[self._keep], full.high[self._keep]
        self.observation_space = spaces.Box(low, high, dtype=full.dtype.type)
        self.reward_range = reward_range

    def observation(self, observation: Any) -> Any:
        """The kept elements, a copy `[len(keep)]`."""
        return observation[self._keep]


def make_cartpole_masked(render_mode: str | None = None, **args: Any) -> gym.Env[Any, Any]:
    """CartPole-v1 without velocities, the observation float32 `[2]`: position (m) and angle (rad).

    One look does not tell which way the pole is falling. Other arguments are CartPole's.
    """
    # 1 for each step; with `sutton_barto_reward` 0, and -1 where the pole falls.
    rewards = (-1.0, 0.0) if args.get("sutton_barto_reward") else (1.0, 1.0)
    return Masked(gym.make("CartPole-v1", render_mode=render_mode, **args), POSITIONS, rewards)
