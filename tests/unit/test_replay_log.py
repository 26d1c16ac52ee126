"""replay/log.py: what was appended is read again, whatever the last moment looked like."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from p2prl.errors import UpgradeNeeded
from p2prl.replay import log as log_module
from p2prl.replay.log import SNAPSHOT, LogError, SegmentLog


def open_log(folder: Path, segment_bytes: int = 10_000) -> SegmentLog:
    return SegmentLog(folder, segment_bytes, lambda: b"snap")


def fill(folder: Path, bodies: list[bytes], segment_bytes: int = 10_000) -> None:
    log = open_log(folder, segment_bytes)
    list(log.records())
    for mark, body in enumerate(bodies, 1):
        log.append(1, body, mark)
    log.close()


def read(folder: Path) -> tuple[list[bytes], list[str]]:
    log = open_log(folder)
    bodies = [body for kind, body in log.records() if kind != SNAPSHOT]
    return bodies, log.damage


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


class FullDisk:
    """Stands where the operating system takes bytes: after `room` bytes it has no space."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, file: FileIO, data: bytes) -> None:
        taken = data[: self.room]
        file.write(taken)
        self.room -= len(taken)
        if len(taken) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(name="full")
def _full(monkeypatch: pytest.MonkeyPatch) -> Iterator[FullDisk]:
    disk = FullDisk(10**9)
    monkeypatch.setattr(log_module, "_write_all", disk)
    yield disk
    disk.room = 10**9


def test_records_come_back_in_order_over_segments_and_lives(tmp_path: Path) -> None:
    bodies = [bytes([i]) * i * 10 for i in range(60)]
    fill(tmp_path, bodies[:30], segment_bytes=500)
    fill(tmp_path, bodies[30:], segment_bytes=500)
    assert len(segments(tmp_path)) > 4
    assert read(tmp_path) == (bodies, [])


def test_every_segment_begins_with_a_snapshot(tmp_path: Path) -> None:
    fill(tmp_path, [bytes(100)] * 20, segment_bytes=500)
    log = open_log(tmp_path)
    snapshots = [body for kind, body in log.records() if kind == SNAPSHOT]
    assert snapshots == [b"snap"] * len(segments(tmp_path))


def test_a_life_without_appends_leaves_no_file(tmp_path: Path) -> None:
    fill(tmp_path, [])
    assert segments(tmp_path) == []


def test_a_tail_torn_at_any_byte_loses_only_what_was_not_whole(tmp_path: Path) -> None:
    bodies = [b"one", b"two" * 5, b"three" * 3]
    fill(tmp_path / "whole", bodies)
    (segment,) = segments(tmp_path / "whole")
    data = segment.read_bytes()
    ends = [data.index(body) + len(body) for body in bodies]
    header_end, snapshot_end = 12, data.index(b"snap") + 4
    for size in range(len(data)):
        folder = tmp_path / f"cut{size}"
        folder.mkdir()
        (folder / segment.name).write_bytes(data[:size])
        survivors = sum(end <= size for end in ends)
        found, damage = read(folder)
        assert found == bodies[:survivors]
        assert bool(damage) == (size not in (*ends, header_end, snapshot_end)), (size, damage)
        assert read(folder)[0] == bodies[:survivors]
        fill(folder, [b"next"])
        assert read(folder)[0] == [*bodies[:survivors], b"next"]


def test_a_torn_tail_is_reported_once(tmp_path: Path) -> None:
    fill(tmp_path, [b"one", b"two"])
    segment = segments(tmp_path)[0]
    segment.write_bytes(segment.read_bytes()[:-1])
    assert "torn at byte" in read(tmp_path)[1][0]
    assert read(tmp_path)[1] == []


def test_a_broken_record_costs_the_rest_of_its_segment_only(tmp_path: Path) -> None:
    bodies = [bytes([i]) * 100 for i in range(12)]
    fill(tmp_path, bodies, segment_bytes=400)
    first, second, *_ = segments(tmp_path)
    in_second = [body for body in bodies if body in second.read_bytes()]
    data = bytearray(second.read_bytes())
    data[data.index(in_second[1])] ^= 1
    second.write_bytes(data)
    found, damage = read(tmp_path)
    assert found == [body for body in bodies if body not in in_second[1:]]
    assert len(damage) == 1
    assert second.name in damage[0]
    assert "broken record" in damage[0]
    assert first.exists()


def test_strange_files_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path, [b"one"])
    (tmp_path / "000000000007.seg").write_bytes(b"\x80\x04 not a segment at all")
    (tmp_path / "notes.seg").write_bytes(b"mine")
    found, damage = read(tmp_path)
    assert found == [b"one"]
    assert "not a segment" in damage[0]
    assert (tmp_path / "notes.seg").read_bytes() == b"mine"


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "FORMAT", 2)
    fill(tmp_path, [b"one"])
    monkeypatch.setattr(log_module, "FORMAT", 1)
    with pytest.raises(UpgradeNeeded, match="log format 2"):
        read(tmp_path)


