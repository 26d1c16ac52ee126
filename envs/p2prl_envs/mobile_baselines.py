"""What is to be beaten in `mobile`: connecting at random, and each user to the station that it hears best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2prl_envs.mobile import make_mobile

#: From an observation, the number of users and of stations, and a generator, to an action int64 `[users]`.
Policy = Callable[[NDArray[np.float32], int, int, np.random.Generator], NDArray[np.int64]]


def random_cells(
    observation: NDArray[np.float32], users: int, stations: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Each user does nothing, or connects to or leaves any station, all alike."""
    return rng.integers(stations + 1, size=users)


def closest_cell(
    observation: NDArray[np.float32], users: int, stations: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Each user is connected to the station with the best signal, which is the closest, and to no other.

    A user does one thing a step: it connects first, and then leaves the station that it had. Where none is in reach it
    tries in vain, which is free.
    """
    connected = observation[:, :stations] > 0.5
    best = observation[:, stations : 2 * stations].argmax(axis=1)
    rows = np.arange(users)
    others = connected.copy()
    others[rows, best] = False
    leave = np.where(others.any(axis=1), others.argmax(axis=1) + 1, 0)
    return np.where(connected[rows, best], leave, best + 1)


POLICIES: dict[str, Policy] = {"random": random_cells, "closest": closest_cell}


def returns_of(policy: Policy, size: str, episodes: int = 20, seed: int = 0) -> list[float]:
    """The returns of whole episodes, with the seeds `seed`, `seed + 1` and so on."""
    env = make_mobile(size)
    space: Any = env.action_space
    users, stations = len(space.nvec), int(space.nvec[0]) - 1
    returns = []
    for episode in range(episodes):
        rng = np.random.default_rng(seed + episode)
        observation, _ = env.reset(seed=seed + episode)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(
                policy(observation, users, stations, rng)
            )
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
    env.close()
    return returns
