"""core/limiter.py: neither side ever waits for the other, and the ratio holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.core.limiter import Limiter, QueueLimiter, RateLimiter
from p2prl.core.messages import SampleAsk, SampleReply
from p2prl.core.schema import Column, SessionSchema
from p2prl.learn.contracts import ReplaySpec
from p2prl.learn.sampling import Sampler

sizes = st.integers(1, 5000)
ratios = st.floats(0.001, 1000.0)


def drive(limiter: Limiter, batch: int, bundle: int, greedy_inserts: list[bool]) -> tuple[int, int]:
    """Insert and sample as `greedy_inserts` prefers; fail when neither can. Returns (inserted, sampled)."""
    inserted = sampled = 0
    for prefers_insert in greedy_inserts:
        ceiling = limiter.insert_ceiling()
        can_insert = ceiling is None or inserted < ceiling
        can_sample = limiter.can_sample(batch)
        assert can_insert or can_sample, f"both wait at {inserted} inserted, {sampled} sampled"
        if can_insert and (prefers_insert or not can_sample):
            inserted += bundle
            limiter.inserted(inserted)
        else:
            sampled += batch
            limiter.sampled(batch)
    return inserted, sampled


@settings(max_examples=300)
@given(
    ratios,
    sizes,
    sizes,
    st.integers(0, 20_000),
    st.floats(0, 1e5),
    st.lists(st.booleans(), min_size=50, max_size=200),
)
def test_never_a_deadlock(
    ratio: float, batch: int, bundle: int, min_size: int, tolerance: float, order: list[bool]
) -> None:
    drive(RateLimiter(ratio, min_size, tolerance, batch), batch, bundle, order)


@given(ratios, st.integers(1, 100), st.integers(1, 100), st.booleans())
def test_the_ratio_stays_within_the_tolerance(ratio: float, batch: int, bundle: int, inserts: bool) -> None:
    min_size = 10
    limiter = RateLimiter(ratio, min_size, 0.0, batch)
    inserted, sampled = drive(limiter, batch, bundle, [inserts] * 500)
    drift = (inserted - min_size) * ratio - sampled
    tolerance = batch + ratio
    # An insert may overshoot by one bundle; before the first sample the buffer may exceed min_size by one.
    assert -tolerance - 1e-6 <= drift <= tolerance + bundle * ratio + 1e-6


def test_nothing_is_sampled_before_the_minimum_and_inserting_is_free_until_then() -> None:
    limiter = RateLimiter(1.0, min_size=1000, batch=64)
    assert not limiter.can_sample(1)
    ceiling = limiter.insert_ceiling()
    assert ceiling is not None
    assert ceiling >= 1000
    limiter.inserted(999)
    assert not limiter.can_sample(1)
    limiter.inserted(1000)
    assert limiter.can_sample(64)


def test_without_a_ratio_there_is_no_limit_but_the_minimum() -> None:
    limiter = RateLimiter(0.0, min_size=10, batch=1)
    assert limiter.insert_ceiling() is None
    assert not limiter.can_sample(1)
    limiter.inserted(10)
    limiter.sampled(10**9)
    assert limiter.can_sample(10**6)


def test_a_resumed_run_owes_no_samples() -> None:
    before = RateLimiter(4.0, 100, 0.0, 32)
    before.inserted(10_000)
    while before.can_sample(32):
        before.sampled(32)
    after = RateLimiter(4.0, 100, 0.0, 32, sampled_total=before.sampled_total)
    after.inserted(10_000)
    assert not after.can_sample(32)
    assert after.insert_ceiling() == before.insert_ceiling()


def test_what_a_killed_trainer_let_in_does_not_hold_up_players() -> None:
    """Its last checkpoint says less than it had sampled: the next one has that to do again, while they play on."""
    after = RateLimiter(4.0, 100, 0.0, 32, sampled_total=2_000)
    after.found(6_000)
    after.found(4_000)  # of another shard
    after.inserted(10_000)
    ceiling = after.insert_ceiling()
    assert ceiling is not None
    assert 10_000 <= ceiling < 10_100
    assert after.can_sample(20_000), "it has much to sample again"
    after.sampled(400)
    assert after.insert_ceiling() == ceiling + 100, "from here on the ratio holds"


def test_only_a_resumed_run_is_allowed_more_than_the_ratio() -> None:
    fresh, exact = RateLimiter(4.0, 100, 0.0, 32), RateLimiter(4.0, 100, 0.0, 32, sampled_total=2_000)
    expected = fresh.insert_ceiling(), exact.insert_ceiling()
    fresh.found(5_000)
    exact.found(500)
    assert (fresh.insert_ceiling(), exact.insert_ceiling()) == expected


@given(sizes, sizes, sizes, st.lists(st.booleans(), min_size=50, max_size=200))
def test_a_queue_never_deadlocks(capacity: int, batch: int, bundle: int, order: list[bool]) -> None:
    inserted, consumed = drive(QueueLimiter(capacity, batch), batch, bundle, order)
    assert 0 <= inserted - consumed < max(capacity, batch) + bundle


@given(sizes, sizes, sizes, st.lists(st.booleans(), min_size=50, max_size=200))
def test_what_an_idle_learner_waits_for_is_room_beside_a_queues_capacity(
    capacity: int, batch: int, bundle: int, order: list[bool]
) -> None:
    """It takes a batch at once; only while it is busy with one does another wait."""
    limiter, inserted = QueueLimiter(capacity, batch), 0
    for busy in order:
        limiter.idle(not busy)
        while inserted < limiter.insert_ceiling():
            inserted += bundle
        limiter.inserted(inserted)
        most = max(capacity, batch) + (0 if busy else batch)
        assert inserted - limiter.consumed_total >= most
        if not busy and limiter.can_sample(batch):
            limiter.sampled(batch)
        assert inserted - limiter.consumed_total < max(capacity, batch) + bundle


def test_ticks_that_were_lost_with_a_shard_do_not_block_a_queue_for_ever() -> None:
    limiter = QueueLimiter(capacity=100, batch=10)
    limiter.inserted(100)
    assert limiter.insert_ceiling() == 100
    limiter.waiting(0)
    assert limiter.insert_ceiling() == 200
    assert not limiter.can_sample(10)


def test_a_total_that_shrinks_because_a_shard_is_away_is_not_believed() -> None:
    for limiter in (RateLimiter(1.0, 10), QueueLimiter(10)):
        limiter.inserted(50)
        limiter.inserted(20)
        assert limiter.can_sample(1)
        assert limiter.inserted_total == 50


# --- the limiter in its place: a sampler that asks for groups of batches, players that give bundles (acme#233, #207)


@dataclass
class Held:
    """A shard that holds so many sessions, and was given so many."""

    ticks: int
    sessions: int = 0
    given: int = 0

    def answer(self, ask: SampleAsk, kind: str) -> tuple[SampleReply, list[np.ndarray]]:
        count = min(ask.count, self.sessions) if kind == "queue" else ask.count * (self.sessions > 0)
        self.sessions -= count if kind == "queue" else 0
        mass = self.sessions * (1 if kind == "queue" else self.ticks)
        reply = SampleReply(
            ask=ask.ask,
            count=count,
            mass=mass,
            inserted_ticks=self.given * self.ticks,
            boot_id="a",
            ticks=self.sessions * self.ticks,
            priority_total=float(mass),
        )
        parts = [np.zeros((count, ask.window or self.ticks), np.uint8), np.zeros(count, np.int64)]
        parts += [np.zeros((count, 2), np.int64), np.ones(count, np.float32)] * (kind == "prioritised")
        return reply, parts if count else []


@st.composite
def specs(draw: st.DrawFn) -> ReplaySpec:
    kind, ticks = draw(st.sampled_from(["uniform", "prioritised", "queue"])), draw(st.integers(1, 60))
    ratio = draw(st.just(0.0) | st.floats(-3, 3).map(lambda exponent: 10.0**exponent))
    return ReplaySpec(
        kind=kind,
        ticks=ticks,
        batch=draw(st.integers(1, 64)),
        window=0 if kind == "queue" else draw(st.just(0) | st.integers(1, ticks)),
        capacity_bytes=draw(st.integers(1, 200)) * ticks,
        min_ticks=draw(st.integers(0, 3000)),
        samples_per_insert=ratio,
    )


@settings(max_examples=200, deadline=None)
@given(
    specs(),
    st.integers(1, 64),
    st.integers(1, 3),
    st.lists(st.booleans(), min_size=30, max_size=120),
    st.data(),
)
def test_players_and_trainer_never_wait_for_each_other(
    spec: ReplaySpec, slots: int, shards: int, order: list[bool], data: st.DataObject
) -> None:
    """Over ratio, batch, group, window, bundle, minimum and capacity: one of the two can always go on."""
    held = [Held(spec.ticks) for _ in range(shards)]
    sampler = Sampler(SessionSchema(spec.ticks, (Column("flags", "uint8", ()),)), spec, seed=1)
    sampler.shards_listed(dict.fromkeys(range(shards), "a"))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    now, trained = 0.0, 0
    for prefers_insert in order:
        for _ in range(3):  # hear of the mass, ask for a group, take it
            now += 1.0
            for index, ask in sampler.asks(now, 0):
                sampler.replied(index, *held[index].answer(ask, spec.kind))
        ceiling, inserted = sampler.limiter.insert_ceiling(), sum(one.given for one in held) * spec.ticks
        can_insert = ceiling is None or inserted < ceiling
        assert can_insert or sampler.ready, f"both wait at {inserted} inserted, {trained} batches"
        if can_insert and (prefers_insert or not sampler.ready):
            shard = held[rng.integers(shards)]
            shard.sessions += slots
            shard.given += slots
        else:
            assert sampler.next_batch() is not None
            trained += 1
    each = spec.ticks if spec.window == 0 else 1
    assert sampler.sampled_total == trained * spec.batch * each
