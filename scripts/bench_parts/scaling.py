"""Steps per second with more and more joiners, each a namespace with one real-time player of one environment.

The world ticks each 10 ms whether or not anyone acts, so a joiner that keeps up plays 100 steps a second, and what is
missing from that are ticks that its player missed. All processes share this machine: the figures say how small a
joiner's footprint is, not what a LAN carries. The agent is `cem`, whose learner costs next to nothing.

Ours is what shards stored, by the receipts; the limit is as many times what one player came to in the same run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from bench_parts._lan import Watcher, command, finish, machine, options, ready, say, table, workplace
from bench_parts.kinds import Bar, Case, Unavailable
from p2prl.words import many
from tests.kit import Program
from tests.netns.lab import Lab, missing

TICK_S = 0.01
_ARGUMENTS = ("--env", "realtime", "--set", f"env.args.tick_s={TICK_S}", "--agent", "cem", "--envs", "1")
_PLAYERS = (1, 2, 4, 8, 16, 20, 40)
_BARS = {20: 0.97, 40: 0.95}
#: tinyverse, by its authors: 15 minutes to a result on 1 core, 5 on 20, 4 on 40.
_ANCESTOR = {20: 0.15, 40: 0.09}
#: What starting joiners cost is over after so long, and what was played meanwhile has arrived.
_CALM_S = 3.0
#: How often the broker is asked. With few players a figure lies between two bundles, so the moment counts.
_LOOK_S, _LOOK_MANY_S, _MANY = 0.02, 0.1, 8


def cases(quick: bool) -> Iterator[Case]:
    """A row for each number of players; without root and `ip` each says why it is absent."""
    levels, turns, seconds = ((1, 2), 1, 1.5) if quick else (_PLAYERS, 3, 3.5)
    names = {level: f"{many(level, 'player')}, a world of {TICK_S * 1000:g} ms ticks" for level in levels}
    if why := missing():
        for name in names.values():
            yield {"case": name, "unit": "env steps/s", "ours": None, "note": why}
        return
    try:
        with workplace() as folder, Lab(1 + max(levels), Path(folder)) as lan:
            rows = climb(lan, levels, turns, seconds, _CALM_S / 4 if quick else _CALM_S)
            yield from (_case(names[row["joiners"]], row, one) for row, one in _with_first(rows))
    except (RuntimeError, AssertionError) as error:  # a command that ended, or nodes that did not come
        raise Unavailable(str(error)) from error


def _with_first(rows: Iterator[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """Each row, and what one player of the first came to."""
    one = 0.0
    for row in rows:
        one = one or row["steps_per_s"] / row["joiners"]
        yield row, one


def _case(name: str, row: dict[str, Any], one: float) -> Case:
    level, rates = row["joiners"], row["rates"]
    return {
        "case": name,
        "unit": "env steps/s",
        "ours": rates,
        "limit": [one * level] * len(rates),
        "bar": Bar(limit=_BARS[level]) if level in _BARS else None,
        "note": _note(row),
    }


def _note(row: dict[str, Any]) -> str:
    """What its processes took, and what the ancestor had."""
    by_role = row["roles"]
    text = (
        f"the limit is {row['joiners']} x one player; a member took {by_role['member']['cpu_percent']:.1f} % of a "
        f"core and {by_role['member']['pss_mb']:.0f} MB (PSS), a player {by_role['player']['cpu_percent']:.1f} % and "
        f"{by_role['player']['pss_mb']:.0f} MB"
    )
    if row["joiners"] in _ANCESTOR:
        text += f"; tinyverse's own figure is {_ANCESTOR[row['joiners']]} (a constant, not measured here)"
    return text


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


def measure(
    watcher: Watcher, processes: dict[str, list[psutil.Process]], turns: int, seconds: float
) -> dict[str, Any]:
    """Watch a steady run for some time; returns one row. `rates` are steps/s of each turn."""
    before = {role: [usage(process) for process in group] for role, group in processes.items()}
    marks = [moved(watcher)]
    for _ in range(turns):
        since = marks[-1]["t"]
        watcher.until(lambda now, since=since: now["t"] >= since + seconds, seconds + 30, "a picture")  # type: ignore[misc]
        marks.append(moved(watcher))
    rates = [(b["steps"] - a["steps"]) / (b["t"] - a["t"]) for a, b in pairwise(marks)]
    span_s = marks[-1]["t"] - marks[0]["t"]
    row: dict[str, Any] = {
        "joiners": len(processes["member"]),
        "seconds": round(span_s, 2),
        "rates": rates,
        "steps_per_s": (marks[-1]["steps"] - marks[0]["steps"]) / span_s,
        "roles": {},
    }
    for role, group in processes.items():
        row["roles"][role] = spent(before[role], [usage(process) for process in group], span_s)
    return row


def spent(before: Sequence[Usage], after: Sequence[Usage], span_s: float) -> dict[str, float]:
    """What processes of one role took meanwhile, on average."""
    count = max(1, len(after))
    pairs = list(zip(before, after, strict=True))
    return {
        "processes": len(after),
        "cpu_percent": 100 * sum(b.cpu_s - a.cpu_s for a, b in pairs) / span_s / count,
        "wakes_per_s": sum(b.wakes - a.wakes for a, b in pairs) / span_s / count,
        "pss_mb": sum(b.pss for b in after) / count / 1e6,
    }


def moved(watcher: Watcher) -> dict[str, Any]:
    """The first picture in which more is stored than before: rates between two such are of whole bundles."""
    known = watcher.until(lambda now: True, 30, "a picture")["steps"]
    return watcher.until(lambda now: now["steps"] > known, 30, "another bundle")


def climb(
    lan: Lab, levels: Sequence[int], turns: int, seconds: float, calm_s: float
) -> Iterator[dict[str, Any]]:
    """One run; joiners are added between the measurements. A row for each level, as it comes."""
    with ExitStack() as running:
        host = running.enter_context(
            command(lan, 0, "host", "--open", *_ARGUMENTS, "--players", "0", "--name", "lab")
        )
        host.wait_for("started", timeout=60)
        members: list[Program] = []
        for level in levels:
            for i in range(len(members) + 1, level + 1):
                join = command(lan, i, "join", lan.address(0), "--players", "1", "--name", f"laptop{i}")
                members.append(running.enter_context(join))
            with Watcher(lan, 0, _LOOK_S if level < _MANY else _LOOK_MANY_S) as watcher:
                settled(watcher, level, calm_s)
                row = measure(watcher, roles(host, members), turns, seconds)
            say(f"{many(level, 'joiner')}: {row['steps_per_s']:.0f} steps/s")
            yield row
        for member in members:
            member.tell()
        for member in members:
            member.wait(30)
        host.end()


def settled(watcher: Watcher, level: int, calm_s: float) -> None:
    """Wait until so many nodes work, and for what starting them cost to be over."""
    working = watcher.until(lambda now: working_nodes(now) >= level, 240, f"{many(level, 'joiner')} at work")
    watcher.until(lambda now: now["t"] > working["t"] + calm_s, 30, "calm")


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
        figures["rows"] = list(climb(lan, sorted(chosen.joiners), 1, chosen.seconds, _CALM_S))
    judge(figures["rows"])
    finish(figures, describe(figures["rows"]), chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
