"""Atari games as their console's memory tells them: where things are, how they move, how far apart they are.

What `half_trained.json` was learned from (docs/performance.md has the recipe): a small network learns from some dozen
numbers in minutes what it learns from pictures in hours, and what it does can then be shown in pictures.
As Gymnasium writes it: `--env bench_parts.console:Console-v0 --set env.args.game=Pong`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
ENV = "bench_parts.console:Console-v0"


@dataclass(frozen=True)
class Places:
    """Where a game keeps things: Anand et al. 2019, arXiv:1906.08226, their table of annotations.

    Attributes:
        bytes: the memory's bytes that are seen.
        pairs: the bytes whose difference is seen: a ball's from the paddle, a ghost's from the player.
    """

    bytes: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many numbers that makes."""
        return 2 * len(self.bytes) + len(self.pairs)

    def see(self, ram: Array, before: Array) -> Array:
        """float32 `[size]` of the memory now and a tick before: the bytes, how they changed, and the differences."""
        now, then = ram.astype(np.float32), before.astype(np.float32)
        at = list(self.bytes)
        apart = [now[one] - now[other] for one, other in self.pairs]
        seen: Array = np.concatenate([now[at], now[at] - then[at], np.array(apart, np.float32)]) / np.float32(
            128
        )
        return seen


_GHOSTS_X, _GHOSTS_Y, _PACMAN = (6, 7, 8, 9), (12, 13, 14, 15), (10, 16)
_SHARKS, _DIVERS, _SUBMARINE = (30, 31, 32, 33), (71, 72, 73, 74), (70, 97)
PLACES = {
    "Pong": Places((49, 54, 50, 51), ((54, 51), (54, 50))),
    "Breakout": Places((99, 101, 72), ((99, 72),)),
    "MsPacman": Places(
        (*_PACMAN, *_GHOSTS_X, *_GHOSTS_Y, 11, 17, 19, 56, 119),
        (*((x, _PACMAN[0]) for x in _GHOSTS_X), *((y, _PACMAN[1]) for y in _GHOSTS_Y)),
    ),
    "Seaquest": Places(
        (*_SUBMARINE, *_SHARKS, *_DIVERS, 62, 86, 87, 102, 103),
        tuple((x, _SUBMARINE[0]) for x in (*_SHARKS, *_DIVERS)),
    ),
}


class Console(gym.Env[Array, int]):
    """`ALE/GAME-v5` with another look: four frames a tick, and a quarter of all frames keep the action before."""

    def __init__(self, game: str) -> None:
        gym.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._env, self._places = gym.make(f"ALE/{game}-v5", obs_type="ram"), PLACES[game]
        self.observation_space = gym.spaces.Box(-4.0, 4.0, (self._places.size,), np.float32)
        self.action_space = self._env.action_space  # type: ignore[assignment]
        self._before = np.zeros(128, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Nothing has moved yet."""
        super().reset(seed=seed)
        self._before, info = self._env.reset(seed=seed, options=options)
        return self._places.see(self._before, self._before), info

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Four frames."""
        ram, reward, terminated, truncated, info = self._env.step(action)
        before, self._before = self._before, ram
        return self._places.see(ram, before), float(reward), terminated, truncated, info

    def close(self) -> None:
        """The console."""
        self._env.close()


gym.register("Console-v0", entry_point=Console)
