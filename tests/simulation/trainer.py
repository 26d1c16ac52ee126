"""A simulated trainer, as far as versions go: what nodes/trainer.py does with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2prl.core import messages as m
from p2prl.net.addresses import endpoint
from p2prl.net.keys import KeyPair
from p2prl.nodes.control import ControlLine
from p2prl.nodes.wiring import publish_port
from p2prl.wire import frames
from tests.simulation.disks import RUN_ID, TRAINER
from tests.simulation.process import FakeNetwork

if TYPE_CHECKING:
    from tests.simulation.host import Host

#: Ticks that may wait for the trainer.
_CAPACITY = 600


class Trainer:
    """One life of a trainer's process."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.process = process = host._process("trainer", host._start_trainer)
        self.version = host.disk.checkpoint
        self._term = -1
        self._steps = 0
        self._boot_id = f"trainer.{host.starts['trainer']}"
        network = FakeNetwork(process, TRAINER)
        local = endpoint("127.0.0.1", host.base_port)
        self.control = ControlLine(
            process, network, local, KeyPair("", ""), "", self._hello, self._on_control, self._on_refusal
        )  # type: ignore[arg-type]
        self._publisher = network.client("push", host.at(publish_port(host.base_port)), None, None, None)
        process.every(1.0, self._report)
        process.every(2.0, self._learn)
        process.every(7.0, self._save)

    def _hello(self) -> m.Hello:
        return m.Hello(
            protocol=m.PROTOCOL, version="0", role="trainer", name="trainer", boot_id=self._boot_id
        )

    def _on_control(self, message: m.Message, bulk: list[bytes]) -> None:
        if isinstance(message, m.Welcome):
            if message.term != self._term:
                self._term = message.term
                self.version = max(self.version, message.weights_version)
                self._publish()
        elif isinstance(message, m.RunProgress):
            self._steps = message.steps

    def _on_refusal(self, refusal: m.Refusal) -> None:
        raise AssertionError(f"the broker refused its own trainer: {refusal.text}")

    def _learn(self) -> None:
        if self.host.publishes:
            self._publish()

    def _publish(self) -> None:
        if not self.control.welcomed:
            return
        content = f"{self._boot_id} {self.version + 1} {self.process.lan.events}".encode()
        header = m.WeightsHeader(run_id=RUN_ID, version=self.version + 1, codec="", size_bytes=len(content))
        if self._publisher.send([frames.encode(header), content]):
            self.version += 1

    def _report(self) -> None:
        if self.control.welcomed:
            ceiling = self._steps + _CAPACITY
            self.control.send(
                m.TrainerReport(state="training", weights_version=self.version, insert_ceiling=ceiling)
            )

    def _save(self) -> None:
        self.process.act()
        self.host.disk.checkpoint = self.version
