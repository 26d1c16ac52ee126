"""Quarantine in the replay: a node's sessions are not sampled, and come back as far as they are still held."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.core.schema import RESET, TERMINATED
from p2prl.replay import owners as owners_module
from p2prl.replay.owners import Owners
from p2prl.replay.queue import QueueStore
from p2prl.replay.samplers import Places
from p2prl.replay.shard import ShardStore
from p2prl.replay.storage import RingStore, Sample
from tests.unit.replay_kit import CARTPOLE, open_shard, play, push

T, BYTES, OBS, FLAGS = CARTPOLE.ticks, CARTPOLE.session_bytes(), 0, 3
NOBODY: frozenset[str] = frozenset()


def ring(sessions: int, window: int = 1, seed: int = 0) -> RingStore:
    return RingStore(CARTPOLE, sessions * BYTES, window, np.random.default_rng(seed))


def identity(sample: Sample) -> list[tuple[int, int]]:
    """(seed, slot) of each sample, as `play` wrote them into the observations."""
    return [(int(row[2]), int(row[1])) for row in sample.columns[OBS][:, 0]]


# --- a ring


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc")), min_size=1, max_size=10),
    st.integers(1, 12),
    st.lists(st.frozensets(st.sampled_from("abcd")), min_size=1, max_size=4),
    st.integers(0, T),
)
def test_a_ring_samples_exactly_what_is_left(
    bundles: list[tuple[int, str]], capacity: int, barred: list[frozenset[str]], window: int
) -> None:
    """Quarantines come and go between bundles; a model says what may be sampled."""
    store = ring(capacity, window)
    model: list[tuple[int, int, str, int]] = []
    out = NOBODY
    for seed, (slots, node) in enumerate(bundles):
        arrays = play(slots, seed)[0]
        store.add(len(model), arrays, seed, node)
        places = max(0, T - window + 1)
        starts = (arrays["flags"][:places] & RESET == 0).sum(axis=0) if window else np.full(slots, T)
        model.extend((seed, slot, node, int(starts[slot])) for slot in range(slots))
        out = barred[seed % len(barred)]
        store.quarantine(out)
        check_against(store, [place for place in model[-capacity:] if place[2] not in out], window)
    store.quarantine(NOBODY)
    check_against(store, model[-capacity:], window)
    assert store.size_bytes == min(capacity, len(model)) * BYTES


def check_against(store: RingStore, left: list[tuple[int, int, str, int]], window: int) -> None:
    assert store.sessions == len(left)
    assert store.mass() == sum(starts for *_, starts in left)
    sample = store.sample(200, window, 0)
    if store.mass() == 0:
        assert sample.count == 0
        return
    assert sample.count == 200
    assert set(identity(sample)) <= {(seed, slot) for seed, slot, _, starts in left if starts}
    assert list(sample.versions) == [seed for seed, _ in identity(sample)]


def chi_square(counts: Counter[tuple[tuple[int, int], int]], places: int) -> float:
    expected = counts.total() / places
    return sum((n - expected) ** 2 / expected for n in counts.values())


@pytest.mark.parametrize("nearly_all_reset", [False, True])
def test_each_place_that_is_left_is_equally_likely(nearly_all_reset: bool) -> None:
    """Also where places are listed because nearly all ticks are RESET."""
    store = ring(60)
    flags = np.zeros((T, 5), np.uint8)
    flags[::2, 0], flags[1::2, 0] = TERMINATED, RESET
    if nearly_all_reset:
        flags[:] = RESET
        flags[2, :] = 0
    for seed in range(12):
        arrays = {**play(5, seed)[0], "flags": flags}
        store.add(5 * seed, arrays, seed, "abcd"[seed % 4])
    store.quarantine(frozenset("ac"))
    places = int((flags & RESET == 0).sum()) * 6
    assert store.mass() == places
    sample = store.sample(200 * places, 1, 0)
    offsets = sample.columns[OBS][:, 0, 0]
    drawn = Counter(zip(identity(sample), (int(offset) for offset in offsets), strict=True))
    assert {seed % 4 for (seed, _), _ in drawn} == {1, 3}
    assert len(drawn) == places
    # The statistic's mean is places - 1; six standard deviations above it, on a fixed seed.
    assert chi_square(drawn, places) < places + 6 * (2 * places) ** 0.5


def test_without_a_quarantine_the_draws_are_what_they_were() -> None:
    """No cost and no change: the same places from the same seed, whoever gave them."""
    plain, named, forgiven = ring(20), ring(20), ring(20)
    for seed in range(3):
        plain.add(4 * seed, play(4, seed)[0], seed)
        named.add(4 * seed, play(4, seed)[0], seed, "abc"[seed])
        forgiven.add(4 * seed, play(4, seed)[0], seed, "abc"[seed])
    named.quarantine(frozenset(["somebody else"]))
    forgiven.quarantine(frozenset("ab"))
    forgiven.quarantine(NOBODY)
    expected = plain.sample(50, 1, 0)
    for other in (named.sample(50, 1, 0), forgiven.sample(50, 1, 0)):
        np.testing.assert_array_equal(other.columns[OBS], expected.columns[OBS])


# --- whose is it


def test_names_of_nodes_that_hold_nothing_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_module, "_MIN_NAMES", 8)
    owners = Owners(6)
    for number in range(500):
        owners.put(slice(number % 6, number % 6 + 1), f"node {number}")
        assert len(owners._names) <= 16
        owners.bar([f"node {number - 1}", f"node {number}", "node 0"])
        allowed = owners.allowed(Places(6)).listed
        assert allowed is not None
        here = {number % 6, (number - 1) % 6} if number else {0}
        assert set(allowed) == set(range(6)) - here or number < 6


def test_all_are_allowed_as_long_as_nobody_who_holds_something_is_barred() -> None:
    owners = Owners(4)
    owners.put(slice(0, 2), "a")
    assert owners.allowed(Places(2)) == Places(2)
    owners.bar(["b"])
    assert owners.allowed(Places(2)) == Places(2)
    owners.put(slice(2, 4), "b")
    for places, expected in (
        (Places(4), [0, 1]),
        (Places(3, first=3, capacity=4), [0, 1]),
        (Places(2), [0, 1]),
    ):
        allowed = owners.allowed(places)
        assert allowed.listed is not None
        assert (allowed.count, list(allowed.listed)) == (len(expected), expected)


# --- a queue


def queue(**nodes: int) -> QueueStore:
    """One bundle of each node, in order; its version says which."""
    store = QueueStore(CARTPOLE, 1000 * BYTES, max_lag=0)
    first = 0
    for version, (node, slots) in enumerate(nodes.items()):
        store.add(first, play(slots, version)[0], version, node[0])
        first += slots
    return store


def test_a_queue_leaves_out_whose_turn_it_is() -> None:
    store = queue(a1=2, b1=3, a2=2, b2=1)
    store.quarantine(frozenset("b"))
    assert store.mass() == 4
    assert store.sessions == 8, "they wait for their turn, and have not left"
    assert store.size_bytes == 8 * BYTES
    assert identity(store.sample(1, 0, 0)) == [(0, 0)]
    sample = store.sample(2, 0, 0)
    assert identity(sample) == [(0, 1), (2, 0)]
    assert sample.stale == 3
    # What has not had its turn comes back.
    store.quarantine(NOBODY)
    assert identity(store.sample(9, 0, 0)) == [(2, 1), (3, 0)]
    assert store.mass() == 0


def test_a_queue_of_nothing_but_quarantined_sessions_empties_itself() -> None:
    """There is no mass, so a trainer only asks for the mass; it must not stay full for ever."""
    store = queue(b1=3, b2=3)
    store.quarantine(frozenset("b"))
    assert store.mass() == 0
    sample = store.sample(0, 0, 0)
    assert (sample.count, sample.stale) == (0, 6)
    assert store.size_bytes == 0


def test_half_a_bundle_that_is_left_of_a_quarantined_node() -> None:
    store = queue(b1=4, a1=2)
    assert identity(store.sample(3, 0, 0)) == [(0, 0), (0, 1), (0, 2)]
    store.quarantine(frozenset("b"))
    assert store.mass() == 2
    sample = store.sample(5, 0, 0)
    assert (identity(sample), sample.stale) == ([(1, 0), (1, 1)], 1)


# --- a shard


def seeds(shard: ShardStore) -> set[int]:
    """Which bundles are sampled: each has its seed in its observations."""
    return {int(row[2]) for row in shard.sample(400, 0, 0).columns[OBS][:, 0]}


def test_a_quarantine_is_to_be_said_again_after_a_kill_and_then_holds(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, segment_bytes=2000)
    for seq in range(8):
        push(shard, seq, node="ab"[seq % 2] * 40)
    shard.quarantine(frozenset(["b" * 40]))
    assert seeds(shard) == {0, 2, 4, 6}
    assert (shard.sessions, shard.size_bytes) == (16, 32 * BYTES)
    again = open_shard(tmp_path, segment_bytes=2000)
    again.quarantine(frozenset(["b" * 40]))
    assert seeds(again) == {0, 2, 4, 6}
    assert again.mass() == shard.mass()
    again.quarantine(NOBODY)
    assert seeds(again) == set(range(8))
    assert again.inserted_ticks == 32 * T


def test_a_killed_queue_does_not_serve_later_what_it_left_out(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, "queue")
    for seq in range(3):
        push(shard, seq, node="aba"[seq] * 40)
    shard.quarantine(frozenset(["b" * 40]))
    assert [int(row[2]) for row in shard.sample(5, 0, 0).columns[OBS][:, 0]] == [0, 0, 0, 0, 2]
    again = open_shard(tmp_path, "queue")
    assert [int(row[2]) for row in again.sample(99, 0, 0).columns[OBS][:, 0]] == [2, 2, 2]


def test_while_a_node_is_in_quarantine_others_give_as_before(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, sessions=12)
    push(shard, 0, node="b" * 40)
    shard.quarantine(frozenset(["b" * 40]))
    assert shard.mass() == 0
    assert shard.sample(8, 1, 0).count == 0
    for seq in range(1, 6):
        assert push(shard, seq, node="a" * 40).verdict.status == "stored"
    assert seeds(shard) == {3, 4, 5}
    assert shard.counters.evicted == 24 - 12
