"""Pictures in replay: kept as they were sent, and what a batch holds of them is what was played, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.core.messages import Delivery, SampleReply
from p2prl.core.schema import RESET, TERMINATED, Column, SessionSchema
from p2prl.learn.contracts import ReplaySpec
from p2prl.learn.samples import columns_from_frames
from p2prl.learn.sampling import Sampler
from p2prl.replay.params import ReplayParams
from p2prl.replay.shard import ShardStore
from p2prl.replay.storage import Sample, ring_capacity
from p2prl.wire.blocks import Array
from p2prl.wire.bundle import encode_bundle
from p2prl.wire.frames import encode
from p2prl.wire.stills import decode_stills, encode_stills

T, SIDE, STACK = 8, 24, 4
SCHEMA = SessionSchema(
    ticks=T,
    columns=(
        Column("obs", "uint8", (STACK, SIDE, SIDE), extra_row=True),
        Column("action", "uint8", (), low=(0.0,), high=(3.0,)),
        Column("reward", "float32", ()),
        Column("flags", "uint8", ()),
    ),
)
Kind = Literal["queue", "uniform", "prioritised"]


def play(slots: int, seed: int, noise: bool = False) -> dict[str, Array]:
    """Sessions of stacks of pictures; the reward of tick t is seed * 1000 + slot * 100 + t."""
    rng = np.random.default_rng(seed)
    obs = np.zeros((T + 1, slots, STACK, SIDE, SIDE), np.uint8)
    flags = np.zeros((T, slots), np.uint8)
    flags[3, 0], flags[4, 0] = TERMINATED, RESET  # the second episode of slot 0 begins with row 5
    for slot in range(slots):
        still = rng.integers(0, 256, (SIDE, SIDE)).astype(np.uint8)
        for row in range(T + 1):
            picture = rng.integers(0, 256, (SIDE, SIDE)).astype(np.uint8) if noise else still.copy()
            picture[row, slot] = 255 - seed % 100
            begins = row == 0 or (slot == 0 and row == 5)
            obs[row, slot] = picture if begins else np.concatenate([obs[row - 1, slot, 1:], picture[None]])
    reward = (seed * 1000 + np.arange(slots) * 100 + np.arange(T)[:, None]).astype(np.float32)
    reward[flags == RESET] = 0
    return {
        "obs": obs,
        "action": rng.integers(0, 4, (T, slots)).astype(np.uint8),
        "reward": reward,
        "flags": flags,
    }


def shard(folder: Path, kind: Kind, window: int = 2, capacity_bytes: int = 10_000_000) -> ShardStore:
    params = ReplayParams(
        kind=kind, capacity_bytes=capacity_bytes, window=window, max_lag=0, fsync_interval_s=60
    )
    return ShardStore.open(folder, SCHEMA, params, seed=1)


def give(
    store: ShardStore, seq: int, slots: int = 3, noise: bool = False, node: str = "node"
) -> dict[str, Array]:
    arrays = play(slots, seq, noise)
    header, payload = encode_bundle(
        SCHEMA,
        arrays,
        slots=slots,
        version=0,
        rank=0,
        serial=seq,
        steps=T * slots - 1,
        episodes=[(1.0, 4, 0.0)],
    )
    delivery = Delivery(run_id="run", boot_id="boot", seq=seq)
    accepted = store.accept(node, delivery, encode(header), payload, 0, "run", 0.0)
    assert accepted.verdict.status == "stored"
    return arrays


def batch_of(kind: Kind, window: int, sample: Sample) -> dict[str, Any]:
    """A sample as the trainer gets it: through the frames, and its Sampler."""
    spec = ReplaySpec(
        kind=kind, ticks=T, batch=sample.count, window=window, min_ticks=0, samples_per_insert=0
    )
    sampler = Sampler(SCHEMA, spec, seed=1)
    sampler.shards_listed({0: "boot"})
    said = SampleReply(ask=0, count=0, mass=1000, inserted_ticks=1000, boot_id="boot", ticks=1000, stale=0)
    sampler.replied(0, said, [])
    [(index, ask), *_] = sampler.asks(0.0, 0)
    frames: list[Any] = [
        encode_stills(column) if isinstance(column, list) else column.tobytes() for column in sample.columns
    ]
    frames.append(sample.versions.tobytes())
    reply = SampleReply(
        ask=ask.ask, count=sample.count, mass=1000, inserted_ticks=1000, boot_id="boot", ticks=1000, stale=0
    )
    sampler.replied(index, reply, columns_from_frames(SCHEMA, spec, sample.count, frames))
    batch = sampler.next_batch()
    assert batch is not None
    return batch


def same(batch: dict[str, Any], played: dict[int, dict[str, Array]]) -> int:
    """Each sample's pictures are those of the ticks whose rewards it has; how many samples that was."""
    checked = 0
    for obs, action, reward, flags in zip(*(batch[c.name] for c in SCHEMA.columns), strict=True):
        at = int(np.flatnonzero(reward)[0]) if reward.any() else 0
        seed, rest = divmod(int(reward[at]), 1000)
        slot, tick = divmod(rest, 100)
        first = tick - at
        arrays = played[seed]
        np.testing.assert_array_equal(obs, arrays["obs"][first : first + len(obs), slot])
        np.testing.assert_array_equal(action, arrays["action"][first : first + len(action), slot])
        np.testing.assert_array_equal(flags, arrays["flags"][first : first + len(flags), slot])
        checked += 1
    return checked


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("window", [0, 1, 3, T])
def test_a_ring_gives_back_what_was_played(tmp_path: Path, window: int, noise: bool) -> None:
    store = shard(tmp_path, "uniform", window)
    played = {seq: give(store, seq, noise=noise) for seq in range(1, 5)}
    sample = store.sample(60, window, 0)
    batch = batch_of("uniform", window, sample)
    assert batch["obs"].shape == (60, (window or T) + 1, STACK, SIDE, SIDE)
    assert batch["obs"].dtype == np.uint8
    assert same(batch, played) == 60


