"""The enrol socket: tells anyone who asks who this host is, within a budget. It has no CURVE: it hands out the key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.bounds import line
from p2prl.errors import RemoteProtocolError
from p2prl.net.loop import Loop
from p2prl.net.sockets import Limits, Network
from p2prl.wire import frames

log = logging.getLogger("p2prl")

_LIMITS = Limits(message_bytes=2_000, send_messages=20, receive_messages=200)
_PER_TURN = 500
_PER_S = 100
_REFILL_S = 0.25


class Doorkeeper:
    """Answers EnrolAsk.

    Args:
        card: makes the current card.
        refuse: counts a refusal, by reason.
    """

    def __init__(
        self,
        loop: Loop,
        network: Network,
        endpoints: Sequence[str],
        card: Callable[[], m.EnrolCard],
        refuse: Callable[[str], None],
    ) -> None:
        self._card, self._refuse = card, refuse
        self._budget = float(_PER_S)
        self._socket = network.server("router", endpoints, None, _LIMITS)
        loop.on_readable(self._socket, self._on_readable)
        loop.every(_REFILL_S, self._refill)

    def _refill(self) -> None:
        self._budget = min(float(_PER_S), self._budget + _PER_S * _REFILL_S)

    def _on_readable(self) -> None:
        for _ in range(_PER_TURN):
            received = self._socket.receive()
            if received is None:
                return
            if self._budget < 1.0:
                self._refuse("rate_limited")
                continue
            self._budget -= 1.0
            try:
                if len(received.frames) != 1:
                    raise RemoteProtocolError("malformed")
                ask = frames.decode_enrol(received.frames[0])
                if not isinstance(ask, m.EnrolAsk):
                    raise RemoteProtocolError("malformed")
            except RemoteProtocolError as error:
                self._refuse(error.reason)
                continue
            self._socket.send([frames.encode(self._answer(ask))], received.peer)

    def _answer(self, ask: m.EnrolAsk) -> m.EnrolCard | m.Refusal:
        if ask.protocol == m.PROTOCOL:
            return self._card()
        warn_about_protocol("a node", ask.protocol, ask.version)
        self._refuse("protocol")
        return protocol_refusal(ask.protocol, ask.version)


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
