"""The simulated host: a broker, two shards and a trainer on one machine, with what each of them has on disk.

What decides is the product's: Roster, Ledger, MemberDesk, ShardDesk, Admissions, GuestList, Dedup, Quotas, ControlLine.
What is written here is what nodes/broker.py, nodes/shard.py and nodes/trainer.py do with them, in the same order, and it
has to follow them.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from p2prl.core import messages as m
from p2prl.core.dedup import Dedup, Seen
from p2prl.core.gate import share_out
from p2prl.core.guestlist import GuestList
from p2prl.core.membership import Member, Roster
from p2prl.core.quota import Quotas
from p2prl.core.schema import SessionSchema
from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.errors import RemoteProtocolError
from p2prl.net.addresses import endpoint
from p2prl.net.keys import KeyPair
from p2prl.nodes.admissions import Admissions
from p2prl.nodes.broker_file import Saved
from p2prl.nodes.control import ControlLine
from p2prl.nodes.member_desk import MemberDesk
from p2prl.nodes.shard_desk import ShardDesk
from p2prl.nodes.wiring import BrokerConfig, Staff, publish_port, push_port
from p2prl.wire import frames
from tests.simulation.lan import FakeLan
from tests.simulation.process import FakeNetwork, Machine, Process

if TYPE_CHECKING:
    from p2prl.core.access import Entry

SHARDS = 2
#: T x B of every bundle here.
TICKS = 8
RUN_ID = "run-1"
#: A bundle's header here: its number among its node's, and the weights version that played it.
HEADER = struct.Struct("<qq")
#: Keys, in what looks like Z85.
HOST_KEY, OWNER, TRAINER, SHARD, OWN_MEMBER = (letter * 40 for letter in "hotsm")
#: As in nodes/broker.py.
_SAVE_S, _SPARE_SEEDS, _SETTLED_S = 0.1, 4096, 60.0
#: As in replay/shard.py.
_SOON_VERSIONS = 16
#: Records of a shard's log between two snapshots.
_SEGMENT = 20
#: Ticks that may wait for the trainer.
_CAPACITY = 600
_SPACE = Leaf("discrete", "int64", (), (0.0,), (1.0,))


def run_spec(when_full: str = "wait", max_lag: int = 0, window_bundles: int = 8) -> m.RunSpec:
    """A run, as far as anybody here looks at it."""
    return m.RunSpec(
        run_id=RUN_ID, seed=0, env_id="e", env_args={}, env=EnvSpec("e", _SPACE, _SPACE), env_package="",
        env_hash="", agent_name="a", agent_settings={}, agent_package="", agent_hash="",
        schema=SessionSchema(ticks=TICKS, columns=()), ladder=1, when_full=when_full,
        window_bytes=6_000, window_bundles=window_bundles, max_lag=max_lag, envs=1,
    )  # fmt: skip


@dataclass
class ShardDisk:
    """A shard's log.

    Attributes:
        names: (node, boot id, sequence number) of all that is in it, in order.
        snapshot: Dedup.snapshot() as it is at the beginning of the last segment.
        segment: where that begins.
    """

    names: list[tuple[str, str, int]] = field(default_factory=list)
    known: set[tuple[str, str, int]] = field(default_factory=set)
    snapshot: bytes = b""
    segment: int = 0

    def dedup(self) -> Dedup:
        """What a shard knows of it after a start."""
        dedup = Dedup(msgspec.msgpack.decode(self.snapshot, type=list[Seen]) if self.snapshot else ())
        for name in self.names[self.segment :]:
            dedup.mark(*name)
        return dedup

    def append(self, name: tuple[str, str, int], dedup: Dedup) -> None:
        """Keep a bundle; a new segment begins with what all before it amount to."""
        if len(self.names) - self.segment >= _SEGMENT:
            self.segment = len(self.names)
            self.snapshot = msgspec.msgpack.encode(dedup.snapshot())
        self.names.append(name)
        self.known.add(name)


@dataclass
class Disk:
    """What survives of a host.

    Attributes:
        broker: `broker.json`.
        checkpoint: the weights version of the trainer's last checkpoint.
        stored: copies of each bundle in all shards, by (node, number).
        per_node: bundles in all shards, by node.
    """

    broker: bytes = b""
    checkpoint: int = -1
    shards: list[ShardDisk] = field(default_factory=lambda: [ShardDisk() for _ in range(SHARDS)])
    stored: Counter[tuple[str, int]] = field(default_factory=Counter)
    per_node: Counter[str] = field(default_factory=Counter)
    #: (node, number) of bundles that a shard said are stale, or refused.
    turned_away: set[tuple[str, int]] = field(default_factory=set)


class Host:
    """The machine and its processes; those that die are started again, as the supervisor does.

    Args:
        state: a folder for the list of keys.
        config: changes of the broker's config.

    Attributes:
        terms: of all brokers so far.
        contents: what weights of each version are.
        starts: brokers, shards and trainers that were started.
        seeds: whom each seed was given to, as (key, boot id).
        down: the whole host is away.
        kills: how often one of its processes died.
    """

    def __init__(self, lan: FakeLan, machine: Machine, run: m.RunSpec, state: Path, **config: object) -> None:
        self.lan, self.machine, self.run, self.rng = lan, machine, run, lan.rng
        self.address, self.base_port = "192.0.2.1", 47800
        self._state, self._more = state, config
        self.disk = Disk()
        self.quota_bytes_per_s = 0.0
        self.busy = 0.03
        self.publishes = True
        #: How long a process is missing after it died; 0 for anything.
        self.restart_s = 0.0
        self.terms: list[int] = []
        self.starts: Counter[str] = Counter()
        self.seeds: dict[int, tuple[str, str]] = {}
        self.contents: dict[int, bytes] = {}
        self.kills = 0
        self.down = False
        self.broker: Broker | None = None
        self.trainer: Trainer | None = None
        self.shards: list[Shard | None] = [None] * SHARDS
        self.new_broker: Callable[[Host], Broker] = Broker
        #: Told of each member that a broker took for gone.
        self.gone: Callable[[str], None] = lambda key: None
        #: Told of each bundle that a shard stores, by whom it is and what the shard knows of who may give.
        self.keeps: Callable[[str, m.Access], None] = lambda user, access: None

    def config(self) -> BrokerConfig:
        """The broker's."""
        fields: dict[str, object] = {
            "run": self.run, "run_name": RUN_ID, "host_name": "host", "keys": KeyPair(HOST_KEY, ""),
            "staff": Staff(OWNER, TRAINER, SHARD, OWN_MEMBER), "base_port": self.base_port, "bind": ["*"],
            "shards": SHARDS, "folder": "", "state": str(self._state), "open": True,
        }  # fmt: skip
        return BrokerConfig(**(fields | self._more))  # type: ignore[arg-type]

    def at(self, port: int) -> str:
        """An endpoint of this host."""
        return endpoint(self.address, port)

    # --- starts and ends

    def start(self) -> None:
        """All of it."""
        self.down = False
        self._start_broker()
        for index in range(SHARDS):
            self._start_shard(index)
        self._start_trainer()

    def processes(self) -> list[Process]:
        """Those that are alive."""
        parts = [self.broker, self.trainer, *self.shards]
        return [part.process for part in parts if part is not None and part.process.alive]

    @property
    def whole(self) -> bool:
        """All of it runs."""
        return len(self.processes()) == SHARDS + 2

    def kill_all(self, away_s: float, moves: bool = False) -> None:
        """kill -9 of everything; it comes back by `--resume`, perhaps on another address and port."""
        if self.down:
            return
        self.down = True
        for process in self.processes():
            process.kill()
        if moves:
            self.address, self.base_port = f"192.0.2.{self.rng.randrange(1, 255)}", self.base_port + 100
        self.lan.after(away_s, self.start)

    def _died(self, again: Callable[[], None]) -> Callable[[Process], None]:
        def died(process: Process) -> None:
            self.kills += 1
            if not self.down:
                delay_s = self.restart_s or 0.2 + self.rng.choice((1.0, 8.0)) * self.rng.random()
                self.lan.after(delay_s, lambda: None if self.down else again())

        return died

    def _process(self, name: str, again: Callable[[], None]) -> Process:
        self.starts[name] += 1
        return Process(self.machine, name, self._died(again))

    def _start_broker(self) -> None:
        if self.broker is None or not self.broker.process.alive:
            self.broker = self.new_broker(self)

    def _start_shard(self, index: int) -> None:
        old = self.shards[index]
        if old is None or not old.process.alive:
            self.shards[index] = Shard(self, index)

    def _start_trainer(self) -> None:
        if self.trainer is None or not self.trainer.process.alive:
            self.trainer = Trainer(self)