def test_a_queue_gives_back_what_was_played_in_order(tmp_path: Path) -> None:
    store = shard(tmp_path, "queue", 0)
    played = {seq: give(store, seq) for seq in range(1, 4)}
    first, second = store.sample(5, 0, 0), store.sample(4, 0, 0)
    for sample in (first, second):
        assert same(batch_of("queue", 0, sample), played) == sample.count
    assert store.sessions == 0


def test_priorities_choose_among_pictures_too(tmp_path: Path) -> None:
    store = shard(tmp_path, "prioritised", 2)
    played = {seq: give(store, seq) for seq in range(1, 4)}
    sample = store.sample(50, 2, 0)
    assert sample.drawn is not None
    favoured = sample.drawn.ids[:1]
    store.prioritise(favoured, np.array([1e6], np.float32))
    again = store.sample(50, 2, 0)
    assert again.drawn is not None
    assert (again.drawn.ids == favoured).all(axis=1).mean() > 0.9
    plain = Sample(again.columns, again.versions)
    assert same(batch_of("uniform", 2, plain), played) == 50


def test_what_was_stored_is_there_after_a_start(tmp_path: Path) -> None:
    store = shard(tmp_path, "uniform")
    played = {seq: give(store, seq) for seq in range(1, 4)}
    size = store.size_bytes
    store.close()
    store = shard(tmp_path, "uniform")
    assert (store.sessions, store.size_bytes) == (9, size)
    assert same(batch_of("uniform", 2, store.sample(20, 2, 0)), played) == 20


def test_pictures_take_a_small_part_of_their_bytes(tmp_path: Path) -> None:
    store = shard(tmp_path, "uniform")
    for seq in range(1, 10):
        give(store, seq)
    assert store.size_bytes < 27 * SCHEMA.session_bytes() / 4


