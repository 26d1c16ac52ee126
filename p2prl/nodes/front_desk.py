"""The broker's front desk: who comes in and who is put out, by enrolment, by the owner's word, or for what they did."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.access import MAX_ADMITTED
from p2prl.core.enrolment import Gate, Proved
from p2prl.core.invitations import CodeEntry
from p2prl.net.keys import fingerprint
from p2prl.net.sockets import Received
from p2prl.nodes.admin_desk import AdminDesk
from p2prl.nodes.doorkeeper import Doorkeeper, House, full_refusal
from p2prl.wire import frames

if TYPE_CHECKING:
    from p2prl.nodes.broker import Broker

log = logging.getLogger("p2prl")

#: A node that is put out hears why before its connections end.
_LAST_WORDS_S = 0.3
_FATES = {
    "admitted": "is admitted",
    "waiting": "waits for you: p2prl admit {key}",
    "removed": "stays out: it was removed",
    "quarantined": "stays out: it is quarantined",
    "unknown": "cannot be let in: the list is full (p2prl remove)",
}


class FrontDesk:
    """Glue between the enrol socket, the owner's orders and the list of keys.

    Args:
        endpoints: of the enrol socket.
    """

    def __init__(self, broker: Broker, endpoints: Sequence[str]) -> None:
        config = broker.config
        self._broker = broker
        self._list = broker.admissions
        #: The host's own command, which is told of the join code.
        self._owner_route = b""
        self.gate = Gate(
            config.keys.public,
            entropy=os.urandom,
            below=secrets.randbelow,
            code=None if config.open else "",
            uses=config.code_uses,
            ttl_s=config.code_ttl_s,
            now=broker.loop.now(),
        )
        self._load()
        house = House(broker.card, self._proved, self._code_changed, lambda reason: broker.refuse("", reason))
        doorkeeper = Doorkeeper(broker.loop, broker.network, endpoints, self.gate, house)
        self._admin = AdminDesk(broker, self.gate, doorkeeper)

    def handlers(self) -> dict[type, Callable[[Received, Any], None]]:
        """The owner's orders, for the control socket."""
        return {
            m.NodesAsk: self._order(self._admin.nodes),
            m.AdmitAsk: self._order(self._admin.admit),
            m.RemoveAsk: self._order(self._admin.remove),
            m.QuarantineAsk: self._order(self._admin.quarantine),
            m.CodeAsk: self._order(self._admin.code),
            m.InviteAsk: self._order(self._admin.invite),
        }

    def greet_owner(self, received: Received) -> None:
        """The host's own command introduced itself."""
        self._owner_route = received.peer
        self._broker.answer(received, self.gate.news(self._broker.loop.now()))

    def asked_for_status(self, received: Received) -> None:
        """The host's own command asks twice a second: on another connection than it introduced itself on, it has to do
        so again, for the old one is gone, and with it perhaps news of the join code."""
        owner = self._broker.config.staff.owner
        if received.user == owner and received.peer != self._owner_route:  # other commands leave it unread
            self._broker.answer(received, m.HelloAgain(term=self._broker.saved.term))

    def refused(self, key: str, reason: str) -> None:
        """One more refusal of a key: too many, and it is kept apart."""
        text = self._list.refused(key, reason, 1, self._broker.loop.now())
        if text:
            self._quarantine(key, text)

    def expel(self, key: str) -> None:
        """A key asks for weights in a way that no member does, and that costs memory: out with it, now."""
        if self._list.role(key) is None:
            return  # it is out: what it had sent before its connection ended still comes in
        self._quarantine(key, "asked for weights by topics that nobody has")

    def shard_refused(self, report: m.ShardReport, now: float) -> None:
        """What a shard refused so far."""
        counters = report.refused_by_node
        for key, text in self._list.shard_refused(report.index, report.boot_id, counters, now):
            self._quarantine(key, text)

    def look(self) -> None:
        """Now and then: what another host of this state folder decided holds here too."""
        if self._list.look():
            self.gate.load_tokens(self._list.tokens(), self._broker.loop.now(), time.time())
        self._note()
        self._spread()

    # --- inside

    def _load(self) -> None:
        """The code as the last broker left it, and the tokens that are still valid."""
        now, wall, code = self._broker.loop.now(), time.time(), self._broker.config.code
        saved, session = self._broker.saved, self._broker.config.session
        # Of a broker before this one, of the same start of the host.
        if session and saved.code_session == session:
            if saved.code is not None:
                self.gate.load_code(saved.code, now, wall)
        elif code.code:
            expires_at = None if code.ttl_s is None else wall + code.ttl_s
            self.gate.load_code(CodeEntry(code=code.code, uses=code.uses, expires_at=expires_at), now, wall)
        self.gate.load_tokens(self._list.tokens(), now, wall)
        self._note()

    def _note(self) -> None:
        """What is left of the join code, for the broker's file: its limits, and the wrong guesses."""
        broker = self._broker
        broker.saved.code = self.gate.saved_code(broker.loop.now(), time.time())
        broker.saved.code_session = broker.config.session

    def _proved(self, proved: Proved) -> m.EnrolProved | m.Refusal:
        tokens = self.gate.tokens(self._broker.loop.now(), time.time())
        standing = self._list.proved(proved, tokens)
        self._spread()  # before the newcomer can dial a shard
        fate = _FATES[standing].format(key=fingerprint(proved.key))
        log.info("%s at %s proved the %s, and %s", proved.name, proved.address, proved.how, fate)
        if proved.how == "code" and self._broker.config.code_uses is not None:
            self._code_changed(self.gate.news(self._broker.loop.now()))
        if standing in ("admitted", "waiting"):
            return m.EnrolProved(proof=proved.proof, standing=standing)
        if standing == "unknown":
            return full_refusal(MAX_ADMITTED)
        return barred_refusal(proved.key, standing, self._list.reason(proved.key), self._broker.host_name)

    def _code_changed(self, news: m.CodeNews) -> None:
        self._note()
        if self._owner_route:
            self._broker.control.send([frames.encode(news)], self._owner_route)

    def _quarantine(self, key: str, text: str) -> None:
        member = self._broker.roster.members.get(key)
        self._list.quarantine(key, member.name if member is not None else "?", text)
        self._spread()

    def _order(self, carry_out: Callable[[Any], m.Message]) -> Callable[[Received, Any], None]:
        def handle(received: Received, order: Any) -> None:
            answer = carry_out(order)
            if not isinstance(order, m.NodesAsk):
                self._note()
                self._broker.save()  # before the owner is told that it is so
            self._broker.answer(received, answer)
            self._spread()

        return handle

    def _spread(self) -> None:
        """Tell the shards who may give sessions; put out at once who may not be here any more."""
        broker = self._broker
        if self._list.changed:
            self._list.changed = False
            access = frames.encode(self._list.for_shards())
            for route in broker.desk.routes.values():
                broker.control.send([access], route)
        out, self._list.out = self._list.out, []
        for key in out:
            self._put_out(key)
        if out:
            broker.weights.cut()  # at once: nothing has to be said there
            broker.loop.after(_LAST_WORDS_S, broker.cut)

    def _put_out(self, key: str) -> None:
        broker = self._broker
        peer = broker.members.peers.get(key)
        if peer is not None:
            refusal = barred_refusal(key, self._list.standing(key), self._list.reason(key), broker.host_name)
            broker.control.send([frames.encode(refusal)], peer.route)
            broker.members.put_out(key, refusal.reason, broker.loop.now())
        broker.evaluation.put_out(key)
        broker.regrant()


def barred_refusal(key: str, standing: m.Standing, reason: str, host: str) -> m.Refusal:
    """What a node that is put out is told."""
    node = fingerprint(key)
    if standing == "quarantined":
        undo = f"p2prl quarantine {node} --undo"
        text = f"{host} keeps this node out of its run ({reason}); its owner can undo that: {undo}"
    else:
        text = f"{host}'s owner removed this node; only the owner can let it in again: p2prl admit {node}"
    word = "quarantined" if standing == "quarantined" else "removed"
    return m.Refusal(reason=word, text=text, version=__version__)
