"""What a shard says unasked, and how often.

A queue that was empty tells the trainer when it is not any more: asking again and again would cost each cycle. And
verdicts are said together.
"""

from __future__ import annotations

import msgspec
import pytest

from p2prl.core import messages as m
from p2prl.net.sockets import Socket
from p2prl.nodes import shard as shard_module
from p2prl.nodes.wiring import sample_port
from p2prl.wire import frames
from tests.loopback.test_shard_trust import ANN, TRAINER, Alone, Start, run_spec
from tests.loopback.test_shard_trust import _start as _start


def heard(alone: Alone, trainer: Socket) -> m.SampleReply:
    """The shard's next word."""
    got: list[m.SampleMessage] = []

    def answered() -> bool:
        received = trainer.receive()
        got.extend([frames.decode_sample(received.frames[0])] if received else [])
        return bool(got)

    alone.until(answered)
    assert isinstance(got[0], m.SampleReply)
    return got[0]


def test_a_trainer_that_found_a_queue_empty_is_told_once_when_something_comes(start: Start) -> None:
    alone = start(kind="queue", window=0)
    alone.access(ANN)
    trainer, ann = alone.dial(TRAINER, sample_port(alone.base, 0)), alone.dial(ANN)
    assert trainer.send([frames.encode(m.SampleAsk(ask=7, count=0))])
    empty = heard(alone, trainer)
    assert (empty.ask, empty.mass) == (7, 0)
    alone.give(ann, 0, 1)
    told = heard(alone, trainer)
    assert (told.ask, told.count) == (0, 0)
    assert told.mass > 0
    assert told.ticks == told.inserted_ticks > 0
    alone.until(lambda: alone.said("ann") == {"stored": 2})
    # Once: from now on it knows, and asks.
    assert trainer.send([frames.encode(m.SampleAsk(ask=8, count=0))])
    assert heard(alone, trainer).ask == 8


def test_a_question_that_waits_is_answered_with_the_first_sessions_that_come(start: Start) -> None:
    alone = start(kind="queue", window=0)
    alone.access(ANN)
    trainer, ann = alone.dial(TRAINER, sample_port(alone.base, 0)), alone.dial(ANN)
    for ask, wait in ((7, True), (8, False), (9, True)):  # it remembers the newest alone
        assert trainer.send([frames.encode(m.SampleAsk(ask=ask, count=1, wait=wait))])
    assert heard(alone, trainer).ask == 8, "7 waits"
    alone.until(lambda: alone.shard._waits is not None and alone.shard._waits[1] is not None)
    alone.give(ann, 0)
    given = heard(alone, trainer)
    assert (given.ask, given.count) == (9, 1)
    assert given.mass > 0
    assert trainer.send([frames.encode(m.SampleAsk(ask=10, count=given.mass, wait=True))])
    at_once = heard(alone, trainer)
    assert (at_once.ask, at_once.count, at_once.mass) == (10, given.mass, 0), "there was something"
    alone.give(ann, 1)
    told = heard(alone, trainer)
    assert (told.ask, told.count) == (0, 0), "no question waits any more"


def test_what_was_taken_for_a_trainer_that_is_gone_is_the_next_ones(start: Start) -> None:
    alone = start(kind="queue", window=0)
    alone.access(ANN)
    gone, ann = alone.dial(TRAINER, sample_port(alone.base, 0)), alone.dial(ANN)
    assert gone.send([frames.encode(m.SampleAsk(ask=7, count=1, wait=True))])
    alone.until(lambda: alone.shard._waits is not None)
    gone.close()
    route = alone.shard._waits[0] if alone.shard._waits else b""
    alone.until(lambda: not alone.shard.samples.send([b"?"], route))
    alone.give(ann, 0)
    alone.until(lambda: alone.shard._waits is None)
    trainer = alone.dial(TRAINER, sample_port(alone.base, 0))
    assert trainer.send([frames.encode(m.SampleAsk(ask=1, count=5))])
    given = heard(alone, trainer)
    assert (given.ask, given.count) == (1, 1)
    assert trainer.send([frames.encode(m.SampleAsk(ask=2, count=99))])
    rest = heard(alone, trainer)
    assert given.count + rest.count == rest.inserted_ticks // alone.shard.config.run.schema.ticks
    assert rest.mass == 0, "each is given once"


def test_bundles_that_come_one_by_one_are_taken_and_answered_together(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one that came alone the next few wait for each other, but not for ever."""
    monkeypatch.setattr(shard_module, "_GATHER_S", 1.0)
    alone = start()
    alone.access(ANN)
    ann = alone.dial(ANN)
    alone.give(ann, 0)
    alone.until(lambda: alone.said("ann") == {"stored": 1})
    alone.give(ann, 1)
    alone.until(lambda: alone.shard.pull.wait(0.0))
    alone.give(ann, 2, 3)
    alone.until(lambda: alone.said("ann")["stored"] > 1)
    assert alone.said("ann") == {"stored": 4}
    assert alone.receipts == 2


def test_who_waits_for_receipts_before_it_plays_on_gets_each_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "_GATHER_S", 3600.0)
    alone = start(run=msgspec.structs.replace(run_spec(), fresh=True))
    alone.access(ANN)
    ann = alone.dial(ANN)
    for seq in range(3):
        alone.give(ann, seq)
        alone.until(lambda seq=seq: alone.said("ann") == {"stored": seq + 1})  # type: ignore[misc]