@settings(max_examples=20, deadline=None)
@given(st.lists(st.booleans(), min_size=4, max_size=14), st.integers(2, 30))
def test_the_capacity_is_kept_in_bytes_whatever_the_pictures(noises: list[bool], sessions: int) -> None:
    """Noise takes a quarter of a stack and more; then fewer sessions are held, the newest ones."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        capacity = sessions * SCHEMA.session_bytes() // 4
        store = shard(Path(folder), "prioritised", 2, capacity)
        played = {}
        for seq, noise in enumerate(noises, 1):
            played[seq] = give(store, seq, noise=noise)
            assert store.size_bytes <= capacity or store.sessions == 1
            assert store.sessions >= 1
            assert store.mass() > 0
        total = 3 * len(noises)
        assert store.counters.evicted == total - store.sessions
        sample = store.sample(40, 2, 0)
        plain = Sample(sample.columns, sample.versions)
        assert same(batch_of("uniform", 2, plain), played) == 40
        drawn = sample.drawn
        assert drawn is not None
        assert drawn.ids[:, 0].min() >= total - store.sessions, "none that went is drawn"
        store.close()


def test_a_ring_of_pictures_is_full_of_bytes_not_of_places(tmp_path: Path) -> None:
    """Where little moves it holds many more sessions than it would of noise, the newest ones, and draws from all."""
    capacity = 6 * SCHEMA.session_bytes() // 4
    store = shard(tmp_path, "uniform", 2, capacity)
    played = {}
    for seq in range(1, 60):
        node = "a" if seq % 2 else "b"
        played[seq] = give(store, seq, node=node)
    assert 0.9 * capacity < store.size_bytes <= capacity
    held = store.sessions
    assert 12 < held < 3 * 59, "more than the six that are counted on, and not all"

    def drawn() -> set[int]:
        """The numbers of the sessions that are sampled, as their rewards tell."""
        batch = batch_of("uniform", 2, store.sample(100 * held, 2, 0))
        assert same(batch, played) == 100 * held
        seeds, rest = np.divmod(batch["reward"].max(axis=1).astype(int), 1000)
        return set((3 * (seeds - 1) + rest // 100).tolist())

    newest = set(range(3 * 59 - held, 3 * 59))
    assert drawn() == newest
    store.quarantine(frozenset({"a"}))
    assert drawn() == {number for number in newest if number // 3 % 2}
    assert store.sessions == sum(number // 3 % 2 for number in newest)
    store.quarantine(frozenset())
    assert drawn() == newest
    noise = give(store, 60, noise=True)  # many quiet sessions go for a few of noise
    assert store.size_bytes <= capacity
    assert store.sessions < held - 3
    played[60] = noise
    assert same(batch_of("uniform", 2, store.sample(50, 2, 0)), played) == 50


@pytest.mark.parametrize("kind", ["uniform", "prioritised"])
def test_one_session_is_held_although_it_is_larger_than_the_capacity(tmp_path: Path, kind: Kind) -> None:
    store = shard(tmp_path, kind, 2, 1000)
    for seq in range(1, 4):
        played = {seq: give(store, seq, noise=True)}
        assert (store.sessions, store.counters.evicted) == (1, 3 * seq - 1)
        assert store.size_bytes > 1000
        sample = store.sample(5, 2, 0)
        assert same(batch_of("uniform", 2, Sample(sample.columns, sample.versions)), played) == 5


def test_what_may_begin_is_counted_alike_however_seldom_it_is_asked(tmp_path: Path) -> None:
    """Sessions that are not counted yet may have to make room for others of the same bundle.

    So often that each place is written again after it was let go.
    """
    capacity = 6 * SCHEMA.session_bytes() // 4
    often, seldom = (shard(tmp_path / name, "uniform", 2, capacity) for name in ("often", "seldom"))
    begin: list[int] = []  # windows of two ticks of each session
    for seq in range(1, 80):
        noise = seq % 5 == 0
        arrays = give(often, seq, noise=noise)
        begin += [int(count) for count in (arrays["flags"][:-1] != RESET).sum(axis=0)]
        assert often.mass() == sum(begin[-often.sessions :])
        give(seldom, seq, noise=noise)
    assert seldom.sessions == often.sessions
    assert len(begin) > ring_capacity(SCHEMA, capacity)
    assert seldom.mass() == often.mass()


def test_a_frame_of_stills_that_does_not_add_up_is_an_error(tmp_path: Path) -> None:
    store = shard(tmp_path, "uniform")
    give(store, 1)
    [stills, *_] = store.sample(4, 2, 0).columns
    assert isinstance(stills, list)
    frame = encode_stills(stills)
    assert [one.row for one in decode_stills(frame, 4)] == [one.row for one in stills]
    for wrong, count in ((frame, 5), (frame[:-1], 4), (frame + b"x", 4)):
        with pytest.raises(ValueError, match="a frame of"):
            decode_stills(wrong, count)


def test_a_session_that_is_drawn_twice_travels_once(tmp_path: Path) -> None:
    store = shard(tmp_path, "uniform")
    give(store, 1, slots=1, noise=True)
    [once, *_] = store.sample(1, 2, 0).columns
    [often, *_] = store.sample(30, 2, 0).columns
    assert isinstance(once, list)
    assert isinstance(often, list)
    assert len(encode_stills(often)) < len(encode_stills(once)) + 30 * 8
