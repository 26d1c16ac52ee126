"""A member's sockets to the shards, over real sockets: who is dialled, and that nobody is cut off for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from p2prl.core.messages import ShardAddress
from p2prl.net.keys import new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Network, Socket
from p2prl.nodes.pushes import Pushes
from tests.conftest import run_until
from tests.unit.spool_kit import member_config

HOST, MEMBER = new_key_pair(), new_key_pair()


class Place:
    """Shards that listen, and a member's pushes; `heard` is what the shard listening there got, in order."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.near, self.far = Network(self.loop, lambda key: key == MEMBER.public), Network()
        self.heard: dict[int, list[bytes]] = {}
        self.servers: dict[int, Socket] = {}
        self.pushes = self.pushes_to("127.0.0.1", folder)

    def pushes_to(self, host: str, folder: Path) -> Pushes:
        config = msgspec.structs.replace(
            member_config(folder, 0), host=host, keys=MEMBER, server_key=HOST.public
        )
        return Pushes(config, self.loop, self.far)

    def shard(self) -> int:
        """Its port."""
        server = self.near.server("pull", ["tcp://127.0.0.1:*"], HOST)
        port = int(server.bound.rpartition(":")[2])
        heard = self.heard[port] = []

        def take() -> None:
            while (received := server.receive()) is not None:
                heard.append(bytes(received.frames[0]))

        self.loop.on_readable(server, take)
        self.servers[port] = server
        return port

    def listed(self, *ports: int) -> None:
        self.pushes.listed(
            [ShardAddress(index=index, push_port=port, sample_port=1) for index, port in enumerate(ports)]
        )

    def until_heard(self, port: int, *parts: bytes) -> None:
        run_until(self.loop, lambda: self.heard[port] == list(parts))


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.far.close()
    place.near.close()


def test_each_shard_gets_what_is_meant_for_it_and_one_that_moved_is_dialled_there(place: Place) -> None:
    first, second = place.shard(), place.shard()
    assert not place.pushes.send(0, [b"nobody is listed"])
    place.listed(first, second)
    assert place.pushes.send(0, [b"a"])
    assert place.pushes.send(1, [b"b"])
    assert not place.pushes.send(2, [b"none of them"])
    place.until_heard(first, b"a")
    place.until_heard(second, b"b")
    third = place.shard()
    place.listed(first, third)
    assert place.pushes.send(1, [b"c"])
    place.until_heard(third, b"c")
    assert place.heard[second] == [b"b"]


def test_a_shard_that_is_listed_again_is_not_dialled_again(place: Place) -> None:
    """What waits in its socket would be lost, and would have to be sent twice."""
    port = place.shard()
    place.listed(port)
    known = place.pushes._sockets[0]
    for number in range(5):  # nothing reads meanwhile
        assert place.pushes.send(0, [b"%d" % number])
        place.listed(port)
    assert place.pushes._sockets[0] is known
    place.until_heard(port, *(b"%d" % number for number in range(5)))


def test_who_waits_is_called_once_when_the_shard_takes_messages_again(place: Place) -> None:
    port = place.shard()
    called: list[int] = []
    place.pushes.when_writable(0, called.append)  # none is listed: nothing to wait for
    place.listed(port)
    place.pushes.when_writable(0, called.append)
    run_until(place.loop, lambda: called)
    assert place.pushes.send(0, [b"a"])
    place.until_heard(port, b"a")
    assert called == [0]


def test_at_another_address_all_are_dialled_anew_once_they_are_listed(place: Place, tmp_path: Path) -> None:
    port = place.shard()
    place.pushes = place.pushes_to("192.0.2.1", tmp_path)
    place.listed(port)
    lost = place.pushes._sockets[0][1]
    place.pushes.redial("127.0.0.1")
    assert lost.raw.closed
    assert not place.pushes.send(0, [b"a"])
    place.listed(port)
    assert place.pushes.send(0, [b"b"])
    place.until_heard(port, b"b")
