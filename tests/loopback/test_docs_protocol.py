"""The table "What is refused" of docs/protocol.md, row by row, against a real host: counted where, kept or closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from p2prl.core import messages as m
from p2prl.net.keys import new_key_pair
from p2prl.net.ports import block_ports
from p2prl.wire import frames
from tests import kit
from tests.conftest import wait_until

_PORT = kit.BASE_PORT
_CONTROL, _ENROL, _, _PUSH, _SAMPLES, *_ = block_ports(_PORT, 2)


class Stranger:
    """A bare socket that says whatever it likes, and sees whether it is still connected."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, port: int, key: str) -> None:
        self.socket = context.socket(kind)
        self.socket.linger = 0
        self._events = self.socket.get_monitor_socket()
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


def _refused(tmp_path: Path, counts: dict[str, int], shard: dict[str, int] | None = None) -> None:
    """Wait until the host shows exactly these counts at control and enrol, or in shard 0."""

    def look() -> bool:
        shown = kit.status(tmp_path, f"127.0.0.1:{_PORT}")
        there = shown["refused_frames"] if shard is None else shown["shards"][0]["refused_reasons"]
        return bool(there == (counts if shard is None else shard))

    wait_until(look, 10, f"the refusals {counts if shard is None else shard}")


def _card(stranger: Stranger) -> m.EnrolCard:
    stranger.say(frames.encode(m.EnrolAsk(protocol=m.PROTOCOL, version="0", node_key="")))
    card = frames.decode_enrol(stranger.answer())
    assert isinstance(card, m.EnrolCard)
    return card


def test_each_row_of_the_table(tmp_path: Path) -> None:
    with kit.host(tmp_path, "chain", "--players", "0") as host, _strangers() as context:
        host.wait_for("started")
        card = _card(Stranger(context, zmq.DEALER, _ENROL, ""))
        _check_enrol(tmp_path, Stranger(context, zmq.DEALER, _ENROL, ""))
        _check_control(tmp_path, Stranger(context, zmq.DEALER, _CONTROL, card.server_key))
        _check_shard(tmp_path, context, card)
        plain = Stranger(context, zmq.DEALER, _CONTROL, "")
        wait_until(lambda: plain.saw(zmq.Event.DISCONNECTED), 10, "the end of a connection without CURVE")
        assert not plain.saw(zmq.Event.HANDSHAKE_SUCCEEDED)
        assert len(host.children("shard")) == 2
        assert host.end() == 0
    assert "died" not in host.stderr


def _check_enrol(tmp_path: Path, stranger: Stranger) -> None:
    stranger.say(b"junk")
    stranger.say(b"x", b"y")
    stranger.say(bytes(frames.MAX_ENROL_BYTES + 1))
    stranger.say(frames.encode(m.EnrolAsk(protocol=m.PROTOCOL + 1, version="9", node_key="")))
    refusal = frames.decode_enrol(stranger.answer())
    assert isinstance(refusal, m.Refusal)
    assert refusal.reason == "protocol"
    _refused(tmp_path, {"malformed": 2, "oversize": 1, "protocol": 1})
    assert not stranger.saw(zmq.Event.DISCONNECTED)
    stranger.say(bytes(10_000))
    wait_until(lambda: stranger.saw(zmq.Event.DISCONNECTED), 10, "the end of a connection with a huge part")


def _check_control(tmp_path: Path, stranger: Stranger) -> None:
    stranger.say(b"junk")
    stranger.say(bytes(frames.MAX_TO_BROKER_BYTES + 1))
    stranger.say(frames.encode(m.Fault(kind="warning", text="who, me?")))
    stranger.say(frames.encode(m.StopAsk(reason="because")))
    stranger.say(frames.encode(m.Publish(version=1)), b"", b"")
    stranger.say(frames.encode(m.Heartbeat(boot_id="b", state="working")))
    assert isinstance(frames.decode_from_broker(stranger.answer()), m.HelloAgain)
    _refused(
        tmp_path,
        {"malformed": 3, "oversize": 2, "protocol": 1, "unknown_node": 1, "not_permitted": 2},
    )
    assert not stranger.saw(zmq.Event.DISCONNECTED)


def _check_shard(tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]], card: m.EnrolCard) -> None:
    pusher = Stranger(context, zmq.PUSH, _PUSH, card.server_key)
    pusher.say(b"junk")
    pusher.say(frames.encode(m.Delivery(run_id="another", boot_id="b", seq=0)), b"", b"")
    pusher.say(frames.encode(m.Delivery(run_id=card.run_id, boot_id="b", seq=1)), b"", b"")
    sampler = Stranger(context, zmq.DEALER, _SAMPLES, card.server_key)
    sampler.say(frames.encode(m.SampleAsk(ask=1, count=1)))
    _refused(tmp_path, {}, shard={"malformed": 2, "wrong_run": 1, "not_permitted": 1})
    assert not pusher.saw(zmq.Event.DISCONNECTED)
    assert not sampler.saw(zmq.Event.DISCONNECTED)


def test_the_ports_are_those_of_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    for words in ("| base |", "| base + 1 |", "| base + 2 |", "| base + 10 + 2i |", "| base + 11 + 2i |"):
        assert words in page
    assert block_ports(100, 2) == [100, 101, 102, 110, 111, 112, 113, 180]
