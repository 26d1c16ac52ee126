"""What priorities cost in a shard: samples, updates and bundles of a full ring, with and without them.

One process, no sockets: CartPole sessions of 64 ticks, rings of one and two million ticks, samples of 256 transitions.
The raw limit is a numpy gather of the same rows at places that are known. Each way runs in turn; the table has medians
of the runs in microseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench_parts._lan import finish, machine, options, table
from p2prl.core.schema import Column, SessionSchema
from p2prl.replay.prioritised import PrioritisedStore, priority_bytes
from p2prl.replay.storage import RingStore

TICKS, SLOTS, BATCH = 64, 16, 256
SCHEMA = SessionSchema(
    ticks=TICKS,
    columns=(
        Column("obs", "float32", (4,), extra_row=True),
        Column("action", "uint8", (), low=(0.0,), high=(1.0,)),
        Column("reward", "float32", ()),
        Column("flags", "uint8", ()),
    ),
)


def bundle(rng: np.random.Generator) -> dict[str, Any]:
    """Episodes of about 30 steps: of 31 ticks one is a RESET."""
    flags = np.zeros((TICKS, SLOTS), np.uint8)
    flags[rng.random((TICKS, SLOTS)) < 1 / 31] = 4
    return {
        "obs": rng.random((TICKS + 1, SLOTS, 4), np.float32),
        "action": rng.integers(0, 2, (TICKS, SLOTS), np.uint8),
        "reward": np.ones((TICKS, SLOTS), np.float32),
        "flags": flags,
    }


def full(store: RingStore, rng: np.random.Generator) -> Callable[[], int]:
    """Fill it; gives what adds one bundle more."""
    first = 0

    def add() -> int:
        nonlocal first
        first += SLOTS
        return store.add(first - SLOTS, bundles[first // SLOTS % len(bundles)], 0)

    bundles = [bundle(rng) for _ in range(16)]
    for _ in range(store.capacity // SLOTS + 1):
        add()
    return add


def measure(ticks: int, rounds: int) -> dict[str, float]:
    """Microseconds of each thing, in turns so that the machine's moods fall on all alike."""
    size = ticks // TICKS * SCHEMA.session_bytes()
    plain = RingStore(SCHEMA, size, 1, np.random.default_rng(1))
    ranked = PrioritisedStore(SCHEMA, size, 1, np.random.default_rng(1))
    rng = np.random.default_rng(2)
    add_plain, add_ranked = full(plain, rng), full(ranked, rng)
    for _ in range(2 * ticks // 1000):  # unlike priorities in most places
        drawn = ranked.sample(1000, 1, 0).drawn
        assert drawn is not None
        ranked.prioritise(drawn.ids, rng.exponential(size=1000).astype(np.float32) + np.float32(1e-3))
    session, offset = rng.integers(plain.capacity, size=BATCH), rng.integers(TICKS, size=BATCH)
    drawn = ranked.sample(BATCH, 1, 0).drawn
    assert drawn is not None
    ids, values = drawn.ids, rng.exponential(size=BATCH).astype(np.float32)
    ways: dict[str, Callable[[], object]] = {
        "gather alone": lambda: plain._gather(session, offset, 1),
        "sample, uniform": lambda: plain.sample(BATCH, 1, 0),
        "sample, prioritised": lambda: ranked.sample(BATCH, 1, 0),
        "update of priorities": lambda: ranked.prioritise(ids, values),
        "bundle, uniform": add_plain,
        "bundle, prioritised": add_ranked,
        "quarantine, prioritised": lambda: ranked.quarantine(frozenset([f"{time.perf_counter()}"])),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name, way in ways.items():
            if name.startswith("quarantine") and turn % 50:
                continue
            began = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - began) * 1e6)
    return {name: statistics.median(some) for name, some in times.items()}


def main() -> None:
    """Measure, print."""
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=2000, help="how often each thing is done")
    arguments = parser.parse_args()
    found = {ticks: measure(ticks, arguments.rounds) for ticks in (1_000_000, 2_000_000)}
    memory = {
        ticks: priority_bytes(SCHEMA, ticks // TICKS * SCHEMA.session_bytes(), 1) / ticks for ticks in found
    }
    names = list(next(iter(found.values())))
    rows: list[list[object]] = [[name, *(f"{found[ticks][name]:.0f}" for ticks in found)] for name in names]
    rows.append(["memory, bytes a tick", *(f"{memory[ticks]:.2f}" for ticks in found)])
    text = table(["microseconds", *(f"{ticks:,} ticks" for ticks in found)], rows)
    figures = {"machine": machine(), "batch": BATCH, "us": found, "bytes_a_tick": memory}
    finish(figures, text, arguments.json)


if __name__ == "__main__":
    main()
