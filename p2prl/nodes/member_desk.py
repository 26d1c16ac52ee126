"""What the broker knows of its members: where they are, their seats, their books, and what stays of those gone."""

from __future__ import annotations

import logging
from collections import Counter

import msgspec

from p2prl.core import messages as m
from p2prl.core.bounds import check_books, line
from p2prl.core.episodes import EpisodeStats
from p2prl.core.ledger import LEFT, Ledger, fold_oldest
from p2prl.core.membership import Member, Roster
from p2prl.errors import RemoteProtocolError
from p2prl.nodes.broker_file import Saved
from p2prl.words import many

log = logging.getLogger("p2prl")


class Peer(msgspec.Struct):
    """One key's connection, and what is only shown."""

    route: bytes
    address: str
    hello: m.Hello
    report: m.Heartbeat | None = None
    grant: int | None = None
    #: Versions behind when it last reported: against now, an old report would seem further behind than its node is.
    lag: int = 0
    stats: EpisodeStats = msgspec.field(default_factory=EpisodeStats)
    faults: list[str] = []


class MemberDesk:
    """Members by key.

    A stranger makes as many keys as it likes: so those that gave nothing, and told of no fault, are forgotten when they
    go, and of the others the longest gone become one row, `others`.

    Args:
        saved: keeps the ledgers and names.
        limit: members at a time.
    """

    def __init__(self, roster: Roster, saved: Saved, limit: int) -> None:
        self.roster = roster
        self.saved = saved
        self.peers: dict[str, Peer] = {}
        #: Control messages refused, by key and reason.
        self.refused: dict[str, Counter[str]] = {}
        self._limit = limit
        for key in [key for key, ledger in saved.ledgers.items() if not ledger.gave]:
            self._forget(key)

    # --- what can be seen

    def full(self, key: str) -> bool:
        """True if this key would be one member too many."""
        live = self.roster.live()
        return len(live) >= self._limit and all(member.key != key for member in live)

    def live(self) -> list[Peer]:
        """The connections of members that are not gone."""
        return [self.peers[member.key] for member in self.roster.live() if member.key in self.peers]

    def misplaced(self, key: str) -> Member | None:
        """The member with this key, if its last heartbeat tells of other seats than it was given."""
        member, report = self.roster.members.get(key), self.peers[key].report
        if member is None or not member.moved or report is None:
            return None
        member.moved = {player.rank for player in report.players} != {seat.rank for seat in member.seats}
        return member if member.moved else None

    # --- what members say

    def hello(self, key: str, hello: m.Hello, slots: int, route: bytes, address: str, now: float) -> Member:
        """A member's Hello, checked. `slots`: environments of each of its players."""
        known = self.peers.get(key)
        if known is None or known.hello.boot_id != hello.boot_id:
            log.info("%s joined from %s with %s", hello.name, address, many(hello.players, "player"))
        member = self.roster.hello(
            key, hello.name, hello.boot_id, hello.players, hello.seats, now, slots=slots
        )
        self.saved.ledgers.setdefault(key, Ledger()).booted(hello.boot_id, hello.continues)
        self.saved.names[key] = hello.name
        stats = known.stats if known else EpisodeStats()
        self.peers[key] = Peer(route, address, hello, stats=stats)
        return member

    def heartbeat(
        self, key: str, beat: m.Heartbeat, route: bytes, address: str, version: int, now: float
    ) -> Peer | None:
        """A member's heartbeat, checked. `version`: of the newest weights. None: it must say Hello."""
        paused = beat.reason if beat.state == "paused" else ""
        steps = beat.steps + sum(player.under_way for player in beat.players)
        first_step = any(player.first_step_s > 0.0 for player in beat.players)
        loading = any(player.loading_s > 0.0 for player in beat.players)
        member = self.roster.heartbeat(key, beat.boot_id, steps, paused, now, first_step, loading)
        peer = self.peers.get(key)
        if member is None or peer is None:
            return None
        if member.state in ("starting", "stalled") and beat.reason:
            member.reason = beat.reason
        elif member.state == "working":
            member.reason = ""
        peer.route, peer.address, peer.report = route, address, beat
        self.saved.ledgers[key].reported(beat.boot_id, beat.books, beat.steps, beat.episodes)
        peer.lag = max(0, version - beat.weights_version) if beat.weights_version >= 0 else 0
        return peer

    def fault(self, key: str, fault: m.Fault) -> None:
        """A member's fault.

        Raises:
            RemoteProtocolError: `unknown_node`.
        """
        peer = self.peers.get(key)
        if peer is None:
            raise RemoteProtocolError("unknown_node")
        text = f"{fault.kind.replace('_', ' ')}: {line(fault.text)}"
        if text not in peer.faults:
            peer.faults = [*peer.faults[-4:], text]
            log.warning("%s: %s", peer.hello.name, text)

    def goodbye(self, key: str, goodbye: m.Goodbye, route: bytes, now: float) -> None:
        """A goodbye; one of a client, or of a connection that a newer one replaced, changes nothing.

        Raises:
            RemoteProtocolError: `malformed` books.
        """
        peer = self.peers.get(key)
        if peer is None or peer.route != route:
            return
        ledger, last = self.saved.ledgers[key], peer.report
        if goodbye.books is not None:
            check_books(goodbye.books)
            # Who was here for less than a second has sent no heartbeat; its books count all the same.
            boot_id, steps, episodes = (
                (last.boot_id, last.steps, last.episodes) if last is not None else (peer.hello.boot_id, 0, 0)
            )
            ledger.reported(boot_id, goodbye.books, steps, episodes)
        ledger.close(LEFT, kept=last.spooled if last is not None else 0)
        reason = line(goodbye.reason)
        if self.roster.goodbye(key, reason, now) is not None:
            told = any(reason in fault for fault in peer.faults)  # once is enough
            log.info(
                "%s left%s", peer.hello.name, "" if reason and told else f": {reason or 'no reason given'}"
            )
            self._went(key)

    def put_out(self, key: str, reason: str, now: float) -> None:
        """The host's owner, or what it did, ended this member's part; its books close."""
        if key in self.saved.ledgers:
            self.saved.ledgers[key].close(LEFT)
        if self.roster.goodbye(key, reason, now) is not None:
            self._went(key)

    def receipts(self, receipts: m.ShardReceipts, now: float) -> Peer | None:
        """A shard's verdicts, on bundles of this boot or of one before; the peer that waits for them, if it is here."""
        stored = sum(verdict.status == "stored" for verdict in receipts.verdicts)
        ledger = self.saved.ledgers.get(receipts.node)
        if ledger is not None:
            ledger.stored(receipts.boot_id, stored)
        peer = self.peers.get(receipts.node)
        if peer is None:
            return None
        if stored:
            self.roster.played(receipts.node, now)
        return peer

    def refuse(self, key: str, reason: str) -> None:
        """Count a control message that was refused."""
        if key in self.peers:
            self.refused.setdefault(key, Counter())[reason] += 1

    # --- time

    def ticked(self, now: float) -> list[Member]:
        """Time passed. Returns the members whose state changed."""
        changed = self.roster.ticked(now)
        for member in changed:
            log.warning("%s is %s: %s", member.name, member.state, member.reason)
            if member.state == "gone":
                self._went(member.key)
        return changed

    def fold(self, settled: bool) -> None:
        """Make one row of those that are gone for longest.

        Args:
            settled: all members had time to come back to this broker; until then, those of before are left alone.
        """
        live = {member.key for member in self.roster.live()}
        if not settled:
            live |= self.saved.ledgers.keys() - self.roster.members.keys()
        for key in fold_oldest(self.saved.ledgers, self.saved.others, live):
            self.saved.others_count += 1
            self._forget(key)

    def _went(self, key: str) -> None:
        ledger = self.saved.ledgers.pop(key)
        self.saved.ledgers[key] = ledger  # last in the order in which they went
        if not ledger.gave and not self.peers[key].faults:
            self._forget(key)

    def _forget(self, key: str) -> None:
        self.roster.forget(key)
        for kept in (self.saved.ledgers, self.saved.names, self.peers, self.refused):
            kept.pop(key, None)
