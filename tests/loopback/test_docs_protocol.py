"""The table "What is refused" of docs/protocol.md, row by row, against a real host: counted where, kept or closed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from p2prl.core import messages as m
from p2prl.net.keys import new_key_pair
from p2prl.net.ports import block_ports
from p2prl.wire import frames
from tests import kit
from tests.conftest import wait_until


@dataclass(frozen=True)
class Place:
    """Where the host is, and whom to ask how it fares."""

    base: int
    folder: Path

    def refused(self, counts: dict[str, int], *, by_shard: bool = False) -> None:
        """Wait until the host shows exactly these refusals: at control and enrol, or of shard 0."""

        def look() -> bool:
            shown = kit.status(self.folder, f"127.0.0.1:{self.base}")
            return bool(
                counts == (shown["shards"][0]["refused_reasons"] if by_shard else shown["refused_frames"])
            )

        wait_until(look, 10, f"the refusals {counts}")


class Stranger:
    """A bare socket that says whatever it likes, and sees whether it is still connected."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, port: int, key: str) -> None:
        self.socket = context.socket(kind)
        self.socket.linger = 0
        self._events = self.socket.get_monitor_socket(addr=f"inproc://{secrets.token_hex(8)}")
        if key:
            keys = new_key_pair()
            self.socket.curve_publickey, self.socket.curve_secretkey = (
                keys.public.encode(),
                keys.secret.encode(),
            )
            self.socket.curve_serverkey = key.encode()
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self._seen: list[int] = []

    def say(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts)

    def answer(self) -> bytes:
        assert self.socket.poll(5000), "no answer"
        return self.socket.recv()

    def saw(self, event: zmq.Event) -> bool:
        while self._events.poll(0):
            self._seen.append(recv_monitor_message(self._events)["event"])
        return event in self._seen


@contextmanager
def _strangers() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(linger=0)


def _card(stranger: Stranger) -> m.EnrolCard:
    stranger.say(frames.encode(m.EnrolAsk(protocol=m.PROTOCOL, version="0", node_key="")))
    card = frames.decode_enrol(stranger.answer())
    assert isinstance(card, m.EnrolCard)
    return card


def test_each_row_of_the_table(tmp_path: Path) -> None:
    place = Place(kit.free_base(), tmp_path)
    control, enrol, _, publish, push, samples, *_ = block_ports(place.base, 2)
    with kit.host(tmp_path, "chain", "--players", "0", port=place.base) as host, _strangers() as context:
        host.wait_for("started")
        card = _card(Stranger(context, zmq.DEALER, enrol, ""))
        _check_enrol(place, Stranger(context, zmq.DEALER, enrol, ""))
        _check_control(place, Stranger(context, zmq.DEALER, control, card.server_key))
        _check_sessions(place, Stranger(context, zmq.PUSH, push, card.server_key), card.run_id)
        _check_samples(place, Stranger(context, zmq.DEALER, samples, card.server_key))
        plain = Stranger(context, zmq.DEALER, control, "")
        wait_until(lambda: plain.saw(zmq.Event.DISCONNECTED), 10, "the end of a connection without CURVE")
        assert not plain.saw(zmq.Event.HANDSHAKE_SUCCEEDED)
        _check_publish(place, Stranger(context, zmq.PUSH, publish, card.server_key))
        assert host.end() == 0
    assert "died" not in host.stderr


def _check_enrol(place: Place, stranger: Stranger) -> None:
    stranger.say(b"junk")
    stranger.say(b"x", b"y")
    stranger.say(bytes(frames.MAX_ENROL_BYTES + 1))
    stranger.say(frames.encode(m.EnrolAsk(protocol=m.PROTOCOL + 1, version="9", node_key="")))
    refusal = frames.decode_enrol(stranger.answer())
    assert isinstance(refusal, m.Refusal)
    assert refusal.reason == "protocol"
    place.refused({"malformed": 2, "oversize": 1, "protocol": 1})
    assert not stranger.saw(zmq.Event.DISCONNECTED)
    stranger.say(bytes(10_000))
    wait_until(lambda: stranger.saw(zmq.Event.DISCONNECTED), 10, "the end of a connection with a huge part")


def _check_control(place: Place, stranger: Stranger) -> None:
    stranger.say(b"junk")
    stranger.say(bytes(frames.MAX_TO_BROKER_BYTES + 1))
    stranger.say(frames.encode(m.Fault(kind="warning", text="who, me?")))
    stranger.say(frames.encode(m.StopAsk(reason="because")))
    stranger.say(frames.encode(m.TrainerReport(state="training")))
    stranger.say(frames.encode(m.Heartbeat(boot_id="b", state="working", steps=-1)))
    stranger.say(frames.encode(m.Heartbeat(boot_id="b", state="working")))
    assert isinstance(frames.decode_from_broker(stranger.answer()), m.HelloAgain)
    place.refused({"malformed": 4, "oversize": 2, "protocol": 1, "unknown_node": 1, "not_permitted": 2})
    assert not stranger.saw(zmq.Event.DISCONNECTED)
    stranger.say(bytes(1_000_000))
    wait_until(lambda: stranger.saw(zmq.Event.DISCONNECTED), 10, "the end of a connection with a huge part")


def _check_publish(place: Place, stranger: Stranger) -> None:
    def counted() -> bool:
        shown = kit.status(place.folder, f"127.0.0.1:{place.base}")
        return bool(shown["refused_frames"]["not_permitted"] > 2)

    wait_until(lambda: stranger.saw(zmq.Event.HANDSHAKE_FAILED_AUTH), 10, "the end of a stranger's handshake")
    wait_until(counted, 10, "the stranger is counted")
    assert not stranger.saw(zmq.Event.HANDSHAKE_SUCCEEDED)


def _check_sessions(place: Place, stranger: Stranger, run_id: str) -> None:
    stranger.say(b"junk")
    stranger.say(frames.encode(m.Delivery(run_id="another", boot_id="b", seq=0)), b"", b"")
    stranger.say(frames.encode(m.Delivery(run_id=run_id, boot_id="b", seq=1)), b"", b"")
    place.refused({"malformed": 2, "wrong_run": 1}, by_shard=True)
    assert not stranger.saw(zmq.Event.DISCONNECTED)


def _check_samples(place: Place, stranger: Stranger) -> None:
    stranger.say(frames.encode(m.SampleAsk(ask=1, count=1)))
    wait_until(lambda: stranger.saw(zmq.Event.HANDSHAKE_FAILED_AUTH), 10, "the end of a stranger's handshake")
    place.refused({"malformed": 2, "wrong_run": 1, "not_permitted": 1}, by_shard=True)
    assert not stranger.saw(zmq.Event.HANDSHAKE_SUCCEEDED)


def test_the_ports_are_those_of_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    for words in (
        "| base |",
        "| base + 1 |",
        "| base + 2 |",
        "| base + 3 |",
        "| base + 10 + 2i |",
        "| base + 11 + 2i |",
    ):
        assert words in page
    assert block_ports(100, 2) == [100, 101, 102, 103, 110, 111, 112, 113, 180]
