"""The broker's process: admits nodes, keeps the member list, passes receipts on, publishes weights, answers status.

It keeps no sessions. What it must not forget (its term, seeds given, each node's books) is in `broker.json`; whom it
lets in is in the host's state folder (access_file.py).
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.bounds import checked_heartbeat, checked_hello
from p2prl.core.episodes import EpisodeStats
from p2prl.core.gate import share_out
from p2prl.core.membership import Member, Roster
from p2prl.core.rate import Rate
from p2prl.errors import RemoteProtocolError
from p2prl.net.loop import Loop
from p2prl.net.sockets import Limits, Network, Received
from p2prl.net.zap import Rejected
from p2prl.nodes import broker_file
from p2prl.nodes.admissions import Admissions
from p2prl.nodes.doorkeeper import full_refusal, protocol_refusal, warn_about_protocol
from p2prl.nodes.eval_desk import EvalDesk
from p2prl.nodes.files import DiskTrouble
from p2prl.nodes.front_desk import FrontDesk
from p2prl.nodes.member_desk import MemberDesk
from p2prl.nodes.process import emit, run_child
from p2prl.nodes.shard_desk import ShardDesk
from p2prl.nodes.status import StatusView, bounded_status, build_status
from p2prl.nodes.trainer_watch import TrainerWatch, absence
from p2prl.nodes.upgrade import codec_refusal
from p2prl.nodes.weights_desk import PUBLISH, WeightsDesk, current
from p2prl.nodes.wiring import BrokerConfig
from p2prl.wire import frames
from p2prl.words import many

log = logging.getLogger("p2prl")

#: wire/frames.py refuses what is too large by its length; far beyond that, ZeroMQ ends the connection.
_CONTROL_LIMITS = Limits(
    message_bytes=frames.MAX_TO_BROKER_BYTES + 64 * 1024, send_messages=200, receive_messages=20
)
_PER_TURN = 500
#: Between two writes of broker.json because of a Hello.
_SAVE_S = 0.1
#: Seeds that the file counts as given before they are, so that not each seat has to be written before it is told.
_SPARE_SEEDS = 4096
#: From a broker's start on: its members had time to come back to it.
_SETTLED_S = 60.0


class Broker:
    """Glue between sockets and the pure machines in core."""

    def __init__(self, config: BrokerConfig, loop: Loop) -> None:
        self.config = config
        self.loop = loop
        self.run, self.host_name = config.run, config.host_name
        self.boot_id = secrets.token_hex(8)
        self.folder = Path(config.folder)
        self.saved = broker_file.load(self.folder)
        self._disk = DiskTrouble(self.folder / broker_file.NAME)
        self._version_disk = DiskTrouble(self.folder / broker_file.VERSION_NAME)
        self.saved.term = max(self.saved.term, config.last_term) + 1
        self.roster = Roster(next_seed=self.saved.next_seed, rungs=self.run.ladder)
        self.members = MemberDesk(self.roster, self.saved, config.max_members)
        self.admissions = Admissions(config, self.saved)
        self.episodes = EpisodeStats()
        self.episodes.load(self.saved.episodes)
        self.desk = ShardDesk(self.saved.shard_steps)
        self.trainer_route = b""
        self.trainer = broker_file.last_report(self.saved)
        self.trainer_heard = loop.now()
        self.trainer_watch = TrainerWatch()
        #: The trainer introduced itself to this incarnation of the broker: it knows the term, and published.
        self.trainer_greeted = False
        self.refused: Counter[str] = Counter()
        self.stopping = ""
        self.started = loop.now()
        self._rate, self.steps_per_s = Rate(loop.now(), self.desk.steps), 0.0
        self._saved_at, self._unsaved = -1e9, False
        self.evaluation = EvalDesk(self, self._tell_trainer)
        self.save()
        self._listen()

    # --- set-up

    def _listen(self) -> None:
        config, base = self.config, self.config.base_port
        admits = self.admissions.admits
        self.network = Network(self.loop, rejected=self._rejected)

        def at(port: int) -> list[str]:
            return [f"tcp://{host}:{port}" for host in config.bind]

        self.control = self.network.server(
            "router", at(base), config.keys, _CONTROL_LIMITS, admits, "control"
        )
        self.weights = WeightsDesk(
            self.loop,
            self.network,
            config,
            self.saved,
            admits,
            self.refuse,
            self._expel,
            self._announce_version,
            self.evaluation.offered,
        )
        self.front = FrontDesk(self, at(base + 1))
        self.loop.on_readable(self.control, self._on_control)
        self.loop.every(1.0, self._each_second)
        self.loop.every(0.25, self._watch)
        self.loop.every(_SAVE_S, self._save_if_needed)
        self._handlers: dict[type, Callable[[Received, Any], None]] = {
            m.Hello: self._hello,
            m.Heartbeat: self._heartbeat,
            m.EvalResult: self._eval_result,
            m.Fault: self._fault,
            m.Goodbye: self._goodbye,
            m.ShardReceipts: self._shard_receipts,
            m.ShardReport: self._shard_report,
            m.TrainerReport: self._trainer_report,
            m.WeightsAsk: self._weights_ask,
            m.StatusAsk: self._status_ask,
            m.StopAsk: self._stop_ask,
            m.Rename: self._rename,
            **self.front.handlers(),
        }

    def save(self, durable: bool = False) -> None:
        """Write what must not be forgotten. If the disk takes nothing, the next second tries again.

        Args:
            durable: also for the case that the power fails, which takes a moment: each second is enough.
        """
        self._saved_at, self._unsaved = self.loop.now(), False
        self.saved.next_seed = self.roster.next_seed + _SPARE_SEEDS
        self.saved.episodes = self.episodes.save()
        broker_file.note_report(self.saved, self.trainer)
        self._disk.tried(lambda: broker_file.save(self.folder, self.saved, durable))

    def _save_soon(self) -> None:
        """Write it now, or together with what follows at once; but no seed is told that the file does not count."""
        self._unsaved = True
        if self.roster.next_seed > self.saved.next_seed:
            self.save()
        self._save_if_needed()

    def _save_if_needed(self) -> None:
        if self._unsaved and self.loop.now() - self._saved_at >= _SAVE_S:
            self.save()

    # --- reading

    def _on_control(self) -> None:
        for _ in range(_PER_TURN):
            received = self.control.receive()
            if received is None:
                return
            try:
                self.admissions.check_pace(received.user, self.loop.now())
                if len(received.frames) != 1:
                    raise RemoteProtocolError("malformed")
                message = frames.decode_to_broker(received.frames[0])
                self.admissions.check(received.user, message)
                self._handlers[type(message)](received, message)
            except RemoteProtocolError as error:
                self.refuse(received.user, error.reason)

    def card(self, node_key: str) -> m.EnrolCard:
        """Who this host is, for a node with this key."""
        return m.EnrolCard(
            protocol=m.PROTOCOL,
            version=__version__,
            server_key=self.config.keys.public,
            run_id=self.run.run_id,
            host_name=self.host_name,
            boot_id=self.boot_id,
            term=self.saved.term,
            base_port=self.config.base_port,
            env=self.run.env_id,
            agent=self.run.agent_name,
            open=self.config.open,
            standing=self.admissions.standing(node_key),
        )

    def _rejected(self, peer: Rejected) -> None:
        """A connection that did not even come about."""
        permitted = peer.server != PUBLISH or peer.reason != "not_admitted"
        self.refuse(peer.key, peer.reason if permitted else "not_permitted")

    def cut(self) -> None:
        """End all connections to the control socket; those who may come back do so by themselves."""
        self.network.reopen(self.control)

    # --- members

    def _hello(self, received: Received, hello: m.Hello) -> None:
        if hello.protocol != m.PROTOCOL:
            warn_about_protocol(hello.name, hello.protocol, hello.version)
            self.refuse(received.user, "protocol")
            self.answer(received, protocol_refusal(hello.protocol, hello.version))
        elif m.WEIGHTS_CODEC not in hello.weights_codecs:
            self.refuse(received.user, "protocol")
            self.answer(received, codec_refusal(hello.name, hello.version))
        elif hello.role == "member":
            self._hello_member(received, checked_hello(hello))
        elif hello.role == "shard":
            self._hello_shard(received, hello)
        elif hello.role == "trainer":
            self.trainer_route, self.trainer_heard = received.peer, self.loop.now()
            self.trainer_greeted = True
            self.trainer = self.trainer_watch.greeted(self.trainer, hello.boot_id)
            self.answer(received, self._welcome([], None))
        else:
            self.answer(received, self._welcome([], None))
            if hello.role == "owner":
                self.front.greet_owner(received)

    def _hello_member(self, received: Received, hello: m.Hello) -> None:
        key, now = received.user, self.loop.now()
        if self.members.full(key):
            self.refuse(key, "full")
            self.answer(received, full_refusal(self.config.max_members))
            return
        slots = hello.slots or self.run.envs
        member = self.members.hello(key, hello, slots, received.peer, received.address, now)
        peer = self.members.peers[key]
        peer.grant = self._grant()
        self._save_soon()
        welcome = self._welcome(member.seats, peer.grant, self._differences(hello))
        parts = [frames.encode(welcome), *self.weights.newer_than(hello.weights_version)]
        self.control.send(parts, received.peer)

    def _reseat(self, member: Member) -> None:
        """Tell a member its new seats."""
        peer = self.members.peers[member.key]
        self._save_soon()
        self.control.send([frames.encode(self._welcome(member.seats, peer.grant))], peer.route)

    def _welcome(
        self, seats: list[m.Seat], grant: int | None, warnings: list[str] | None = None
    ) -> m.Welcome:
        return m.Welcome(
            run=self.run,
            host_name=self.host_name,
            version=__version__,
            term=self.saved.term,
            shards=self.desk.listed(),
            weights_version=self.saved.weights_version,
            weights_port=self.config.base_port + 2,
            seats=seats,
            silent_after_s=self.roster.silent_after_s,
            grant_ticks=grant,
            warnings=warnings or [],
        )

    def _differences(self, hello: m.Hello) -> list[str]:
        texts = []
        if hello.version != __version__:
            texts.append(f"{hello.name} has p2prl {hello.version}, the host {__version__}")
        return texts

    def _heartbeat(self, received: Received, beat: m.Heartbeat) -> None:
        key, version = received.user, self.saved.weights_version
        beat = checked_heartbeat(beat)
        before = self.members.peers.get(key)
        reconnected = before is not None and before.route != received.peer
        peer = self.members.heartbeat(key, beat, received.peer, received.address, version, self.loop.now())
        if peer is None:
            self.answer(received, m.HelloAgain(term=self.saved.term))
            return
        self.evaluation.heartbeat(self.roster.members[key], peer.hello.evaluators, beat)
        peer.grant = self._grant()
        amiss = absence(self.trainer, self.loop.now() - self.trainer_heard)
        ack = m.HeartbeatAck(
            term=self.saved.term, weights_version=version, grant_ticks=peer.grant, trainer=amiss
        )
        self.answer(received, ack)
        if reconnected:  # a list of shards may have been lost with the connection, and would not come again
            self.answer(received, m.ShardList(term=self.saved.term, shards=self.desk.listed()))
        misplaced = self.members.misplaced(key)
        if misplaced is not None:  # the new seats may have been lost with a connection
            self._reseat(misplaced)

    def _eval_result(self, received: Received, result: m.EvalResult) -> None:
        self.evaluation.result(received.user, result)

    def _fault(self, received: Received, fault: m.Fault) -> None:
        self.members.fault(received.user, fault)

    def _goodbye(self, received: Received, goodbye: m.Goodbye) -> None:
        self.members.goodbye(received.user, goodbye, received.peer, self.loop.now())
        self.regrant()

    # --- shards

    def _hello_shard(self, received: Received, hello: m.Hello) -> None:
        shard = hello.shard
        if shard is None or not 0 <= shard.index < self.config.shards:
            raise RemoteProtocolError("malformed")
        self.desk.greeted(shard, received.peer, self.loop.now())
        self.answer(received, self._welcome([], None))
        self.answer(received, self.admissions.for_shards())
        self._announce_shards()

    def _shard_receipts(self, received: Received, receipts: m.ShardReceipts) -> None:
        index = receipts.shard
        self.desk.counted(index, receipts.steps_total, receipts.inserted_ticks)
        peer = self.members.receipts(receipts, self.loop.now())
        self.episodes.ended(receipts.episodes, [peer.stats] if peer else [], receipts.ended)
        self.evaluation.played(receipts.episodes)
        if peer is None or not receipts.verdicts:
            return  # nobody waits for these; a restarted broker's members send again
        peer.grant = self._grant()
        message = m.Receipts(
            shard=index, boot_id=receipts.boot_id, verdicts=receipts.verdicts, grant_ticks=peer.grant
        )
        self.control.send([frames.encode(message)], peer.route)

    def _shard_report(self, received: Received, report: m.ShardReport) -> None:
        now = self.loop.now()
        if not self.desk.reported(report, received.peer, now):
            self.answer(received, m.HelloAgain(term=self.saved.term))
        self.front.shard_refused(report, now)

    def _announce_shards(self) -> None:
        message = frames.encode(m.ShardList(term=self.saved.term, shards=self.desk.listed()))
        for peer in self.members.live():
            self.control.send([message], peer.route)
        if self.trainer_route:
            self.control.send([message], self.trainer_route)

    # --- the trainer and the weights

    def _expel(self, key: str) -> None:
        self.front.expel(key)

    def _announce_version(self, version: int) -> bool:
        if not self._version_disk.tried(lambda: broker_file.note_version(self.folder, version)):
            return False
        for route in self.desk.routes.values():
            self.control.send([current(version)], route)
        return True

    def _trainer_report(self, received: Received, report: m.TrainerReport) -> None:
        self.trainer_route, self.trainer_heard = received.peer, self.loop.now()
        if not self.trainer_greeted:
            self.answer(received, m.HelloAgain(term=self.saved.term))
        if report.lag_mean is None:
            report = msgspec.structs.replace(report, lag_mean=self.trainer.lag_mean)
        self.trainer_watch.reported(self.trainer, report, self.trainer_heard)
        ceiling_before, self.trainer = self.trainer.insert_ceiling, report
        if report.insert_ceiling != ceiling_before:
            self.weights.take()  # players that go on now are to do so with these
            self.regrant()

    def _weights_ask(self, received: Received, ask: m.WeightsAsk) -> None:
        newer = self.weights.newer_than(ask.have, ask.keyframe)
        if newer:
            self.control.send(newer, received.peer)

    def _grant(self) -> int | None:
        if (ceiling := self.trainer.insert_ceiling) is None:
            return None
        members = sum(member.players > 0 for member in self.roster.live())
        return share_out(ceiling, self.desk.inserted, members)

    def regrant(self) -> None:
        """Tell members whose grant changed enough to matter; receipts and heartbeats carry it anyway."""
        grant = self._grant()
        message = frames.encode(m.Grant(grant_ticks=grant))
        for peer in self.members.live():
            old = peer.grant
            if old == grant:
                continue
            if old is None or grant is None or grant > 1.25 * old or grant < 0.5 * old:
                peer.grant = grant
                self.control.send([message], peer.route)

    # --- clients and the owner

    def _status_ask(self, received: Received, ask: m.StatusAsk) -> None:
        self.answer(received, bounded_status(build_status(self._view()), frames.MAX_FROM_BROKER_BYTES))
        self.front.asked_for_status(received)

    def _view(self) -> StatusView:
        return StatusView(broker=self, now=self.loop.now())

    def _stop_ask(self, received: Received, ask: m.StopAsk) -> None:
        self.stopping = ask.reason
        self._tell_trainer(ask.return_mean)  # its last checkpoint is to have the run's last figures
        message = frames.encode(m.Stopping(reason=ask.reason))
        routes = [peer.route for peer in self.members.live()]
        for route in [*routes, *self.desk.routes.values(), self.trainer_route]:
            if route:
                self.control.send([message], route)
        self.answer(received, m.Stopping(reason=ask.reason))
        self.save()

    def _rename(self, received: Received, rename: m.Rename) -> None:
        self.host_name = rename.name

    # --- time

    def _watch(self) -> None:
        now = self.loop.now()
        changed = self.members.ticked(now)
        if self.stopping:
            return  # who is silent now has ended
        if any(member.state == "gone" for member in changed):
            self.regrant()
        if (moved := self.roster.reseated(now)) is not None:
            log.info("%s plays on in the place of those that explored least", moved.name)
            self._reseat(moved)
        for index in (silent := self.desk.ticked(now)):
            log.warning("shard %d is silent; its work waits, new work goes to the others", index)
        if silent:
            self._announce_shards()
        self.evaluation.ticked()
        self._tell_trainer()

    def _each_second(self) -> None:
        now = self.loop.now()
        self.steps_per_s = self._rate.look(now, self.desk.steps)
        self.front.look()
        if not self.stopping:
            self.trainer_watch.look(self._view())
        self.members.fold(settled=now - self.started > _SETTLED_S)
        self.save(durable=True)
        self.weights.publish_held()

    def _tell_trainer(self, reached: float | None = None) -> None:
        """How the run stands; `reached` is the mean return that ends it, whatever ended since."""
        if not self.trainer_route:
            return
        progress = m.RunProgress(
            steps=self.desk.steps,
            episodes=self.episodes.count,
            return_mean=self.episodes.mean if reached is None else reached,
            return_episodes=self.episodes.mean_count,
            returns=self.episodes.save(),
            candidate_wanted=self.evaluation.wanted(),
            evaluation=self.saved.evaluation,
        )
        self.control.send([frames.encode(progress)], self.trainer_route)

    # --- small things

    def answer(self, received: Received, message: m.Message) -> None:
        """Send a message to whoever sent `received`."""
        self.control.send([frames.encode(message)], received.peer)

    def refuse(self, user: str, reason: str) -> None:
        """Count a refusal; `user` is empty for one who has no key yet."""
        self.refused[reason] += 1
        self.members.refuse(user, reason)
        self.front.refused(user, reason)
        if self.refused[reason] in (1, 10, 100, 1000) or self.refused[reason] % 10_000 == 0:
            log.warning("refused %s so far: %s", many(self.refused[reason], "control message"), reason)


def child_main() -> int:
    """Run a broker as a child process."""

    def main(config: BrokerConfig, loop: Loop) -> int:
        broker = Broker(config, loop)
        emit("ready", term=broker.saved.term)
        try:
            return loop.run()
        finally:
            broker.save()
            broker.network.close()

    return run_child(BrokerConfig, main)
