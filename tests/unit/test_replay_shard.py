"""replay/shard.py: what it acknowledged it has, whatever happens to its process, its disk or its input."""

from __future__ import annotations

import errno
import shutil
import tracemalloc
from io import FileIO
from pathlib import Path

import lz4.block
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2prl.core.messages import REFUSALS, Delivery
from p2prl.core.schema import SessionSchema
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.replay import log as log_module
from p2prl.replay.counters import MAX_NODES
from p2prl.replay.log import LogError
from p2prl.replay.params import ReplayParams
from p2prl.replay.shard import ShardStore
from p2prl.wire.bundle import MAX_SLOTS
from p2prl.wire.columns import CODECS
from p2prl.wire.frames import encode
from tests.unit.replay_kit import BOOT, CARTPOLE, NODE, RUN, make_bundle, open_shard, play, push

T = CARTPOLE.ticks
OBS = 0


def contents(shard: ShardStore) -> set[tuple[int, int]]:
    """(seed, slot) of everything that a uniform shard holds."""
    first = shard.sample(600, 0, 0).columns[OBS][:, 0]
    return {(int(row[2]), int(row[1])) for row in first}


def served(shard: ShardStore, count: int) -> list[tuple[int, int]]:
    """(seed, slot) of the next sessions of a queue."""
    return [(int(row[2]), int(row[1])) for row in shard.sample(count, 0, 0).columns[OBS][:, 0]]


def sessions(*seeds: int, slots: int = 4) -> list[tuple[int, int]]:
    return [(seed, slot) for seed in seeds for slot in range(slots)]


# --- verdicts -----------------------------------------------------------------------------------------------


