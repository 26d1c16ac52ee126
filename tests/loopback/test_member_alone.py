"""A member, alone with a broker made by hand: what it says before it is let go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from p2prl.core import messages as m
from p2prl.errors import UpgradeNeeded
from p2prl.net.keys import new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Network
from p2prl.nodes.member import Member
from p2prl.nodes.outgoing import Outgoing
from p2prl.nodes.report import Joined, Left, MemberStatus
from p2prl.nodes.wiring import MemberConfig
from p2prl.wire import frames
from tests import kit
from tests.conftest import run_until
from tests.unit.spool_kit import bundle, frames_of, member_config, run_spec

HOST = new_key_pair()


class Broker:
    """Welcomes whoever comes twice, as if an older Hello of the same connection were answered too.

    Attributes:
        continued: each Hello of a boot whose books go on in another's, with its connection; not answered by itself.
        fresh: connections of the others.
    """

    def __init__(self, loop: Loop, base: int) -> None:
        self.base = base
        self.network = Network(loop)
        self._control = self.network.server("router", [f"tcp://127.0.0.1:{base}"], HOST)
        loop.on_readable(self._control, self._on_control)
        self.fresh: list[bytes] = []
        self.continued: list[tuple[bytes, m.Hello]] = []
        self.run = run_spec()

    def _on_control(self) -> None:
        while (received := self._control.receive()) is not None:
            hello = frames.decode_to_broker(received.frames[0])
            if not isinstance(hello, m.Hello):
                continue
            if hello.continues:
                self.continued.append((received.peer, hello))
                continue
            self.fresh.append(received.peer)
            for _ in range(2):
                self.welcome(received.peer)

    def welcome(self, route: bytes) -> None:
        message = m.Welcome(
            run=self.run, host_name="h", version="0", term=1, shards=[], weights_version=0,
            weights_port=self.base + 2,
        )  # fmt: skip
        self._control.send([frames.encode(message)], route)


class Said:
    """What a member tells the person in front of it."""

    def __init__(self) -> None:
        self.welcomes: list[Joined] = []

    def log(self, level: str, source: str, text: str) -> None:
        """Not looked at."""

    def joined(self, info: Joined) -> None:
        """It goes on."""
        self.welcomes.append(info)

    def status(self, status: MemberStatus) -> None:
        """Not looked at."""

    def left(self, info: Left) -> None:
        """Not looked at."""


@pytest.fixture(name="loop")
def _loop() -> Loop:
    return Loop()


@pytest.fixture(name="broker")
def _broker(loop: Loop) -> Iterator[Broker]:
    broker = Broker(loop, kit.free_base(0))
    yield broker
    broker.network.close()


def config_for(broker: Broker, folder: Path) -> MemberConfig:
    """A host's own member, so that it remembers nothing and looks for nobody; without players."""
    return msgspec.structs.replace(
        member_config(folder, 10_000),
        host="127.0.0.1",
        base_port=broker.base,
        server_key=HOST.public,
        keys=new_key_pair(),
        players=0,
        own=True,
    )


def leave_bundles(config: MemberConfig, loop: Loop) -> str:
    """Play a bundle and end without a verdict on it; the boot that did."""
    network = Network()
    out = Outgoing(config, loop, network, lambda: 0, lambda: None, lambda level, source, text: None)
    out.begin(run_spec())
    out.took(bundle(), *frames_of(0))
    assert out.keep() == (1, 0)
    network.close()
    return out.boot_id


def test_a_second_welcome_is_no_answer_to_whose_books_go_on(
    tmp_path: Path, loop: Loop, broker: Broker
) -> None:
    """Else the shards' verdicts on what is in the spool would come before the host knows whose books they belong to."""
    config = config_for(broker, tmp_path / "spool")
    before = leave_bundles(config, loop)
    said = Said()
    member = Member(config, loop, said)
    try:
        # It says so again: nothing that came meanwhile was taken for an answer.
        run_until(loop, lambda: len(broker.continued) >= 2)
        assert said.welcomes == []
        assert {hello.continues for _, hello in broker.continued} == {before}
        routes = {route for route, _ in broker.continued}
        assert len(routes) == 1
        assert not routes & set(broker.fresh)
        broker.welcome(broker.continued[-1][0])
        run_until(loop, lambda: said.welcomes)
        assert member.outgoing.books().pending == 1
    finally:
        member.close()


@pytest.mark.parametrize("codecs", [("zip",), ("raw",), ("lz4", "zip"), ()])
def test_a_host_that_reads_none_of_our_bundles_is_left_at_its_welcome(
    tmp_path: Path, loop: Loop, broker: Broker, codecs: tuple[str, ...]
) -> None:
    """Else each bundle would be played, sent and refused."""
    broker.run = msgspec.structs.replace(run_spec(), codecs=codecs)
    member = Member(config_for(broker, tmp_path / "spool"), loop, Said())
    loop.after(10, lambda: loop.stop(99))
    with pytest.raises(
        UpgradeNeeded,
        match=r"bundles as (zip|raw|lz4, zip|nothing), but not as (raw|lz4|raw or lz4), .*upgrade",
    ):
        member.run()


def test_a_host_that_reads_formats_that_we_do_not_know_is_welcome(
    tmp_path: Path, loop: Loop, broker: Broker
) -> None:
    broker.run = msgspec.structs.replace(run_spec(), codecs=("zip", "raw", "lz4"))
    said = Said()
    member = Member(config_for(broker, tmp_path / "spool"), loop, said)
    try:
        run_until(loop, lambda: said.welcomes)
    finally:
        member.close()
