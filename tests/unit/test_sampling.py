"""The trainer's sampler: many shards as if they were one."""

from __future__ import annotations

import logging

import msgspec
import numpy as np
import pytest

from p2prl.core.messages import SampleAsk, SampleReply
from p2prl.core.schema import Column, SessionSchema
from p2prl.learn.contracts import ReplaySpec
from p2prl.learn.departures import Departures
from p2prl.learn.sampling import Sampler

TICKS = 4
SCHEMA = SessionSchema(TICKS, (Column("reward", "float32", ()),))
#: Sixteen sessions in all, four of them per batch.
SPEC = ReplaySpec(kind="queue", ticks=TICKS, batch=4, capacity_bytes=16 * SCHEMA.session_bytes(), min_ticks=0)


class Queue:
    """One shard's queue, as far as a sampler sees it."""

    def __init__(self, boot_id: str, sessions: int = 0, inserted: int = 0) -> None:
        self.boot_id, self.sessions, self.inserted = boot_id, sessions, inserted

    def take(self, ticks: int) -> None:
        self.sessions += ticks // TICKS
        self.inserted += ticks

    def answer(self, ask: SampleAsk) -> tuple[SampleReply, list[np.ndarray]]:
        count = min(ask.count, self.sessions)
        self.sessions -= count
        reply = SampleReply(
            ask=ask.ask,
            count=count,
            mass=self.sessions,
            inserted_ticks=self.inserted,
            boot_id=self.boot_id,
            ticks=self.sessions * TICKS,
            stale=0,
        )
        return reply, [np.zeros((count, TICKS), np.float32), np.zeros(count, np.int64)] if count else []


def listen(sampler: Sampler, shards: dict[int, Queue], now: float) -> None:
    """One dialogue with all shards."""
    sampler.shards_listed({index: shard.boot_id for index, shard in shards.items()})
    for index, ask in sampler.asks(now, 0):
        sampler.replied(index, *shards[index].answer(ask))


def consume(sampler: Sampler, shards: dict[int, Queue], now: float) -> int:
    """Train on whatever is there; returns the batches."""
    batches = 0
    for turn in range(50):
        listen(sampler, shards, now + turn)
        while sampler.next_batch() is not None:
            batches += 1
    return batches


def test_what_killed_trainers_had_in_their_hands_does_not_fill_a_queue_for_ever() -> None:
    shards = {0: Queue("a"), 1: Queue("b")}
    first = Sampler(SCHEMA, SPEC, seed=1)
    room = first.limiter.insert_ceiling()
    assert room == 16 * TICKS
    for life in range(20):  # each takes in eight sessions, and is killed before it writes a checkpoint
        trainer = Sampler(SCHEMA, SPEC, seed=life, sampled_total=0)
        listen(trainer, shards, 0.0)
        ceiling = trainer.limiter.insert_ceiling()
        assert ceiling is not None
        assert ceiling - sum(shard.inserted for shard in shards.values()) >= 8 * TICKS, "nobody may insert"
        for shard in shards.values():
            shard.take(4 * TICKS)
        assert consume(trainer, shards, 1.0) == 2


def gone_on(sampler: Sampler, shards: int = 2) -> Sampler:
    """The next trainer, from a checkpoint that this one wrote now."""
    departures = Departures(TICKS, shards, sampler.departures.left, sampler.departures.lost)
    return Sampler(SCHEMA, SPEC, 1, sampler.sampled_total, departures=departures)


def test_what_a_killed_trainer_had_taken_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    shards = {0: Queue("a"), 1: Queue("b")}
    first = Sampler(SCHEMA, SPEC, seed=1)
    listen(first, shards, 0.0)
    for shard in shards.values():
        shard.take(3 * TICKS)
    assert consume(first, shards, 1.0) == 1  # of four, and two more wait for the next batch
    saved = gone_on(first)
    for shard in shards.values():
        shard.take(3 * TICKS)
    assert consume(first, shards, 60.0) == 2  # which no checkpoint has
    for shard in shards.values():
        shard.take(2 * TICKS)  # while it is dead: these are still there
    with caplog.at_level(logging.INFO, "p2prl"):
        assert consume(saved, shards, 120.0) == 1
    assert [record.getMessage().split(" for ")[0] for record in caplog.records] == [
        "8 sessions had left the queue"
    ]
    assert (saved.departures.lost, saved.departures.left) == (8, 16 * TICKS)
    caplog.clear()
    with caplog.at_level(logging.INFO, "p2prl"):
        last = gone_on(saved)
        assert consume(last, shards, 180.0) == 0
    assert (last.departures.lost, caplog.records) == (8, []), "they are told of once"


