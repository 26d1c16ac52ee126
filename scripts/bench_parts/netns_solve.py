"""A host without players in one network namespace, `p2prl join` without an address in the others: CartPole is solved.

The joiners find the host by mDNS and share no file with it. Time runs from the start of the `join` commands, which all
start at once. All processes share this machine, so more joiners are not faster here: that is what `scaling` is about.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench_parts._lan import Watcher, command, finish, machine, options, ready, say, table, workplace
from p2prl.core.episodes import WINDOW
from tests.netns.lab import Lab

#: How often the broker is asked whether a node works yet: the resolution of the first bundle's time.
WATCH_S = 0.05
PATIENCE_S = 600.0


def solve(lan: Lab, joiners: int, experiment: Sequence[str], target: float, seed: int) -> dict[str, Any]:
    """One run to the end, of an experiment as `p2prl host` is told it; returns its figures."""
    arguments = ("--players", "0", "--name", "lab", "--seed", str(seed), "--stop-return", str(target))
    with ExitStack() as running:
        host = running.enter_context(command(lan, 0, "host", *experiment, "--open", *arguments))
        host.wait_for("started", timeout=60)
        with Watcher(lan, 0, WATCH_S) as watcher:
            watcher.until(lambda now: True, 30, "the broker answers")
            began = time.monotonic()
            names = [f"laptop{i}" for i in range(1, 1 + joiners)]
            members = [
                running.enter_context(command(lan, i, "join", "--players", "1", "--name", name))
                for i, name in enumerate(names, 1)
            ]
            first_s = first_bundles(watcher, names, began)
        host.wait_for("progress", lambda now: is_solved(now, target), timeout=PATIENCE_S)
        solved_s = time.monotonic() - began
        codes = [host.wait(20), *(member.wait(20) for member in members)]
    stopped = host.last("stopped") or {}
    return {
        "joiners": joiners,
        "seed": seed,
        "solved_s": solved_s,
        "first_bundle_s": first_s,
        "exit_codes": codes,
        **{name: stopped.get(name) for name in ("steps", "episodes", "updates", "return_mean", "bundles")},
    }


def first_bundles(watcher: Watcher, names: list[str], began: float) -> list[float]:
    """Seconds until a first bundle of each of these nodes was stored."""
    found: dict[str, float] = {}

    def all_seen(now: dict[str, Any]) -> bool:
        for name, node in now["nodes"].items():
            if node["state"] == "working":
                found.setdefault(name, now["t"] - began)
        return len(found) == len(names)

    watcher.until(all_seen, 120, "a bundle of each joiner")
    return sorted(found.values())


def is_solved(progress: dict[str, Any], target: float) -> bool:
    """As `--stop-return` means it."""
    full = progress["return_mean"] is not None and progress["return_episodes"] >= WINDOW
    return full and progress["return_mean"] >= target


def describe(rows: list[dict[str, Any]], experiment: str, target: float) -> str:
    """The table."""
    titles = ("joiners", "seed", "solved", "steps", "updates", "first bundle: median", "range", "in flight")
    lines = []
    for row in rows:
        first, books = row["first_bundle_s"], row["bundles"]
        flying = books["produced"] - books["stored"]
        lines.append(
            (
                row["joiners"],
                row["seed"],
                f"{row['solved_s']:.1f} s",
                row["steps"],
                row["updates"],
                f"{statistics.median(first):.1f} s",
                f"{first[0]:.1f}-{first[-1]:.1f} s",
                f"{flying} of {books['produced']}",
            )
        )
    note = (
        f"{experiment} to a mean return of {target:g}, by remote players alone; seconds since the start of `join`."
        "\nin flight: bundles that were under way when the run ended; each is counted as dropped."
    )
    return f"{table(titles, lines)}\n{note}"


def main() -> int:
    """Measure and print; exit 1 if a command did not end with 0."""
    parser = options(__doc__ or "")
    parser.add_argument("--joiners", type=int, nargs="+", default=[1, 4], metavar="N")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="SEED")
    parser.add_argument("--experiment", default="cartpole")
    parser.add_argument("--stop-return", type=float, default=475.0, metavar="R")
    chosen = parser.parse_args()
    ready(parser)
    figures: dict[str, Any] = {"bench": "netns-solve", "machine": machine(), "experiment": chosen.experiment}
    rows: list[dict[str, Any]] = []
    for joiners in chosen.joiners:
        for seed in chosen.seeds:
            with workplace() as folder, Lab(1 + joiners, Path(folder)) as lan:
                rows.append(solve(lan, joiners, [chosen.experiment], chosen.stop_return, seed))
            say(f"{joiners} joiners, seed {seed}: {rows[-1]['solved_s']:.1f} s")
    figures["rows"] = rows
    finish(figures, describe(rows, chosen.experiment, chosen.stop_return), chosen.json)
    return int(any(code != 0 for row in rows for code in row["exit_codes"]))


if __name__ == "__main__":
    sys.exit(main())
