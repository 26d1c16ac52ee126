"""A trainer's process, alone with a broker and a shard made by hand: when players may go on that wait for its word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from p2prl.core import messages as m
from p2prl.net.keys import new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Network
from p2prl.nodes import publisher
from p2prl.nodes.prepare import prepare
from p2prl.nodes.trainer import Trainer
from p2prl.nodes.trainer_config import TrainerConfig
from p2prl.nodes.wiring import publish_port, sample_port
from p2prl.settings import find_experiment, overlay
from p2prl.wire import frames
from tests import kit
from tests.conftest import run_until

HOST, TRAINER = new_key_pair(), new_key_pair()
SHARD = "shard-boot"


class Alone:
    """A Trainer of the preset `a2c`, and what it talks to, on one loop."""

    def __init__(self, folder: Path) -> None:
        self.base, self.loop = kit.free_base(1), Loop()
        prepared = prepare(overlay(find_experiment("a2c"), []), folder, False)
        self.run, self.replay = prepared.run, prepared.replay
        self.batch_ticks = self.replay.batch * self.replay.ticks
        self.reports: list[m.TrainerReport] = []
        self.asks: list[m.SampleAsk] = []
        self._network = Network(self.loop)
        self._control = self._server("router", self.base, self._on_control)
        self._weights = self._server("pull", publish_port(self.base), self._on_weights)
        self._samples = self._server("router", sample_port(self.base, 0), self._on_ask)
        self._peer = b""
        config = TrainerConfig(
            run=self.run,
            agent=self.run.agent_name,
            replay=self.replay,
            keys=TRAINER,
            server_key=HOST.public,
            host="127.0.0.1",
            base_port=self.base,
            folder=str(folder),
            device="cpu",
            publish_interval_s=0.1,
            checkpoint_interval_s=3600.0,
            keep_checkpoints=1,
        )
        self.trainer = Trainer(config, self.loop)
        self.trainer.start()

    def _server(self, kind: str, port: int, handler: Callable[[], None]):  # type: ignore[no-untyped-def]
        socket = self._network.server(kind, [f"tcp://127.0.0.1:{port}"], HOST)  # type: ignore[arg-type]
        self.loop.on_readable(socket, handler)
        return socket

    def _on_control(self) -> None:
        while (received := self._control.receive()) is not None:
            message = frames.decode_to_broker(received.frames[0])
            if isinstance(message, m.Hello):
                shard = m.ShardAddress(
                    index=0, push_port=1, sample_port=sample_port(self.base, 0), boot_id=SHARD
                )
                welcome = m.Welcome(
                    run=self.run,
                    host_name="h",
                    version="0",
                    term=1,
                    shards=[shard],
                    weights_version=-1,
                    weights_port=1,
                )
                self._control.send([frames.encode(welcome)], received.peer)
            elif isinstance(message, m.TrainerReport) and message.state != "starting":
                self.reports.append(message)

    def _on_weights(self) -> None:
        while self._weights.receive() is not None:
            pass

    def _on_ask(self) -> None:
        while (received := self._samples.receive()) is not None:
            ask = frames.decode_sample(received.frames[0])
            assert isinstance(ask, m.SampleAsk)
            self._peer = received.peer
            self.asks.append(ask)
            if not ask.count:
                self._samples.send([frames.encode(self._stock(ask.ask))], self._peer)

    def _stock(self, ask: int) -> m.SampleReply:
        return m.SampleReply(ask=ask, count=0, mass=0, inserted_ticks=0, boot_id=SHARD, ticks=0)

    def until(self, condition: Callable[[], object]) -> None:
        """Run the loop, with the trainer's work between polls, until `condition` was true once."""

        def look() -> object:
            self.trainer._work()
            return condition()

        run_until(self.loop, look)

    def give(self, batches: int) -> None:
        """Let the shard have so many batches, and give them when it is asked."""
        count, before = batches * self.replay.batch, len(self.asks)
        self.until(lambda: self._peer)
        stock = msgspec.structs.replace(self._stock(0), mass=count)
        self._samples.send([frames.encode(stock)], self._peer)
        self.until(lambda: any(ask.count == count for ask in self.asks[before:]))
        reply = msgspec.structs.replace(self._stock(self.asks[-1].ask), count=count)
        schema = self.run.schema
        columns = [
            np.zeros((count, schema.rows(column), *column.shape), column.dtype) for column in schema.columns
        ]
        parts = [values.data for values in [*columns, np.zeros(count, np.int64)]]
        self._samples.send([frames.encode(reply), *parts], self._peer)

    def told(self, batches: int) -> m.TrainerReport:
        """The first report by which so many batches may be inserted in all."""
        ceiling = batches * self.batch_ticks
        self.until(lambda: any(report.insert_ceiling == ceiling for report in self.reports))
        return next(report for report in self.reports if report.insert_ceiling == ceiling)

    def close(self) -> None:
        self.trainer.end()
        self._network.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    made = Alone(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("at_once_bytes", [publisher._AT_ONCE_BYTES, 0], ids=["at once", "in a thread"])
def test_players_may_go_on_once_there_are_new_weights_and_not_only_with_the_next_batch(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, at_once_bytes: int
) -> None:
    """One batch may wait. The one that an idle trainer waits for does not: it is taken as it comes."""
    monkeypatch.setattr(publisher, "_AT_ONCE_BYTES", at_once_bytes)
    first = alone.told(2)
    assert first.updates == 0
    alone.give(1)
    second = alone.told(3)
    # Version 0 is that of the beginning; the first report may be older than it.
    assert (second.updates, second.weights_version) == (1, 1)


def test_players_wait_while_a_batch_waits_for_the_trainer(alone: Alone) -> None:
    alone.told(2)
    alone.give(2)
    third = alone.told(3)
    assert third.updates == 1, "the second batch was taken"
    assert alone.told(4).updates == 2
