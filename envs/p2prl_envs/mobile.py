"""mobile-env's radio cells: one agent says which base stations each user connects to, so that all are served well.

Source: Schneider, Werner, Khalili, Hecker & Karl, "mobile-env: an open platform for reinforcement learning in wireless
mobile networks", NOMS 2022.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
from mobile_env.core.base import MComCore
from mobile_env.core.channels import OkumuraHata
from mobile_env.core.entities import BaseStation, UserEquipment
from mobile_env.scenarios.large import MComLarge
from mobile_env.scenarios.medium import MComMedium
from mobile_env.scenarios.small import MComSmall

SIZES: dict[str, type[MComCore]] = {"small": MComSmall, "medium": MComMedium, "large": MComLarge}


class RememberedChannel(OkumuraHata):  # type: ignore[misc]  # mobile-env has no types
    """The package's own channel, which works each distance out once.

    mobile-env asks for the same signal strengths several times a step, and makes two shapely points each time: that
    takes 9 tenths of its time. It rounds positions to whole metres, so there are few distances. In all three scenarios
    every station is like every other, and every user too: the distance alone decides.
    """

    _known: ClassVar[dict[int, float]] = {}

    def snr(self, bs: BaseStation, ue: UserEquipment) -> float:
        """The signal-to-noise ratio between a station and a user, bit by bit the package's."""
        east, north = int(bs.x) - int(ue.x), int(bs.y) - int(ue.y)
        squared = east * east + north * north
        known = self._known.get(squared)
        if known is None:
            known = self._known[squared] = float(super().snr(bs, ue))
        return known


class Mobile(gym.Env[Any, Any]):
    """The central environment of one scenario: 3 stations and 5 users, 7 and 15, or 13 and 30.

    Action: per user 0 for nothing, or k to connect to station k - 1, or to leave it if connected; a user may hold
    several. Observation: float32 `[users, 2 * stations + 1]`, a row per user: its connections (0 or 1), the stations'
    signal-to-noise ratios over the best of them, and its utility, -1 to 1. Reward: the mean utility of all users, -1 to
    1, from the logarithm of each one's data rate. It truncates after 100 steps, and never terminates.

    Each episode is a new simulation with a seed of its own, given through its config: mobile-env ignores
    `reset(seed=)`. All users stay for the whole episode, so the mean is never one over nobody, which is NaN.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (Gymnasium's type)
    reward_range = (-1.0, 1.0)

    def __init__(self, size: str = "small", render_mode: str | None = None) -> None:
        """`size`: small, medium or large. Raises ValueError for another one."""
        if size not in SIZES or render_mode not in (None, "rgb_array"):
            raise ValueError(f"size must be one of {', '.join(SIZES)}, and render_mode rgb_array or none")
        self.render_mode = render_mode
        self._scenario = SIZES[size]
        self._simulation = self._begin(0)
        flat = self._simulation.observation_space
        self._shape = (len(self._simulation.action_space.nvec), -1)
        self.observation_space = gym.spaces.Box(
            flat.low.reshape(self._shape), flat.high.reshape(self._shape), dtype=flat.dtype
        )
        self.action_space = self._simulation.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new simulation; without `seed` its own comes from the generator that the last `seed` began."""
        super().reset(seed=seed)
        self._simulation = self._begin(int(self.np_random.integers(2**31)))
        observation, info = self._simulation.reset()
        return observation.reshape(self._shape), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Connect and disconnect, share out what the stations have, move the users by 1.5 m."""
        observation, reward, terminated, truncated, info = self._simulation.step(action)
        return observation.reshape(self._shape), float(reward), terminated, truncated, info

    def render(self) -> Any:
        """The map and the figures so far, uint8 `[height, width, 3]`; it takes a tenth of a second and more."""
        return self._simulation.render()

    def _begin(self, seed: int) -> Any:
        config = {"seed": seed, "channel": RememberedChannel}
        return self._scenario(config=config, render_mode=self.render_mode)


def make_mobile(size: str = "small", render_mode: str | None = None) -> gym.Env[Any, Any]:
    """mobile-env's radio cells, the central environment: `size` small, medium or large."""
    env = Mobile(size, render_mode)
    return gym.wrappers.TimeLimit(env, int(env._simulation.EP_MAX_TIME))
