"""A ring in shared memory: what lies where, what is drawn, and that who gathers gets nothing else."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.core.messages import SampleAsk, SampleReply
from p2prl.core.schema import DTYPE_SIZES, RESET, Column, SessionSchema
from p2prl.errors import LimitsForbid
from p2prl.learn import gathering
from p2prl.learn.contracts import Array, ReplaySpec
from p2prl.learn.gathering import Gatherer
from p2prl.learn.sampling import Sampler
from p2prl.replay.params import ReplayParams
from p2prl.replay.shard import ShardStore
from p2prl.replay.shared import SharedRings, SharedStore, can_be_shared, layout, rings_bytes
from p2prl.replay.storage import RingStore, Sample
from tests.unit.replay_kit import CARTPOLE, play

T, BYTES = CARTPOLE.ticks, CARTPOLE.session_bytes()
PLACES = 64
#: Of so many places a 16th is not drawn.
SPARE = 4


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[int]:
    """The descriptor of two shards' rings: of a file, which any system has, in the place of memory without a name."""
    made = os.open(tmp_path / "rings", os.O_RDWR | os.O_CREAT)
    os.ftruncate(made, rings_bytes(CARTPOLE, 2, PLACES))
    yield made
    os.close(made)


def shared(memory: int, window: int = 0, shard: int = 0) -> SharedStore:
    params = ReplayParams(capacity_bytes=PLACES * BYTES, window=window, rings=memory, shard=shard, shards=2)
    return SharedStore(CARTPOLE, params, np.random.default_rng(1))


def fill(store: RingStore, sessions: int, first: int = 0) -> None:
    """One by one; the seed of each, its number, is in its observations and is its version."""
    for number in range(first, first + sessions):
        store.add(number, play(1, number)[0], version=number)


def spec(window: int = 0, batch: int = 8) -> ReplaySpec:
    return ReplaySpec(ticks=T, batch=batch, window=window, capacity_bytes=10**6, min_ticks=0)


def gatherer(memory: int, window: int = 0) -> Gatherer:
    return Gatherer(CARTPOLE, spec(window), memory, 2, PLACES)


def replied(sample: Sample) -> tuple[SampleReply, list[bytes]]:
    """What a shard sends of it."""
    assert sample.where is not None
    reply = SampleReply(ask=1, count=sample.count, mass=1, inserted_ticks=1, boot_id="a", shared=True)
    return reply, [sample.where.tobytes(), sample.versions.tobytes()]


def told(taker: Gatherer, index: int, sample: Sample) -> list[Array]:
    return taker.columns(index, *replied(sample))


def check(batch: list[Array], window: int = 0) -> None:
    """Each sample is the session that its version names."""
    obs, action, reward, flags, versions = batch
    for at, number in enumerate(versions.tolist()):
        whole = play(1, number)[0]
        first = int(obs[at, 0, 0]) if window else 0
        rows = slice(first, first + (window or T))
        assert np.array_equal(obs[at], whole["obs"][first : rows.stop + 1, 0])
        assert np.array_equal(action[at], whole["action"][rows, 0])
        assert np.array_equal(reward[at], whole["reward"][rows, 0])
        assert np.array_equal(flags[at], whole["flags"][rows, 0])
        assert not window or not flags[at, 0] & RESET


# --- what lies where


