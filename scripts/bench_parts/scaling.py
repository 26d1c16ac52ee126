"""Steps per second with more and more joiners, each a namespace with one real-time player of one environment.

The world ticks each 10 ms whether or not anyone acts, so a joiner that keeps up plays 100 steps a second, and what is
missing from that are ticks that its player missed. All processes share this machine: the figures say how small a
joiner's footprint is, not what a LAN carries. The agent is `cem`, whose learner costs next to nothing.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench_parts._lan import Watcher, command, finish, machine, options, ready, say, table, workplace
from tests.kit import Program
from tests.netns.lab import Lab

TICK_S = 0.01
_ARGUMENTS = ("--env", "realtime", "--set", f"env.args.tick_s={TICK_S}", "--agent", "cem", "--envs", "1")


@dataclass(frozen=True)
class Usage:
    """One process at a moment: CPU seconds and voluntary context switches (wake-ups) so far, PSS in bytes."""

    cpu_s: float
    wakes: int
    pss: int


def usage(process: psutil.Process) -> Usage:
    """Of one process."""
    times = process.cpu_times()
    switches = process.num_ctx_switches().voluntary
    return Usage(times.user + times.system, switches, process.memory_full_info().pss)


def roles(host: Program, members: list[Program]) -> dict[str, list[psutil.Process]]:
    """All processes of the run, by role."""
    found = {
        "member": [psutil.Process(member.pid) for member in members],
        "player": [player for member in members for player in member.children("player")],
        "host": [psutil.Process(host.pid)],
    }
    for role in ("broker", "shard", "trainer"):
        found[role] = host.children(role)
    return found


def measure(watcher: Watcher, processes: dict[str, list[psutil.Process]], seconds: float) -> dict[str, Any]:
    """Watch a steady run for some time; returns one row."""
    before = {role: [usage(process) for process in group] for role, group in processes.items()}
    begin = watcher.until(lambda now: True, 30, "a first picture")
    end = watcher.until(lambda now: now["t"] >= begin["t"] + seconds, seconds + 30, "a last picture")
    span_s = end["t"] - begin["t"]
    row: dict[str, Any] = {
        "joiners": len(processes["member"]),
        "seconds": round(span_s, 2),
        "steps_per_s": (end["steps"] - begin["steps"]) / span_s,
        "roles": {},
    }
    for role, group in processes.items():
        after = [usage(process) for process in group]
        count = max(1, len(group))
        row["roles"][role] = {
            "processes": len(group),
            "cpu_percent": 100
            * sum(b.cpu_s - a.cpu_s for a, b in zip(before[role], after, strict=True))
            / span_s
            / count,
            "wakes_per_s": sum(b.wakes - a.wakes for a, b in zip(before[role], after, strict=True))
            / span_s
            / count,
            "pss_mb": sum(b.pss for b in after) / count / 1e6,
        }
    return row


def climb(lan: Lab, levels: list[int], seconds: float) -> list[dict[str, Any]]:
    """One run; joiners are added between the measurements."""
    rows = []
    with ExitStack() as running:
        host = running.enter_context(
            command(lan, 0, "host", "--open", *_ARGUMENTS, "--players", "0", "--name", "lab")
        )
        host.wait_for("started", timeout=60)
        watcher = running.enter_context(Watcher(lan, 0, 0.25))
        members: list[Program] = []
        for level in levels:
            for i in range(len(members) + 1, level + 1):
                join = command(lan, i, "join", lan.address(0), "--players", "1", "--name", f"laptop{i}")
                members.append(running.enter_context(join))
            working = watcher.until(
                lambda now: working_nodes(now) >= len(members), 240, f"{level} joiners work"
            )
            # What starting them cost is over, and what was played meanwhile has arrived.
            watcher.until(lambda now, since=working["t"]: now["t"] > since + 5, 30, "calm")  # type: ignore[misc]
            rows.append(measure(watcher, roles(host, members), seconds))
            say(f"{level} joiners: {rows[-1]['steps_per_s']:.0f} steps/s")
        for member in members:
            member.tell()
        for member in members:
            member.wait(30)
        host.end()
    return rows


def working_nodes(picture: dict[str, Any]) -> int:
    """How many nodes work."""
    return sum(node["state"] == "working" for node in picture["nodes"].values())


def judge(rows: list[dict[str, Any]]) -> None:
    """Add efficiency against the first row times as many, and the share of the world's ticks that were played."""
    one = rows[0]["steps_per_s"] / rows[0]["joiners"]
    for row in rows:
        row["efficiency"] = row["steps_per_s"] / (one * row["joiners"])
        row["ticks_played"] = row["steps_per_s"] * TICK_S / row["joiners"]


def describe(rows: list[dict[str, Any]]) -> str:
    """The table."""
    titles = (
        "joiners",
        "steps/s",
        "efficiency",
        "missed ticks",
        "member CPU",
        "player CPU",
        "host CPU",
        "member PSS",
        "player PSS",
    )
    lines = []
    for row in rows:
        by_role = row["roles"]
        host = sum(
            by_role[r]["cpu_percent"] * by_role[r]["processes"]
            for r in ("host", "broker", "shard", "trainer")
        )
        lines.append(
            (
                row["joiners"],
                f"{row['steps_per_s']:.0f}",
                f"{row['efficiency']:.3f}",
                f"{max(0.0, 1 - row['ticks_played']):.1%}",
                *(f"{by_role[role]['cpu_percent']:.1f} %" for role in ("member", "player")),
                f"{host:.0f} %",
                *(f"{by_role[role]['pss_mb']:.0f} MB" for role in ("member", "player")),
            )
        )
    return (
        table(titles, lines)
        + "\nCPU: of one core, per process; host: all its processes. PSS: per process, shared pages divided."
    )


def main() -> int:
    """Measure and print."""
    parser = options(__doc__ or "")
    parser.add_argument("--joiners", type=int, nargs="+", default=[1, 5, 10, 20], metavar="N")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement")
    chosen = parser.parse_args()
    ready(parser)
    figures: dict[str, Any] = {"bench": "scaling", "machine": machine(), "tick_s": TICK_S, "agent": "cem"}
    with workplace() as folder, Lab(1 + max(chosen.joiners), Path(folder)) as lan:
        figures["rows"] = climb(lan, sorted(chosen.joiners), chosen.seconds)
    judge(figures["rows"])
    finish(figures, describe(figures["rows"]), chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
