"""For the spool's tests: bundles that tell who they are, a disk that fills up, and shards in memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import pytest

from p2prl.core import messages as m
from p2prl.core.spool import Account, Rules
from p2prl.net.sockets import Frame
from p2prl.nodes import spool_books, spool_file
from p2prl.nodes.spool import Spool
from p2prl.wire import frames

HOST_KEY, RUN_ID = "h" * 40, "run-1"
PLENTY = Rules(bound_bytes=10_000_000, keep_free_bytes=0)


def bundle(version: int = 0, ticks: int = 8, steps: int = 5, episodes: int = 1) -> m.PlayerBundle:
    return m.PlayerBundle(rank=0, serial=0, ticks=ticks, steps=steps, episodes=episodes, version=version)


def frames_of(number: int, size: int = 100) -> tuple[bytes, bytes]:
    """The header and payload of bundle `number`."""
    return b"%08d" % number, bytes([number % 251]) * size


def number_of(header: Frame) -> int:
    return int(bytes(header))


class Books:
    """Keeps the books of a spool as its member would.

    Attributes:
        said: (level, text) of each line.
    """

    def __init__(self, name: str = "boot1", books: m.Books | None = None) -> None:
        self.account = Account(name, books or m.Books(), 0, 0)
        self.dropped: list[str] = []
        self.said: list[tuple[str, str]] = []

    def now(self) -> Account:
        return self.account

    def drop(self, reason: str) -> None:
        self.dropped.append(reason)

    def say(self, level: str, text: str) -> None:
        self.said.append((level, text))


def open_spool(
    root: Path, books: Books, rules: Rules = PLENTY, run_id: str = RUN_ID, host_key: str = HOST_KEY
) -> Spool:
    return Spool(root, host_key, run_id, rules, books.now, books.drop, books.say)


class FullDisk:
    """Stands where the operating system takes bytes: after `room` bytes files can grow no more.

    Args:
        number: of the error.
    """

    def __init__(self, number: int = errno.ENOSPC) -> None:
        self.room: float = float("inf")
        self.number = number

    def __call__(self, file: FileIO, data: bytes) -> None:
        size = Path(str(file.name)).stat().st_size
        grows = max(0, file.tell() + len(data) - size)
        taken = data if grows <= self.room else data[: len(data) - int(grows - self.room)]
        file.write(taken)
        self.room -= grows if len(taken) == len(data) else self.room
        if len(taken) < len(data):
            raise OSError(self.number, "No space left on device")


def fill_up(patch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> FullDisk:
    """A disk whose `room` the test sets."""
    disk = FullDisk(number)
    for module in (spool_file, spool_books):
        patch.setattr(module, "write_all", disk)
    return disk


@dataclass
class Shards:
    """Two shards that keep everything they were given, and know it again. Stands where a member's PUSH sockets are.

    Attributes:
        kept: by (shard, boot id, sequence number): the bundle's number.
        inbox: sent, and not looked at.
        answers: verdicts that are under way.
    """

    term: int = 1
    boots: list[str] = field(default_factory=lambda: ["a1", "b1"])
    kept: dict[tuple[int, str, int], int] = field(default_factory=dict)
    inbox: list[tuple[int, m.Delivery, int]] = field(default_factory=list)
    answers: list[m.Receipts] = field(default_factory=list)
    takes: Callable[[], bool] = lambda: True

    def listed(self, shards: Sequence[m.ShardAddress]) -> None:
        """Nothing to dial."""

    def send(self, shard: int, parts: Sequence[Frame]) -> bool:
        if not self.takes():
            return False
        delivery = frames.decode_to_shard(parts[0])
        self.inbox.append((shard, delivery, number_of(parts[1])))
        return True

    def addresses(self) -> list[m.ShardAddress]:
        return [
            m.ShardAddress(index=index, push_port=1, sample_port=2, boot_id=boot)
            for index, boot in enumerate(self.boots)
        ]

    def take(self, status: str = "stored") -> int:
        """Look at everything in the inbox; returns how many were new."""
        new = 0
        for shard, delivery, number in self.inbox:
            name = (shard, delivery.boot_id, delivery.seq)
            word = status
            if name in self.kept:
                assert self.kept[name] == number, "one name for two bundles"
                word = "duplicate"
            elif status == "stored":
                self.kept[name] = number
                new += 1
            verdict = m.Verdict(seq=delivery.seq, status=word)
            self.answers.append(m.Receipts(shard=shard, boot_id=delivery.boot_id, verdicts=[verdict]))
        self.inbox.clear()
        return new

    def numbers(self) -> list[int]:
        """The bundles that are stored, as often as they are."""
        return sorted(self.kept.values())