columns = st.lists(
    st.tuples(
        st.sampled_from(sorted(DTYPE_SIZES)),
        st.lists(st.integers(0, 3), max_size=2).map(tuple),
        st.sampled_from(["", "extra_row", "once"]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=100, deadline=None)
@given(columns, st.integers(1, 9), st.integers(1, 4), st.integers(1, 50))
def test_blocks_hold_their_columns_and_none_overlaps_another(
    wanted: list[tuple[str, tuple[int, ...], str]], ticks: int, shards: int, places: int
) -> None:
    schema = SessionSchema(
        ticks,
        tuple(
            Column(f"c{at}", dtype, shape, extra_row=kind == "extra_row", once=kind == "once")
            for at, (dtype, shape, kind) in enumerate(wanted)
        ),
    )
    blocks = layout(schema, shards, places)
    assert len(blocks) == 2 + len(wanted)
    for before, block in itertools.pairwise(blocks):
        assert before.end <= block.offset < before.end + 64
        assert block.offset % 64 == 0
    for column, block in zip(schema.columns, blocks[2:], strict=True):
        assert block.dtype == column.dtype
        assert block.shape == (shards, places, schema.rows(column), *column.shape)
        assert block.end - block.offset == shards * places * schema.column_bytes(column, 1)
        assert math.prod(block.shape) * DTYPE_SIZES[column.dtype] == block.end - block.offset


def test_what_one_side_writes_the_other_reads_and_cannot_change(memory: int) -> None:
    store = shared(memory)
    view = SharedRings(CARTPOLE, 2, PLACES, memory)
    fill(store, 5)
    assert view.columns[0][:5, 0, 2].tolist() == [0, 1, 2, 3, 4]
    assert (view.stamps[:5] > 0).all()
    assert (view.stamps[5:PLACES] == -1).all()
    for values in (view.stamps, *view.columns):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0


def test_shards_do_not_touch_each_others_rings(memory: int) -> None:
    view = SharedRings(CARTPOLE, 2, PLACES, memory)
    for shard in (0, 1):
        mine, others = (slice(PLACES * at, PLACES * (at + 1)) for at in (shard, 1 - shard))
        before = [values[others].copy() for values in (view.stamps, *view.columns)]
        for sessions in (0, 2 * PLACES + 3):
            store = shared(memory, shard=shard)
            assert (view.stamps[mine] == -1).all(), "something of an earlier start counts"
            fill(store, sessions, first=1000 * (shard + 1))
            for values, was in zip((view.stamps, *view.columns), before, strict=True):
                assert np.array_equal(values[others], was)
        assert (view.stamps[mine] > 0).all()
        assert (view.columns[0][mine, 0, 2] >= 1000 * (shard + 1)).all()


def test_memory_of_another_size_is_not_taken_for_rings(memory: int, tmp_path: Path) -> None:
    empty = os.open(tmp_path / "empty", os.O_RDWR | os.O_CREAT)
    fill(shared(memory), 5)
    for writes in (False, True):
        with pytest.raises(OSError, match="shared memory of"):
            SharedRings(CARTPOLE, 2, PLACES + 1, memory, writes=writes)
        with pytest.raises(OSError, match="shared memory of 0 bytes"):
            SharedRings(CARTPOLE, 2, PLACES, empty, writes=writes)
        with pytest.raises(OSError, match="shared memory of"):
            SharedRings(CARTPOLE, 1, PLACES, memory, writes=writes)
    assert os.fstat(empty).st_size == 0
    os.close(empty)


def test_a_trainer_that_cannot_map_the_rings_says_what_to_do(memory: int, tmp_path: Path) -> None:
    writable = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    try:
        os.ftruncate(writable, rings_bytes(CARTPOLE, 2, PLACES))
        with pytest.raises(LimitsForbid, match=r"cannot map the replay's .* set replay.capacity_bytes lower"):
            Gatherer(CARTPOLE, spec(), writable, 2, PLACES)
    finally:
        os.close(writable)


def test_pictures_are_not_shared() -> None:
    assert can_be_shared(CARTPOLE)
    frames = Column("obs", "uint8", (4, 84, 84), extra_row=True)
    assert not can_be_shared(SessionSchema(4, (frames, *CARTPOLE.columns[1:])))


# --- what a shard draws


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("sessions", [1, 59, 62, 64, 64 + 37])
def test_the_oldest_of_a_full_ring_are_not_drawn_and_all_others_are(
    memory: int, sessions: int, window: int
) -> None:
    store = shared(memory, window)
    fill(store, sessions)
    sample = store.sample(6000, window, 0)
    assert sample.columns == []
    spared = max(0, min(SPARE, sessions + SPARE - PLACES))
    live = range(max(0, sessions - PLACES) + spared, sessions)
    can = [n for n in live if window == 0 or (play(1, n)[0]["flags"][: T - window + 1] & RESET == 0).any()]
    assert set(sample.versions.tolist()) == set(can)


def test_what_a_quarantined_node_gave_is_not_drawn_and_not_counted(memory: int) -> None:
    store = shared(memory)
    for number in range(PLACES + 10):
        store.add(number, play(1, number)[0], number, "good" if number % 2 else "bad")
    whole = store.mass()
    store.quarantine(frozenset({"bad"}))
    drawn = set(store.sample(3000, 0, 0).versions.tolist())
    assert drawn == {number for number in range(10 + SPARE, PLACES + 10) if number % 2}
    assert store.mass() == len(drawn) * T
    store.quarantine(frozenset({"bad", "good"}))
    assert store.sample(10, 0, 0).count == store.mass() == 0
    store.quarantine(frozenset())
    assert store.mass() == whole


def test_a_ring_for_which_there_is_no_memory_is_refused(memory: int) -> None:
    with pytest.raises(LimitsForbid, match="no memory for a replay"):
        SharedStore(CARTPOLE, ReplayParams(capacity_bytes=1 << 60, rings=memory), np.random.default_rng(0))


def test_where_it_cannot_be_shared_a_shard_keeps_its_own_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(bytes(rings_bytes(CARTPOLE, 1, PLACES)))
    readable = os.open(tmp_path / "other", os.O_RDONLY)
    try:
        params = ReplayParams(capacity_bytes=PLACES * BYTES, rings=readable)
        shard = ShardStore.open(tmp_path / "shard", CARTPOLE, params, seed=1)
    finally:
        os.close(readable)
    assert [line.split(",")[0] for line in shard.warnings] == ["memory cannot be shared with the trainer"]
    assert shard.sample(5, 0, 0).where is None
    shard.close()


# --- what the trainer gathers


@pytest.mark.parametrize("window", [0, 1, 5, T])
def test_batches_are_what_was_drawn_of_all_shards(
    memory: int, window: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="p2prl")
    stores = [shared(memory, window, shard) for shard in range(2)]
    fill(stores[0], 80)
    fill(stores[1], 30, first=1000)
    taker = gatherer(memory, window)
    parts = [told(taker, at, store.sample(40, window, 0))[0] for at, store in enumerate(stores)]
    wanted = sorted(version for part in parts for version in part[-1].tolist())
    taker.add(parts, np.random.default_rng(1))
    got: list[int] = []
    while (batch := taker.next_batch(8)) is not None:
        check(batch, window)
        got += batch[-1].tolist()
        assert taker.waiting == len(wanted) - len(got)
        assert {version // 1000 for version in batch[-1].tolist()} == {0, 1}, "all of one shard"
    assert sorted(got) == wanted
    assert taker.overwritten == taker.waiting == 0
    assert taker.given == len(got)
    taker.tell()
    assert not caplog.text


def test_what_shards_drew_is_shuffled(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first batches would all be of the first shard, as here, where each batch is gathered alone."""
    monkeypatch.setattr(gathering, "_AT_ONCE_BYTES", 1)
    stores, taker = [shared(memory, shard=shard) for shard in range(2)], gatherer(memory)
    for at, store in enumerate(stores):
        fill(store, 30, first=1000 * at)
    taker.add(
        [told(taker, at, store.sample(40, 0, 0))[0] for at, store in enumerate(stores)],
        np.random.default_rng(1),
    )
    batch = taker.next_batch(8)
    assert batch is not None
    assert {version // 1000 for version in batch[-1].tolist()} == {0, 1}


def test_a_few_that_were_overwritten_are_not_told(memory: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="p2prl")
    store, taker = shared(memory), gatherer(memory)
    fill(store, PLACES)
    part = told(taker, 0, store.sample(400, 0, 0))[0]
    taker.add([part], np.random.default_rng(1))
    oldest = part[-1].min()
    fill(store, int(oldest) + 1, first=PLACES)
    while (batch := taker.next_batch(8)) is not None:
        check(batch)
    taker.tell()
    assert 0 < taker.overwritten == (part[-1] == oldest).sum() <= 0.01 * taker.given, taker.given
    assert not caplog.text


def test_what_was_overwritten_is_left_out_and_others_take_its_place(
    memory: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="p2prl")
    store, taker = shared(memory), gatherer(memory)
    fill(store, PLACES)
    part = told(taker, 0, store.sample(40, 0, 0))[0]
    taker.add([part], np.random.default_rng(1))
    fill(store, PLACES // 2, first=PLACES)
    gone = sum(version < PLACES // 2 for version in part[-1].tolist())
    assert 8 < gone < 32
    got: list[int] = []
    while (batch := taker.next_batch(8)) is not None:
        check(batch)
        got += batch[-1].tolist()
    assert min(got) >= PLACES // 2, "a session was given that is gone"
    assert len(got) + taker.waiting + taker.overwritten == 40
    assert len(got) == (40 - gone) // 8 * 8, "sound samples were kept back"
    assert taker.overwritten <= gone
    assert taker.waiting < 8
    taker.tell()
    assert (
        f"{taker.overwritten} samples were overwritten before they were used, {len(got)} were used"
        in caplog.text
    )
    # What was left over is given later, with what is drawn then.
    taker.add([told(taker, 0, store.sample(8, 0, 0))[0]], np.random.default_rng(1))
    batch = taker.next_batch(8)
    assert batch is not None
    check(batch)
    assert taker.overwritten == gone


def test_what_is_being_written_is_not_given(memory: int) -> None:
    store, taker = shared(memory), gatherer(memory)
    fill(store, 10)
    sample = store.sample(8, 0, 0)
    taker.add(told(taker, 0, sample), np.random.default_rng(1))
    other = SharedRings(CARTPOLE, 2, PLACES, memory, writes=True)
    assert sample.where is not None
    kept = other.stamps.copy()
    other.stamps[sample.where[:, 0]] = -1
    assert taker.next_batch(8) is None
    assert taker.overwritten == 8
    other.stamps[:] = kept
    taker.add(told(taker, 0, sample), np.random.default_rng(1))
    assert taker.next_batch(8) is not None


def test_what_a_shard_was_killed_while_writing_is_not_given(memory: int) -> None:
    os.ftruncate(memory, rings_bytes(CARTPOLE, 1, 1))
    params = ReplayParams(capacity_bytes=BYTES, window=0, rings=memory)
    store = SharedStore(CARTPOLE, params, np.random.default_rng(1))
    taker = Gatherer(CARTPOLE, spec(batch=1), memory, 1, 1)
    fill(store, 1)
    taker.add(told(taker, 0, store.sample(1, 0, 0)), np.random.default_rng(1))
    half = play(1, 1)[0]
    del half["flags"]
    with pytest.raises(KeyError):
        store.add(1, half, 1)
    assert SharedRings(CARTPOLE, 1, 1, memory).columns[0][0, 0, 2] == 1, "nothing was written at all"
    assert taker.next_batch(1) is None
    assert taker.overwritten == 1


def test_nothing_of_an_earlier_start_of_the_shard_is_given(memory: int) -> None:
    """Also where the new one has the same sessions in the same places, or none yet."""
    store, taker = shared(memory), gatherer(memory)
    fill(store, 20)
    taker.add(told(taker, 0, store.sample(16, 0, 0)), np.random.default_rng(1))
    del store
    shared(memory)  # was started, and killed at once
    again = shared(memory)
    fill(again, 20)
    assert taker.next_batch(8) is None
    assert taker.overwritten == 16
    taker.add(told(taker, 0, again.sample(16, 0, 0)), np.random.default_rng(1))
    batch = taker.next_batch(8)
    assert batch is not None
    check(batch)


@pytest.mark.parametrize(
    ("at", "value"), [(0, -1), (0, PLACES), (0, 1 << 62), (2, -1), (2, T - 3 + 1), (2, -(1 << 63))]
)
def test_places_that_are_not_there_are_refused(memory: int, at: int, value: int) -> None:
    store, taker = shared(memory, 3), gatherer(memory, 3)
    fill(store, 10)
    sample = store.sample(8, 3, 0)
    assert sample.where is not None
    sample.where[5, at] = value
    with pytest.raises(ValueError, match="not there"):
        told(taker, 0, sample)
    sample.where[5, at] = 0
    told(taker, 0, sample)


def test_malformed_replies_are_refused(memory: int) -> None:
    store, taker = shared(memory), gatherer(memory)
    fill(store, 10)
    reply, (where, versions) = replied(store.sample(8, 0, 0))
    for payload in ([where], [where, versions, versions], [where[:-8], versions], [where, versions[:-1]]):
        with pytest.raises(ValueError, match=r"."):
            taker.columns(0, reply, payload)
    for index in (-1, 2):
        with pytest.raises(ValueError, match="nothing is shared with shard"):
            taker.columns(index, reply, [where, versions])
    with pytest.raises(ValueError, match="nothing is shared"):
        Gatherer(CARTPOLE, spec(), -1, 2, PLACES).columns(0, reply, [where, versions])


def test_a_sampler_counts_what_it_gave_and_nothing_else(memory: int) -> None:
    """One shard shares its memory, one could not and sends what it drew."""
    taker = gatherer(memory)
    sampler = Sampler(CARTPOLE, spec(), seed=1, gatherer=taker)
    plain = RingStore(CARTPOLE, PLACES * BYTES, 0, np.random.default_rng(1))
    stores = [shared(memory), plain]
    for store in stores:
        fill(store, PLACES)

    def answer(index: int, ask: SampleAsk) -> None:
        sample = stores[index].sample(ask.count, ask.window, 0)
        reply = SampleReply(
            ask=ask.ask,
            count=sample.count,
            mass=stores[index].mass(),
            inserted_ticks=10**9,
            boot_id="a",
            shared=sample.where is not None,
        )
        frames = sample.columns if sample.where is None else [sample.where]
        payload = [
            values.tobytes() for values in (*frames, sample.versions) if isinstance(values, np.ndarray)
        ]
        sampler.replied(index, reply, taker.columns(index, reply, payload) if sample.count else [])

    given = 0
    sampler.shards_listed({0: "a", 1: "a"})
    for turn in range(6):
        for index, ask in sampler.asks(float(turn), 0):
            answer(index, ask)
        fill(stores[0], 30, first=PLACES + 30 * turn)
        while (batch := sampler.next_batch()) is not None:
            check([batch[name] for name in ("obs", "action", "reward", "flags", "version")])
            given += len(batch["version"])
    assert given > 0
    assert taker.overwritten > 0
    assert sampler.sampled_total == given * T
    rest = 16  # at most: one batch's rest of each kind
    counted = sampler.limiter.sampled_total  # type: ignore[attr-defined]
    assert given * T <= counted <= (given + rest) * T
