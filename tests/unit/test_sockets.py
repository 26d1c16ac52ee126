"""net/sockets.py with real sockets on loopback: who gets in, who is told of, and who is cut."""

from __future__ import annotations

import socket as plain_sockets
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import zmq

from p2prl.errors import P2prlError
from p2prl.net import sockets as sockets_module
from p2prl.net.keys import KeyPair, new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Kind, Limits, Network, PortTaken, Socket
from p2prl.net.zap import Rejected
from tests.conftest import run_until

SERVER, GOOD, OTHER = new_key_pair(), new_key_pair(), new_key_pair()
_PEERS: dict[str, Kind] = {"router": "dealer", "pull": "push", "xpub": "sub"}


class Wire:
    """A process that listens, and one that dials."""

    def __init__(self) -> None:
        #: How far the loop's clock is ahead.
        self.ahead_s = 0.0
        self.loop = Loop(lambda: time.monotonic() + self.ahead_s)
        self.known: dict[str, bool] = {GOOD.public: True}
        self.rejected: list[Rejected] = []
        self.near = Network(self.loop, self.known.get, self.rejected.append)
        self.far = Network()
        self.monitored: list[Socket] = []

    def monitor(self, client: Socket) -> zmq.Socket[bytes]:
        """Tells when `client` loses its connection."""
        self.monitored.append(client)
        return client.raw.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def close(self) -> None:
        for client in self.monitored:
            pair = client.raw.get_monitor_socket()
            client.raw.disable_monitor()
            pair.close(0)
        self.near.close()
        self.far.close()

    def server(self, kind: Kind = "router", **more: object) -> Socket:
        return self.near.server(kind, ["tcp://127.0.0.1:*"], SERVER, name=kind, **more)  # type: ignore[arg-type]

    def dial(
        self, server: Socket, keys: KeyPair | None = GOOD, server_key: str | None = SERVER.public
    ) -> Socket:
        return self.far.client(_PEERS[server.kind], server.bound, keys, server_key, Limits(linger_ms=0))

    def until(self, condition: Callable[[], object], timeout: float = 10.0) -> None:
        run_until(self.loop, condition, timeout, lambda: f"rejected: {self.rejected}")

    def heard(self, server: Socket) -> tuple[str, bytes] | None:
        """The sender and the last frame of the next message."""
        received = server.receive()
        return (received.user, bytes(received.frames[-1])) if received else None


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


# --- who gets in


def test_a_known_key_gets_in_and_its_messages_carry_it(wire: Wire) -> None:
    server = wire.server()
    wire.dial(server).send([b"hello"])
    wire.until(lambda: wire.heard(server) == (GOOD.public, b"hello"))
    assert wire.rejected == []


def test_a_refused_key_is_told_of(wire: Wire) -> None:
    wire.known[OTHER.public] = False
    server = wire.server()
    wire.dial(server, OTHER).send([b"hello"])
    wire.until(lambda: wire.rejected)
    assert wire.rejected == [Rejected("router", OTHER.public, "not_admitted", "127.0.0.1")]
    assert wire.heard(server) is None


def test_a_key_that_is_not_known_yet_gets_in_once_it_is(wire: Wire) -> None:
    server = wire.server("pull")
    pusher = wire.dial(server, OTHER)
    wire.until(lambda: wire.near.held == 1)
    pusher.send([b"early"])
    assert wire.heard(server) is None
    wire.known[OTHER.public] = True
    wire.near.reconsider()
    wire.until(lambda: wire.heard(server) == (OTHER.public, b"early"))
    assert wire.rejected == []


def test_the_timer_asks_again_too(wire: Wire) -> None:
    server = wire.server("pull")
    wire.dial(server, OTHER).send([b"early"])
    wire.until(lambda: wire.near.held == 1)
    wire.known[OTHER.public] = True
    wire.until(lambda: wire.heard(server) == (OTHER.public, b"early"))


