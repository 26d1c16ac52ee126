"""Who may connect: answers ZeroMQ's authentication requests (RFC 27), at once or as soon as it is known.

A refusal is for good: after a 400 libzmq never dials again by itself. So a key that is only not known yet, because the
word about it is still on its way here, waits for it. If none came in time it is answered with 300: the peer is told
nothing, the connection ends with the handshake's time limit (sockets.py), and libzmq does dial again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zmq.utils import z85

#: Says of a key whether it may connect; None if that is not known yet.
Admits = Callable[[str], "bool | None"]

MAX_HELD = 256
HOLD_S = 5.0

_YES, _LATER, _NO = (b"200", b"OK"), (b"300", b"not known yet"), (b"400", b"not admitted")


class Rejected(NamedTuple):
    """A peer that did not get in.

    Attributes:
        server: the name of the socket that it dialled.
        key: its CURVE key in Z85; empty where the handshake broke before it was proved.
        reason: `not_admitted`; `no_curve`: it speaks no CURVE; or `bad_handshake`: it broke off, sent nonsense, or
            dialled for another server key. A peer without CURVE often hangs up first: then it is a `bad_handshake`.
        address: its IP address; empty where the key is.
    """

    server: str
    key: str
    reason: str
    address: str


class Answer(NamedTuple):
    """What to send to which connection of the ZAP socket."""

    peer: bytes
    frames: list[bytes]


@dataclass(frozen=True)
class _Door:
    name: str
    admits: Admits
    rejected: Callable[[Rejected], None]


@dataclass(frozen=True)
class _Held:
    door: _Door
    peer: bytes
    request: bytes
    user: str
    address: str
    until: float


class ZapDesk:
    """The answers, without a socket or a clock.

    Args:
        hold_s: how long a key that is not known yet waits.
        max_held: how many wait at most; one more, and the oldest is told to dial again.
    """

    def __init__(self, hold_s: float = HOLD_S, max_held: int = MAX_HELD) -> None:
        self._hold_s, self._max_held = hold_s, max_held
        self._doors: dict[bytes, _Door] = {}
        #: Requests that wait, by connection and request, oldest first.
        self._held: OrderedDict[tuple[bytes, bytes], _Held] = OrderedDict()

    @property
    def held(self) -> int:
        """How many requests wait."""
        return len(self._held)

    def add(self, name: str, admits: Admits, rejected: Callable[[Rejected], None]) -> bytes:
        """One more server; returns its ZAP domain."""
        domain = b"p2prl-%d" % len(self._doors)
        self._doors[domain] = _Door(name, admits, rejected)
        return domain

    def asked(self, peer: bytes, frames: Sequence[bytes], now: float) -> list[Answer]:
        """A request arrived: empty frame, version, request id, domain, address, identity, mechanism, credentials."""
        if len(frames) < 7 or frames[1] != b"1.0":
            return []  # only libzmq itself can reach this socket
        door = self._doors.get(frames[3])
        address = frames[4].decode("ascii", "replace").removeprefix("::ffff:")
        if door is None or frames[6] != b"CURVE" or len(frames) != 8 or len(frames[7]) != 32:
            return [_answer(peer, frames[2], _NO)]
        user = z85.encode(frames[7]).decode()
        held = _Held(door, peer, frames[2], user, address, now + self._hold_s)
        return self._judge(held, now) or self._hold(held)

    def reconsider(self, now: float) -> list[Answer]:
        """What is known may have changed, or time passed: ask again for all that wait."""
        answers: list[Answer] = []
        for place, held in list(self._held.items()):
            found = self._judge(held, now)
            if found:
                del self._held[place]
                answers += found
        return answers

    def _judge(self, held: _Held, now: float) -> list[Answer]:
        """The answer, or none if it must wait."""
        admitted = held.door.admits(held.user)
        if admitted:
            return [_answer(held.peer, held.request, _YES, held.user)]
        if admitted is None and now < held.until:
            return []
        return [self._turn_away(held, _NO if admitted is False else _LATER)]

    def _hold(self, held: _Held) -> list[Answer]:
        self._held[held.peer, held.request] = held
        if len(self._held) <= self._max_held:
            return []
        _, oldest = self._held.popitem(last=False)
        return [self._turn_away(oldest, _LATER)]

    def _turn_away(self, held: _Held, status: tuple[bytes, bytes]) -> Answer:
        held.door.rejected(Rejected(held.door.name, held.user, "not_admitted", held.address))
        return _answer(held.peer, held.request, status)


def _answer(peer: bytes, request: bytes, status: tuple[bytes, bytes], user: str = "") -> Answer:
    return Answer(peer, [b"", b"1.0", request, *status, user.encode(), b""])
