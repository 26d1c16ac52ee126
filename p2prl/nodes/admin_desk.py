"""The owner's orders: who is known, who is let in, put out or kept apart; the join code and tokens."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from p2prl.core import messages as m
from p2prl.core.bounds import line
from p2prl.core.enrolment import Gate
from p2prl.core.invitations import MAX_TOKENS
from p2prl.nodes.doorkeeper import Doorkeeper
from p2prl.nodes.status import refused_by_host
from p2prl.wire.frames import MAX_FROM_BROKER_BYTES, encode

if TYPE_CHECKING:
    from p2prl.nodes.broker import Broker

#: A token admits no more, and is valid no longer.
MAX_TOKEN_USES, MAX_TOKEN_S = 1000, 366 * 86_400.0


class AdminDesk:
    """Carries out what the owner's key asks for; each answer says how things are now."""

    def __init__(self, broker: Broker, gate: Gate, doorkeeper: Doorkeeper) -> None:
        self._broker = broker
        self._list, self._members = broker.admissions, broker.members
        self._gate, self._doorkeeper = gate, doorkeeper

    def nodes(self, ask: m.NodesAsk) -> m.Message:
        """Every key that is known."""
        news = self._gate.news(self._broker.loop.now())
        rows = [*self._listed(), *self._open_members()]
        reply = m.NodesReply(
            host_name=self._broker.host_name,
            open=self._list.open,
            nodes=rows,
            code=news.code,
            uses=news.uses,
            ttl_s=news.ttl_s,
        )
        while len(encode(reply)) > MAX_FROM_BROKER_BYTES:  # thousands of keys with the longest texts
            reply = msgspec.structs.replace(reply, nodes=reply.nodes[: len(reply.nodes) // 2])
        return reply

    def admit(self, ask: m.AdmitAsk) -> m.Message:
        """Let a key in."""
        self._list.admit(ask.key, self._name(ask.key), self._address(ask.key))
        return self.nodes(m.NodesAsk())

    def remove(self, ask: m.RemoveAsk) -> m.Message:
        """Put a key out."""
        self._list.remove(ask.key, self._name(ask.key), "removed by the owner")
        return self.nodes(m.NodesAsk())

    def quarantine(self, ask: m.QuarantineAsk) -> m.Message:
        """Keep a key apart, or end that."""
        if ask.undo:
            self._list.release(ask.key, self._name(ask.key))
        else:
            reason = line(ask.reason) or "by the owner"
            self._list.quarantine(ask.key, self._name(ask.key), reason)
        return self.nodes(m.NodesAsk())

    def code(self, ask: m.CodeAsk) -> m.Message:
        """Make a new join code."""
        self._doorkeeper.renew("asked")
        return self._gate.news(self._broker.loop.now())

    def invite(self, ask: m.InviteAsk) -> m.Message:
        """Make a token."""
        uses = max(1, min(ask.uses, MAX_TOKEN_USES))
        ttl_s = max(1.0, min(ask.ttl_s, MAX_TOKEN_S))
        token, secret = secrets.token_hex(8), secrets.token_urlsafe(24)
        now = self._broker.loop.now()
        if not self._gate.invite(token, secret, uses, ttl_s, now):
            text = f"this host has {MAX_TOKENS} tokens that were not used yet; wait until some have expired"
            return m.Refusal(reason="full", text=text)
        self._list.save_tokens(self._gate.tokens(now, time.time()))
        return m.Invite(
            id=token,
            secret=secret,
            server_key=self._broker.config.keys.public,
            addresses=list(self._broker.config.addresses),
            base_port=self._broker.config.base_port,
            uses=uses,
            ttl_s=ttl_s,
        )

    # --- inside

    def _listed(self) -> list[m.NodeEntry]:
        return [
            m.NodeEntry(
                key=entry.key,
                name=self._name(entry.key),
                standing=entry.standing,
                how=entry.how,
                reason=entry.reason,
                address=self._address(entry.key) or entry.address,
                since=entry.since,
                state=self._state(entry.key),
                refused=refused_by_host(self._broker, entry.key),
            )
            for entry in self._list.access.entries()
        ]

    def _open_members(self) -> list[m.NodeEntry]:
        """Members that nobody had to let in: of an open host, and the host's own."""
        return [
            m.NodeEntry(
                key=member.key,
                name=member.name,
                standing="admitted" if self._own(member.key) else self._list.standing(member.key),
                how="own" if self._own(member.key) else "open",
                address=self._address(member.key),
                state=member.state,
                refused=refused_by_host(self._broker, member.key),
            )
            for member in self._members.roster.members.values()
            if self._list.access.get(member.key) is None
        ]

    def _own(self, key: str) -> bool:
        return key == self._list.own_member

    def _state(self, key: str) -> str:
        member = self._members.roster.members.get(key)
        return member.state if member is not None else ""

    def _name(self, key: str) -> str:
        """As it calls itself now, which is what the host's screen shows; else as it did when it was let in."""
        member = self._members.roster.members.get(key)
        return member.name if member is not None else self._list.name(key)

    def _address(self, key: str) -> str:
        peer = self._members.peers.get(key)
        return peer.address if peer is not None else ""