def test_who_was_not_known_in_time_dials_again_by_itself(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain refusal would be for good: libzmq does not dial again after one."""
    monkeypatch.setattr(sockets_module, "_HANDSHAKE_MS", 400)
    wire.near._desk = sockets_module.ZapDesk(hold_s=0.0)
    server = wire.server()
    wire.dial(server, OTHER).send([b"late"])
    wire.until(lambda: len(wire.rejected) == 2)
    wire.known[OTHER.public] = True
    wire.until(lambda: wire.heard(server) == (OTHER.public, b"late"))
    assert {rejected.reason for rejected in wire.rejected} == {"not_admitted"}


def test_each_server_has_its_own_list(wire: Wire) -> None:
    first = wire.server("pull", admits=lambda key: key == OTHER.public)
    second = wire.server("pull")
    pushers = [wire.dial(server, keys) for server in (first, second) for keys in (GOOD, OTHER)]
    wire.until(lambda: len(wire.rejected) == 1 and wire.near.held == 1)
    assert wire.rejected[0].key == GOOD.public
    pushers[1].send([b"hello"])
    wire.until(lambda: wire.heard(first) == (OTHER.public, b"hello"))


# --- handshakes that break


def test_a_peer_without_curve_is_told_of(wire: Wire) -> None:
    """It sees as well that the two do not fit; if it hangs up first, libzmq cannot say why."""
    server = wire.server("pull")
    wire.dial(server, None, None)
    wire.until(lambda: wire.rejected)
    assert all(rejected in ROUGH for rejected in wire.rejected)
    assert wire.heard(server) is None


ROUGH = (Rejected("pull", "", "no_curve", ""), Rejected("pull", "", "bad_handshake", ""))
_NULL = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_JUNK = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x04\x20" + bytes(40)


@pytest.mark.parametrize(
    ("greeting", "reason"), [(_NULL, "no_curve"), (_JUNK, "bad_handshake")], ids=["plain", "junk"]
)
def test_nonsense_by_hand_is_told_of(wire: Wire, greeting: bytes, reason: str) -> None:
    server = wire.server("pull")
    with plain_sockets.create_connection(("127.0.0.1", int(server.bound.rpartition(":")[2]))) as rough:
        rough.sendall(greeting)
        wire.until(lambda: wire.rejected)
    assert wire.rejected == [Rejected("pull", "", reason, "")]


def test_a_peer_that_expects_another_server_is_told_of(wire: Wire) -> None:
    server = wire.server("pull")
    wire.dial(server, GOOD, OTHER.public)
    wire.until(lambda: len(wire.rejected) >= 2)
    assert Counter(wire.rejected).keys() == {Rejected("pull", "", "bad_handshake", "")}


def test_thousands_of_broken_handshakes_stop_nobody(wire: Wire) -> None:
    """More than a monitor's queue holds, while the loop does not look: libzmq's thread must not wait for us."""
    server = wire.server("pull")
    place = ("127.0.0.1", int(server.bound.rpartition(":")[2]))
    for _ in range(2500):
        with plain_sockets.create_connection(place) as rough:
            rough.sendall(_NULL)
            rough.recv(64)
    honest = wire.dial(server)
    honest.send([b"still here"])
    wire.until(lambda: wire.heard(server) == (GOOD.public, b"still here"))
    wire.until(lambda: len(wire.rejected) == 2500)


# --- cutting live connections


@pytest.mark.parametrize("kind", ["router", "pull", "xpub"])
def test_reopened_a_server_has_cut_everybody_and_only_the_admitted_come_back(wire: Wire, kind: Kind) -> None:
    wire.known[OTHER.public] = True
    server = wire.server(kind)
    place = server.bound
    good, other = wire.dial(server, GOOD), wire.dial(server, OTHER)
    talk(wire, server, {good, other})
    lost = [wire.monitor(client) for client in (good, other)]
    wire.known[OTHER.public] = False
    wire.near.reopen(server)
    wire.until(lambda: (server.receive(), all(raw.poll(0) for raw in lost))[1])
    wire.until(lambda: wire.rejected)
    assert wire.rejected == [Rejected(kind, OTHER.public, "not_admitted", "127.0.0.1")]
    while kind == "xpub" and other.receive() is not None:
        pass  # broadcasts from before
    talk(wire, server, {good})
    assert server.bound == place
    assert kind != "xpub" or other.receive() is None


def talk(wire: Wire, server: Socket, clients: set[Socket]) -> None:
    """Wait until a new message passed between the server and each of these clients, and drain the rest."""
    waiting = set(clients)

    def passed() -> bool:
        if server.kind == "xpub":
            server.receive()
            server.send([b"news"])
            waiting.difference_update({client for client in waiting if client.receive() is not None})
            return not waiting
        for number, client in enumerate(clients):
            if client in waiting:
                client.send([b"%d" % number])
        while (received := server.receive()) is not None:
            number = int(bytes(received.frames[-1]))
            waiting.discard(list(clients)[number])
        return not waiting

    wire.until(passed)


def test_what_was_received_before_the_cut_is_not_lost_and_nothing_comes_after_it(wire: Wire) -> None:
    wire.known[OTHER.public] = True
    server = wire.server("pull")
    other = wire.dial(server, OTHER)
    wire.until(lambda: other.send([b"0"]))
    assert all(other.send([b"%d" % number]) for number in range(1, 10))
    wire.until(lambda: server.wait(0.0))
    wire.known[OTHER.public] = False
    wire.near.reopen(server)
    heard: list[bytes] = []

    def refused() -> bool:
        other.send([b"after"])
        while (message := wire.heard(server)) is not None:
            heard.append(message[1])
        return bool(wire.rejected)

    wire.until(refused)
    before = [text for text in heard if text != b"after"]
    assert before == [b"%d" % number for number in range(len(before))]


def test_a_port_that_somebody_took_meanwhile_is_tried_again(wire: Wire) -> None:
    server = wire.server("pull")
    host, port = "127.0.0.1", int(server.bound.rpartition(":")[2])
    server.raw.unbind(server.endpoints[0])
    server.unbound, server.endpoints = server.endpoints, []
    with listening(wire, host, port):
        assert not wire.near._bind_again(server)
        wire.near._keep_binding(server, wire.loop)
        with pytest.raises(PortTaken):
            wire.near._bind_again(server, last=True)
    wire.until(lambda: not server.unbound)
    wire.dial(server).send([b"hello"])
    wire.until(lambda: wire.heard(server) == (GOOD.public, b"hello"))


def listening(wire: Wire, host: str, port: int) -> plain_sockets.socket:
    """Another program on this port, as soon as libzmq let go of it."""
    found: list[plain_sockets.socket] = []

    def take() -> bool:
        program = plain_sockets.socket()
        program.setsockopt(plain_sockets.SOL_SOCKET, plain_sockets.SO_REUSEADDR, 1)
        try:
            program.bind((host, port))
            program.listen(1)
        except OSError:
            program.close()
            return False
        found.append(program)
        return True

    wire.until(take)
    return found[0]


def test_cuts_come_at_most_once_in_a_while(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or strangers that get themselves barred, one after the other, would have everybody cut without end."""
    monkeypatch.setattr(sockets_module, "_REOPEN_S", 300.0)
    server = wire.server("router")
    client = wire.dial(server)
    talk(wire, server, {client})
    lost = wire.monitor(client)

    def cut() -> int:
        count = 0
        server.receive()  # as a loop does all the time: what is not read keeps its connection
        while lost.poll(0):
            lost.recv_multipart()
            count += 1
        return count

    for _ in range(20):
        wire.near.reopen(server)
    later = wire.loop.now() + 200.0
    assert (
        sum(due > later for due, _, _ in wire.loop._timers) == 1
    )  # the first was at once, one is for all others
    wire.until(cut)
    talk(wire, server, {client})
    assert cut() == 0
    wire.ahead_s = 300.0
    wire.until(cut)
    talk(wire, server, {client})
    wire.ahead_s = 900.0
    talk(wire, server, {client})
    assert cut() == 0
    assert len(server.endpoints) == 1


def test_a_network_without_a_loop_has_nothing_to_reopen(wire: Wire) -> None:
    with pytest.raises(P2prlError, match="without a loop"):
        wire.far.reopen(wire.dial(wire.server()))


def test_a_closed_server_is_forgotten(wire: Wire) -> None:
    server = wire.server("pull")
    wire.dial(server, None, None)
    wire.until(lambda: wire.rejected)
    server.close()
    server.close()
    assert server.closed
    again = wire.server("pull")
    wire.dial(again).send([b"hello"])
    wire.until(lambda: wire.heard(again) == (GOOD.public, b"hello"))


def test_a_socket_that_rests_is_not_looked_at_for_a_moment(wire: Wire) -> None:
    server, rest_s = wire.server(), 0.2
    heard: list[float] = []

    def take() -> None:
        while server.receive() is not None:
            heard.append(wire.loop.now())
        wire.loop.rest(server, rest_s)

    wire.loop.on_readable(server, take)
    client = wire.dial(server)
    client.send([b"1"])
    wire.until(lambda: heard)
    client.send([b"2"])
    wire.until(lambda: len(heard) == 2)
    assert heard[1] - heard[0] >= rest_s


def test_a_socket_may_be_closed_while_it_rests(wire: Wire) -> None:
    """It is not looked at again: a poller takes a closed one for standard input, and would not wait any more."""
    server = wire.server()
    over: list[bool] = []
    wire.loop.on_readable(server, lambda: None)
    wire.loop.rest(server, 0.0)
    server.close()
    wire.loop.after(0.0, lambda: over.append(True))
    wire.until(lambda: over)
    assert server.raw not in wire.loop._poller


def test_what_is_passed_on_arrives_as_it_came_whole_or_in_part(wire: Wire) -> None:
    server = wire.server()
    client = wire.dial(server)
    client.send([b"head", bytes(range(256)) * 100, b""])
    wire.until(lambda: server.wait(0.0))
    came = server.receive()
    assert came is not None
    assert server.receive() is None
    whole, part = came.frames[1], memoryview(came.frames[1])[256:512]
    for _ in range(2):  # sent twice, as what gets no verdict is
        assert server.send([b"again", whole, part, came.frames[2]], came.peer)
        assert client.wait(10.0)
        back = client.receive()
        assert back is not None
        assert [bytes(frame) for frame in back.frames] == [b"again", bytes(whole), bytes(range(256)), b""]
