"""A simulated broker: what nodes/broker.py, nodes/weights_desk.py and nodes/front_desk.py do with Roster, MemberDesk,
ShardDesk and Admissions, in the same order. It has to follow them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from p2prl.core import messages as m
from p2prl.core.gate import share_out
from p2prl.core.membership import Member, Roster
from p2prl.errors import RemoteProtocolError
from p2prl.net.addresses import endpoint
from p2prl.nodes.admissions import Admissions
from p2prl.nodes.broker_file import Saved
from p2prl.nodes.member_desk import MemberDesk
from p2prl.nodes.shard_desk import ShardDesk
from p2prl.nodes.wiring import publish_port
from p2prl.wire import frames
from tests.simulation.disks import TRAINER

if TYPE_CHECKING:
    from p2prl.core.access import Entry
    from tests.simulation.host import Host

#: As in nodes/broker.py.
_SAVE_S, _SPARE_SEEDS, _SETTLED_S = 0.1, 4096, 60.0


class Broker:
    """One life of a broker's process."""

    def __init__(self, host: Host) -> None:
        self.host, self.lan = host, host.lan
        self.process = process = host._process("broker", host._start_broker)
        self.saved = msgspec.json.decode(host.disk.broker, type=Saved) if host.disk.broker else Saved()
        self.saved.term += 1
        assert not host.terms or self.saved.term > host.terms[-1], "the term did not grow"
        host.terms.append(self.saved.term)
        self.roster = Roster(next_seed=self.saved.next_seed)
        self.members = MemberDesk(self.roster, self.saved, 1000)
        self.admissions = Admissions(host.config(), self.saved)
        self.desk = ShardDesk(self.saved.shard_steps)
        self.trainer = m.TrainerReport(state="starting")
        self.trainer_route, self.trainer_greeted = b"", False
        self.newest: list[bytes] = []
        self.started = process.now()
        self._saved_at, self._unsaved = -1e9, False
        #: Nodes whose ledgers a message may have changed since the last check.
        self.changed: set[str] = set()
        self.save()
        base = host.base_port
        for place in (host.at(base), endpoint("127.0.0.1", base)):
            self.lan.listen(process, place, self._on_control)
        self.lan.listen(process, host.at(base + 2), lambda *_: None)
        self.lan.listen(process, host.at(publish_port(base)), self._on_publishing)
        process.every(1.0, self._each_second)
        process.every(0.25, self._watch)
        process.every(_SAVE_S, self._save_if_needed)

    # --- disk

    def save(self) -> None:
        self._saved_at, self._unsaved = self.process.now(), False
        self.saved.next_seed = self.roster.next_seed + _SPARE_SEEDS
        self.process.act()
        self.host.disk.broker = msgspec.json.encode(self.saved)
        self.process.act()

    def _save_soon(self) -> None:
        self._unsaved = True
        if self.roster.next_seed > self.saved.next_seed:
            self.save()
        self._save_if_needed()

    def _save_if_needed(self) -> None:
        if self._unsaved and self.process.now() - self._saved_at >= _SAVE_S:
            self.save()

    # --- control

    def send(self, message: m.Message, route: bytes, *bulk: bytes) -> None:
        """To whoever is there."""
        self.process.act()
        self.lan.reply(route, [frames.encode(message), *bulk])

    def _on_control(self, route: bytes, user: str, parts: list[bytes]) -> None:
        try:
            self.admissions.check_pace(user, self.process.now())
            message = frames.decode_to_broker(parts[0])
            self.admissions.check(user, message)
            self.handle(route, user, message)
        except RemoteProtocolError as error:
            self.refuse(user, error.reason)

    def handle(self, route: bytes, user: str, message: m.Message) -> None:
        """A message, its sender's right to it checked."""
        self.changed.add(message.node if isinstance(message, m.ShardReceipts) else user)
        if isinstance(message, m.Hello):
            self._hello(route, user, message)
        elif isinstance(message, m.Heartbeat):
            self._heartbeat(route, user, message)
        elif isinstance(message, m.ShardReceipts):
            self._shard_receipts(message)
        elif isinstance(message, m.ShardReport):
            self._shard_report(route, message)
        elif isinstance(message, m.TrainerReport):
            self._trainer_report(route, message)
        elif isinstance(message, m.WeightsAsk):
            if self.newest and message.have < self.saved.weights_version:
                self.process.act()
                self.lan.reply(route, self.newest)
        elif isinstance(message, m.Goodbye):
            self.members.goodbye(user, message, route, self.process.now())

    def refuse(self, user: str, reason: str) -> None:
        self.members.refuse(user, reason)

    def _hello(self, route: bytes, user: str, hello: m.Hello) -> None:
        now = self.process.now()
        if hello.role == "shard":
            assert hello.shard is not None
            self.desk.greeted(hello.shard, route, now)
            self.send(self._welcome([], None), route)
            self.send(self.admissions.for_shards(), route)
            self._announce_shards()
        elif hello.role == "trainer":
            self.trainer_route, self.trainer_greeted = route, True
            self.send(self._welcome([], None), route)
        else:
            member = self.members.hello(user, hello, 1, route, "", now)
            peer = self.members.peers[user]
            peer.grant = self._grant()
            self._save_soon()
            newer = self.newest if hello.weights_version < self.saved.weights_version else []
            self.send(self._seated(member), route, *newer)

    def _seated(self, member: Member) -> m.Welcome:
        for seat in member.seats:
            holder = self.host.seeds.setdefault(seat.seed, (member.key, member.boot_id))
            assert holder == (member.key, member.boot_id), f"seed {seat.seed} was given twice"
        return self._welcome(member.seats, self.members.peers[member.key].grant)

    def _welcome(self, seats: list[m.Seat], grant: int | None) -> m.Welcome:
        return m.Welcome(
            run=self.host.run,
            host_name="host",
            version="0",
            term=self.saved.term,
            shards=self.desk.listed(),
            weights_version=self.saved.weights_version,
            weights_port=self.host.base_port + 2,
            seats=seats,
            silent_after_s=self.roster.silent_after_s,
            grant_ticks=grant,
        )

    def _heartbeat(self, route: bytes, user: str, beat: m.Heartbeat) -> None:
        version, known = self.saved.weights_version, self.members.peers.get(user)
        renewed = known is not None and known.route != route
        peer = self.members.heartbeat(user, beat, route, "", version, self.process.now())
        if peer is None:
            self.send(m.HelloAgain(term=self.saved.term), route)
            return
        peer.grant = self._grant()
        self.send(
            m.HeartbeatAck(term=self.saved.term, weights_version=version, grant_ticks=peer.grant), route
        )
        # What was said on the connection before may have been lost with it. And where each message may be lost by
        # itself, somebody has to say again what TCP would not have lost.
        if renewed or not self.lan.weather.ordered:
            self.send(m.ShardList(term=self.saved.term, shards=self.desk.listed()), route)
        misplaced = self.members.misplaced(user)
        if misplaced is not None:
            self._reseat(misplaced)

    def _reseat(self, member: Member) -> None:
        self._save_soon()
        self.send(self._seated(member), self.members.peers[member.key].route)

    # --- shards

    def _shard_receipts(self, receipts: m.ShardReceipts) -> None:
        self.desk.counted(receipts.shard, receipts.steps_total, receipts.inserted_ticks)
        peer = self.members.receipts(receipts, self.process.now())
        if peer is None or not receipts.verdicts:
            return
        peer.grant = self._grant()
        self.send(
            m.Receipts(
                shard=receipts.shard,
                boot_id=receipts.boot_id,
                verdicts=receipts.verdicts,
                grant_ticks=peer.grant,
            ),
            peer.route,
        )

    def _shard_report(self, route: bytes, report: m.ShardReport) -> None:
        now = self.process.now()
        if not self.desk.reported(report, route, now):
            self.send(m.HelloAgain(term=self.saved.term), route)
        counters = report.refused_by_node
        for key, text in self.admissions.shard_refused(report.index, report.boot_id, counters, now):
            self.quarantine(key, text)

    def _announce_shards(self) -> None:
        message = m.ShardList(term=self.saved.term, shards=self.desk.listed())
        for peer in self.members.live():
            self.send(message, peer.route)

    # --- the trainer and the weights

    def _trainer_report(self, route: bytes, report: m.TrainerReport) -> None:
        self.trainer_route = route
        if not self.trainer_greeted:
            self.send(m.HelloAgain(term=self.saved.term), route)
        ceiling, self.trainer = self.trainer.insert_ceiling, report
        if report.insert_ceiling != ceiling:
            self._regrant()

    def _on_publishing(self, route: bytes, user: str, parts: list[bytes]) -> None:
        header = frames.decode_weights_header(parts[0])
        if user != TRAINER or (header.version <= self.saved.weights_version and self.newest):
            return
        self.saved.weights_version = max(self.saved.weights_version, header.version)
        self.newest = parts
        self.save()
        for shard_route in self.desk.routes.values():
            self.send(m.Current(weights_version=self.saved.weights_version), shard_route)
        self.process.act()
        for member_route in self.lan.connected(self.host.at(self.host.base_port + 2)):
            self.lan.reply(member_route, parts)

    def _grant(self) -> int | None:
        members = sum(member.players > 0 for member in self.roster.live())
        return share_out(self.trainer.insert_ceiling, self.desk.inserted, members)

    def _regrant(self) -> None:
        grant = self._grant()
        for peer in self.members.live():
            old = peer.grant
            if old == grant:
                continue
            if old is None or grant is None or grant > 1.25 * old or grant < 0.5 * old:
                peer.grant = grant
                self.send(m.Grant(grant_ticks=grant), peer.route)

    # --- who is let in, and put out

    def quarantine(self, key: str, text: str) -> None:
        """For what a node did, or by the owner."""
        member = self.roster.members.get(key)
        self.admissions.quarantine(key, member.name if member is not None else "?", text)
        self.spread()

    def spread(self) -> None:
        """The list of keys may have changed."""
        if self.admissions.changed:
            self.admissions.changed = False
            access = self.admissions.for_shards()
            for route in self.desk.routes.values():
                self.send(access, route)
        out, self.admissions.out = self.admissions.out, []
        for key in out:
            peer = self.members.peers.get(key)
            if peer is not None:
                standing = self.admissions.standing(key)
                self.send(m.Refusal(reason=standing, text=standing), peer.route)
                self.members.put_out(key, standing, self.process.now())
            self._regrant()

    def entries(self) -> list[Entry]:
        """Everybody that is known."""
        return self.admissions.access.entries()

    # --- time

    def _watch(self) -> None:
        now = self.process.now()
        changed = self.members.ticked(now)
        for member in changed:
            if member.state == "gone":
                self.host.gone(member.key)
        if any(member.state == "gone" for member in changed):
            self._regrant()
        moved = self.roster.reseated(now)
        if moved is not None:
            self._reseat(moved)
        if self.desk.ticked(now):
            self._announce_shards()

    def _each_second(self) -> None:
        if self.trainer_route:
            progress = m.RunProgress(steps=self.desk.steps, episodes=0, return_mean=None, return_episodes=0)
            self.send(progress, self.trainer_route)
        self.admissions.look()
        self.spread()
        self.members.fold(settled=self.process.now() - self.started > _SETTLED_S)
        self.save()