class Shard:
    """One life of a shard's process; see nodes/shard.py and replay/shard.py."""

    def __init__(self, host: Host, index: int) -> None:
        self.host, self.index = host, index
        self.process = process = host._process(f"shard {index}", lambda: host._start_shard(index))
        self.boot_id = f"shard {index}.{host.starts[f'shard {index}']}"
        self.disk = host.disk.shards[index]
        self.dedup = self.disk.dedup()
        self.guests = GuestList()
        self.access = m.Access(open=False, admitted=[], barred=[], quarantined=[])
        self.quotas = Quotas(host.quota_bytes_per_s, 0.0, 10.0)
        self.current = -1
        self.ready = False
        self.duplicates = 0
        self.refused: dict[str, Counter[str]] = {}
        self.address = m.ShardAddress(
            index=index,
            push_port=push_port(host.base_port, index),
            sample_port=0,
            boot_id=self.boot_id,
        )
        self.control = ControlLine(
            process, FakeNetwork(process, SHARD), endpoint("127.0.0.1", host.base_port), KeyPair("", ""), "",
            self._hello, self._on_control, self._on_refusal,
        )  # type: ignore[arg-type]  # fmt: skip
        process.every(1.0, self._report)
        self.host.lan.listen(process, host.at(self.address.push_port), self._take)

    def _hello(self) -> m.Hello:
        return m.Hello(
            protocol=m.PROTOCOL, version="0", role="shard", name=f"shard {self.index}", boot_id=self.boot_id,
            shard=self.address,
        )  # fmt: skip

    def _on_control(self, message: m.Message, bulk: list[bytes]) -> None:
        if isinstance(message, m.Welcome):
            self.current = max(self.current, message.weights_version)
            self.ready = True
            self._report()
        elif isinstance(message, m.Current):
            self.current = max(self.current, message.weights_version)
        elif isinstance(message, m.Access):
            self.guests.told(message)
            self.access = message

    def _on_refusal(self, refusal: m.Refusal) -> None:
        raise AssertionError(f"the broker refused its own shard: {refusal.text}")

    # --- bundles

    def _take(self, route: bytes, user: str, parts: list[bytes]) -> None:
        if not self.ready or not self.guests.may_give(user):
            return  # dropped, and sent again if its sender is let in
        delivery = frames.decode_to_shard(parts[0])
        word = self.quotas.judge(user, sum(map(len, parts)), self.process.now())
        if word == "drop":
            return
        verdict = (
            m.Verdict(seq=delivery.seq, status="busy")
            if word == "busy"
            else self._accept(user, delivery, parts)
        )
        receipts = m.ShardReceipts(
            shard=self.index,
            node=user,
            boot_id=delivery.boot_id,
            verdicts=[verdict],
            steps_total=TICKS * len(self.disk.names),
            inserted_ticks=TICKS * len(self.disk.names),
        )
        self.control.send(receipts)

    def _accept(self, user: str, delivery: m.Delivery, parts: list[bytes]) -> m.Verdict:
        name = (user, delivery.boot_id, delivery.seq)
        if self.dedup.seen(*name):
            self.duplicates += 1
            return m.Verdict(seq=delivery.seq, status="duplicate")
        number, version = HEADER.unpack(parts[1])
        if version > self.current + _SOON_VERSIONS:
            self.refused.setdefault(user, Counter())["future_version"] += 1
            self.host.disk.turned_away.add((user, number))
            return m.Verdict(seq=delivery.seq, status="refused", reason="future_version")
        lag, max_lag = self.current - version, self.host.run.max_lag
        if max_lag and lag > max_lag:
            self.host.disk.turned_away.add((user, number))
            return m.Verdict(seq=delivery.seq, status="stale")
        if lag < 0 or self.host.rng.random() < self.host.busy:
            return m.Verdict(seq=delivery.seq, status="busy")
        self.process.act()
        self._keep(name, number)
        return m.Verdict(seq=delivery.seq, status="stored")

    def _keep(self, name: tuple[str, str, int], number: int) -> None:
        self.host.keeps(name[0], self.access)
        self.disk.append(name, self.dedup)
        self.dedup.mark(*name)
        self.host.disk.stored[name[0], number] += 1
        self.host.disk.per_node[name[0]] += 1
        copies = self.host.disk.stored[name[0], number]
        assert copies == 1, f"bundle {number} of {name[0][:8]} was stored {copies} times, now as {name[1:]}"

    def _report(self) -> None:
        if not self.control.welcomed:
            return
        stored = len(self.disk.names)
        self.control.send(
            m.ShardReport(
                index=self.index, boot_id=self.boot_id, sessions=stored, ticks=TICKS * stored, size_bytes=0,
                inserted_ticks=TICKS * stored, steps_total=TICKS * stored, stored=stored,
                duplicate=self.duplicates,
                refused_by_node={key: dict(reasons) for key, reasons in self.refused.items()},
            )
        )  # fmt: skip


