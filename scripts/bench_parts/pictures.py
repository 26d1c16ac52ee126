"""Real frames of Atari games, played once and kept in the bench's cache: `[rows, slots, 4, 84, 84]` uint8.

Played as everybody does: Gymnasium's AtariPreprocessing and FrameStackObservation around ale-py. Beside random play,
which compresses unusually well, each game is played by a script, which stands for a half-trained policy: to train one
takes hours, and the bench minutes. In Pong and Breakout it follows the ball; in MsPacman it keeps its direction until
a wall stops it; in Seaquest it keeps moving and firing, and comes up for air. A fifth of all actions are random. It
scores one and a half to three times as much as random play, or loses half as often: more of the picture moves.
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
RANDOM, FOLLOWS = "random play", "follows the ball"
#: Who plays, beside who acts at random.
SCRIPTS = {
    "Pong": FOLLOWS,
    "Breakout": FOLLOWS,
    "MsPacman": "keeps its direction",
    "Seaquest": "fires and dives",
}
GAMES = tuple(SCRIPTS)
# Where things are in the console's memory: Anand et al. 2019, arXiv:1906.08226, their table of annotations.
#: The ball and the paddle, and the actions that add to the paddle's coordinate and take from it.
_BALLS = {"Pong": (54, 51, 3, 2), "Breakout": (99, 72, 2, 3)}
_PACMAN = (10, 16)
_OXYGEN, _DEPTH = 102, 97
_FIRE = 1
#: Of MsPacman: up, right, left, down.
_WAYS = (1, 2, 3, 4)
#: Of Seaquest: right, left, up and down, each firing; and up alone.
_SHOTS, _UP = (11, 12, 10, 13), 2
#: How low the air may get before it comes up, and where it counts as up.
_LOW_AIR, _SURFACE = 12, 14
#: How often the script acts at random instead, how far the paddle may be off, how long one way is kept.
_NOISE, _SLACK, _KEPT = 0.2, 4, 12


def cache_folder() -> Path:
    """Where frames and the peers' environments are kept: P2PRL_BENCH_CACHE, or the user's cache."""
    named = os.environ.get("P2PRL_BENCH_CACHE")
    folder = Path(named) if named else platformdirs.user_cache_path("p2prl", appauthor=False) / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def policies(game: str) -> tuple[str, ...]:
    """Who plays it here."""
    return (RANDOM, SCRIPTS[game])


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
        act = _script(env, game, slot) if policy != RANDOM else lambda: int(env.action_space.sample())
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
        raise Unavailable(f"{error.name} is not installed: scripts/bench --setup installs it") from error
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return FrameStackObservation(AtariPreprocessing(gym.make(f"ALE/{game}-v5", frameskip=1)), 4)


def _script(env: Any, game: str, slot: int) -> Callable[[], int]:
    """The game's script, with a fifth of its actions at random."""
    rng, ale = np.random.default_rng(slot), env.unwrapped.ale
    made = {"MsPacman": _wanderer, "Seaquest": _diver}.get(game)
    decide = made(rng) if made is not None else _follower(game)

    def act() -> int:
        if rng.random() < _NOISE:
            return int(rng.integers(env.action_space.n))
        return decide(ale.getRAM())

    return act


def _follower(game: str) -> Callable[[Array], int]:
    ball_at, paddle_at, more, less = _BALLS[game]

    def decide(ram: Array) -> int:
        ball, paddle = int(ram[ball_at]), int(ram[paddle_at])
        if ball == 0:
            return _FIRE
        off = ball - paddle
        return 0 if abs(off) <= _SLACK else more if off > 0 else less

    return decide


def _wanderer(rng: np.random.Generator) -> Callable[[Array], int]:
    """One way until nothing moves, then another."""
    way, before = _WAYS[0], (0, 0)

    def decide(ram: Array) -> int:
        nonlocal way, before
        here = (int(ram[_PACMAN[0]]), int(ram[_PACMAN[1]]))
        if here == before:
            way = int(rng.choice(_WAYS))
        before = here
        return way

    return decide


def _diver(rng: np.random.Generator) -> Callable[[Array], int]:
    """One way for a while, firing; up when the air runs out, until there is enough of it."""
    way, left, rises = _SHOTS[0], 0, False

    def decide(ram: Array) -> int:
        nonlocal way, left, rises
        air = int(ram[_OXYGEN])
        rises = air < (4 * _LOW_AIR if rises else _LOW_AIR) and (rises or int(ram[_DEPTH]) > _SURFACE)
        if rises:
            return _UP
        left -= 1
        if left < 0:
            way, left = int(rng.choice(_SHOTS)), int(rng.integers(_KEPT))
        return way

    return decide