def test_what_left_a_queue_is_known_once_all_shards_were_heard() -> None:
    shards = {0: Queue("a", 8, 10 * TICKS), 1: Queue("b", 1, 6 * TICKS)}
    sampler = Sampler(SCHEMA, SPEC, seed=1, departures=Departures(TICKS, 2, 3 * TICKS, 100))
    sampler.shards_listed({0: "a", 1: ""})
    for turn in range(20):
        for index, ask in sampler.asks(float(turn), 0):
            sampler.replied(index, *shards[index].answer(ask))
        sampler.next_batch()
    assert sampler.sampled_total == 8 * TICKS, "it learns from what there is"
    assert (sampler.departures.lost, sampler.departures.left) == (100, (3 + 8) * TICKS)
    listen(sampler, shards, 60.0)
    assert sampler.departures.lost == 100 + (2 + 5) - 3
    assert sampler.departures.left == (2 + 5 + 8) * TICKS


def test_a_trainer_that_ended_before_it_had_heard_all_shards_leaves_what_was_lost_to_the_next() -> None:
    """The first checkpoint may well be written before both shards have answered."""
    shards = {0: Queue("a", 8, 10 * TICKS), 1: Queue("b", 4, 4 * TICKS)}
    first = Sampler(SCHEMA, SPEC, seed=1, departures=Departures(TICKS, 2))
    listen(first, {0: shards[0]}, 0.0)  # the broker lists the second later
    assert (first.departures.lost, first.departures.left) == (0, 0)
    assert consume(first, {0: shards[0]}, 1.0) == 2
    assert (first.departures.lost, first.departures.left) == (0, 8 * TICKS), "one shard was taken for all"
    saved = gone_on(first)
    shards[1].sessions -= 4  # went to the first, and with it
    listen(saved, shards, 60.0)
    assert saved.departures.lost == 2 + 4
    assert saved.departures.left == (10 + 4) * TICKS


def test_where_a_checkpoint_does_not_say_what_had_left_the_queue_nothing_is_counted() -> None:
    shards = {0: Queue("a", 2, 10 * TICKS)}
    sampler = Sampler(SCHEMA, SPEC, 1, 5 * TICKS, departures=Departures(TICKS, 1, None))
    listen(sampler, shards, 0.0)
    assert (sampler.departures.lost, sampler.departures.left) == (0, 8 * TICKS)


def test_what_was_too_old_had_left_the_queue_and_is_not_lost_with_the_next_trainer() -> None:
    sampler, shard = Sampler(SCHEMA, SPEC, seed=1), Queue("a")
    listen(sampler, {0: shard}, 0.0)
    shard.take(10 * TICKS)
    shard.sessions -= 3
    stale = shard.answer(SampleAsk(ask=0, count=0))[0]
    sampler.replied(0, msgspec.structs.replace(stale, stale=3), [])
    assert consume(sampler, {0: shard}, 1.0) == 1
    assert sampler.departures.left == 7 * TICKS
    last = gone_on(sampler, 1)
    listen(last, {0: shard}, 60.0)
    assert last.departures.lost == 3, "those that the trainer held when it ended"


def test_what_waits_here_and_there_is_not_given_out_twice() -> None:
    """The ceiling is what was consumed and the capacity, wherever sessions are at the moment."""
    shards = {0: Queue("a", 6, 6 * TICKS), 1: Queue("b", 5, 5 * TICKS)}
    sampler = Sampler(SCHEMA, SPEC, seed=1)
    for turn in range(20):
        listen(sampler, shards, float(turn))
        assert sampler.limiter.insert_ceiling() == sampler.sampled_total + 16 * TICKS
    while sampler.next_batch() is not None:
        assert sampler.limiter.insert_ceiling() == sampler.sampled_total + 16 * TICKS
    assert sampler.sampled_total > 0


