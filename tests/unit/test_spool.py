"""The spool on a real disk: what was written is found again, whatever became of the process, the files or the room."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from p2prl.core.messages import Books as BooksMessage
from p2prl.core.outbox import Name
from p2prl.core.spool import FULL, KEEP_S, UNREADABLE, Account, Rules
from p2prl.nodes.spool import Spool, folder_name
from p2prl.nodes.spool_file import Entry, size_on_disk
from tests.unit.spool_kit import (
    HOST_KEY,
    PLENTY,
    RUN_ID,
    Books,
    bundle,
    fill_up,
    frames_of,
    number_of,
    open_spool,
)

_SIZE = size_on_disk(*frames_of(0))


def begun(root: Path, books: Books, rules: Rules = PLENTY) -> Spool:
    spool = open_spool(root, books, rules)
    assert spool.begin()
    return spool


def add(spool: Spool, *numbers: int, size: int = 100, version: int = 0, held: bool = False) -> list[Entry]:
    entries = []
    for number in numbers:
        entry = spool.add(bundle(version), *frames_of(number, size), 0, held=held)
        assert entry is not None
        entries.append(entry)
    return entries


def drain(spool: Spool) -> list[int]:
    """Take everything out, in order, and settle it."""
    numbers = []
    while (entry := spool.next()) is not None:
        read = spool.load(entry)
        if read is not None:
            numbers.append(number_of(read[0]))
            assert read == frames_of(numbers[-1], len(read[1]))
            spool.settle(entry, "stored")
            spool.tidy()
    return numbers


def segments(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.spool"))


def test_bundles_come_out_as_they_came_in_over_restarts(tmp_path: Path) -> None:
    books = Books()
    add(begun(tmp_path, books), *range(20))
    second = open_spool(tmp_path, books)
    assert (second.active, second.count, second.waiting) == (True, 20, 20)
    add(second, *range(20, 30))
    assert drain(open_spool(tmp_path, books)) == list(range(30))


def test_without_a_bundle_there_is_no_file_and_with_the_last_one_they_go(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "spool", Books())
    assert not (tmp_path / "spool").exists()
    assert spool.begin()
    add(spool, 1, 2)
    spool.clear()
    assert spool.active, "something waits"
    assert drain(spool) == [1, 2]
    spool.clear()
    assert not spool.active
    assert list((tmp_path / "spool").iterdir()) == []
    assert spool.size_bytes == 0
    assert spool.begin()
    add(spool, 3)
    assert drain(spool) == [3]


def test_the_files_of_what_is_settled_go_before_the_rest(tmp_path: Path) -> None:
    rules = Rules(16 * 1000, 0)  # a segment for each 1000 bytes
    spool = begun(tmp_path, Books(), rules)
    add(spool, *range(20))
    files = len(segments(tmp_path))
    assert files >= 4
    for _ in range(10):
        entry = spool.next()
        assert entry is not None
        spool.settle(entry, "stored")
        spool.tidy()
    assert len(segments(tmp_path)) <= files // 2 + 1
    assert spool.size_bytes == sum(path.stat().st_size for path in segments(tmp_path))


def test_what_was_sent_keeps_its_name_and_goes_first(tmp_path: Path) -> None:
    books = Books()
    spool = begun(tmp_path, books)
    add(spool, 0, 1, 2)
    first, second = spool.next(), spool.next()
    assert first is not None
    assert second is not None
    assert spool.assign(second, Name(1, "boot1", 7))
    again = open_spool(tmp_path, books)
    order = [again.next(), again.next(), again.next()]
    assert [entry and entry.record.id for entry in order] == [1, 0, 2]
    assert [entry and entry.record.name for entry in order] == [Name(1, "boot1", 7), None, None]
    assert again.next() is None


def test_one_that_its_sender_holds_does_not_hide_those_that_wait(tmp_path: Path) -> None:
    spool = begun(tmp_path, Books())
    add(spool, 0)
    add(spool, 1, held=True)
    add(spool, 2)
    assert (spool.count, spool.waiting) == (3, 2)
    assert drain(spool) == [0, 2]


def test_books_go_on_after_a_restart(tmp_path: Path) -> None:
    books = Books(books=BooksMessage(produced=7, stored=7))
    spool = begun(tmp_path, books)
    add(spool, 0, 1, 2)
    entry = spool.next()
    assert entry is not None
    spool.settle(entry, "refused", "not_finite")
    found = open_spool(tmp_path, books).recovered
    assert found is not None
    assert found.name == "boot1"
    assert (found.books.produced, found.books.stored, found.books.pending) == (10, 7, 2)
    assert found.books.refused_reasons == {"not_finite": 1}
    assert (found.steps, found.episodes) == (15, 3)


def test_what_the_window_held_when_it_was_killed_half_way_is_counted(tmp_path: Path) -> None:
    """The books say that three wait; only one came to the disk before the kill."""
    books = Books(books=BooksMessage(produced=3, pending=3))
    spool = begun(tmp_path, books)
    assert spool.add(bundle(), *frames_of(0), 0, counted=True, held=True) is not None
    found = open_spool(tmp_path, books).recovered
    assert found is not None
    assert (found.books.produced, found.books.pending) == (3, 1)
    assert found.books.dropped_reasons == {"member died": 2}


def test_torn_at_any_byte_only_what_was_not_whole_is_missing(tmp_path: Path) -> None:
    books = Books()
    add(begun(tmp_path / "whole", books), 0, 1, 2, size=20)
    [segment] = segments(tmp_path / "whole")
    data = segment.read_bytes()
    for size in range(len(data) + 1):
        root = tmp_path / f"cut{size}"
        shutil.copytree(tmp_path / "whole", root)
        [cut] = segments(root)
        os.truncate(cut, size)
        again = open_spool(root, books)
        whole = size * 3 // len(data)
        assert again.count == whole
        assert books.said == []
        add(again, 7)
        assert drain(open_spool(root, books)) == [*range(whole), 7]


@pytest.mark.parametrize("at", ["first", "head", "length", "payload", "last"])
def test_a_broken_bundle_does_not_hold_up_the_others(tmp_path: Path, at: str) -> None:
    books = Books()
    entries = add(begun(tmp_path, books), *range(5))
    [segment] = segments(tmp_path)
    victim = {"first": 0, "last": 4}.get(at, 2)
    offset = entries[victim].offset + {"length": 40, "payload": 200}.get(at, 0)
    data = bytearray(segment.read_bytes())
    data[offset] ^= 0xFF
    segment.write_bytes(data)
    again = open_spool(tmp_path, books)
    assert again.recovered is not None
    lost = again.recovered.books.dropped_reasons
    numbers = drain(again)
    for _ in range(3):
        again.look()
        numbers += drain(again)
    assert numbers == [number for number in range(5) if number != victim]
    assert again.count == 0
    if at == "payload":  # seen when it is read, and tried again
        assert (lost, books.dropped) == ({}, [UNREADABLE])
        assert len([text for _, text in books.said if "cannot be read" in text]) == 1
    else:
        assert lost == ({UNREADABLE: 1} if at != "last" else lost)


def test_what_cannot_be_read_now_may_be_readable_later(tmp_path: Path) -> None:
    books = Books()
    spool = begun(tmp_path, books)
    add(spool, 0, 1)
    [segment] = segments(tmp_path)
    data = segment.read_bytes()
    segment.write_bytes(data[:150] + b"?" + data[151:])
    assert drain(spool) == [1]
    assert (spool.count, spool.waiting) == (1, 1)
    segment.write_bytes(data)
    spool.look()
    assert drain(spool) == [0]
    assert books.dropped == []


def test_a_segment_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    books = Books()
    add(begun(tmp_path, books, Rules(16 * 500, 0)), *range(9))
    victim = segments(tmp_path)[1]
    victim.unlink()
    victim.mkdir()
    again = open_spool(tmp_path, books, Rules(16 * 500, 0))
    assert again.recovered is not None
    lost = again.recovered.books.dropped_reasons[UNREADABLE]
    assert lost >= 2
    numbers = drain(again)
    assert len(numbers) == 9 - lost
    assert victim.with_suffix(".unreadable").exists()
    assert len(drain(open_spool(tmp_path, books))) == 0


def test_a_segment_that_is_gone_while_it_is_in_use_costs_itself_only(tmp_path: Path) -> None:
    books = Books()
    spool = begun(tmp_path, books, Rules(16 * 500, 0))
    add(spool, *range(9))
    spool.close()
    victim = segments(tmp_path)[1]
    victim.unlink()
    numbers = drain(spool)
    assert 0 < len(numbers) < 9
    assert books.dropped == [UNREADABLE] * (9 - len(numbers))
    assert (spool.count, spool.waiting) == (0, 0)
    spool.clear()
    assert not spool.active


def test_without_its_snapshot_the_bundles_still_go(tmp_path: Path) -> None:
    books = Books()
    spool = begun(tmp_path, books)
    add(spool, 0, 1, 2)
    entry = spool.next()
    assert entry is not None
    spool.settle(entry, "stored")
    [snapshot] = tmp_path.glob("*/books")
    snapshot.write_bytes(b"?" * snapshot.stat().st_size)
    again = open_spool(tmp_path, books)
    assert again.recovered == Account("", BooksMessage(produced=2, pending=2), 10, 2)
    assert drain(again) == [1, 2]


def test_half_a_snapshot_leaves_the_one_before(tmp_path: Path) -> None:
    books = Books()
    spool = begun(tmp_path, books)
    add(spool, 0)
    [snapshot] = tmp_path.glob("*/books")
    before = snapshot.read_bytes()
    books.account = Account("boot1", BooksMessage(produced=5, stored=4, pending=1), 9, 9)
    assert spool.note()
    after = snapshot.read_bytes()
    changed = [place for place in range(len(before)) if before[place] != after[place]]
    torn = bytearray(after)
    for place in changed[len(changed) // 2 :]:
        torn[place] = before[place]
    snapshot.write_bytes(torn)
    found = open_spool(tmp_path, books).recovered
    assert found is not None
    assert (found.books.produced, found.books.pending) == (1, 1)


def test_many_reasons_fit_into_the_snapshot(tmp_path: Path) -> None:
    reasons = {f"reason {index} ".ljust(64, "x"): 1 for index in range(200)}
    books = Books(books=BooksMessage(produced=200, refused=200, refused_reasons=reasons))
    spool = begun(tmp_path, books)
    add(spool, 0)
    found = open_spool(tmp_path, books).recovered
    assert found is not None
    assert (found.books.produced, found.books.refused, found.books.pending) == (201, 200, 1)
    assert found.books.balanced()


# --- room


def test_the_bound_holds_and_players_wait(tmp_path: Path) -> None:
    books, rules = Books(), Rules(16 * _SIZE, 0)
    spool = begun(tmp_path, books, rules)
    add(spool, *range(16))
    assert not spool.full
    for number in (16, 17):
        assert spool.add(bundle(), *frames_of(number), 0) is None
        assert spool.full
    spool.look()
    assert spool.full
    assert [text for _, text in books.said if "is full" in text] == [
        "the spool is full (16 bundles, 3.8 kB): --spool allows 3.8 kB"
    ]
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= rules.bound_bytes
    entry = spool.next()
    assert entry is not None
    spool.settle(entry, "stored")
    spool.tidy()
    spool.look()
    assert not spool.full
    assert drain(spool) == list(range(1, 16))


def test_or_the_oldest_goes(tmp_path: Path) -> None:
    books, rules = Books(), Rules(16 * _SIZE, 0, drops_oldest=True)
    spool = begun(tmp_path, books, rules)
    add(spool, *range(40))
    assert books.dropped == [FULL] * 24
    assert not spool.full
    assert spool.size_bytes <= rules.bound_bytes
    assert drain(spool) == list(range(24, 40))


def test_what_was_handed_out_is_never_dropped_for_room(tmp_path: Path) -> None:
    books = Books()
    spool = begun(tmp_path, books, Rules(4 * _SIZE, 0, drops_oldest=True))
    add(spool, 0, 1)
    held = [spool.next(), spool.next()]
    add(spool, 2, 3, 4, 5)
    assert books.dropped == [FULL] * 2
    assert [entry and entry.record.status for entry in held] == ["", ""]
    assert drain(spool) == [4, 5]


def test_known_stale_ones_go_first_whatever_the_run_says(tmp_path: Path) -> None:
    books, rules = Books(), Rules(4 * _SIZE, 0, max_lag=5)
    spool = begun(tmp_path, books, rules)
    add(spool, 0, 1, version=3)
    add(spool, 2, 3, version=9)
    assert spool.add(bundle(9), *frames_of(4), 8) is None, "nothing is stale yet"
    assert spool.add(bundle(9), *frames_of(5), 9) is not None
    assert spool.add(bundle(9), *frames_of(6), 9) is not None
    assert spool.add(bundle(9), *frames_of(7), 9) is None, "those that are left are fresh"
    assert books.dropped == [FULL] * 2
    assert drain(spool) == [2, 3, 5, 6]


def test_the_disk_keeps_what_is_to_stay_free(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    books = Books()
    spool = begun(tmp_path, books, Rules(10**15, free + 10**12))
    assert spool.add(bundle(), *frames_of(0), 0) is None
    assert spool.full
    assert "of the disk stay free" in books.said[-1][1]
    roomy = begun(tmp_path / "other", Books(), Rules(10**15, 1))
    add(roomy, 0)


def test_on_a_disk_that_is_short_the_oldest_makes_room_but_no_more_than_needed(tmp_path: Path) -> None:
    books = Books()
    rules = Rules(16 * _SIZE, 0, drops_oldest=True)
    spool = begun(tmp_path, books, rules)
    add(spool, *range(8))
    spool.rules = Rules(16 * _SIZE, 10**18, drops_oldest=True)
    add(spool, 8, 9)
    assert books.dropped == [FULL] * 2
    assert drain(spool) == list(range(2, 10))


@pytest.mark.parametrize("number", [errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EIO])
def test_a_full_disk_loses_nothing_and_what_is_there_can_still_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    disk = fill_up(monkeypatch, number)
    books = Books()
    spool = begun(tmp_path, books)
    for room in range(0, _SIZE, 7):
        before, count = spool.size_bytes, spool.count
        disk.room = room
        assert spool.add(bundle(), *frames_of(99), 0) is None
        assert spool.full
        assert (spool.size_bytes, spool.count) == (before, count)
        disk.room = float("inf")
        add(spool, room)
    assert len(books.said) == 1
    disk.room = 0
    numbers = []
    while (entry := spool.next()) is not None:  # in place: no room is needed to send
        read = spool.load(entry)
        assert read is not None
        assert spool.assign(entry, Name(0, "boot1", len(numbers)))
        numbers.append(number_of(read[0]))
    assert numbers == list(range(0, _SIZE, 7))
    found = open_spool(tmp_path, books).recovered
    assert found is not None
    assert found.books.pending == len(numbers)


def test_what_a_full_disk_left_half_made_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = fill_up(monkeypatch)
    books = Books()
    spool = begun(tmp_path, books)
    disk.room = 0
    assert spool.add(bundle(), *frames_of(0), 0) is None
    disk.room = float("inf")
    spool.clear()
    assert not spool.active
    assert spool.begin()
    add(spool, 1, 2)
    assert drain(open_spool(tmp_path, books)) == [1, 2]


def test_a_disk_without_room_for_the_snapshot_is_not_begun_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = fill_up(monkeypatch)
    books = Books()
    spool = open_spool(tmp_path / "file", books)
    (tmp_path / "file").write_text("in the way")
    assert not spool.begin()
    assert not spool.active
    assert books.said != []
    disk.room = 0
    assert spool.add(bundle(), *frames_of(0), 0) is None


def test_zero_takes_nothing_but_what_is_there_still_goes(tmp_path: Path) -> None:
    books = Books()
    assert not open_spool(tmp_path, books, Rules(0, 0)).begin()
    add(begun(tmp_path, books), 0, 1)
    off = open_spool(tmp_path, books, Rules(0, 0))
    assert not off.enabled
    assert off.active
    assert off.add(bundle(), *frames_of(2), 0) is None
    assert drain(off) == [0, 1]
    off.clear()
    assert not off.active


# --- other runs


def test_each_run_and_each_host_has_its_own(tmp_path: Path) -> None:
    books = Books()
    add(begun(tmp_path, books), 0, 1)
    for run_id, host_key in (
        ("run-2", HOST_KEY),
        (RUN_ID, "x" * 40),
        ("../../etc", HOST_KEY),
        ("CON", HOST_KEY),
    ):
        other = open_spool(tmp_path, books, run_id=run_id, host_key=host_key)
        assert (other.active, other.count) == (False, 0)
        assert other.begin()
        add(other, 7)
        other.close()
    assert drain(open_spool(tmp_path, books)) == [0, 1]
    assert all(folder.parent == tmp_path for folder in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 5


def test_a_name_for_a_folder_is_always_plain() -> None:
    names = {folder_name(run, "h" * 40) for run in ("a", "A", "..", "con", "x" * 1000, "a/b", "")}
    assert len(names) == 7
    assert all(name.replace(".", "").isalnum() and len(name) < 80 for name in names)


def other_run(root: Path, run_id: str, days: float) -> tuple[Path, float]:
    books = Books()
    spool = open_spool(root, books, run_id=run_id)
    assert spool.begin()
    add(spool, 0, 1, 2)
    books.account = Account("boot1", BooksMessage(produced=3, pending=3), 0, 0)
    spool.note()
    spool.close()
    folder = root / folder_name(run_id, HOST_KEY)
    return folder, days


def aged(*others: tuple[Path, float]) -> list[Path]:
    """Their folders, as if they were written so long ago."""
    for folder, days in others:
        then = time.time() - days * 86_400
        for path in folder.iterdir():
            os.utime(path, (then, then))
    return [folder for folder, _ in others]


def test_a_run_that_does_not_come_back_is_forgotten_after_a_month(tmp_path: Path) -> None:
    month = KEEP_S / 86_400
    old, young = aged(other_run(tmp_path, "old", month + 1), other_run(tmp_path, "young", month - 1))
    books = Books()
    open_spool(tmp_path, books)
    assert not old.exists()
    assert young.exists()
    assert [text.split(":")[0] for _, text in books.said] == [
        "the spool of another run (3 bundles, 31 days old) was deleted",
        "the spool also holds 3 bundles of other runs (17.1 kB); "
        "they go when such a run's host is joined, or after 30 days",
    ]


def test_other_runs_share_the_bound_and_the_oldest_goes_when_room_is_needed(tmp_path: Path) -> None:
    older, newer = aged(other_run(tmp_path, "older", 2), other_run(tmp_path, "newer", 1))
    taken = sum(path.stat().st_size for folder in (older, newer) for path in folder.iterdir())
    books = Books()
    spool = begun(tmp_path, books, Rules(taken + 2 * _SIZE, 0))
    add(spool, 0, 1)
    assert older.exists()
    add(spool, 2)
    assert not older.exists()
    assert newer.exists()
    assert "its room is needed" in books.said[-1][1]
    assert spool.add(bundle(), *frames_of(3, 10**6), 0) is None
    assert newer.exists(), "not for what would not fit anyway"
