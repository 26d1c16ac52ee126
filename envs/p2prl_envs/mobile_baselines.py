"""What is to be beaten in `mobile`: connecting at random, and each user to the station that it hears best.

`python -m p2prl_envs.mobile_baselines CSV medium` plays both in the episodes of a `p2prl eval --csv CSV`, and says how
much more was earned there.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2prl.learn.statistics import bootstrap_interval
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


def returns_of(policy: Policy, size: str, seeds: Iterable[int]) -> list[float]:
    """The return of a whole episode with each of these seeds."""
    env = make_mobile(size)
    space: Any = env.action_space
    users, stations = len(space.nvec), int(space.nvec[0]) - 1
    returns = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        observation, _ = env.reset(seed=seed)
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


def compared(seeds: list[int], returns: list[float], size: str) -> list[str]:
    """A line for a policy's returns, and one for each baseline in the same episodes: means and 95 % intervals.

    The interval of what the policy earns more is of the differences episode by episode, so that how hard each one is
    does not count.
    """
    lines = [f"{'policy':<8} {_interval(returns)}"]
    for name, policy in POLICIES.items():
        theirs = returns_of(policy, size, seeds)
        more = [ours - other for ours, other in zip(returns, theirs, strict=True)]
        lines.append(f"{name:<8} {_interval(theirs)}   the policy earns {_interval(more)} more")
    return lines


def _interval(values: list[float]) -> str:
    low, high = bootstrap_interval(values, seed=0)
    return f"{np.mean(values):.1f} ({low:.1f} to {high:.1f})"


def main() -> int:
    """Compare an evaluation with the baselines."""
    parser = argparse.ArgumentParser(prog="python -m p2prl_envs.mobile_baselines", description=main.__doc__)
    parser.add_argument("csv", type=Path, help="what `p2prl eval --csv` wrote")
    parser.add_argument("size", choices=("small", "medium", "large"), help="that it was played in")
    options = parser.parse_args()
    try:
        with options.csv.open(newline="", encoding="utf-8") as file:
            rows = [(int(row["seed"]), float(row["return"])) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError) as error:
        parser.error(f"{options.csv} is not what p2prl eval --csv writes: {error}")
    if not rows:
        parser.error(f"{options.csv} has no episodes")
    seeds, returns = (list(column) for column in zip(*rows, strict=True))
    sys.stdout.write("".join(f"{line}\n" for line in compared(seeds, returns, options.size)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
