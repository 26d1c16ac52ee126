"""Real frames of Atari games, played once and kept in the bench's cache: `[rows, slots, 4, 84, 84]` uint8.

Played as everybody does: Gymnasium's AtariPreprocessing and FrameStackObservation around ale-py. Beside random play,
which compresses unusually well, each game is played by a half-trained policy: what it did was written down once
(half_trained.py), and is done again here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from bench_parts.half_trained import Marks, Recording, recordings
from bench_parts.kinds import Unavailable

Array = np.ndarray[Any, np.dtype[Any]]
RANDOM, HALF_TRAINED = "random play", "half-trained policy"
GAMES = ("Pong", "Breakout", "MsPacman", "Seaquest")
POLICIES = (RANDOM, HALF_TRAINED)


def cache_folder() -> Path:
    """Where frames and the peers' environments are kept: P2PRL_BENCH_CACHE, or the user's cache."""
    named = os.environ.get("P2PRL_BENCH_CACHE")
    folder = Path(named) if named else platformdirs.user_cache_path("p2prl", appauthor=False) / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def frames(game: str, policy: str = RANDOM, rows: int = 257, slots: int = 8) -> Path:
    """The file of a game's frames, made if it is not there yet: some seconds.

    Raises:
        Unavailable: ale-py or opencv is not installed, or ale-py plays another game than was recorded.
    """
    name = f"{game}-{policy.replace(' ', '-')}-{rows}x{slots}.npy"
    if policy == HALF_TRAINED:
        name = f"{recordings()[game].slots[0].marks[-1]}-{name}"  # another recording is another file
    file = cache_folder() / name
    if not file.is_file():
        play = _half_trained if policy == HALF_TRAINED else _random
        played = np.stack([play(game, rows, slot) for slot in range(slots)], axis=1)
        part = file.with_name(f".{os.getpid()}-{name}")
        np.save(part, played)
        part.replace(file)
    return file


def _random(game: str, rows: int, slot: int) -> Array:
    """One slot, `[rows, 4, 84, 84]`."""
    env = make(game)
    try:
        env.action_space.seed(slot)
        return np.stack(list(islice(ticks(env, slot, lambda: int(env.action_space.sample())), rows)))
    finally:
        env.close()


def _half_trained(game: str, rows: int, slot: int) -> Array:
    """The same, as it was recorded.

    Raises:
        Unavailable: at a mark the console's memory is not what it was.
    """
    recording = recordings()[game]
    told = recording.slots[slot]
    if rows > told.rows:
        raise ValueError(f"{told.rows} rows of {game} were recorded, not {rows}")
    env = make(game)
    try:
        actions, due, marks = iter(told.actions), iter(told.marks), Marks(told.lead)
        kept = []
        for row, obs in enumerate(islice(ticks(env, slot, lambda: next(actions)), told.lead + rows)):
            mark = marks.take(env.unwrapped.ale.getRAM())
            if mark is not None and mark != next(due):
                raise Unavailable(_another(game, recording))
            if row >= told.lead:
                kept.append(obs)
        return np.stack(kept)
    finally:
        env.close()


def _another(game: str, recording: Recording) -> str:
    import ale_py

    return (
        f"{game} goes another way with ale-py {ale_py.__version__} than when it was recorded, with "
        f"{recording.ale_py}: pip install ale-py=={recording.ale_py}, or record anew (docs/performance.md)"
    )


def ticks(env: Any, seed: int, act: Callable[[], int]) -> Iterator[Array]:
    """Observations without end, from a reset with the seed on; `act` is asked before each but the first."""
    obs, _ = env.reset(seed=seed)
    while True:
        yield np.asarray(obs)
        obs, _, terminated, truncated, _ = env.step(act())
        if terminated or truncated:
            obs, _ = env.reset()


def make(game: str) -> Any:
    """The game as it is seen in pictures.

    Raises:
        Unavailable: a package is missing.
    """
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
