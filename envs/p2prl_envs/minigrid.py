"""MiniGrid's small worlds, seen from where the agent stands. Their texts are left out."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import minigrid  # noqa: F401  (it registers its ids)
import numpy as np
from gymnasium import spaces
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.envs.dynamicobstacles import DynamicObstaclesEnv
from minigrid.minigrid_env import MiniGridEnv

#: What a tile is, its colour and its state, each as rows of a unit matrix.
_KINDS = tuple(np.eye(len(names), dtype=np.uint8) for names in (OBJECT_TO_IDX, COLOR_TO_IDX, STATE_TO_IDX))
PLANES = sum(len(rows) for rows in _KINDS)


class OneHot(gym.ObservationWrapper[Any, Any, Any]):
    """What a MiniGrid agent sees, ready to be stored and learned from.

    The observation is a Dict: `direction`, Discrete(4), and `image`, uint8 `[view, view, 20]` of 0 and 1: for each tile
    that is seen its kind (11 planes), colour (6) and state (3). The text of the mission is dropped: where it differs
    from episode to episode (GoToDoor, Fetch, BabyAI), the agent is not told what it is asked for.
    """

    def __init__(self, env: gym.Env[Any, Any], actions: int | None = None) -> None:
        """`actions`: only the first so many of MiniGrid's seven. Raises ValueError if `env` is not a MiniGrid."""
        super().__init__(env)
        world = env.unwrapped
        if not isinstance(world, MiniGridEnv):
            raise ValueError(f"{type(world).__name__} is no MiniGrid")
        view = world.agent_view_size
        image = spaces.Box(0, 1, (view, view, PLANES), np.uint8)
        self.observation_space = spaces.Dict({"direction": spaces.Discrete(4), "image": image})
        if actions is not None:
            if not 1 <= actions <= len(world.actions):
                raise ValueError(f"actions must be 1 to {len(world.actions)}")
            self.action_space = spaces.Discrete(actions)
        if type(world).__module__.startswith("minigrid."):  # others' worlds may reward as they like
            self.reward_range = (-1.0 if isinstance(world, DynamicObstaclesEnv) else 0.0, 1.0)

    def observation(self, observation: Any) -> Any:
        """One-hot planes of the three numbers that MiniGrid gives for each tile."""
        tiles = observation["image"]
        planes = [rows[tiles[..., index]] for index, rows in enumerate(_KINDS)]
        return {"direction": observation["direction"], "image": np.concatenate(planes, axis=-1)}


def make_minigrid(
    env: str = "MiniGrid-MemoryS7-v0",
    actions: int | None = None,
    agent_view_size: int | None = None,
    render_mode: str | None = None,
    **args: Any,
) -> gym.Env[Any, Any]:
    """MiniGrid's world `env`, any of its ids, as the agent sees it; other arguments are that world's.

    `agent_view_size` is how far it sees, in tiles: odd, from 3, and 7 unless given.

    Of the actions the first three turn left, turn right and go forward, which is all that Memory, Empty, FourRooms and
    the Crossings need. An episode truncates after `max_steps`, which each world sets itself.

    MemoryS7 can be solved without memory as long as the agent sees 7 tiles far: from the junction it sees the first
    room's object beside the two at the corridor's ends. With `agent_view_size=3` no place shows both, and no policy
    without memory finds the right end more often than every other time.
    """
    if agent_view_size is not None:
        if agent_view_size < 3 or agent_view_size % 2 == 0:
            raise ValueError("agent_view_size must be odd and at least 3")
        args["agent_view_size"] = agent_view_size
    world = OneHot(gym.make(env, render_mode=render_mode, **args), actions)
    inner: Any = world.unwrapped
    return gym.wrappers.TimeLimit(world, int(inner.max_steps))