def test_release_deletes_whole_dead_segments_oldest_first(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    list(log.records())
    for mark in range(1, 13):
        log.append(1, bytes([mark]) * 100, mark)
    before = segments(tmp_path)
    log.release(0)
    assert segments(tmp_path) == before
    log.release(4)
    after = segments(tmp_path)
    assert before[-len(after) :] == after
    assert 0 < len(after) < len(before)
    bodies = [body for path in after for body in [path.read_bytes()]]
    assert all(any(bytes([mark]) * 100 in body for body in bodies) for mark in range(5, 13))
    log.release(10**9)
    assert segments(tmp_path) == before[-1:]
    log.close()


def test_nothing_is_deleted_before_a_newer_snapshot_exists(tmp_path: Path) -> None:
    fill(tmp_path, [b"one"])
    log = open_log(tmp_path)
    list(log.records())
    log.release(10**9)
    assert len(segments(tmp_path)) == 1
    log.append(1, b"two", 2)
    log.release(10**9)
    log.close()
    assert read(tmp_path)[0] == [b"two"]


def test_what_a_snapshot_on_the_disk_sums_up_goes_without_another_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        synced.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    fill(tmp_path, [b"an earlier life's"])
    log = open_log(tmp_path, segment_bytes=400)
    list(log.records())
    for mark in range(1, 13):
        log.append(1, bytes([mark]) * 100, mark)
    log.sync()
    newest_synced = segments(tmp_path)[-1]
    synced.clear()
    for mark in range(13, 25):
        log.append(1, bytes([mark]) * 100, mark)
    log.release(11)  # all of it is older than what the sync brought to the disk
    assert not synced
    assert not any(
        bytes([mark]) * 100 in path.read_bytes() for path in segments(tmp_path) for mark in (1, 5, 8)
    )
    assert newest_synced in segments(tmp_path)
    log.release(10**9)  # the newest of these are not summed up on the disk yet
    assert synced
    assert len(segments(tmp_path)) == 1
    log.close()


def test_the_segment_that_was_open_at_the_last_sync_stays_until_the_next_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its successor's snapshot says what is in it."""
    on_disk: dict[int, int] = {}  # by inode, how much of a file would be there after a power cut
    deleted: list[Path] = []
    fsync, unlink = os.fsync, Path.unlink

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        found = os.fstat(descriptor)
        on_disk[found.st_ino] = found.st_size

    def checked(path: Path, missing_ok: bool = False) -> None:
        successor = segments(tmp_path)[segments(tmp_path).index(path) + 1]
        assert on_disk.get(successor.stat().st_ino, 0) > 0, f"{successor.name} is not on the disk"
        deleted.append(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", noted)
    log = open_log(tmp_path, segment_bytes=400)
    list(log.records())
    log.append(1, b"first", 1)
    log.sync()
    [open_then] = segments(tmp_path)
    log.append(1, bytes(400), 2)  # fills it
    log.append(1, b"successor's", 3)
    assert len(segments(tmp_path)) == 2
    monkeypatch.setattr(Path, "unlink", checked)
    log.release(2)
    assert deleted == [open_then]
    monkeypatch.undo()
    log.close()


@pytest.mark.parametrize("room", [0, 1, 8, 9, 12])
def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, full: FullDisk, room: int) -> None:
    log = open_log(tmp_path)
    list(log.records())
    log.append(1, b"before")
    size = segments(tmp_path)[0].stat().st_size
    full.room = room
    with pytest.raises(LogError, match="No space left") as caught:
        log.append(1, b"refused")
    assert caught.value.full
    assert segments(tmp_path)[0].stat().st_size == size
    full.room = 10**9
    log.append(1, b"after")
    log.close()
    assert read(tmp_path) == ([b"before", b"after"], [])


@pytest.mark.parametrize("room", [0, 5, 12, 20])
def test_a_disk_that_fills_as_a_segment_begins(tmp_path: Path, full: FullDisk, room: int) -> None:
    log = open_log(tmp_path, segment_bytes=30)
    list(log.records())
    log.append(1, b"before" * 10)
    full.room = room
    with pytest.raises(LogError):
        log.append(1, b"refused")
    assert len(segments(tmp_path)) == 1
    full.room = 10**9
    log.append(1, b"after")
    log.close()
    assert read(tmp_path) == ([b"before" * 10, b"after"], [])


def test_where_even_taking_back_fails_the_segment_ends(
    tmp_path: Path, full: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    list(log.records())
    log.append(1, b"before")

    class Stuck(FileIO):
        def truncate(self, size: int | None = None) -> int:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(log_module, "FileIO", Stuck)
    log.close()
    log = open_log(tmp_path)
    list(log.records())
    log.append(1, b"second")
    full.room = 10
    with pytest.raises(LogError):
        log.append(1, b"torn away")
    full.room = 10**9
    log.append(1, b"after")
    log.close()
    found, damage = read(tmp_path)
    assert found == [b"before", b"second", b"after"]
    assert len(damage) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    log = open_log(tmp_path / "gone")
    list(log.records())
    (tmp_path / "gone").rmdir()
    with pytest.raises(LogError, match="cannot write sessions") as caught:
        log.append(1, b"x")
    assert not caught.value.full


def test_a_body_in_parts_is_logged_as_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_all([(1, (b"head", memoryview(b"payload")), 1), (1, b"whole", 2), (1, (), 3)])
    log.close()
    assert read(tmp_path) == ([b"headpayload", b"whole", b""], [])
