"""The socket factory: every option is set here, before bind or connect. The only place that makes ZeroMQ sockets.

All sockets but enrol have CURVE. A `Network` is one process's context and its ZAP handler (zap.py), which decides
which keys may connect, and hands each message's `User-Id` (the peer's key, in Z85) up with it: refusing a key does not
cut its live connection, so what a message may do is decided per message. `reopen` does cut.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import zmq

from p2prl.errors import LocalProtocolError, P2prlError
from p2prl.net.handshakes import HandshakeWatch
from p2prl.net.key_pair import KeyPair
from p2prl.net.received import Frame as Frame
from p2prl.net.received import Received as Received
from p2prl.net.received import as_came, text_of
from p2prl.net.zap import Admits, Answer, Rejected, ZapDesk

if TYPE_CHECKING:
    from p2prl.net.loop import Loop, Timer

_TYPES = {
    "router": zmq.ROUTER,
    "dealer": zmq.DEALER,
    "push": zmq.PUSH,
    "pull": zmq.PULL,
    "xpub": zmq.XPUB,
    "sub": zmq.SUB,
    "pair": zmq.PAIR,
}
Kind = Literal["router", "dealer", "push", "pull", "xpub", "sub", "pair"]

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
#: A peer that sends nothing, not even a heartbeat, for this long is disconnected (half-open links).
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 5_000, 15_000
_RECONNECT_MS, _RECONNECT_MAX_MS = 100, 5_000
#: A server ends a handshake that took longer, a peer's that waits for ZAP too; longer than zap.HOLD_S.
_HANDSHAKE_MS = 10_000
#: While zap.py holds somebody; between two looks at broken handshakes.
_RECONSIDER_S, _BROKEN_S = 0.25, 0.25
#: A port that was let go may be taken for a moment still: tried again so often, for so long.
_BIND_AGAIN_S, _BIND_GIVE_UP_S = 0.01, 5.0
#: Between two cuts of one server: on an open host strangers could else have everybody cut without end.
_REOPEN_S = 0.5
#: Plain numbers: for each message an enum's `|` and `&` cost as much as the message.
_NOW, _MORE, _READABLE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.POLLIN)


class PortTaken(P2prlError):
    """Somebody else listens on the port."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one socket: largest message part in bytes, and how many messages each peer's queues hold."""

    message_bytes: int = 1_000_000
    send_messages: int = 1000
    receive_messages: int = 1000
    linger_ms: int = 200


