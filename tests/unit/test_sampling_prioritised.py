"""learn/sampling.py with priorities: two shards as if they were one, by hand and in the long run."""

from __future__ import annotations

import numpy as np
import pytest

from p2prl.core.messages import Priorities, SampleAsk, SampleReply
from p2prl.core.schema import Column, SessionSchema
from p2prl.errors import P2prlError
from p2prl.learn.contracts import ReplaySpec
from p2prl.learn.samples import columns_from_frames
from p2prl.learn.sampling import Sampler
from p2prl.replay.prioritised import PrioritisedStore, priorities_from_frames
from p2prl.wire import frames
from p2prl.wire.blocks import Array

TICKS = 4
SCHEMA = SessionSchema(TICKS, (Column("reward", "float32", ()),))
SPEC = ReplaySpec(kind="prioritised", ticks=TICKS, batch=8, window=1, min_ticks=0)


class Shard:
    """A shard without its process; all that it says and hears crosses the wire."""

    def __init__(self, sessions: int, window: int = 1) -> None:
        self.store = PrioritisedStore(SCHEMA, 10**5, window, np.random.default_rng(7))
        self.inserted = 0
        self.asked: list[SampleAsk] = []
        self.told: list[Priorities] = []
        self.add(sessions)

    def add(self, sessions: int) -> None:
        """Sessions whose rewards are their numbers."""
        first = self.inserted // TICKS
        if sessions:
            rewards = np.tile(np.arange(first, first + sessions, dtype=np.float32), (TICKS, 1))
            self.store.add(first, {"reward": rewards}, 0)
        self.inserted += sessions * TICKS

    def set(self, *priorities: float) -> None:
        """Of the places, in order; new ones get no more than these from now on."""
        leaf = np.arange(len(priorities))
        ids = np.stack([leaf // self.store._places, leaf], axis=1)
        self.store.prioritise(ids, np.array(priorities, np.float32))

    def answer(self, ask: SampleAsk) -> tuple[SampleReply, list[Array]]:
        self.asked.append(ask)
        self.store.hear(ask.highest)
        sample = self.store.sample(ask.count, ask.window, 0)
        assert sample.drawn is not None
        reply = SampleReply(
            ask=ask.ask,
            count=sample.count,
            mass=self.store.mass(),
            inserted_ticks=self.inserted,
            boot_id="a",
            ticks=self.store.sessions * TICKS,
            priority_total=sample.drawn.total,
            highest=self.store.highest,
        )
        if not sample.count:
            return reply, []
        payload = [*sample.columns, sample.versions, sample.drawn.ids, sample.drawn.priorities]
        spec = ReplaySpec(kind="prioritised", window=ask.window)
        return reply, columns_from_frames(SCHEMA, spec, sample.count, [one.tobytes() for one in payload])

    def hear(self, message: Priorities, arrays: list[Array]) -> None:
        told = frames.decode_sample(frames.encode(message))
        assert isinstance(told, Priorities)
        self.told.append(told)
        self.store.hear(told.highest)
        self.store.prioritise(*priorities_from_frames(told.count, [one.data for one in arrays]))


def start(spec: ReplaySpec, *shards: Shard) -> Sampler:
    """A sampler that has heard of the shards' mass once."""
    sampler = Sampler(SCHEMA, spec, seed=3)
    sampler.shards_listed(dict.fromkeys(range(len(shards)), "a"))
    for index, ask in sampler.asks(0.0, 0):
        assert ask.count == 0
        sampler.replied(index, *shards[index].answer(ask))
    return sampler


def batch_of(sampler: Sampler, shards: tuple[Shard, ...], now: float) -> dict[str, Array]:
    while (batch := sampler.next_batch()) is None:
        for index, ask in sampler.asks(now, 0):
            sampler.replied(index, *shards[index].answer(ask))
    return batch


def probabilities(batch: dict[str, Array]) -> dict[float, set[float]]:
    """Of the samples of each reward, which is the number of its session."""
    found: dict[float, set[float]] = {}
    for reward, value in zip(batch["reward"][:, 0].tolist(), batch["probability"].tolist(), strict=True):
        found.setdefault(reward, set()).add(round(value, 6))
    return found


WHOLE = ReplaySpec(kind="prioritised", ticks=TICKS, batch=64, window=0, min_ticks=0)


def two_shards() -> tuple[Shard, Shard]:
    """Whole sessions: two with the priorities 1 and 3 here, four with 2 there; sessions 0, 1, and 2 to 5."""
    one, other = Shard(2, 0), Shard(0, 0)
    other.inserted = 2 * TICKS
    other.add(4)
    one.set(1, 3)
    ids = np.stack([np.arange(2, 6), np.arange(4)], axis=1)
    other.store.prioritise(ids, np.full(4, 2, np.float32))
    return one, other


def test_probabilities_over_two_shards_are_those_of_one_buffer() -> None:
    """Six places, priorities 1 3 2 2 2 2, together 12: with v the likelihood is v / 12, and 6 v / 12 beside uniform."""
    shards = two_shards()
    sampler = start(WHOLE, *shards)
    batch = batch_of(sampler, shards, 1.0)
    assert batch["probability"].dtype == np.float32
    assert batch["probability"].shape == (64,)
    assert probabilities(batch) == {0: {0.5}, 1: {1.5}, 2: {1.0}, 3: {1.0}, 4: {1.0}, 5: {1.0}}


def test_shards_are_drawn_from_by_their_priorities_not_by_their_places() -> None:
    """Two sessions with 2 and 14 of 24, four with 2 each; of 6400 samples all get theirs, within 6 deviations."""
    shards = two_shards()
    shards[0].set(2, 14)
    sampler = start(WHOLE, *shards)
    drawn = np.concatenate([batch_of(sampler, shards, 1.0 + turn)["reward"][:, 0] for turn in range(100)])
    counts = np.array([np.count_nonzero(drawn == session) for session in range(6)])
    expected = 6400 * np.array([2, 14, 2, 2, 2, 2]) / 24
    assert (np.abs(counts - expected) < 6 * expected**0.5).all()


def test_probabilities_are_what_they_were_though_a_shards_sum_has_changed_since_it_was_chosen() -> None:
    """It was chosen with 4 of 12, and then drew from 1 and 7: 1/3 x 1/8 and 1/3 x 7/8, times 6."""
    shards = two_shards()
    sampler = start(WHOLE, *shards)
    shards[0].set(1, 7)
    found = probabilities(batch_of(sampler, shards, 1.0))
    assert found == {0: {0.25}, 1: {1.75}, 2: {1.0}, 3: {1.0}, 4: {1.0}, 5: {1.0}}


def test_the_share_of_a_shard_that_does_not_answer_falls_to_the_others() -> None:
    shards = two_shards()
    sampler = start(WHOLE, *shards)
    for index, ask in sampler.asks(1.0, 0):
        if index == 0:
            sampler.replied(0, *shards[0].answer(ask))
    assert sampler.next_batch() is None
    sampler.asks(1000.0, 0)  # the other one's time is up
    batch = sampler.next_batch()
    assert batch is not None
    assert probabilities(batch) == {0: {0.5}, 1: {1.5}}


def test_in_the_long_run_weighted_means_are_those_of_uniform_sampling() -> None:
    """Whatever becomes of priorities and shards: sum of f / probability is the sum of f over all places."""
    shards = (Shard(30), Shard(10))
    sampler = start(SPEC, *shards)
    rng = np.random.default_rng(1)
    weights, weighted, plain = [], [], []
    for turn in range(3000):
        batch = batch_of(sampler, shards, 1.0 + turn)
        reward = batch["reward"][:, 0]
        weights.extend(1 / batch["probability"])
        weighted.extend(reward / batch["probability"])
        plain.extend(reward)
        # High rewards are drawn more often, and no priority stays as it is.
        for index, message, arrays in sampler.prioritise((1 + reward) * rng.uniform(0.5, 1.5, len(reward))):
            shards[index].hear(message, arrays)
    everywhere = np.concatenate([np.arange(30), np.arange(10)]).mean()
    assert np.mean(weights) == pytest.approx(1.0, rel=0.02)
    assert np.mean(weighted) == pytest.approx(everywhere, rel=0.02)
    assert np.mean(plain) > 1.2 * everywhere


def test_priorities_go_back_to_the_shards_that_gave_the_samples_in_one_message_each() -> None:
    shards = (Shard(5), Shard(5))
    sampler = start(SPEC, *shards)
    batch = batch_of(sampler, shards, 1.0)
    told = sampler.prioritise(np.arange(1, 9, dtype=np.float32))
    assert [index for index, _, _ in told] == [0, 1]
    assert sum(message.count for _, message, _ in told) == 8
    for index, message, arrays in told:
        shards[index].hear(message, arrays)
        assert (message.highest, shards[index].store.highest) == (8.0, 8.0)
    changed = [store.leaves[store.leaves != 8.0] for store in (shard.store._tree for shard in shards)]
    kept = [value for values in changed for value in values.tolist() if value]
    # What was not drawn became 8, as new; of a place that was drawn twice the last word holds.
    assert set(kept) <= set(range(1, 8))
    assert len(kept) >= 5
    assert batch["reward"].shape == (8, 1)
    batch_of(sampler, shards, 2.0)
    sampler.asks(5.0, 0)
    asks = sampler.asks(100.0, 0)
    assert [ask.highest for _, ask in asks] == [8.0, 8.0]


def test_a_trainer_that_begins_anew_learns_the_highest_priority_from_the_shards() -> None:
    shards = (Shard(5), Shard(5))
    shards[1].store.hear(6.0)
    sampler = start(SPEC, *shards)
    assert sampler.highest == 6.0
    batch_of(sampler, shards, 1.0)
    assert shards[0].store.highest == 6.0


@pytest.mark.parametrize(
    ("priorities", "said"),
    [
        (np.ones(7), r"shape \(7,\); the batch has 8"),
        (np.ones((8, 1)), r"shape \(8, 1\)"),
        (np.array([1, 1, np.nan, 1, 1, 1, 1, 1]), "a priority of nan"),
        (np.array([1, 1, 0, 1, 1, 1, 1, 1]), r"a priority of 0\.0"),
        (np.array([1, 1, -2, 1, 1, 1, 1, 1]), r"a priority of -2\.0"),
    ],
)
def test_priorities_that_break_the_contract_are_said_in_one_line(priorities: Array, said: str) -> None:
    shards = (Shard(5),)
    sampler = start(SPEC, *shards)
    batch_of(sampler, shards, 1.0)
    with pytest.raises(P2prlError, match=said):
        sampler.prioritise(priorities)


def test_without_priorities_there_is_nobody_to_tell() -> None:
    sampler = Sampler(SCHEMA, ReplaySpec(kind="uniform", ticks=TICKS), seed=1)
    assert sampler.prioritise(np.ones(64, np.float32)) == []


@pytest.mark.parametrize("frames_left_out", [1, 2])
def test_a_prioritised_sample_without_ids_or_priorities_is_refused(frames_left_out: int) -> None:
    payload = [bytes(4 * 2), bytes(8 * 2), bytes(16 * 2), bytes(4 * 2)]
    assert len(columns_from_frames(SCHEMA, SPEC, 2, payload)) == 4
    with pytest.raises(ValueError, match="frames, expected 4"):
        columns_from_frames(SCHEMA, SPEC, 2, payload[:-frames_left_out])
