"""Real frames of Atari games, played once and kept in the bench's cache: `[rows, slots, 4, 84, 84]` uint8.

Played as everybody does: Gymnasium's AtariPreprocessing and FrameStackObservation around ale-py. Beside random play,
which compresses unusually well, Pong and Breakout are played by a script that follows the ball, as a half-trained
policy does: balls fly longer and more of the picture moves. Of the other games there is no such script.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from bench_parts.kinds import Unavailable

Array = np.ndarray[Any, np.dtype[Any]]
GAMES = ("Pong", "Breakout", "MsPacman", "Seaquest")
RANDOM, FOLLOWS = "random play", "follows the ball"
#: Where the ball and the paddle are in the console's memory (Anand et al. 2019, arXiv:1906.08226, their table of
#: annotations), and the actions that add to the paddle's coordinate and take from it.
_BALLS = {"Pong": (54, 51, 3, 2), "Breakout": (99, 72, 2, 3)}
_FIRE = 1
#: How often the script acts at random instead, and how far the paddle may be off.
_NOISE, _SLACK = 0.2, 4


def cache_folder() -> Path:
    """Where frames and the peers' environments are kept: P2PRL_BENCH_CACHE, or the user's cache."""
    named = os.environ.get("P2PRL_BENCH_CACHE")
    folder = Path(named) if named else platformdirs.user_cache_path("p2prl", appauthor=False) / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def policies(game: str) -> tuple[str, ...]:
    """Who plays it here."""
    return (RANDOM, FOLLOWS) if game in _BALLS else (RANDOM,)


def frames(game: str, policy: str = RANDOM, rows: int = 257, slots: int = 8) -> Path:
    """The file of a game's frames, made if it is not there yet: some seconds.

    Raises:
        Unavailable: ale-py or opencv is not installed.
    """
    name = f"{game}-{policy.replace(' ', '-')}-{rows}x{slots}.npy"
    file = cache_folder() / name
    if not file.is_file():
        played = np.stack([_play(game, policy, rows, slot) for slot in range(slots)], axis=1)
        part = file.with_name(f".{os.getpid()}-{name}")
        np.save(part, played)
        part.replace(file)
    return file


def _play(game: str, policy: str, rows: int, slot: int) -> Array:
    """One slot, `[rows, 4, 84, 84]`."""
    env = _make(game)
    try:
        act = _follower(env, game, slot) if policy == FOLLOWS else lambda: int(env.action_space.sample())
        env.action_space.seed(slot)
        obs, _ = env.reset(seed=slot)
        seen = [np.asarray(obs)]
        while len(seen) < rows:
            obs, _, terminated, truncated, _ = env.step(act())
            if terminated or truncated:
                obs, _ = env.reset()
            seen.append(np.asarray(obs))
        return np.stack(seen)
    finally:
        env.close()


def _make(game: str) -> Any:
    try:
        import ale_py
        import cv2  # noqa: F401 - AtariPreprocessing asks for it only when it is made
        import gymnasium as gym
        from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
    except ImportError as error:
        raise Unavailable(
            f"{error.name} is not installed: scripts/bench --setup, or pip install 'p2prl[bench]'"
        ) from error
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return FrameStackObservation(AtariPreprocessing(gym.make(f"ALE/{game}-v5", frameskip=1)), 4)


def _follower(env: Any, game: str, slot: int) -> Callable[[], int]:
    ball_at, paddle_at, more, less = _BALLS[game]
    rng = np.random.default_rng(slot)
    ale = env.unwrapped.ale

    def act() -> int:
        if rng.random() < _NOISE:
            return int(rng.integers(env.action_space.n))
        ram = ale.getRAM()
        ball, paddle = int(ram[ball_at]), int(ram[paddle_at])
        if ball == 0:
            return _FIRE
        off = ball - paddle
        return 0 if abs(off) <= _SLACK else more if off > 0 else less

    return act
