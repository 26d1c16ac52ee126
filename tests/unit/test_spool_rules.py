"""The spool's decisions, and what its books are after a restart."""

from __future__ import annotations

import random

import pytest

from p2prl.core.messages import Books
from p2prl.core.outbox import Name
from p2prl.core.spool import (
    AWAY_AFTER_S,
    DIED,
    FULL,
    KEEP_S,
    MAX_BUNDLES,
    UNREADABLE,
    Other,
    Record,
    Recovery,
    Rules,
    Snapshot,
    first_to_go,
    is_away,
    too_old,
)

RULES = Rules(bound_bytes=1000, keep_free_bytes=500)


@pytest.mark.parametrize(
    ("size", "used", "free", "bundles", "lack"),
    [
        (100, 900, 10_000, 0, ""),
        (101, 900, 10_000, 0, "bound"),
        (100, 0, 600, 0, ""),
        (100, 0, 599, 0, "disk"),
        (1, 0, 10_000, MAX_BUNDLES, "bound"),
        (1001, 0, 10_000, 0, "bound"),
    ],
)
def test_what_fits(size: int, used: int, free: int, bundles: int, lack: str) -> None:
    assert RULES.lacks(size, used, free, bundles) == lack


def test_a_bound_has_room_for_several_files() -> None:
    for bound in (1, 1000, 300_000, 10**9, 10**12):
        size = Rules(bound, 0).segment_bytes
        assert 1 <= size <= 8_000_000
        assert size == 1 or bound / size >= 16


def test_stale_is_what_the_shards_call_stale() -> None:
    rules = Rules(1, 1, max_lag=5)
    assert [rules.is_stale(version, 10) for version in (4, 5, 10)] == [True, False, False]
    assert not Rules(1, 1, max_lag=0).is_stale(0, 10**6)


def test_who_waits_keeps_what_is_not_stale_and_who_drops_drops_the_oldest() -> None:
    waits, drops = Rules(1, 1, max_lag=5), Rules(1, 1, drops_oldest=True)
    assert [waits.gives_way(version, 10) for version in (4, 5)] == [True, False]
    assert drops.gives_way(10, 10)


def test_away_is_a_silent_broker_or_shards_that_are_down() -> None:
    assert not is_away(AWAY_AFTER_S, AWAY_AFTER_S)
    assert is_away(AWAY_AFTER_S + 0.1, 0.0)
    assert is_away(0.0, AWAY_AFTER_S + 0.1)


def test_other_runs_go_when_they_are_old_or_the_oldest() -> None:
    others = [Other("a", 1, 5.0, 1), Other("b", 1, KEEP_S + 1, 1), Other("c", 1, 7.0, 1)]
    assert [other.folder for other in too_old(others)] == ["b"]
    assert first_to_go(others) is others[1]
    assert first_to_go([]) is None


def record(
    id_: int, status: str = "", settlement: int = 0, counted: bool = False, reason: str = ""
) -> Record:
    return Record(
        id=id_, ticks=8, steps=5, episodes=1, version=3, header_bytes=1, payload_bytes=1, body_crc=0,
        counted=counted, status=status, settlement=settlement, reason=reason, name=Name(0, "b", id_),
    )  # fmt: skip


def snapshot(books: Books, next_id: int = 0, settlements: int = 0) -> Snapshot:
    return Snapshot("run", "host", "boot", books, 100, 10, next_id, settlements)


def recovered(old: Snapshot | None, *records: Record, damaged: bool = False) -> tuple[Recovery, Books]:
    recovery = Recovery(old)
    for one in records:
        recovery.found(one)
    books = recovery.books(damaged)
    assert books.balanced()
    return recovery, books


def test_what_came_after_the_snapshot_is_counted_once() -> None:
    old = snapshot(Books(produced=10, stored=8, pending=2), next_id=2)
    recovery, books = recovered(old, record(0, counted=True), record(1), record(2), record(3, "stored", 1))
    assert (books.produced, books.stored, books.pending) == (12, 9, 3)
    assert (recovery.steps, recovery.episodes, recovery.next_id, recovery.settlements) == (110, 12, 4, 1)


def test_what_a_snapshot_counted_already_is_not_counted_again() -> None:
    old = snapshot(Books(produced=4, stored=1, refused=1, refused_reasons={"x": 1}, pending=2), 4, 2)
    records = [record(0, "stored", 1), record(1, "refused", 2, reason="x"), record(2), record(3)]
    assert recovered(old, *records)[1] == old.books


@pytest.mark.parametrize(
    ("status", "reason", "field"),
    [
        ("stored", "", "stored"),
        ("duplicate", "", "stored"),
        ("stale", "", "stale"),
        ("refused", "not_finite", "refused"),
        ("dropped", FULL, "dropped"),
    ],
)
def test_each_end_is_counted_where_it_belongs(status: str, reason: str, field: str) -> None:
    old = snapshot(Books(produced=1, pending=1), 1)
    books = recovered(old, record(0, status, 1, reason=reason))[1]
    assert (getattr(books, field), books.pending) == (1, 0)
    assert {**books.refused_reasons, **books.dropped_reasons} == ({reason: 1} if reason else {})


@pytest.mark.parametrize(("damaged", "reason"), [(False, DIED), (True, UNREADABLE)])
def test_what_is_missing_was_in_memory_alone_or_cannot_be_read(damaged: bool, reason: str) -> None:
    books = recovered(snapshot(Books(produced=5, pending=5), 5), record(1), record(3), damaged=damaged)[1]
    assert (books.pending, books.dropped_reasons) == (2, {reason: 3})


def test_without_a_snapshot_only_what_waits_counts() -> None:
    recovery, books = recovered(None, record(0, "stored", 1), record(1), record(2))
    assert (books.produced, books.stored, books.pending) == (2, 0, 2)
    assert recovery.next_id == 3


@pytest.mark.parametrize("seed", range(50))
def test_any_moment_gives_the_books_of_that_moment(seed: int) -> None:
    """Bundles come and go; snapshots are taken now and then; a kill may come at any time."""
    rng = random.Random(seed)
    records: list[Record] = []
    made = settled = 0
    counts = {"stored": 0, "stale": 0}
    old = snapshot(Books())
    for _ in range(200):
        waiting = [one for one in records if not one.status]
        if rng.random() < 0.5 or not waiting:
            records.append(record(made))
            made += 1
        else:
            one = rng.choice(waiting)
            settled += 1
            one.status, one.settlement = rng.choice(("stored", "stale")), settled
            counts[one.status] += 1
        books = recovered(old, *rng.sample(records, len(records)))[1]
        assert books == Books(produced=made, pending=made - settled, **counts)
        if rng.random() < 0.1:
            old = snapshot(books, made, settled)
            # What the snapshot remembers may be deleted.
            records = [one for one in records if not one.status or rng.random() < 0.5]
