"""Bundles that are judged and logged together: each gets the word that it would get alone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest

from p2prl.core.messages import Delivery
from p2prl.replay import log
from p2prl.replay.log import LogError, SegmentLog
from p2prl.replay.shard import ShardStore
from p2prl.replay.verdicts import Offer
from p2prl.wire.frames import encode
from tests.unit.replay_kit import BOOT, CARTPOLE, NODE, RUN, make_bundle, open_shard


def offer(seq: int, payload: bytes | None = None, node: str = NODE, version: int = 0) -> Offer:
    """An honest bundle, or its header with another payload."""
    header, honest = make_bundle(seed=seq, version=version)
    delivery = Delivery(run_id=RUN, boot_id=BOOT, seq=seq)
    return Offer(node, delivery, encode(header), honest if payload is None else payload)


def broken(seq: int, node: str = NODE) -> Offer:
    """The last block is of another codec than its header says."""
    return offer(seq, make_bundle(seed=seq)[1][:-1] + b"\xff", node)


def statuses(shard: ShardStore, offers: list[Offer], current: int = 0) -> list[str]:
    return [word.verdict.status for word in shard.accept_all(offers, current, RUN, 0.0)]


def test_of_many_bundles_the_bad_one_alone_is_refused_and_counted(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    words = shard.accept_all([offer(0), broken(1, "other"), offer(2)], 0, RUN, 0.0)
    assert [(word.verdict.seq, word.verdict.status) for word in words] == [
        (0, "stored"),
        (1, "refused"),
        (2, "stored"),
    ]
    assert words[1].verdict.reason == "bad_codec"
    assert shard.counters.refused_by_node == {"other": {"bad_codec": 1}}
    assert shard.sessions == 8
    assert shard.counters.stored == 2
    shard.close()
    again = open_shard(tmp_path)
    assert again.sessions == 8
    assert again.stored_total == 2
    again.close()


def test_the_second_of_two_with_one_name_is_a_duplicate(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    assert statuses(shard, [offer(0), offer(1), offer(0), broken(1)]) == [
        "stored",
        "stored",
        "duplicate",
        "duplicate",
    ]
    assert shard.counters.duplicate == 2
    assert shard.sessions == 8
    shard.close()


def test_after_a_broken_one_its_name_is_still_free(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    assert statuses(shard, [broken(0), offer(0)]) == ["refused", "stored"]
    shard.close()


def test_a_queue_is_asked_for_room_before_each(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, "queue", sessions=8)
    assert statuses(shard, [offer(0), offer(1), offer(2)]) == ["stored", "stored", "busy"]
    assert shard.sessions == 8
    shard.close()


def test_old_and_early_ones_do_not_hold_up_the_others(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, max_lag=2)
    offers = [offer(0, version=1), offer(1, version=5), offer(2, version=6)]
    assert statuses(shard, offers, current=5) == ["stale", "stored", "busy"]
    shard.close()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits on a file's size")
def test_a_disk_that_has_no_room_for_all_takes_some(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    assert statuses(shard, [offer(0)]) == ["stored"]
    each = next(tmp_path.glob("*.seg")).stat().st_size
    with room_for(3 * each):
        words = shard.accept_all([offer(seq) for seq in range(1, 9)], 0, RUN, 0.0)
    found = [word.verdict.status for word in words]
    assert found.count("stored") >= 1
    assert found == ["stored"] * found.count("stored") + ["busy"] * found.count("busy")
    assert words[-1].verdict.reason == "disk_full"
    stored = 1 + found.count("stored")
    assert shard.stored_total == stored
    shard.close()
    again = open_shard(tmp_path)
    assert again.stored_total == stored
    assert again.sessions == 4 * stored
    assert not again.warnings
    assert statuses(again, [offer(seq) for seq in range(9)]) == ["duplicate"] * stored + ["stored"] * (
        9 - stored
    )
    again.close()


@contextmanager
def room_for(size_bytes: int) -> Iterator[None]:
    """No file of this process may become larger."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class _Stubborn(FileIO):
    """What was written to it cannot be taken back."""

    def truncate(self, size: int | None = None) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits on a file's size")
def test_what_a_failed_write_left_in_the_log_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "FileIO", _Stubborn)
    shard = open_shard(tmp_path)
    assert statuses(shard, [offer(0)]) == ["stored"]
    each = next(tmp_path.glob("*.seg")).stat().st_size
    with room_for(3 * each):
        found = statuses(shard, [offer(seq) for seq in range(1, 9)])
    assert {"stored", "busy"} == set(found)
    assert shard.stored_total == 1 + found.count("stored")
    shard.close()
    for _ in range(2):  # those that were told `busy` come again; some may be there already
        again = open_shard(tmp_path)
        assert set(statuses(again, [offer(seq) for seq in range(9)])) <= {"stored", "duplicate"}
        assert (again.stored_total, again.sessions) == (9, 36)
        assert again.inserted_ticks == 36 * CARTPOLE.ticks
        again.close()


def test_a_group_is_busy_as_a_whole_where_the_disk_fails_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: SegmentLog) -> None:
        raise LogError(self.folder, OSError(errno.EIO, os.strerror(errno.EIO)))

    shard = open_shard(tmp_path, fsync_interval_s=1.0)
    assert statuses(shard, [offer(0)]) == ["stored"]
    with monkeypatch.context() as broken_disk:
        broken_disk.setattr(SegmentLog, "sync", fails)
        words = shard.accept_all([offer(seq) for seq in range(1, 5)], 0, RUN, 100.0)
    assert [(word.verdict.status, word.verdict.reason) for word in words] == [("busy", "disk")] * 4
    assert "Input/output error" in shard.trouble
    assert shard.stored_total == 1
    shard.close()


def test_what_was_logged_together_is_let_go_together(tmp_path: Path) -> None:
    """A segment stays as long as the last session of its last group."""
    for groups in range(20, 30):
        folder = tmp_path / str(groups)
        shard = open_shard(folder, sessions=40)
        shard._log._segment_bytes = 3000
        for group in range(groups):
            statuses(shard, [offer(group * 7 + seq) for seq in range(7)])
        held = shard.sessions
        shard.close()
        again = open_shard(folder, sessions=40)
        assert again.sessions == held == 40
        again.close()


def test_a_group_is_read_back_as_it_was_given(tmp_path: Path) -> None:
    together, one_by_one = open_shard(tmp_path / "a"), open_shard(tmp_path / "b")
    offers = [offer(seq) for seq in range(7)]
    together.accept_all(offers, 0, RUN, 0.0)
    for each in offers:
        one_by_one.accept_all([each], 0, RUN, 0.0)
    assert together.mass() == one_by_one.mass() > 0
    assert together.inserted_ticks == one_by_one.inserted_ticks == 7 * 4 * CARTPOLE.ticks
    found = [shard.sample(64, 5, 0) for shard in (together, one_by_one)]
    for left, right in zip(found[0].columns, found[1].columns, strict=True):
        assert (left == right).all()
    for shard in (together, one_by_one):
        shard.close()


def test_nothing_is_said_of_nothing(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    assert shard.accept_all([], 0, RUN, 0.0) == []
    shard.close()
