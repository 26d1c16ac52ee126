"""The socket factory: every option is set here, before bind or connect. The only place that makes ZeroMQ sockets.

All sockets but enrol have CURVE. A `Network` is one process's context and its ZAP handler, which decides which keys may
connect, and hands each message's `User-Id` (the peer's key, in Z85) up with it: removing a key does not cut a live
connection, so what a message may do is decided per message.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import zmq
from zmq.utils import z85

from p2prl.errors import P2prlError
from p2prl.net.keys import KeyPair

if TYPE_CHECKING:
    from p2prl.net.loop import Loop

Frame = bytes | memoryview

_TYPES = {
    "router": zmq.ROUTER,
    "dealer": zmq.DEALER,
    "push": zmq.PUSH,
    "pull": zmq.PULL,
    "xpub": zmq.XPUB,
    "sub": zmq.SUB,
}
Kind = Literal["router", "dealer", "push", "pull", "xpub", "sub"]

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
#: A peer that sends nothing, not even a heartbeat, for this long is disconnected (half-open links).
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 5_000, 15_000
_RECONNECT_MS, _RECONNECT_MAX_MS = 100, 5_000


class PortTaken(P2prlError):
    """Somebody else listens on the port."""


class Received(NamedTuple):
    """One message.

    Attributes:
        peer: the ROUTER's name for the connection; empty on other sockets.
        user: the peer's CURVE key in Z85; empty without CURVE.
        address: the peer's IP address; filled in by ROUTER sockets only.
        frames: the message.
    """

    peer: bytes
    user: str
    address: str
    frames: list[Frame]


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
        self._closed = False

    def send(self, frames: Sequence[Frame], peer: bytes = b"") -> bool:
        """Queue one message. False if it was not queued: the queue is full, or the peer is gone."""
        parts = [peer, *frames] if self.kind == "router" else list(frames)
        try:
            self.raw.send_multipart(parts, flags=zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno in (errno.EHOSTUNREACH, zmq.EHOSTUNREACH):
                return False
            raise
        return True

    def receive(self) -> Received | None:
        """The next message, or None if nothing is waiting."""
        try:
            parts = self.raw.recv_multipart(flags=zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        peer = b""
        if self.kind == "router":
            peer, parts = parts[0].bytes, parts[1:]
        if not parts:
            return Received(peer, "", "", [])
        address = _property(parts[0], "Peer-Address").removeprefix("::ffff:") if peer else ""
        return Received(peer, _property(parts[0], "User-Id"), address, [part.buffer for part in parts])

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

    def close(self) -> None:
        """Close; what is still queued is kept for the linger time. Twice is fine."""
        if not self._closed:
            self._closed = True
            self.raw.close()


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return cast(str, frame.get(name))
    except zmq.ZMQError:  # EINVAL: the connection has no such property (no CURVE, or ipc)
        return ""


class Network:
    """A process's ZeroMQ context, with the options and the keys of this project.

    Args:
        loop: answers ZAP requests on this loop; None for a process that only dials.
        admits: says whether a peer with this key may connect to our servers.
    """

    def __init__(self, loop: Loop | None = None, admits: Callable[[str], bool] | None = None) -> None:
        self._context = zmq.Context()
        self._sockets: list[Socket] = []
        self._admits = admits or (lambda key: True)
        #: Who may connect, by ZAP domain; each server has its own.
        self._domains: dict[bytes, Callable[[str], bool]] = {}
        if loop is not None:
            # Bound before any server: libzmq asks nobody, and admits all, as long as no handler is there.
            self._zap = self._make("router", Limits())
            self._zap.raw.bind(_ZAP_ENDPOINT)
            loop.on_readable(self._zap, self._answer_zap)

    def server(
        self,
        kind: Kind,
        endpoints: Sequence[str],
        keys: KeyPair | None,
        limits: Limits = Limits(),
        admits: Callable[[str], bool] | None = None,
    ) -> Socket:
        """A listening socket. `keys` None means without CURVE (enrol, and ipc inside one machine).

        Args:
            admits: says whether a peer with this key may connect here; by default whoever may connect anywhere.

        Raises:
            PortTaken: naming the endpoint.
        """
        socket = self._make(kind, limits)
        if keys is not None:
            socket.raw.curve_secretkey = keys.secret.encode()
            socket.raw.curve_publickey = keys.public.encode()
            socket.raw.curve_server = True
            domain = b"p2prl-%d" % len(self._domains)
            self._domains[domain] = admits or self._admits
            socket.raw.zap_domain = domain
        for endpoint in endpoints:
            self._bind(socket, endpoint)
        return socket

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

    def _answer_zap(self) -> None:
        while (request := self._zap.receive()) is not None:
            frames = [bytes(frame) for frame in request.frames]
            # RFC 27: "", version, request id, domain, address, identity, mechanism, credentials...
            if len(frames) < 7 or frames[1] != b"1.0":
                continue
            ok, user = False, b""
            if frames[6] == b"CURVE" and len(frames) == 8 and len(frames[7]) == 32:
                user = z85.encode(frames[7])
                admits = self._domains.get(frames[3])
                ok = admits is not None and admits(user.decode())
            status, text = (b"200", b"OK") if ok else (b"400", b"not admitted")
            self._zap.send([b"", b"1.0", frames[2], status, text, user if ok else b"", b""], request.peer)