def test_a_shard_that_is_away_is_not_taken_for_one_that_lost_all() -> None:
    shards = {0: Queue("a", 0, 0), 1: Queue("b", 3, 3 * TICKS)}
    sampler = Sampler(SCHEMA, SPEC, seed=1)
    listen(sampler, shards, 0.0)
    away = {0: shards[0], 1: Queue("", 3, 3 * TICKS)}
    for turn in range(1, 10):
        sampler.shards_listed({0: "a", 1: ""})
        for index, ask in sampler.asks(float(turn), 0):
            sampler.replied(index, *away[index].answer(ask))
    assert sampler.limiter.insert_ceiling() == 16 * TICKS


def whole_sessions(ask: SampleAsk, inserted: int) -> tuple[SampleReply, list[np.ndarray]]:
    """A shard's answer that holds so many ticks, of which all may be sampled again and again."""
    reply = SampleReply(
        ask=ask.ask, count=ask.count, mass=inserted, inserted_ticks=inserted, boot_id="a", ticks=inserted
    )
    return reply, [
        np.zeros((ask.count, TICKS), np.float32),
        np.zeros(ask.count, np.int64),
    ] if ask.count else []


#: Whole sessions, each tick of which is sampled twice.
WHOLE = ReplaySpec(
    kind="uniform",
    ticks=TICKS,
    batch=4,
    window=0,
    capacity_bytes=10**6,
    min_ticks=8,
    samples_per_insert=2.0,
)


def test_a_whole_session_counts_all_its_ticks() -> None:
    """Each stored tick is sampled `samples_per_insert` times, also where sessions are sampled whole."""
    sampler = Sampler(SCHEMA, WHOLE, seed=1)
    sampler.shards_listed({0: "a"})
    inserted = batches = 0
    for turn in range(5000):
        ceiling = sampler.limiter.insert_ceiling()
        assert ceiling is not None
        if inserted < ceiling:
            inserted += 3 * TICKS
        for index, ask in sampler.asks(float(turn), 0):
            sampler.replied(index, *whole_sessions(ask, inserted))
        if sampler.next_batch() is not None:
            batches += 1
    assert sampler.sampled_total == batches * 4 * TICKS
    assert 1.7 < sampler.sampled_total / inserted < 2.3


def test_players_go_on_beside_a_trainer_that_took_the_place_of_a_killed_one() -> None:
    sampler = Sampler(SCHEMA, WHOLE, seed=1, sampled_total=64)  # of 200,000 that it had taken
    sampler.shards_listed({0: "a", 1: "b"})
    for turn in range(20):
        for index, ask in sampler.asks(float(turn), 0):
            sampler.replied(index, *whole_sessions(ask, 50_000))
    ceiling = sampler.limiter.insert_ceiling()
    assert ceiling is not None
    assert ceiling >= 100_000
    sampler.shards_listed({0: "a", 1: "c"})  # it came up again, and is no news
    for turn in range(20, 30):
        for index, ask in sampler.asks(float(turn), 0):
            sampler.replied(index, *whole_sessions(ask, 50_000))
    again = sampler.limiter.insert_ceiling()
    assert again is not None
    assert again < ceiling + 10_000


def test_it_says_what_it_waits_for() -> None:
    """G3, case 35: sessions, the limiter, or shards."""
    uniform = ReplaySpec(kind="uniform", ticks=TICKS, batch=4, window=1, min_ticks=40, samples_per_insert=2.0)
    sampler = Sampler(SCHEMA, uniform, seed=1)
    assert sampler.why_waiting() == "waiting for shards"
    shard = Queue("a", 3, 3 * TICKS)
    listen(sampler, {0: shard}, 0.0)
    assert sampler.why_waiting() == "waiting for sessions: 12 of 40 ticks before the first update"
    shard.take(28)
    shard.sessions = 0  # nothing can be sampled, for whatever reason
    listen(sampler, {0: shard}, 1.0)
    assert sampler.why_waiting() == "waiting for sessions, or for the shards' answer"
    sampler.limiter.sampled(100_000)
    limit = "what is stored was sampled as often as samples_per_insert = 2 allows"
    assert sampler.why_waiting() == f"waiting for sessions: {limit}"
    sampler.shards_listed({0: ""})
    assert sampler.why_waiting() == "waiting for shards"
    queue = Sampler(SCHEMA, SPEC, seed=1)
    listen(queue, {0: Queue("a")}, 0.0)
    assert queue.why_waiting() == "waiting for sessions: 0 of the 16 ticks that an update takes"


