"""Where the time of player, member, broker, shard and trainer goes: py-spy's samples of a run, ten functions each.

`run` is what the part `run` measures: a host with a player of its own, V-trace on CartPole. `cartpole` and `atari` are
the ingest path: members whose players hand over what they played again and again. Prints Markdown, as
docs/performance.md has it. A function's share is of the samples in which its process did not wait, its own lines alone.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench_parts import ingest, page
from bench_parts._lan import say
from bench_parts.kinds import Unavailable
from bench_parts.running import Running, Workload, sets
from bench_parts.whole_run import VTRACE, WARM_UPDATES

ROLES = ("player", "member", "shard", "trainer", "broker")
_TOP = 10
#: Samples a second: as many as do not slow down what is watched.
_RATE = 200
#: Where threads wait for a socket or a pipe: py-spy takes some of that for work.
_WAITS = frozenset(
    {"_watch_parent", "Child._read_log", "Child._read_events", "Poller.poll", "wait", "Condition.wait"}
)
#: `Loop.run (p2prl/net/loop.py:98)`: the line is left out, so that a function is one row.
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>[^()]*?)(?::\d+)?\)$")


@dataclass(frozen=True)
class Profile:
    """One process. `own` are samples by function; `busy` is the share of a core that it took."""

    role: str
    busy: float
    own: Counter[str]


def own_samples(raw: str) -> Counter[str]:
    """Samples by the function that was running, from py-spy's raw format: `outer;...;inner COUNT`, a line a stack."""
    found: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        if not stack or not count.isdigit():
            continue
        frame = stack.rpartition(";")[2]
        match = _FRAME.match(frame)
        if match is None:
            found[frame] += int(count)
        elif match["function"] not in _WAITS:
            found[f"{match['function']} ({match['file']})"] += int(count)
    return found


@contextmanager
def running(what: str, members: int) -> Iterator[tuple[Running, dict[str, psutil.Process]]]:
    """A run that is warm, and one process of each role: of several shards, or members, the busiest."""
    if what == "run":
        with Running(VTRACE) as run:
            run.until(lambda now: now.updates >= WARM_UPDATES, "the first updates")
            yield run, busiest(run)
        return
    work: Workload = ingest.atari() if what == "atari" else ingest.CARTPOLE
    settings = sets(f"agent.ticks={work.ticks}", "play.eval_share=0")
    with Running([*work.arguments("Feed"), *ingest.QUOTAS, *settings]) as run:
        for _ in range(members):
            run.feed("Feed", work.played)
        run.until(
            lambda now: sum(node.bundles.stored > 50 for node in now.nodes) >= members,
            "bundles of all members",
        )
        yield run, busiest(run)


def busiest(run: Running) -> dict[str, psutil.Process]:
    """By role; the replayer that stands for a player counts as one."""
    found: dict[str, psutil.Process] = {}
    for process in psutil.Process().children(recursive=True):
        words = process.cmdline()
        role = words[-1] if "p2prl.nodes" in words else "player" if "bench_parts.replayer" in words else ""
        role = "member" if "bench_parts.fed" in words else role
        if role in ROLES and (role not in found or _spent_s(process) > _spent_s(found[role])):
            found[role] = process
    return found


def _spent_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def watch(processes: Mapping[str, psutil.Process], seconds: int) -> list[Profile]:
    """Sample them all at once."""
    spy = shutil.which("py-spy")
    if spy is None:
        raise Unavailable("py-spy is not installed: pip install py-spy")
    before = {role: _spent_s(process) for role, process in processes.items()}
    with tempfile.TemporaryDirectory(prefix="pb-") as name:
        spies = {
            role: subprocess.Popen(
                [
                    *(spy, "record", "--pid", str(process.pid), "--duration", str(seconds)),
                    *("--rate", str(_RATE), "--format", "raw", "--output", str(Path(name) / role)),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for role, process in processes.items()
        }
        errors = {role: one.communicate()[1] for role, one in spies.items()}
        profiles = []
        for role, process in processes.items():
            if spies[role].returncode:
                raise Unavailable(f"py-spy could not watch the {role}: {errors[role].strip()}")
            busy = (_spent_s(process) - before[role]) / seconds
            profiles.append(Profile(role, busy, own_samples((Path(name) / role).read_text(encoding="utf-8"))))
    return profiles


def markdown(profiles: list[Profile]) -> str:
    """A heading and a table each."""
    lines: list[str] = []
    for one in sorted(profiles, key=lambda profile: ROLES.index(profile.role)):
        together = max(1, sum(one.own.values()))
        lines += [
            f"### {one.role.capitalize()}",
            "",
            f"{one.busy:.0%} of a core.",
            "",
            "| share | function |",
            "|---|---|",
        ]
        lines += [f"| {count / together:.1%} | `{name}` |" for name, count in one.own.most_common(_TOP)]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Watch and print."""
    parser = argparse.ArgumentParser(prog="scripts/bench profile", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("run", "cartpole", "atari"), default="run")
    parser.add_argument("--members", type=int, default=1, metavar="N", help="of the ingest path (default: 1)")
    parser.add_argument("--seconds", type=int, default=10, metavar="S", help="how long (default: 10)")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write it between the marks of this page")
    chosen = parser.parse_args()
    try:
        with running(chosen.what, chosen.members) as (_, processes):
            say(f"watching {', '.join(processes)} for {chosen.seconds} s")
            profiles = watch(processes, chosen.seconds)
    except Unavailable as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    text = markdown(profiles)
    if chosen.into is None:
        sys.stdout.write(text)
    else:
        page.put(chosen.into, page.PROFILE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
