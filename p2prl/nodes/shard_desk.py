"""What the broker knows of its shards: where they listen, what they hold, and whether they are there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from p2prl.core import messages as m

#: A shard that says nothing for this long gets no new work.
SILENT_S = 3.0


@dataclass
class ShardDesk:
    """Shards by index.

    Attributes:
        steps_total: steps stored since the run began; the broker's file keeps it too, for while a shard is away.
        starts: how often each shard came up under this broker; one that was only silent for a while did not.
    """

    steps_total: dict[int, int]
    addresses: dict[int, m.ShardAddress] = field(default_factory=dict)
    routes: dict[int, bytes] = field(default_factory=dict)
    reports: dict[int, m.ShardReport] = field(default_factory=dict)
    heard: dict[int, float] = field(default_factory=dict)
    starts: Counter[int] = field(default_factory=Counter)
    _inserted: dict[int, int] = field(default_factory=dict)
    _boots: dict[int, str] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Environment steps stored since the run began."""
        return sum(self.steps_total.values())

    @property
    def inserted(self) -> int:
        """Ticks inserted since the run began, as far as known."""
        return sum(self._inserted.values())

    def listed(self) -> list[m.ShardAddress]:
        """As members and trainers are told."""
        return [self.addresses[index] for index in sorted(self.addresses)]

    def greeted(self, address: m.ShardAddress, route: bytes, now: float) -> None:
        """A shard said Hello."""
        if self._boots.get(address.index) != address.boot_id:
            self._boots[address.index] = address.boot_id
            self.starts[address.index] += 1
        self.addresses[address.index] = address
        self.routes[address.index] = route
        self.heard[address.index] = now

    def counted(self, index: int, steps_total: int, inserted_ticks: int) -> None:
        """A shard named its totals, which never shrink."""
        self.steps_total[index] = max(steps_total, self.steps_total.get(index, 0))
        self._inserted[index] = max(inserted_ticks, self._inserted.get(index, 0))

    def reported(self, report: m.ShardReport, route: bytes, now: float) -> bool:
        """A report; False if the shard must say Hello: it was marked down, or this broker is new."""
        known = self.addresses.get(report.index)
        if known is None or known.boot_id != report.boot_id:
            return False
        self.heard[report.index] = now
        self.routes[report.index] = route  # another one, if its connection was made anew
        self.reports[report.index] = report
        self.counted(report.index, report.steps_total, report.inserted_ticks)
        return True

    def ticked(self, now: float) -> list[int]:
        """Mark silent shards as down (an empty boot id); returns those that were not before."""
        silent = [
            index
            for index, heard in self.heard.items()
            if self.addresses[index].boot_id and now - heard > SILENT_S
        ]
        for index in silent:
            self.addresses[index] = msgspec.structs.replace(self.addresses[index], boot_id="")
        return silent

    def row(self, index: int, now: float) -> m.ShardStatus:
        """One row of `p2prl status`."""
        address, report = self.addresses.get(index), self.reports.get(index)
        if address is None:
            return m.ShardStatus(index=index, state="starting")
        up = bool(address.boot_id) and now - self.heard[index] <= SILENT_S
        row = m.ShardStatus(
            index=index,
            state="working" if up else "silent",
            starts=self.starts[index],
            push_port=address.push_port,
            sample_port=address.sample_port,
        )
        if report is None:
            return row
        return msgspec.structs.replace(
            row,
            sessions=report.sessions,
            ticks=report.ticks,
            size_bytes=report.size_bytes,
            inserted_ticks=report.inserted_ticks,
            stored=report.stored,
            duplicate=report.duplicate,
            refused=sum(report.refused.values()),
            refused_reasons=dict(report.refused),
            stale=report.stale,
            evicted=report.evicted,
        )
