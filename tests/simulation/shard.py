"""A simulated shard: what nodes/shard.py and replay/shard.py do with GuestList, Dedup, Quotas and ControlLine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from p2prl.core import messages as m
from p2prl.core.guestlist import GuestList
from p2prl.core.quota import Quotas
from p2prl.net.addresses import endpoint
from p2prl.net.keys import KeyPair
from p2prl.nodes.control import ControlLine
from p2prl.nodes.wiring import push_port
from p2prl.wire import frames
from tests.simulation.disks import HEADER, SHARD, TICKS
from tests.simulation.process import FakeNetwork

if TYPE_CHECKING:
    from tests.simulation.host import Host

#: As in replay/shard.py.
_SOON_VERSIONS = 16


class Shard:
    """One life of a shard's process."""

    def __init__(self, host: Host, index: int) -> None:
        self.host, self.index = host, index
        self.process = process = host._process(f"shard {index}", lambda: host._start_shard(index))
        self.boot_id = f"shard {index}.{host.starts[f'shard {index}']}"
        self.disk = host.disk.shards[index]
        self.dedup = self.disk.dedup()
        self.guests = GuestList()
        self.access = m.Access(open=False, admitted=[], barred=[], quarantined=[])
        self.quotas = Quotas(host.quota_bytes_per_s, 0.0, 10.0)
        self.current = -1
        self.ready = False
        self.duplicates = 0
        self.refused: dict[str, Counter[str]] = {}
        self.address = m.ShardAddress(
            index=index,
            push_port=push_port(host.base_port, index),
            sample_port=0,
            boot_id=self.boot_id,
        )
        self.control = ControlLine(
            process, FakeNetwork(process, SHARD), endpoint("127.0.0.1", host.base_port), KeyPair("", ""), "",
            self._hello, self._on_control, self._on_refusal,
        )  # type: ignore[arg-type]  # fmt: skip
        process.every(1.0, self._report)
        self.host.lan.listen(process, host.at(self.address.push_port), self._take)

    def _hello(self) -> m.Hello:
        return m.Hello(
            protocol=m.PROTOCOL, version="0", role="shard", name=f"shard {self.index}", boot_id=self.boot_id,
            shard=self.address,
        )  # fmt: skip

    def _on_control(self, message: m.Message, bulk: list[bytes]) -> None:
        if isinstance(message, m.Welcome):
            self.current = max(self.current, message.weights_version)
            self.ready = True
            self._report()
        elif isinstance(message, m.Current):
            self.current = max(self.current, message.weights_version)
        elif isinstance(message, m.Access):
            self.guests.told(message)
            self.access = message

    def _on_refusal(self, refusal: m.Refusal) -> None:
        raise AssertionError(f"the broker refused its own shard: {refusal.text}")

    # --- bundles

    def _take(self, route: bytes, user: str, parts: list[bytes]) -> None:
        if not self.ready or not self.guests.may_give(user):
            return  # dropped, and sent again if its sender is let in
        delivery = frames.decode_to_shard(parts[0])
        word = self.quotas.judge(user, sum(map(len, parts)), self.process.now())
        if word == "drop":
            return
        verdict = (
            m.Verdict(seq=delivery.seq, status="busy")
            if word == "busy"
            else self._accept(user, delivery, parts)
        )
        receipts = m.ShardReceipts(
            shard=self.index,
            node=user,
            boot_id=delivery.boot_id,
            verdicts=[verdict],
            steps_total=TICKS * len(self.disk.names),
            inserted_ticks=TICKS * len(self.disk.names),
        )
        self.control.send(receipts)

    def _accept(self, user: str, delivery: m.Delivery, parts: list[bytes]) -> m.Verdict:
        name = (user, delivery.boot_id, delivery.seq)
        if self.dedup.seen(*name):
            self.duplicates += 1
            return m.Verdict(seq=delivery.seq, status="duplicate")
        number, version = HEADER.unpack(parts[1])
        if version > self.current + _SOON_VERSIONS:
            self.refused.setdefault(user, Counter())["future_version"] += 1
            self.host.disk.turned_away.add((user, number))
            return m.Verdict(seq=delivery.seq, status="refused", reason="future_version")
        lag, max_lag = self.current - version, self.host.run.max_lag
        if max_lag and lag > max_lag:
            self.host.disk.turned_away.add((user, number))
            return m.Verdict(seq=delivery.seq, status="stale")
        if lag < 0 or self.host.rng.random() < self.host.busy:
            return m.Verdict(seq=delivery.seq, status="busy")
        self.process.act()
        self._keep(name, number)
        return m.Verdict(seq=delivery.seq, status="stored")

    def _keep(self, name: tuple[str, str, int], number: int) -> None:
        self.host.keeps(name[0], self.access)
        self.disk.append(name, self.dedup)
        self.dedup.mark(*name)
        self.host.disk.stored[name[0], number] += 1
        self.host.disk.per_node[name[0]] += 1
        copies = self.host.disk.stored[name[0], number]
        assert copies == 1, f"bundle {number} of {name[0][:8]} was stored {copies} times, now as {name[1:]}"

    def _report(self) -> None:
        if not self.control.welcomed:
            return
        stored = len(self.disk.names)
        self.control.send(
            m.ShardReport(
                index=self.index, boot_id=self.boot_id, sessions=stored, ticks=TICKS * stored, size_bytes=0,
                inserted_ticks=TICKS * stored, steps_total=TICKS * stored, stored=stored,
                duplicate=self.duplicates,
                refused_by_node={key: dict(reasons) for key, reasons in self.refused.items()},
            )
        )  # fmt: skip