class Socket:
    """One ZeroMQ socket that never blocks."""

    def __init__(self, raw: zmq.Socket[bytes], kind: Kind) -> None:
        self.raw = raw
        self.kind = kind
        #: ZAP names the keys of those who connect.
        self.names_peers = False
        #: A message came, and another may be there: to ask costs less than to try, which raises if there is none.
        self._asks, self._look = False, [(raw, _READABLE)]
        #: Where a server listens, as libzmq writes it; where it is about to listen again.
        self.endpoints: list[str] = []
        self.unbound: list[str] = []
        #: When `Network.reopen` cut its connections last, or is to do so.
        self.reopened = -1e9
        self._closed = False
        self._before_close: Callable[[], None] | None = None

    def send(self, frames: Sequence[Frame], peer: bytes = b"") -> bool:
        """Queue one message. False if it was not queued: the queue is full, or the peer is gone."""
        send = self.raw.send
        try:
            if self.kind == "router":
                send(peer, _MORE, False)
            for frame in frames[:-1]:
                send(as_came(frame), _MORE, False)
            send(as_came(frames[-1]), _NOW, False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno in (errno.EHOSTUNREACH, zmq.EHOSTUNREACH):
                return False
            raise
        return True

    def receive(self) -> Received | None:
        """The next message, or None if nothing is waiting."""
        raw = self.raw
        if self._asks and not zmq.zmq_poll(self._look, 0):
            self._asks = False
            return None
        try:
            part = raw.recv(_NOW, False)
        except zmq.Again:
            return None
        self._asks, parts = True, [part]
        while part.more:
            part = raw.recv(_NOW, False)
            parts.append(part)
        peer = parts.pop(0).bytes if self.kind == "router" else b""
        user = text_of(parts[0], "User-Id") if self.names_peers and parts else ""
        return Received(peer, user, parts)

    def wait(self, timeout_s: float) -> bool:
        """Block until something can be received; for short dialogues outside a loop."""
        return bool(self.raw.poll(int(timeout_s * 1000), zmq.POLLIN))

    @property
    def bound(self) -> str:
        """The endpoint that was bound last, with its real port."""
        return cast(bytes, self.raw.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def connect(self, endpoint: str) -> None:
        """Dial one more endpoint (libzmq keeps dialling by itself)."""
        self.raw.connect(endpoint)

    def before_close(self, call: Callable[[], None]) -> None:
        """Call this once, when the socket is to be closed."""
        self._before_close = call

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def close(self) -> None:
        """Close; what is still queued is kept for the linger time. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._before_close is not None:
            self._before_close()
        self.raw.close()


class Network:
    """A process's ZeroMQ context, with the options and the keys of this project.

    Args:
        loop: answers ZAP requests on this loop; None for a process that only dials.
        admits: says whether a peer with this key may connect to our servers; None if that is not known yet: the peer
            then waits, up to zap.HOLD_S, until `reconsider` is called.
        rejected: told of each peer that did not get in.
    """

    def __init__(
        self,
        loop: Loop | None = None,
        admits: Admits | None = None,
        rejected: Callable[[Rejected], None] = lambda rejected: None,
    ) -> None:
        self._context = zmq.Context()
        self._sockets: list[Socket] = []
        self._admits = admits or (lambda key: True)
        self._rejected = rejected
        self._loop = loop
        self._desk = ZapDesk()
        self._holding: Timer | None = None
        self._zap: Socket | None = None

    def server(
        self,
        kind: Kind,
        endpoints: Sequence[str],
        keys: KeyPair | None,
        limits: Limits = Limits(),
        admits: Admits | None = None,
        name: str = "",
    ) -> Socket:
        """A listening socket. `keys` None means without CURVE (enrol, and ipc inside one machine).

        Args:
            admits: as in the class, for this server alone.
            name: of this server, for `rejected`.

        Raises:
            PortTaken: naming the endpoint.
        """
        if keys is not None:
            self._open_desk()
        socket = self._make(kind, limits)
        socket.raw.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        if keys is not None:
            socket.raw.curve_secretkey = keys.secret.encode()
            socket.raw.curve_publickey = keys.public.encode()
            socket.raw.curve_server = socket.names_peers = True
            socket.raw.zap_domain = self._desk.add(name, admits or self._admits, self._rejected)
            if self._loop is not None:
                self._watch(socket, name, self._loop)
        for endpoint in endpoints:
            self._bind(socket, endpoint)
        return socket

    def _open_desk(self) -> None:
        """Before any server with keys: libzmq asks nobody, and admits all, as long as no handler is there."""
        if self._loop is not None and self._zap is None:
            self._zap = self._make("router", Limits())
            self._zap.raw.bind(_ZAP_ENDPOINT)
            self._loop.on_readable(self._zap, self._answer_zap)

    def _watch(self, socket: Socket, name: str, loop: Loop) -> None:
        """Tell of handshakes that break before ZAP is asked: soon, for each socket in the poll costs each turn."""

        def broke(reason: str) -> None:
            self._rejected(Rejected(name, "", reason, ""))

        watch = HandshakeWatch(socket.raw, self._make("pair", Limits(linger_ms=0)), broke)
        timer = loop.every(_BROKEN_S, watch.read)

        def end() -> None:
            timer.cancel()
            watch.close()

        socket.before_close(end)

    @property
    def held(self) -> int:
        """How many peers wait until it is known whether they are admitted."""
        return self._desk.held

    def reconsider(self) -> None:
        """Who is admitted may have changed: answer those peers that wait and are known now."""
        if self._loop is not None:
            self._send_zap(self._desk.reconsider(self._loop.now()))

    def reopen(self, socket: Socket) -> None:
        """Cut every live connection of a server. Peers dial again by themselves, and ZAP is asked anew.

        At once, but at most once in _REOPEN_S. What peers had sent and libzmq had taken in is still to be received, and
        only then their connection ends; what was queued for them is dropped. Where the ports are not free again at once
        they are tried for some seconds on the loop, which then raises PortTaken.
        """
        if self._loop is None:
            raise LocalProtocolError("a network without a loop has no servers to reopen")
        now = self._loop.now()
        if socket.reopened > now:
            return  # it is about to be cut anyway
        wait_s = socket.reopened + _REOPEN_S - now
        socket.reopened = max(now, now + wait_s)
        if wait_s > 0:
            self._loop.after(wait_s, lambda: self._cut(socket))
        else:
            self._cut(socket)

    def _cut(self, socket: Socket) -> None:
        if socket.closed or self._loop is None:
            return
        linger = socket.raw.getsockopt(zmq.LINGER)
        # Else libzmq keeps a connection as long as something waits to be sent on it.
        socket.raw.setsockopt(zmq.LINGER, 0)
        for endpoint in socket.endpoints:
            # libzmq ends a listener's connections with it: they are its children (stream_listener_base.cpp).
            socket.raw.unbind(endpoint)
        socket.raw.setsockopt(zmq.LINGER, linger)
        waits = bool(socket.unbound)
        socket.unbound += socket.endpoints
        socket.endpoints = []
        if not waits and not self._bind_again(socket):
            self._keep_binding(socket, self._loop)

    def _keep_binding(self, socket: Socket, loop: Loop) -> None:
        deadline = loop.now() + _BIND_GIVE_UP_S

        def again() -> None:
            if socket.closed or self._bind_again(socket, last=loop.now() >= deadline):
                timer.cancel()

        timer = loop.every(_BIND_AGAIN_S, again)

    def _bind_again(self, socket: Socket, last: bool = False) -> bool:
        """True if it listens everywhere again."""
        for endpoint in list(socket.unbound):
            try:
                self._bind(socket, endpoint)
            except PortTaken:
                if last:
                    raise
                return False
            socket.unbound.remove(endpoint)
        return True

    def client(
        self,
        kind: Kind,
        endpoint: str,
        keys: KeyPair | None,
        server_key: str | None,
        limits: Limits = Limits(),
    ) -> Socket:
        """A dialling socket; with `server_key` it talks to the holder of that key or to nobody."""
        socket = self._make(kind, limits)
        if keys is not None and server_key:
            socket.raw.curve_secretkey = keys.secret.encode()
            socket.raw.curve_publickey = keys.public.encode()
            socket.raw.curve_serverkey = server_key.encode()
        if kind == "sub":
            socket.raw.subscribe(b"")
        socket.connect(endpoint)
        return socket

    def close(self) -> None:
        """Close all sockets and the context; takes at most the sockets' linger time."""
        for socket in self._sockets:
            socket.close()
        self._context.term()

    def _make(self, kind: Kind, limits: Limits) -> Socket:
        raw = self._context.socket(_TYPES[kind])
        raw.setsockopt(zmq.LINGER, limits.linger_ms)
        raw.setsockopt(zmq.SNDHWM, limits.send_messages)
        raw.setsockopt(zmq.RCVHWM, limits.receive_messages)
        raw.setsockopt(zmq.MAXMSGSIZE, limits.message_bytes)
        raw.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        raw.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        raw.setsockopt(zmq.HEARTBEAT_TTL, _HEARTBEAT_TIMEOUT_MS)
        raw.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        raw.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        raw.setsockopt(zmq.IPV6, 1)
        if kind == "router":
            raw.setsockopt(zmq.ROUTER_HANDOVER, 1)
            raw.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket = Socket(raw, kind)
        self._sockets.append(socket)
        return socket

    def _bind(self, socket: Socket, endpoint: str) -> None:
        try:
            socket.raw.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                raise PortTaken(f"{endpoint} is in use by another program") from error
            if error.errno in (errno.EAFNOSUPPORT, errno.ENODEV) and socket.raw.getsockopt(zmq.IPV6):
                socket.raw.setsockopt(zmq.IPV6, 0)  # a kernel without IPv6
                self._bind(socket, endpoint)
                return
            raise P2prlError(f"cannot listen on {endpoint}: {error.strerror}") from error
        socket.endpoints.append(socket.bound)

    def _answer_zap(self) -> None:
        assert self._loop is not None
        assert self._zap is not None
        while (request := self._zap.receive()) is not None:
            frames = [bytes(frame) for frame in request.frames]
            self._send_zap(self._desk.asked(request.peer, frames, self._loop.now()))

    def _send_zap(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            assert self._zap is not None
            self._zap.send(answer.frames, answer.peer)  # not taken: the peer hung up meanwhile
        if self._desk.held and self._holding is None and self._loop is not None:
            self._holding = self._loop.every(_RECONSIDER_S, self.reconsider)
        elif not self._desk.held and self._holding is not None:
            self._holding.cancel()
            self._holding = None
