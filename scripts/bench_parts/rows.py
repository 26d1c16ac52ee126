"""The parts of the bench, in the order in which they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench_parts.kinds import Case


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        module: has `cases(quick)`, as kinds.py says.
        text: what it measures, for people.
        takes_s: how long it took on two cores, peers included.
        by_name: it runs only if it is named: all others together end in 15 minutes.
    """

    name: str
    module: str
    text: str
    takes_s: int
    by_name: bool = False

    def cases(self, quick: bool) -> Iterator[Case]:
        """Measure, case by case. The module is imported here: parts need unlike packages."""
        found: Callable[[bool], Any] = importlib.import_module(self.module).cases
        return iter(found(quick))


PARTS = (
    Part(
        "codec",
        "bench_parts.codec",
        "bytes and speed of bundles: pictures of Atari, floats of classic control",
        45,
    ),
    Part("playing", "bench_parts.playing", "a player's env steps beside the bare loop's", 50),
    Part(
        "ingest",
        "bench_parts.ingest",
        "sessions from players to shards, with CURVE, checks, log and receipts",
        225,
    ),
    Part(
        "weights",
        "bench_parts.weights",
        "bytes and time of a broadcast; forty members; updates beside it",
        105,
    ),
    Part("sample", "bench_parts.sample", "sessions from shards to the trainer, with ingest beside it", 95),
    Part(
        "run",
        "bench_parts.whole_run",
        "a host with a player, on CartPole: env steps that were learned from",
        57,
    ),
    Part(
        "updates",
        "bench_parts.updates",
        "a run's updates beside torch's and its learner's alone, while a player plays",
        91,
    ),
    Part(
        "scaling",
        "bench_parts.scaling",
        "real-time players in network namespaces, 1 to 40: env steps stored, beside as many times one player's",
        128,
    ),
    Part(
        "memory",
        "bench_parts.memory",
        "bytes of an Atari frame in the shards, a member with a player, a ring that is fed beyond its capacity",
        49,
    ),
    Part("latency", "bench_parts.latency", "how long a person, or new weights, wait", 42),
    Part(
        "learning",
        "bench_parts.learning",
        "time to a return with 1, 5, 20 and 40 joiners in network namespaces",
        180,
        by_name=True,
    ),
)


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts of these names, in the bench's order; without names all but those that run by name alone.

    Raises:
        ValueError: there is none of one of these names.
    """
    known = {part.name for part in PARTS}
    strange = [name for name in names if name not in known]
    if strange:
        raise ValueError(f"no part is called {', '.join(strange)}; there are {', '.join(sorted(known))}")
    return [part for part in PARTS if part.name in names or not (names or part.by_name)]


def listed() -> str:
    """`--list`: a line a part, and how long all take that run without being named."""
    lines = [
        f"{part.name:<10} {part.takes_s:>4} s  {part.text}{' (by name only)' if part.by_name else ''}"
        for part in PARTS
    ]
    together = sum(part.takes_s for part in chosen([]))
    others = "with options of their own, see --help of each: trust, priorities, netns-solve, profile"
    return "\n".join([*lines, f"without names {together} s on two cores, with peers", others, ""])
