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
    """

    name: str
    module: str
    text: str

    def cases(self, quick: bool) -> Iterator[Case]:
        """Measure, case by case. The module is imported here: parts need unlike packages."""
        found: Callable[[bool], Any] = importlib.import_module(self.module).cases
        return iter(found(quick))


PARTS = (
    Part(
        "codec",
        "bench_parts.codec",
        "bytes and speed of bundles: pictures of Atari, floats of classic control",
    ),
    Part("playing", "bench_parts.playing", "a player's env steps beside the bare loop's"),
    Part(
        "ingest",
        "bench_parts.ingest",
        "sessions from players to shards, with CURVE, checks, log and receipts",
    ),
    Part("weights", "bench_parts.weights", "bytes of a broadcast, and the time to encode and decode it"),
    Part("sample", "bench_parts.sample", "sessions from shards to the trainer, with ingest beside it"),
    Part(
        "updates", "bench_parts.updates", "a run's updates beside its learner's alone, while a player plays"
    ),
    Part(
        "latency",
        "bench_parts.latency",
        "how long a person, or new weights, wait; memory of a member with a player",
    ),
)


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts of these names, in the bench's order; without names all.

    Raises:
        ValueError: there is none of one of these names.
    """
    known = {part.name for part in PARTS}
    strange = [name for name in names if name not in known]
    if strange:
        raise ValueError(f"no part is called {', '.join(strange)}; there are {', '.join(sorted(known))}")
    return [part for part in PARTS if not names or part.name in names]
