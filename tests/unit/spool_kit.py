"""For the spool's tests: bundles that tell who they are, a disk that fills up, and shards in memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import pytest

from p2prl.core import messages as m
from p2prl.core.schema import SessionSchema
from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.core.spool import Account, Rules
from p2prl.net.keys import KeyPair
from p2prl.net.sockets import Frame
from p2prl.nodes import spool_books, spool_file
from p2prl.nodes.spool import Spool
from p2prl.nodes.wiring import MemberConfig
from p2prl.wire import frames

HOST_KEY, RUN_ID = "h" * 40, "run-1"
_SPACE = Leaf("discrete", "int64", (), (0.0,), (1.0,))
PLENTY = Rules(bound_bytes=10_000_000, keep_free_bytes=0)


def bundle(version: int = 0, ticks: int = 8, steps: int = 5, episodes: int = 1) -> m.PlayerBundle:
    return m.PlayerBundle(rank=0, serial=0, ticks=ticks, steps=steps, episodes=episodes, version=version)


def frames_of(number: int, size: int = 100) -> tuple[bytes, bytes]:
    """The header and payload of bundle `number`."""
    return b"%08d" % number, bytes([number % 251]) * size


def number_of(header: Frame) -> int:
    return int(bytes(header))


def run_spec(drops: bool = False, max_lag: int = 0) -> m.RunSpec:
    return m.RunSpec(
        run_id=RUN_ID, seed=0, env_id="e", env_args={}, env=EnvSpec("e", _SPACE, _SPACE), env_package="",
        env_hash="", agent_name="a", agent_settings={}, agent_package="", agent_hash="",
        schema=SessionSchema(ticks=8, columns=()), ladder=1, when_full="drop_oldest" if drops else "wait",
        window_bytes=3_000, window_bundles=6, max_lag=max_lag, envs=1,
    )  # fmt: skip


def member_config(folder: Path, bound: int) -> MemberConfig:
    return MemberConfig(
        host="192.0.2.1", base_port=1, server_key=HOST_KEY, keys=KeyPair("", ""), name="n", players=1,
        spool_bytes=bound, spool_folder=str(folder), keep_free_bytes=0,
    )  # fmt: skip


class Clock:
    """Moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Killed(BaseException):
    """What kill -9 looks like from inside: nothing that follows happens."""


class Killer:
    """Stands where the operating system takes bytes, and kills the process before one of the writes, or within it.

    Attributes:
        writes: how many more it lets pass; None for all.
    """

    writes: int | None = None

    def __call__(self, file: FileIO, data: bytes) -> None:
        if self.writes == 0:
            self.writes = None
            file.write(data[: len(data) // 2] if file.tell() == Path(str(file.name)).stat().st_size else b"")
            raise Killed
        if self.writes is not None:
            self.writes -= 1
        file.write(data)

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        for module in (spool_file, spool_books):
            patch.setattr(module, "write_all", self)


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
        unfit: those that are stale or refused, and stay so.
        inbox: sent, and not looked at.
        wanted: shards whose sockets took nothing, and that the member wants to know about.
        answers: verdicts that are under way.
    """

    term: int = 1
    boots: list[str] = field(default_factory=lambda: ["a1", "b1"])
    kept: dict[tuple[int, str, int], int] = field(default_factory=dict)
    unfit: dict[tuple[int, str, int], str] = field(default_factory=dict)
    inbox: list[tuple[int, m.Delivery, int]] = field(default_factory=list)
    answers: list[m.Receipts] = field(default_factory=list)
    takes: Callable[[], bool] = lambda: True
    wanted: list[int] = field(default_factory=list)

    def listed(self, shards: Sequence[m.ShardAddress]) -> None:
        """Nothing to dial."""

    def send(self, shard: int, parts: Sequence[Frame]) -> bool:
        if not self.takes():
            return False
        delivery = frames.decode_to_shard(parts[0])
        self.inbox.append((shard, delivery, number_of(parts[1])))
        return True

    def when_writable(self, shard: int, call: Callable[[int], None]) -> None:
        """Here nobody is told: the member looks again by itself."""
        self.wanted.append(shard)

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
            word = self.unfit.get(name, status)
            if word in ("stale", "refused") and name not in self.kept:
                self.unfit[name] = word
            if name in self.kept:
                assert self.kept[name] == number, "one name for two bundles"
                word = "duplicate"
            elif word == "stored":
                self.kept[name] = number
                new += 1
            verdict = m.Verdict(seq=delivery.seq, status=word)
            self.answers.append(m.Receipts(shard=shard, boot_id=delivery.boot_id, verdicts=[verdict]))
        self.inbox.clear()
        return new

    def numbers(self) -> list[int]:
        """The bundles that are stored, as often as they are."""
        return sorted(self.kept.values())
