"""A queue that was empty tells the trainer when it is not any more: asking again and again would cost each cycle."""

from __future__ import annotations

from p2prl.core import messages as m
from p2prl.net.sockets import Socket
from p2prl.nodes.wiring import sample_port
from p2prl.wire import frames
from tests.loopback.test_shard_trust import ANN, TRAINER, Alone, Start
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