def test_what_a_trainer_holds_of_a_queue_counts_as_there() -> None:
    """The shards then say that they have nothing."""
    sampler, shard = Sampler(SCHEMA, SPEC, seed=1), Queue("a", 2, 2 * TICKS)
    listen(sampler, {0: shard}, 0.0)
    told = "waiting for sessions: 8 of the 16 ticks that an update takes"
    assert sampler.why_waiting() == told
    for at in (1.0, 2.0):
        listen(sampler, {0: shard}, at)
        assert shard.sessions == 0
        assert sampler.stored_ticks == 0
        assert sampler.why_waiting() == told
    shard.take(TICKS)
    listen(sampler, {0: shard}, 3.0)
    assert sampler.why_waiting() == "waiting for sessions: 12 of the 16 ticks that an update takes"


@pytest.mark.parametrize("kind", ["uniform", "prioritised"])
def test_a_shard_that_had_nothing_is_sampled_as_soon_as_it_has_while_the_trainer_is_busy(kind: str) -> None:
    """Not only when the other shards have left the trainer waiting."""
    spec = ReplaySpec(kind=kind, ticks=TICKS, batch=4, window=1, min_ticks=0)
    sampler = Sampler(SCHEMA, spec, seed=1)
    sampler.shards_listed({0: "a", 1: "a"})
    asked = {0: 0, 1: 0}
    for turn in range(100):
        held = {0: 80, 1: 80 if turn > 20 else 0}
        for index, ask in sampler.asks(turn * 0.01, 0):
            asked[index] += ask.count
            count, total = (ask.count, float(held[index])) if held[index] else (0, 0.0)
            reply = SampleReply(
                ask=ask.ask,
                count=count,
                mass=held[index],
                inserted_ticks=80,
                boot_id="a",
                priority_total=total,
            )
            parts = [np.zeros((count, 1), np.float32), np.zeros(count, np.int64)]
            parts += [np.zeros((count, 2), np.int64), np.ones(count, np.float32)] * (kind == "prioritised")
            sampler.replied(index, reply, parts if count else [])
        assert turn < 2 or sampler.next_batch() is not None, "the trainer waits"
    assert asked[1] > 50


def test_a_queue_that_says_it_has_something_is_asked_at_once() -> None:
    """Not when its turn to be asked for news would come."""
    sampler = Sampler(SCHEMA, SPEC, seed=1)
    shard = Queue("a")
    sampler.shards_listed({0: "a"})
    assert [ask.wait for _, ask in sampler.asks(0.0, 0)] == [True]
    assert sampler.asks(0.001, 0) == []
    shard.take(SPEC.batch * TICKS)
    sampler.replied(0, *shard.answer(SampleAsk(ask=0, count=0)))
    [(index, ask)] = sampler.asks(0.002, 0)
    assert (index, ask.count) == (0, SPEC.batch)


def test_empty_queues_are_asked_to_answer_once_they_have_something() -> None:
    """What comes then is a batch without another question, and the shard that gave it is asked to wait again."""
    sampler, shards = Sampler(SCHEMA, SPEC, seed=1), {0: Queue("a"), 1: Queue("a")}
    sampler.shards_listed({0: "a", 1: "a"})
    questions = dict(sampler.asks(0.0, 0))
    asked = {index: (ask.count, ask.wait) for index, ask in questions.items()}
    assert asked == dict.fromkeys(shards, (SPEC.batch, True))
    assert sampler.asks(0.01, 0) == []
    shards[1].take(SPEC.batch * TICKS)
    sampler.limiter.inserted(shards[1].inserted)
    sampler.replied(1, *shards[1].answer(questions[1]))
    assert sampler.ready
    assert sampler.asks(0.02, 0) == [], "it would grow old here"
    batch = sampler.next_batch()
    assert batch is not None
    assert batch["reward"].shape == (SPEC.batch, TICKS)
    assert sampler.limiter.insert_ceiling() == 16 * TICKS + SPEC.batch * TICKS
    [(index, again)] = sampler.asks(0.03, 0)
    assert (index, again.count, again.wait) == (1, SPEC.batch, True)