def test_a_stored_bundle_counts_once_and_a_resent_one_is_a_duplicate(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    arrays, steps, episodes = play(4, 0)
    accepted = push(shard, 0, current=3)
    assert (accepted.verdict.status, accepted.verdict.seq) == ("stored", 0)
    assert (accepted.steps, accepted.episodes, accepted.lag) == (steps, episodes, 3)
    for _ in range(99):
        again = push(shard, 0)
        assert again.verdict.status == "duplicate"
        assert (again.steps, again.episodes, again.lag) == (0, [], 0)
    assert (shard.counters.stored, shard.counters.duplicate) == (1, 99)
    assert shard.inserted_ticks == 4 * T
    assert shard.steps_total == steps
    assert shard.sessions == 4
    assert shard.size_bytes == 4 * CARTPOLE.session_bytes()
    assert push(shard, 0, node="m" * 40).verdict.status == "stored"
    whole = shard.sample(1, 0, 3)
    slot = int(whole.columns[OBS][0, 0, 1])
    np.testing.assert_array_equal(whole.columns[1][0], arrays["action"][:, slot])
    shard.close()


def test_versions_ahead_of_what_the_shard_knows(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    early = push(shard, 0, version=5, current=4).verdict
    assert (early.status, early.reason) == ("busy", "early")
    assert push(shard, 0, version=20, current=4).verdict.status == "busy"
    far = push(shard, 0, version=21, current=4).verdict
    assert (far.status, far.reason) == ("refused", "future_version")
    assert push(shard, 0, version=5, current=5).verdict.status == "stored"
    past = push(shard, 1, version=-1, current=5).verdict
    assert (past.status, past.reason) == ("refused", "malformed")
    shard.close()


def test_stale_bundles_are_counted_and_not_stored(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, max_lag=3)
    assert push(shard, 0, version=1, current=5).verdict.status == "stale"
    assert push(shard, 0, version=2, current=5).verdict.status == "stored"
    assert (shard.counters.stale, shard.sessions) == (1, 4)
    shard.close()


def test_each_refusal_has_its_reason_and_is_counted_by_node(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    header, payload = make_bundle()
    good = encode(header)
    delivery = Delivery(run_id=RUN, boot_id=BOOT, seq=0)

    def reason(delivery: Delivery, frame: bytes, payload: bytes) -> str:
        accepted = shard.accept(NODE, delivery, frame, payload, 0, RUN, 0.0)
        assert accepted.verdict.status == "refused"
        assert accepted.verdict.seq == delivery.seq
        assert accepted.text
        return accepted.verdict.reason

    other = encode(msgspec.structs.replace(header, schema=b"another!"))
    assert reason(msgspec.structs.replace(delivery, run_id="other"), good, payload) == "wrong_run"
    assert reason(msgspec.structs.replace(delivery, seq=-1), good, payload) == "malformed"
    assert reason(msgspec.structs.replace(delivery, seq=1 << 63), good, payload) == "malformed"
    assert reason(msgspec.structs.replace(delivery, boot_id="x" * 999), good, payload) == "malformed"
    assert reason(delivery, b"\x80\x04junk", payload) == "malformed"
    assert reason(delivery, bytes(1 << 21), payload) == "oversize"
    assert reason(delivery, other, payload) == "wrong_schema"
    assert reason(delivery, good, bytes(len(payload))) == "bad_codec"
    assert reason(delivery, encode(msgspec.structs.replace(header, steps=1)), payload) == "malformed"
    shard.refuse(NODE, "malformed")
    once = {"wrong_run": 1, "oversize": 1, "wrong_schema": 1, "bad_codec": 1}
    assert shard.counters.refused == {**once, "malformed": 6}
    assert shard.counters.refused_by_node == {NODE: shard.counters.refused}
    assert shard.inserted_ticks == 0
    assert shard.accept(NODE, delivery, good, payload, 0, RUN, 0.0).verdict.status == "stored"
    shard.close()


def test_refusals_of_ever_new_nodes_stay_few(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    for node in range(MAX_NODES + 50):
        shard.refuse(f"node {node}", "malformed")
    by_node = shard.counters.refused_by_node
    assert len(by_node) == MAX_NODES + 1
    assert by_node[""] == {"malformed": 50}
    assert sum(counter.total() for counter in by_node.values()) == shard.counters.refused["malformed"]
    shard.close()


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_hostile_bytes_never_raise(tmp_path: Path, data: st.DataObject) -> None:
    shard = open_shard(tmp_path / str(len(list(tmp_path.iterdir()))))
    header, payload = make_bundle()
    frames = [bytearray(encode(header)), bytearray(payload)]
    for _ in range(data.draw(st.integers(1, 6))):
        frame = data.draw(st.sampled_from(frames))
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    delivery = Delivery(run_id=RUN, boot_id=BOOT, seq=data.draw(st.integers(-(1 << 63), (1 << 64) - 1)))
    body = memoryview(frames[1])[: len(frames[1]) - cut]
    accepted = shard.accept(NODE, delivery, bytes(frames[0]), body, 0, RUN, 0.0)
    assert accepted.verdict.status in ("stored", "refused", "busy")
    if accepted.verdict.status == "refused":
        assert accepted.verdict.reason in REFUSALS
    shard.close()


def test_a_schema_that_cannot_be_used_is_our_mistake(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match="at least one tick"):
        ShardStore.open(tmp_path, SessionSchema(0, CARTPOLE.columns), ReplayParams(), 0)


def bomb(size: int) -> bytes:
    """`size` zeros as one lz4 block, made by hand: one literal, one long match, five literals (lz4_Block_format.md)."""
    more, rest = divmod(size - 1 - 5 - 4 - 15, 255)
    return b"\x1f\x00\x01\x00" + b"\xff" * more + bytes([rest]) + b"\x50" + bytes(5)


@pytest.mark.parametrize("slots", [4, MAX_SLOTS])
@pytest.mark.parametrize(
    "block",
    [bomb(512 << 20), (1 << 30).to_bytes(4, "little") + b"\x00", bomb(512 << 20)[:1000], b"\x1f"],
    ids=["512 MiB of zeros in 2 MiB", "a header that claims 1 GiB", "a torn one", "one byte"],
)
def test_a_bomb_is_refused_before_memory_is_taken_for_it(tmp_path: Path, block: bytes, slots: int) -> None:
    """No decoded size but the schema's is ever believed."""
    shard = open_shard(tmp_path)
    header, payload = make_bundle()
    rest = payload[header.sizes[0] :]
    block += bytes([CODECS.index("lz4")])  # without that mark no byte would reach lz4
    lie = msgspec.structs.replace(
        header, slots=slots, codecs=["lz4", *header.codecs[1:]], sizes=[len(block), *header.sizes[1:]]
    )
    frame, body = encode(lie), block + rest
    delivery = Delivery(run_id=RUN, boot_id=BOOT, seq=0)
    tracemalloc.start()
    try:
        accepted = shard.accept(NODE, delivery, frame, body, 0, RUN, 0.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (accepted.verdict.status, accepted.verdict.reason) == ("refused", "bad_codec")
    assert "lz4" in accepted.text
    assert peak < 2 * MAX_SLOTS * CARTPOLE.session_bytes()
    assert (shard.sessions, shard.stored_total) == (0, 0)
    assert list(tmp_path.glob("*.seg")) == []
    shard.close()


def test_the_bomb_of_these_tests_is_one() -> None:
    assert lz4.block.decompress(bomb(1 << 20), uncompressed_size=1 << 20) == bytes(1 << 20)
    assert 2 << 20 < len(bomb(512 << 20)) < 3 << 20


def test_the_buffer_is_bounded_in_bytes_and_huge_bundles_evict_more(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, sessions=100)
    limit = 100 * CARTPOLE.session_bytes()
    for seq in range(50):
        push(shard, seq, slots=2)
    assert (shard.size_bytes, shard.counters.evicted) == (limit, 0)
    push(shard, 50, slots=2)
    assert (shard.size_bytes, shard.counters.evicted) == (limit, 2)
    push(shard, 51, slots=80)
    assert (shard.size_bytes, shard.counters.evicted) == (limit, 82)
    assert contents(shard) >= set(sessions(51, slots=80))
    push(shard, 52, slots=300)
    assert (shard.size_bytes, shard.counters.evicted) == (limit, 382)
    assert contents(shard) <= set(sessions(52, slots=300))
    # The log holds what is live, and no more than a segment beyond it.
    assert open_shard(tmp_path, sessions=100).size_bytes == limit
    shard.close()


# --- a queue ------------------------------------------------------------------------------------------------


def test_a_full_queue_is_busy_until_it_is_sampled(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, "queue", sessions=8)
    assert push(shard, 0).verdict.status == "stored"
    assert push(shard, 1).verdict.status == "stored"
    full = push(shard, 2).verdict
    assert (full.status, full.reason) == ("busy", "full")
    assert shard.mass() == 8
    assert served(shard, 3) == sessions(0)[:3]
    assert push(shard, 2).verdict.status == "stored"
    assert served(shard, 99) == [*sessions(0)[3:], *sessions(1, 2)]
    assert shard.mass() == 0
    shard.close()


def test_a_killed_queue_serves_nothing_twice_and_loses_nothing(tmp_path: Path) -> None:
    """Never closed: the process is gone after each step, and the next one opens the folder."""
    given_out: list[tuple[int, int]] = []
    for seq in range(20):
        shard = open_shard(tmp_path, "queue", segment_bytes=1500)
        assert push(shard, seq).verdict.status == "stored"
        assert seq == 0 or push(shard, seq - 1).verdict.status == "duplicate"
        given_out += served(shard, 3)
        assert shard.warnings == []
    given_out += served(shard, 999)
    assert given_out == sessions(*range(20))
    assert open_shard(tmp_path, "queue").mass() == 0
    assert open_shard(tmp_path, "queue").inserted_ticks == 20 * 4 * T


def test_consumed_segments_are_deleted_and_their_bundles_stay_known(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, "queue", segment_bytes=1000)
    for seq in range(30):
        push(shard, seq)
        served(shard, 4)
    assert len(list(tmp_path.glob("*.seg"))) <= 2
    again = open_shard(tmp_path, "queue", segment_bytes=1000)
    assert all(push(again, seq).verdict.status == "duplicate" for seq in range(30))
    assert again.inserted_ticks == 30 * 4 * T
    assert (again.stored_total, again.steps_total) == (shard.stored_total, shard.steps_total)
    assert again.mass() == 0


# --- kill, and damage ---------------------------------------------------------------------------------------


def test_killed_and_opened_again_it_has_what_it_acknowledged(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, sessions=20, segment_bytes=1500)
    for seq in range(12):
        assert push(shard, seq).verdict.status == "stored"
    again = open_shard(tmp_path, sessions=20, segment_bytes=1500)
    assert contents(again) == contents(shard) == set(sessions(*range(7, 12)))
    assert (again.inserted_ticks, again.sessions, again.mass()) == (shard.inserted_ticks, 20, shard.mass())
    assert again.warnings == []
    assert all(push(again, seq).verdict.status == "duplicate" for seq in range(12))
    assert shard.counters.evicted == 12 * 4 - 20
    # Only what is live is kept on disk, but for whole segments.
    push(again, 12)
    kept = sum(path.stat().st_size for path in tmp_path.glob("*.seg"))
    assert kept < 6 * len(make_bundle()[1]) + 4 * 1500


@pytest.mark.parametrize("kind", ["uniform", "queue"])
def test_a_log_cut_at_every_byte_of_its_last_records(tmp_path: Path, kind: str) -> None:
    """Truncation is what a kill or a power cut leaves. All bundles before the cut are there, no other is."""
    whole = tmp_path / "whole"
    shard = open_shard(whole, kind)
    push(shard, 0, slots=1)
    if kind == "queue":
        served(shard, 1)
    (segment,) = whole.glob("*.seg")
    start = segment.stat().st_size
    ends = []
    for seq in (1, 2):
        push(shard, seq, slots=1)
        ends.append(segment.stat().st_size)
    data = segment.read_bytes()
    first = 0 if kind == "uniform" else 1
    for size in range(start, len(data) + 1):
        folder = tmp_path / "cut"
        folder.mkdir()
        (folder / segment.name).write_bytes(data[:size])
        again = open_shard(folder, kind)
        have = 1 + sum(end <= size for end in ends)
        assert again.stored_total == have
        assert again.inserted_ticks == have * T
        assert again.sessions == have - first
        assert bool(again.warnings) == (size not in (start, *ends))
        statuses = [push(again, seq, slots=1).verdict.status for seq in range(3)]
        assert statuses == ["duplicate"] * have + ["stored"] * (3 - have)
        if kind == "queue":
            assert served(again, 9) == sessions(1, 2, slots=1)
        shutil.rmtree(folder)


def test_a_rotten_record_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, segment_bytes=1000)
    for seq in range(12):
        push(shard, seq)
    paths = sorted(tmp_path.glob("*.seg"))
    data = bytearray(paths[2].read_bytes())
    data[len(data) // 2] ^= 0xFF
    paths[2].write_bytes(data)
    again = open_shard(tmp_path, segment_bytes=1000)
    assert "broken record" in again.warnings[0]
    assert 0 < again.sessions < 48
    assert again.inserted_ticks == 12 * 4 * T
    assert all(push(again, seq).verdict.status == "duplicate" for seq in range(12))
    assert push(again, 12).verdict.status == "stored"
    third = open_shard(tmp_path, segment_bytes=1000)
    assert third.sessions == again.sessions


def test_a_queue_whose_bundles_rotted_gives_new_sessions_new_numbers(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, "queue")
    for seq in range(4):
        push(shard, seq)
    served(shard, 16)
    push(shard, 4)
    (path,) = tmp_path.glob("*.seg")
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)
    again = open_shard(tmp_path, "queue")
    assert again.mass() == 0
    push(again, 100)
    assert served(open_shard(tmp_path, "queue"), 99) == sessions(100)


def test_a_log_of_another_schema_is_left_out_and_told(tmp_path: Path) -> None:
    push(open_shard(tmp_path), 0)
    longer = SessionSchema(T + 1, CARTPOLE.columns)
    shard = ShardStore.open(tmp_path, longer, ReplayParams(), 0)
    assert shard.sessions == 0
    assert "left out 1 bundle of another schema" in shard.warnings[0]


def test_a_smaller_capacity_wins_over_what_is_in_the_log(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    for seq in range(10):
        push(shard, seq)
    again = open_shard(tmp_path, sessions=6)
    assert contents(again) == {*sessions(8)[2:], *sessions(9)}


def test_a_restarted_sampler_does_not_repeat_itself(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    push(shard, 0)
    push(shard, 1)
    before = shard.sample(64, 1, 0).columns[OBS]
    push(shard, 2)
    after = open_shard(tmp_path).sample(64, 1, 0).columns[OBS]
    assert not np.array_equal(before, after)


# --- the disk -----------------------------------------------------------------------------------------------


class Disk:
    """Stands where bytes go to the operating system; `full` makes it take a part and then fail."""

    full = False

    def write_all(self, file: FileIO, data: bytes) -> None:
        if self.full:
            file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        file.write(data)


@pytest.fixture(name="disk")
def _disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(log_module, "_write_all", disk.write_all)
    return disk


def test_a_full_disk_is_busy_and_takes_nothing(tmp_path: Path, disk: Disk) -> None:
    shard = open_shard(tmp_path)
    push(shard, 0)
    disk.full = True
    refused = push(shard, 1)
    assert (refused.verdict.status, refused.verdict.reason) == ("busy", "disk_full")
    assert "make room" in refused.text
    assert (shard.stored_total, shard.sessions, shard.inserted_ticks) == (1, 4, 4 * T)
    assert push(shard, 0).verdict.status == "duplicate"
    disk.full = False
    assert push(shard, 1).verdict.status == "stored"
    again = open_shard(tmp_path)
    assert (again.stored_total, again.warnings) == (2, [])


def test_a_write_that_the_system_stops_half_way(tmp_path: Path) -> None:
    """Not injected: the kernel itself takes a part of the record and refuses the rest."""
    resource = pytest.importorskip("resource", reason="Windows has no file size limits")
    shard = open_shard(tmp_path)
    push(shard, 0)
    (path,) = tmp_path.glob("*.seg")
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
    try:
        refused = push(shard, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (refused.verdict.status, refused.verdict.reason) == ("busy", "disk_full")
    assert "No space left" in shard.trouble or "too large" in shard.trouble
    assert path.stat().st_size == size
    assert push(shard, 1).verdict.status == "stored"
    assert shard.trouble == ""
    again = open_shard(tmp_path)
    assert (again.stored_total, again.warnings) == (2, [])


def test_a_queue_on_a_full_disk_is_served_and_remembers_it_later(tmp_path: Path, disk: Disk) -> None:
    shard = open_shard(tmp_path, "queue")
    push(shard, 0)
    disk.full = True
    assert served(shard, 2) == sessions(0)[:2]
    assert "No space left" in shard.trouble
    disk.full = False
    shard.tick(0.0)
    assert shard.trouble == ""
    assert served(open_shard(tmp_path, "queue"), 9) == sessions(0)[2:]


def test_bytes_go_to_the_disk_at_each_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(log_module.os, "fsync", synced.append)
    shard = open_shard(tmp_path, fsync_interval_s=2.0)
    push(shard, 0, now=1.0)
    shard.tick(1.5)
    assert synced == []
    shard.tick(2.0)
    assert len(synced) == 1
    shard.tick(9.0)
    assert len(synced) == 1
    push(shard, 1, now=10.0)
    shard.tick(12.0)
    assert len(synced) == 2
    push(shard, 2, now=12.5)
    shard.close()
    assert len(synced) == 3


def test_with_an_interval_of_0_what_is_said_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(log_module.os, "fsync", synced.append)
    shard = open_shard(tmp_path, fsync_interval_s=0.0)
    for seq in range(5):
        push(shard, seq)
    assert synced == []
    shard.flush()
    assert len(synced) == 1  # once for all verdicts of a turn
    shard.flush()
    shard.tick(9.0)
    assert len(synced) == 1
    push(shard, 5)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(log_module.os, "fsync", broken)
        with pytest.raises(LogError):
            shard.flush()
    shard.flush()
    assert len(synced) == 2
    later = open_shard(tmp_path / "later", fsync_interval_s=1.0)
    push(later, 0)
    later.flush()
    assert len(synced) == 2
    shard.close()


def test_a_disk_that_does_not_sync_is_busy_before_anything_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = open_shard(tmp_path, fsync_interval_s=1.0)
    push(shard, 0, now=0.5)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(log_module.os, "fsync", broken)
        assert push(shard, 1, now=5.0).verdict.reason == "disk"
    assert shard.stored_total == 1
    assert push(shard, 1, now=6.0).verdict.status == "stored"
    shard.close()


def test_a_wrong_ask_changes_nothing(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, "queue")
    push(shard, 0)
    with pytest.raises(RemoteProtocolError):
        shard.sample(1, T + 1, 0)
    with pytest.raises(RemoteProtocolError):
        shard.sample(-1, 0, 0)
    assert shard.mass() == 4
    assert shard.sample(1 << 60, 0, 0).count == 4
    shard.close()