class Trainer:
    """One life of a trainer's process, as far as versions go; see nodes/trainer.py."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.process = process = host._process("trainer", host._start_trainer)
        self.version = host.disk.checkpoint
        self._term = -1
        self._steps = 0
        self._boot_id = f"trainer.{host.starts['trainer']}"
        network = FakeNetwork(process, TRAINER)
        local = endpoint("127.0.0.1", host.base_port)
        self.control = ControlLine(
            process, network, local, KeyPair("", ""), "", self._hello, self._on_control, self._on_refusal
        )  # type: ignore[arg-type]
        self._publisher = network.client("push", host.at(publish_port(host.base_port)), None, None, None)
        process.every(1.0, self._report)
        process.every(2.0, self._learn)
        process.every(7.0, self._save)

    def _hello(self) -> m.Hello:
        return m.Hello(
            protocol=m.PROTOCOL, version="0", role="trainer", name="trainer", boot_id=self._boot_id
        )

    def _on_control(self, message: m.Message, bulk: list[bytes]) -> None:
        if isinstance(message, m.Welcome):
            if message.term != self._term:
                self._term = message.term
                self.version = max(self.version, message.weights_version)
                self._publish()
        elif isinstance(message, m.RunProgress):
            self._steps = message.steps

    def _on_refusal(self, refusal: m.Refusal) -> None:
        raise AssertionError(f"the broker refused its own trainer: {refusal.text}")

    def _learn(self) -> None:
        if self.host.publishes:
            self._publish()

    def _publish(self) -> None:
        if not self.control.welcomed:
            return
        content = f"{self._boot_id} {self.version + 1} {self.process.lan.events}".encode()
        header = m.WeightsHeader(run_id=RUN_ID, version=self.version + 1, codec="", size_bytes=len(content))
        if self._publisher.send([frames.encode(header), content]):
            self.version += 1

    def _report(self) -> None:
        if self.control.welcomed:
            ceiling = self._steps + _CAPACITY
            self.control.send(
                m.TrainerReport(state="training", weights_version=self.version, insert_ceiling=ceiling)
            )

    def _save(self) -> None:
        self.process.act()
        self.host.disk.checkpoint = self.version


class Broker:
    """One life of a broker's process; see nodes/broker.py, nodes/weights_desk.py and nodes/front_desk.py."""

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
        # What was said on the connection before may have been lost with it. And where each message may be lost by itself,
        # somebody has to say again what TCP would not have lost.
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