def test_a_queue_that_stays_empty_is_asked_now_and_then_whether_it_is_there() -> None:
    sampler = Sampler(SCHEMA, SPEC, seed=1)
    sampler.shards_listed({0: "a"})
    sampler.asks(0.0, 0)
    [(_, news)] = sampler.asks(0.1, 0)
    assert (news.count, news.wait) == (0, False)
    sampler.shards_listed({0: "b"})
    [(_, anew)] = sampler.asks(0.11, 0)
    assert anew.wait, "what was asked of the shard before it, nobody answers"


def test_a_trainer_that_holds_what_it_needs_asks_empty_queues_for_nothing() -> None:
    sampler, shard = Sampler(SCHEMA, SPEC, seed=1), Queue("a", 2 * SPEC.batch, 2 * SPEC.batch * TICKS)
    for turn in range(2):
        listen(sampler, {0: shard}, float(turn))
    assert not any(ask.count for _, ask in sampler.asks(2.0, 0))


def test_a_uniform_batch_says_that_each_sample_was_as_likely_as_any() -> None:
    sampler = Sampler(SCHEMA, ReplaySpec(kind="uniform", ticks=TICKS, batch=4, window=0, min_ticks=0), seed=1)
    sampler.shards_listed({0: "a"})
    for turn in range(2):
        for index, ask in sampler.asks(float(turn), 0):
            sampler.replied(index, *whole_sessions(ask, 80))
    batch = sampler.next_batch()
    assert batch is not None
    assert batch["probability"].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("batch", "side", "batches"),
    [(8, 1, 16), (8, 20_000, 2), (8, 100_000, 1), (40_000, 1, 2), (90_000, 1, 1)],
)
def test_few_batches_are_asked_for_at_once_where_they_are_large(batch: int, side: int, batches: int) -> None:
    """Two groups ahead, of as many batches as fit; and no ask that a shard would refuse."""
    schema = SessionSchema(TICKS, (Column("obs", "uint8", (side, 100), extra_row=True),))
    sampler = Sampler(schema, ReplaySpec(ticks=TICKS, batch=batch, window=1, min_ticks=0), seed=1)
    sampler.shards_listed({0: "a"})
    [(_, ask)] = sampler.asks(0.0, 0)
    reply = SampleReply(ask=ask.ask, count=0, mass=10**6, inserted_ticks=10**6, boot_id="a")
    sampler.replied(0, reply, [])
    asked = [ask.count for _, ask in sampler.asks(1.0, 0)]
    assert asked == [batches * batch] * 2


@pytest.mark.parametrize(
    ("kind", "per_insert", "window", "batches"),
    [
        ("uniform", 0.0, 1, 16),
        ("prioritised", 0.0, 1, 4),  # priorities of many updates ago are none
        ("uniform", 8.0, 1, 16),
        ("uniform", 0.4, 1, 6),  # 800 ticks of tolerance, and two of 64 for each batch
        ("uniform", 8.0, 0, 16),
        ("uniform", 1.0, 0, 4),
    ],
)
def test_what_is_asked_for_ahead_stays_within_the_limiters_tolerance(
    kind: str, per_insert: float, window: int, batches: int
) -> None:
    spec = ReplaySpec(
        kind=kind, ticks=TICKS, batch=64, window=window, min_ticks=0, samples_per_insert=per_insert
    )
    sampler = Sampler(SCHEMA, spec, seed=1)
    sampler.shards_listed({0: "a"})
    [(_, ask)] = sampler.asks(0.0, 0)
    held = SampleReply(
        ask=ask.ask, count=0, mass=10**6, inserted_ticks=10**6, boot_id="a", priority_total=1.0
    )
    sampler.replied(0, held, [])
    assert {ask.count for _, ask in sampler.asks(1.0, 0)} == {batches * 64}


def test_it_is_short_of_sessions_until_a_batch_is_there() -> None:
    sampler, shards = Sampler(SCHEMA, SPEC, 1), {0: Queue("a")}
    listen(sampler, shards, 0.0)
    assert sampler.short
    shards[0].take(3 * TICKS)
    listen(sampler, shards, 10.0)
    assert sampler.short, "a batch takes four"
    shards[0].take(TICKS)
    listen(sampler, shards, 20.0)
    assert not sampler.short
    assert consume(sampler, shards, 30.0) == 1
    assert sampler.short
