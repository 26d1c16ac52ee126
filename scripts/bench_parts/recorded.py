"""An environment that shows recorded frames again, stacked as everybody does: what Atari costs is not what is measured.

As Gymnasium writes it: `--env bench_parts.recorded:Recorded-v0 --set env.args.file=FRAMES.npy`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FrameStackObservation

Array = np.ndarray[Any, np.dtype[Any]]
ENV = "bench_parts.recorded:Recorded-v0"
#: Of Breakout; nothing depends on it.
_ACTIONS = 4


class Recorded(gym.Env[Array, int]):
    """Episodes are the rest of a recording, from a row and a slot that the seed chooses; an action does nothing.

    Args:
        file: `[rows, slots, stack, *picture]` uint8, as pictures.py makes it; of a stack the newest picture is shown.
    """

    def __init__(self, file: str) -> None:
        self._frames = np.load(file, mmap_mode="r", allow_pickle=False)[:, :, -1]
        self.observation_space = gym.spaces.Box(0, 255, self._frames.shape[2:], np.uint8)
        self.action_space = gym.spaces.Discrete(_ACTIONS)
        self._row = self._slot = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Anywhere in the first half."""
        super().reset(seed=seed)
        rows, slots = self._frames.shape[:2]
        self._row, self._slot = (int(self.np_random.integers(most)) for most in (rows // 2, slots))
        return self._frames[self._row, self._slot], {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """The next row."""
        self._row += 1
        truncated = self._row + 1 == len(self._frames)
        return self._frames[self._row, self._slot], 0.0, False, truncated, {}


def recorded(file: str) -> gym.Env[Array, int]:
    """Its pictures in stacks of as many as the file has."""
    stack = np.load(file, mmap_mode="r", allow_pickle=False).shape[2]
    return FrameStackObservation(Recorded(file), stack)


gym.register("Recorded-v0", entry_point=recorded)
