"""The enrol socket: tells anyone who asks who this host is, and lets in who proves the join code, within a budget.

It has no CURVE: it is where keys are exchanged. What is proved here, and to whom, is decided in core/enrolment.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.bounds import line
from p2prl.core.enrolment import Attempt, CodeChanged, Effect, Gate, Proved, Reply
from p2prl.errors import RemoteProtocolError
from p2prl.net.loop import Loop
from p2prl.net.sockets import Limits, Network, Received
from p2prl.wire import frames

log = logging.getLogger("p2prl")

_LIMITS = Limits(message_bytes=2_000, send_messages=20, receive_messages=200)
_PER_S = 100
_REFILL_S = 0.25
#: Attempts that are told one by one, within so many seconds.
_TOLD, _TOLD_S = 120, 60.0


@dataclass(frozen=True)
class House:
    """What the doorkeeper asks of the broker, and tells it.

    Attributes:
        card: who this host is, for a node with this key.
        proved: somebody proved the code; gives the answer.
        code_changed: the join code is another one now.
        refuse: counts a refusal, by reason.
    """

    card: Callable[[str], m.EnrolCard]
    proved: Callable[[Proved], m.EnrolProved | m.Refusal]
    code_changed: Callable[[m.CodeNews], None]
    refuse: Callable[[str], None]


class Doorkeeper:
    """Answers EnrolAsk, EnrolBegin and EnrolProof.

    Over its budget it reads nothing for a moment: libzmq takes turns between connections, so one that floods fills its
    own queue, and an honest one still has its turn.
    """

    def __init__(
        self,
        loop: Loop,
        network: Network,
        endpoints: Sequence[str],
        gate: Gate,
        house: House,
    ) -> None:
        self._gate, self._house, self._loop, self._now = gate, house, loop, loop.now
        self._pausing = False
        self._told_at, self._told = -1e9, 0
        self._budget = float(_PER_S)
        self._socket = network.server("router", endpoints, None, _LIMITS)
        loop.on_readable(self._socket, self._on_readable)
        loop.every(_REFILL_S, self._refill)

    def renew(self, reason: str) -> None:
        """Make a new join code."""
        self._carry_out(self._gate.renew(reason, self._now()))

    def _refill(self) -> None:
        self._budget = min(float(_PER_S), self._budget + _PER_S * _REFILL_S)
        self._carry_out(self._gate.ticked(self._now()))
        if self._pausing:
            self._pausing = False
            self._loop.on_readable(self._socket, self._on_readable)

    def _on_readable(self) -> None:
        while self._budget >= 1.0:
            received = self._socket.receive()
            if received is None:
                return
            self._budget -= 1.0
            try:
                self._take(received)
            except RemoteProtocolError as error:
                self._house.refuse(error.reason)
        self._pausing = True
        self._loop.forget(self._socket)
        self._house.refuse("rate_limited")

    def _take(self, received: Received) -> None:
        if len(received.frames) != 1:
            raise RemoteProtocolError("malformed")
        message = frames.decode_enrol(received.frames[0])
        if isinstance(message, m.EnrolAsk | m.EnrolBegin) and message.protocol != m.PROTOCOL:
            warn_about_protocol("a node", message.protocol, message.version)
            self._house.refuse("protocol")
            self._answer(received.peer, protocol_refusal(message.protocol, message.version))
        elif isinstance(message, m.EnrolAsk):
            self._answer(received.peer, self._house.card(message.node_key))
        elif isinstance(message, m.EnrolBegin | m.EnrolProof):
            self._carry_out(self._gate.handle(received.peer, received.address, message, self._now()))
        else:
            raise RemoteProtocolError("malformed")

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                if isinstance(effect.message, m.Refusal):
                    self._house.refuse(effect.message.reason)
                self._answer(effect.peer, effect.message)
            elif isinstance(effect, Proved):
                self._answer(effect.peer, self._house.proved(effect))
            elif isinstance(effect, CodeChanged):
                self._house.code_changed(effect.news)
            elif isinstance(effect, Attempt) and effect.outcome != "proved":  # that one the broker tells of
                self._tell(line(effect.text))

    def _tell(self, text: str) -> None:
        """Each attempt, as far as a person can read them: a flood must not fill the host's disk."""
        now = self._now()
        if now - self._told_at >= _TOLD_S:
            if self._told > _TOLD:
                log.warning("%d more attempts to enrol were not told one by one", self._told - _TOLD)
            self._told_at, self._told = now, 0
        self._told += 1
        if self._told <= _TOLD:
            log.warning("%s", text)

    def _answer(self, peer: bytes, message: m.Message) -> None:
        self._socket.send([frames.encode(message)], peer)


def warn_about_protocol(who: str, protocol: int, version: str) -> None:
    """The host's side of a refusal."""
    log.warning(
        "refused %s with p2prl %s: it speaks protocol %d, this host %d; upgrade the older one",
        line(who, 60), line(version, 20), protocol, m.PROTOCOL,
    )  # fmt: skip


def protocol_refusal(protocol: int, version: str) -> m.Refusal:
    """The answer to a node of another protocol number, saying which side to upgrade."""
    if protocol < m.PROTOCOL:
        advice = f"upgrade p2prl on this node to {__version__} or later"
    else:
        advice = f"upgrade p2prl on the host to the version of this node ({version[:20]}) or later"
    text = f"the host speaks protocol {m.PROTOCOL} (p2prl {__version__}), this node {protocol}: {advice}"
    return m.Refusal(reason="protocol", text=text, version=__version__)


def full_refusal(limit: int) -> m.Refusal:
    """The answer to one member more than a host takes."""
    text = f"the host has {limit} members, and takes no more; try again later, or join another host"
    return m.Refusal(reason="full", text=text, version=__version__)
