"""A simulated volunteer: a machine, its member process, the spool on its disk, its players.

The way of the bundles is the product's, file writes included: Outgoing, Pushes, Outbox, Spool, ControlLine, WeightSync.
What is written here is what nodes/member.py and nodes/players.py do with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import msgspec

from p2prl.core import messages as m
from p2prl.core.ledger import Ledger
from p2prl.core.weight_sync import WeightSync
from p2prl.net.addresses import endpoint
from p2prl.net.keys import KeyPair
from p2prl.nodes import spool_books, spool_file
from p2prl.nodes.broker_file import Saved
from p2prl.nodes.control import ControlLine
from p2prl.nodes.outgoing import Outgoing
from p2prl.nodes.spool_file import Entry
from p2prl.nodes.wiring import MemberConfig
from p2prl.wire import frames
from tests.simulation.disks import HEADER, HOST_KEY, TICKS
from tests.simulation.host import Host
from tests.simulation.process import FakeNetwork, Killed, Machine, Process

#: As in nodes/players.py.
_CREDIT = 2
#: How long a host that fell silent is waited for before it is looked for elsewhere.
_RELOCATE_S = 4.0


@dataclass
class Plan:
    """How a volunteer behaves.

    Attributes:
        bundles: that it makes in all.
        players: at a time.
        pace_s: between two of its bundles.
        spool: a folder, if it has a spool.
        spool_bytes: its bound.
        impatient: players drop what the window has no room for.
    """

    bundles: int
    players: int = 1
    pace_s: float = 0.5
    spool: Path | None = None
    spool_bytes: int = 0
    impatient: bool = False


@dataclass
class Truth:
    """What a node's bundles are really up to; they are numbered from 0.

    Attributes:
        made: so many were made.
        unsure: were in memory alone when the member died or left; they may have been stored.
        gone: were dropped, or never sent and stale: they are not stored anywhere.
        acknowledged: verdicts that said stored.
        unheard: bundles that no heartbeat told of before the member went, or the broker forgot.
        untold: the same for those of them that were stored.
    """

    made: int = 0
    unsure: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    acknowledged: int = 0
    unheard: int = 0
    untold: int = 0


class Node:
    """A volunteer's machine; its member is started again after it died.

    Attributes:
        member: the one that runs; None while none does.
        starts, kills: how often.
        terms, versions: the newest that it saw.
        barred: it was told that it is put out; it is not started again by itself.
    """

    def __init__(self, host: Host, machine: Machine, key: str, plan: Plan) -> None:
        self.host, self.machine, self.key, self.plan = host, machine, key, plan
        self.lan, self.rng = host.lan, host.rng
        self.truth = Truth()
        self.member: Member | None = None
        self.starts = self.kills = 0
        self.barred = ""

    def start(self) -> None:
        """Begin a member, if none runs."""
        if self.member is None and not self.barred:
            self.starts += 1
            self.member = Member(self)

    def died(self, process: Process) -> None:
        """kill -9 of the member: what it held in memory alone is lost."""
        member, self.member = self.member, None
        self.kills += 1
        if member is not None:
            self._lose(member)
        self.lan.after(0.3 + 3.0 * self.rng.random(), self.start)

    def leave(self, back_after_s: float) -> None:
        """Ctrl-C, and the same volunteer later again."""
        member = self.member
        if member is None or not member.process.awake:
            return
        with contextlib.suppress(Killed):
            member.close()
        self.member = None
        self._lose(member)
        member.process.end()
        self.lan.after(back_after_s, self.start)

    def _lose(self, member: Member) -> None:
        truth, outgoing = self.truth, member.outgoing
        truth.unsure |= member.in_memory()
        books, heard = outgoing.books(), self._heard(outgoing.account)
        # What was handed over in the moment of its death is in no book.
        truth.unheard += max(0, books.produced - heard.produced) + (member.giving is not None)
        truth.untold += max(0, books.stored - heard.stored)
        outgoing.spool.close()

    def _heard(self, account: str) -> m.Books:
        """An account as the host surely knows it, whatever happens to its broker."""
        saved = msgspec.json.decode(self.host.disk.broker, type=Saved) if self.host.disk.broker else Saved()
        ledger = saved.ledgers.get(self.key, Ledger())
        if (ledger.account or ledger.boot_id) == account:
            return ledger.current
        if ledger.ended is not None and ledger.ended.name == account:
            return ledger.ended.books
        return m.Books()


class Member:
    """One life of a member's process."""

    def __init__(self, node: Node) -> None:
        self.node, self.host = node, node.host
        self.process = process = Process(node.machine, node.key[:8], node.died)
        self.place = (self.host.address, self.host.base_port)
        self.network = FakeNetwork(process, node.key)
        self.sync = WeightSync()
        self.welcome: m.Welcome | None = None
        self.seats: list[m.Seat] = []
        #: The version that each player has, and how many bundles it may hand over.
        self.players: dict[int, int] = {}
        self.credit: dict[int, int] = {}
        self._weights_port = -1
        #: The bundle that is handed over now.
        self.giving: int | None = None
        self._term = -1
        plan = node.plan
        config = MemberConfig(
            host=self.place[0], base_port=self.place[1], server_key=HOST_KEY, keys=KeyPair("", ""), name="n",
            players=plan.players, spool_bytes=plan.spool_bytes, keep_free_bytes=0,
            spool_folder="" if plan.spool is None else str(plan.spool),
        )  # fmt: skip
        self.outgoing = Outgoing(
            config, process, self.network, lambda: self.sync.current, self.give_credit, lambda *_: None
        )  # type: ignore[arg-type]
        self.control = ControlLine(
            process, self.network, endpoint(*self.place), KeyPair("", ""), "",
            self._hello, self._on_control, self._on_refusal,
        )  # type: ignore[arg-type]  # fmt: skip
        process.every(1.0, self._each_second)
        process.every(plan.pace_s, self._play)

    # --- what can be seen

    def in_memory(self) -> set[int]:
        """Bundles that a kill would take now."""
        held = {HEADER.unpack(one.header)[0] for one in self.outgoing._held.values() if one.entry is None}
        return held | ({self.giving} if self.giving is not None else set())

    # --- the host's words

    def _hello(self) -> m.Hello:
        return m.Hello(
            protocol=m.PROTOCOL, version="0", role="member", name=self.node.key[:8],
            boot_id=self.outgoing.boot_id, players=self.node.plan.players,
            weights_version=self.sync.version if self.welcome else -1,
            seats=self.seats, continues=self.outgoing.continues,
        )  # fmt: skip

    def _on_control(self, message: m.Message, bulk: list[bytes]) -> None:
        now = self.process.now()
        if isinstance(message, m.Welcome):
            self._on_welcome(message, bulk)
        elif isinstance(message, m.Receipts):
            self._check_receipts(message)
            self.outgoing.receipts(message)
        elif isinstance(message, m.HeartbeatAck):
            self.sync.heard(message.weights_version, now)
            self.outgoing.granted(message.grant_ticks)
        elif isinstance(message, m.Grant):
            self.outgoing.granted(message.grant_ticks)
        elif isinstance(message, m.ShardList):
            self.outgoing.shards(message.term, message.shards)
        elif isinstance(message, m.WeightsHeader):
            self._on_weights(message, bulk)

    def _on_refusal(self, refusal: m.Refusal) -> None:
        """As Member does: it ends, keeping what it has."""
        self.node.barred = refusal.reason
        self.outgoing.close()
        self.outgoing.keep()
        raise Killed

    def _on_welcome(self, welcome: m.Welcome, bulk: list[bytes]) -> None:
        if self.process.lan.weather.ordered:
            assert welcome.term >= self._term, f"a welcome of term {welcome.term} after {self._term}"
        self._term = welcome.term
        known, self.welcome = self.welcome, welcome
        if known is None:
            self.outgoing.begin(welcome.run)
            self._watch_spool()
            if self.outgoing.continues:
                # On a connection of its own: answers to what was said before do not arrive on it.
                self.control.redial(endpoint(*self.place))
                return
        self.sync.heard(welcome.weights_version, self.process.now())
        self._subscribe(welcome.weights_port)
        self.outgoing.shards(welcome.term, welcome.shards)
        self.outgoing.granted(welcome.grant_ticks)
        self._seat(welcome.seats)
        if len(bulk) == 2:
            self._on_weights(frames.decode_weights_header(bulk[0]), bulk[1:])

    def _check_receipts(self, receipts: m.Receipts) -> None:
        """Nothing may be acknowledged that is not on the shard's disk."""
        truth, disk = self.node.truth, self.host.disk.shards[receipts.shard]
        for verdict in receipts.verdicts:
            if verdict.status in ("stored", "duplicate"):
                truth.acknowledged += verdict.status == "stored"
                name = (self.node.key, receipts.boot_id, verdict.seq)
                assert name in disk.known, f"{name} was acknowledged as {verdict.status}, and is nowhere"

    # --- weights and players

    def _subscribe(self, port: int) -> None:
        if self._weights_port == port:
            return
        self._weights_port = port
        socket = self.network.client("push", endpoint(self.place[0], port), None, None, None)

        def arrived() -> None:
            while (received := socket.receive()) is not None:
                self._on_weights(frames.decode_weights_header(received.frames[0]), received.frames[1:])

        self.process.on_readable(socket, arrived)

    def _on_weights(self, header: m.WeightsHeader, bulk: list[bytes]) -> None:
        before = self.sync.version
        if not self.sync.arrived(header.version):
            return
        assert self.sync.version > before, f"weights went back from version {before} to {self.sync.version}"
        content = self.host.contents.setdefault(header.version, bulk[0])
        assert content == bulk[0], f"two weights have the version {header.version}"
        self._send_weights()

    def _send_weights(self) -> None:
        for player in self.sync.to_send():
            assert self.sync.version >= self.players[player], "a player's weights went back"
            self.players[player] = self.sync.version

    def _seat(self, seats: list[m.Seat]) -> None:
        if seats == self.seats:
            return
        for player in self.players:
            self.sync.player_left(player)
        self.seats, self.players = seats, {}
        for player in range(len(seats)):
            self.players[player], self.credit[player] = -1, _CREDIT
            self.sync.player_joined(player)
        self._send_weights()

    def give_credit(self) -> None:
        """There may be room again."""
        for player in self.players:
            if self.outgoing.room:
                self.credit[player] = _CREDIT

    def _play(self) -> None:
        truth, rng = self.node.truth, self.node.rng
        for player, version in self.players.items():
            if version < 0 or truth.made >= self.node.plan.bundles:
                continue
            self.sync.player_between_bundles(player)
            number, truth.made = truth.made, truth.made + 1
            if self.credit[player]:
                self.credit[player] -= 1
                self._give(player, number, version, bytes(rng.randrange(50, 900)))
            elif self.node.plan.impatient:
                truth.gone.add(number)
                self.outgoing.dropped(m.PlayerDropped(rank=0, bundles=1, steps=TICKS, episodes=0))
            else:
                truth.made -= 1
        self._send_weights()
        self.give_credit()

    def _give(self, player: int, number: int, version: int, payload: bytes) -> None:
        bundle = m.PlayerBundle(
            rank=self.seats[player].rank, serial=number, ticks=TICKS, steps=TICKS, episodes=0, version=version
        )
        self.giving = number
        self.outgoing.took(bundle, HEADER.pack(number, version), payload)
        self.giving = None

    # --- time

    def _each_second(self) -> None:
        now = self.process.now()
        self.outgoing.each_second(self.control.silent_s())
        if self.welcome is not None and self.control.welcomed:
            self._heartbeat()
            self.outgoing.noted()
            if self.sync.wants_pull(now):
                self.control.send(m.WeightsAsk(have=self.sync.version))
        place = (self.host.address, self.host.base_port)
        if place != self.place and self.control.silent_s() > _RELOCATE_S:
            self.place, self._weights_port = place, -1
            self.outgoing.pushes.redial(place[0])
            self.control.redial(endpoint(*place))

    def _heartbeat(self) -> None:
        books = self.outgoing.books()
        reports = [
            m.PlayerReport(rank=seat.rank, state="working", weights_version=self.players[index])
            for index, seat in enumerate(self.seats)
        ]
        self.control.send(
            m.Heartbeat(
                boot_id=self.outgoing.boot_id, state="working", steps=self.outgoing.steps,
                weights_version=self.sync.version, books=books, players=reports,
                spooled=self.outgoing.spool.count,
            )
        )  # fmt: skip

    def close(self) -> None:
        """Ctrl-C."""
        self.outgoing.close()
        self.outgoing.keep()
        if self.control.welcomed:
            self._heartbeat()
            self.control.send(m.Goodbye(reason="left", books=self.outgoing.books()))

    def _watch_spool(self) -> None:
        """Note which bundles the spool gives up."""
        spool, settle = self.outgoing.spool, self.outgoing.spool.settle

        def watched(entry: Entry, status: str, reason: str = "") -> None:
            read = None
            if status in ("dropped", "stale") and not entry.record.name:
                read = spool.load(entry)
            settle(entry, status, reason)
            if read is not None:
                self.node.truth.gone.add(HEADER.unpack(read[0])[0])

        spool.settle = watched  # type: ignore[method-assign]


@contextlib.contextmanager
def torn_writes() -> Iterator[None]:
    """Each write to a spool may be the last thing that its process does, and may be half done then.

    Half of a new bundle or of new books; a record that is changed in place lies within one page, which the system
    writes whole or not at all.
    """
    modules = (spool_file, spool_books)
    write_all = spool_file.write_all

    def write(file: FileIO, data: bytes) -> None:
        process = Process.running
        if process is not None:
            try:
                process.act()
            except Killed:
                appends = file.tell() == Path(str(file.name)).stat().st_size
                if process.lan.rng.random() < 0.5 and (appends or len(data) > 1000):
                    write_all(file, data[: process.lan.rng.randrange(len(data))])
                raise
        write_all(file, data)

    for module in modules:
        module.write_all = write  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.write_all = write_all  # type: ignore[attr-defined]
