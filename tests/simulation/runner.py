"""Any number of schedules, on two processes; what `scripts/simulate` runs."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import astuple, fields

from tests.simulation.world import Simulate, Tally

SCENARIOS = ("delivery", "spool", "liveness", "enrolment")
_PROCESSES = 2
_CHUNK = 20
_PROGRESS_S = 10.0
#: A schedule: its scenario and its seed.
Schedule = tuple[str, int]


def scenario(name: str) -> Simulate:
    """What runs one schedule of it."""
    simulate: Simulate = importlib.import_module(f"tests.simulation.test_{name}_sim").simulate
    return simulate


def run_chunk(schedules: Sequence[Schedule]) -> tuple[dict[str, Tally], list[tuple[Schedule, str]]]:
    """Run some; returns what happened by scenario, and what failed. Anything that is raised is a failure."""
    tallies = {name: Tally() for name, _ in schedules}
    failed = []
    for name, seed in schedules:
        try:
            tallies[name].add(scenario(name)(seed))
        except Exception as error:  # noqa: BLE001 (whatever it is, the other schedules go on, and it is told)
            tallies[name].add(Tally(schedules=1))
            failed.append(((name, seed), f"{type(error).__name__}: {error}"))
    return tallies, failed


def chunks(names: Sequence[str], count: int, seed_from: int) -> Iterator[list[Schedule]]:
    """`count` schedules, evenly from all scenarios."""
    schedules = [(names[i % len(names)], seed_from + i // len(names)) for i in range(count)]
    for begin in range(0, count, _CHUNK):
        yield schedules[begin : begin + _CHUNK]


def table(tallies: dict[str, Tally], failed: dict[str, int]) -> str:
    """A row for each scenario, and their sum."""
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    heads = ["scenario", *(field.name.replace("_", " ") for field in fields(Tally)), "failures"]
    rows = [[name, *astuple(tally), failed[name]] for name, tally in tallies.items()]
    rows.append(["all", *astuple(total), sum(failed.values())])
    texts = [heads, *([f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(heads))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(widths[i + 1]) for i, cell in enumerate(row[1:]))])
        for row in texts
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(names: Sequence[str], count: int, seed_from: int) -> int:
    """Run them all, and tell; 1 if something failed."""
    began = said = time.monotonic()
    tallies = {name: Tally() for name in names}
    failures = dict.fromkeys(names, 0)
    done = 0
    with ProcessPoolExecutor(_PROCESSES, multiprocessing.get_context("spawn")) as pool:
        futures: list[Future[tuple[dict[str, Tally], list[tuple[Schedule, str]]]]]
        futures = [pool.submit(run_chunk, chunk) for chunk in chunks(names, count, seed_from)]
        for future in as_completed(futures):
            some, failed = future.result()
            for name, tally in some.items():
                tallies[name].add(tally)
                done += tally.schedules
            for (name, _), text in failed:
                failures[name] += 1
                _say(text)
            if time.monotonic() - said >= _PROGRESS_S:
                said = time.monotonic()
                _say(
                    f"{done:,} of {count:,} schedules, {sum(failures.values())} failures, {said - began:.0f} s"
                )
    _say(table(tallies, failures))
    _say(f"{time.monotonic() - began:.0f} s on {_PROCESSES} processes")
    return int(any(failures.values()))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("scripts/simulate", description="Runs simulated schedules.")
    parser.add_argument("--schedules", type=int, default=1000, metavar="N", help="how many in all")
    parser.add_argument(
        "--seed-from", type=int, default=0, metavar="S", help="the first seed of each scenario"
    )
    parser.add_argument("--scenario", choices=SCENARIOS, help="only this one")
    options = parser.parse_args()
    names = [options.scenario] if options.scenario else list(SCENARIOS)
    return run(names, options.schedules, options.seed_from)
