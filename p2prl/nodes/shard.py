"""A shard's process: takes bundles, checks and stores them, answers for each, and gives samples to the trainer.

One node must not keep the others from being heard, whatever it sends. What costs something (decoding, the log, a
verdict) is within its quota, however many connections it makes; what is beyond it costs a look at its size and its
sender, and ZeroMQ takes turns between connections.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

import msgspec

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.guestlist import GuestList
from p2prl.core.quota import Quotas
from p2prl.core.schema import SessionSchema
from p2prl.errors import P2prlError, RemoteProtocolError
from p2prl.net.keys import fingerprint
from p2prl.net.loop import Loop
from p2prl.net.sockets import Frame, Limits, Network, Received
from p2prl.net.zap import Rejected
from p2prl.nodes.control import ControlLine
from p2prl.nodes.process import emit, run_child
from p2prl.nodes.receipts import TOGETHER_S, Batch, Batches, Receipts
from p2prl.nodes.rings import keep_to_itself
from p2prl.nodes.wiring import ShardConfig, push_port, sample_port
from p2prl.replay.log import LogError
from p2prl.replay.params import ReplayParams
from p2prl.replay.prioritised import priorities_from_frames
from p2prl.replay.shard import ShardStore
from p2prl.replay.storage import Sample
from p2prl.replay.verdicts import Offer
from p2prl.wire import frames
from p2prl.wire.bundle import MAX_PAYLOAD_BYTES, MAX_SLOTS
from p2prl.wire.stills import encode_stills

log = logging.getLogger("p2prl")

#: Bundles taken before receipts go out and samples are looked after; and no more once this many seconds passed.
_PER_TURN, _TURN_S = 100, 0.2
#: Bundles that are judged and logged together, and about how many bytes they come to, as they were sent: two of 64 kB.
#: With twice as many a host's memory grows by some 3 MB more.
_TOGETHER, _TOGETHER_BYTES = 16, 128 * 1024
#: Bundles gather for so long after a turn that found few: a turn costs a shard as much as a bundle, and its receipts
#: cost the broker and the members more. Not where players wait for the receipts before they play on.
_GATHER_S = 0.01
#: What ZeroMQ may hold of one connection, about, if all of it is as large as can be. It is far less, and has to hold
#: what comes while bundles gather: where it is full the member waits, and to stop and go costs both sides.
_QUEUE_BYTES = 64_000_000
_SAMPLES = "samples"
#: The largest that a trainer says: the ids of MAX_SAMPLE_COUNT samples, and only where there are priorities.
_ASK_BYTES, _PRIORITIES_BYTES = 2_000, 16 * m.MAX_SAMPLE_COUNT + 2_000
#: How often a node over its quota is told `busy`, per second and for each bundle of its window: an honest one, always.
_ANSWERS = 2.0
#: Nodes that are named as held back; the lines are for people.
_MAX_NAMED = 5
_REPORT_S = 0.5
_FSYNC_CHECK_S = 0.25


class Shard:
    """Glue between sockets and a ShardStore."""

    def __init__(self, config: ShardConfig, loop: Loop) -> None:
        self.config = config
        self.loop = loop
        self.boot_id = secrets.token_hex(8)
        #: The newest weights version known to exist.
        self.current = -1
        self.ready = False
        folder = Path(config.folder) / f"shard-{config.index}"
        run = config.run
        params = ReplayParams(
            kind=config.kind,
            capacity_bytes=config.capacity_bytes,
            max_lag=run.max_lag,
            window=config.window,
            fsync_interval_s=config.fsync_interval_s,
            reward_range=run.env.reward_range,
            max_episode_steps=run.env.max_episode_steps,
            rings=config.rings,
            shard=config.index,
            shards=config.shards,
        )
        self.store = ShardStore.open(folder, run.schema, params, seed=run.seed + config.index)
        self.guests = GuestList()
        self.quotas = Quotas(
            config.node_bytes_per_s, config.node_bundles_per_s, _ANSWERS * run.window_bundles
        )
        #: Nodes that are over their quota, as far as they are named.
        self.held_back: set[str] = set()
        #: The trainer's route, if the queue was empty when it asked last, and the question, if that is to wait.
        self._waits: tuple[bytes, m.SampleAsk | None] | None = None
        #: What was taken out of the queue for a trainer that was gone: the next question's.
        self._kept: Sample | None = None
        self._listen()

    def _listen(self) -> None:
        config, index = self.config, self.config.index
        self.network = Network(self.loop, rejected=self._rejected)
        push, sample = push_port(config.base_port, index), sample_port(config.base_port, index)

        def at(port: int) -> list[str]:
            return [f"tcp://{host}:{port}" for host in config.bind]

        limits, keys = pull_limits(config.run.schema), config.server_keys
        #: Where fewer are found ZeroMQ held nobody's back.
        self._many = limits.receive_messages
        self.pull = self.network.server("pull", at(push), keys, limits, self.guests.admits, "push")
        size = _PRIORITIES_BYTES if config.kind == "prioritised" else _ASK_BYTES
        asks = Limits(message_bytes=size, send_messages=100, receive_messages=100)
        self.samples = self.network.server("router", at(sample), keys, asks, self._may_sample, _SAMPLES)
        self.address = m.ShardAddress(index=index, push_port=push, sample_port=sample, boot_id=self.boot_id)
        self.control = ControlLine(
            self.loop,
            self.network,
            f"tcp://{config.broker}:{config.base_port}",
            config.shard_keys,
            config.server_keys.public,
            self._hello,
            self._on_control,
            self._on_refusal,
        )
        self.receipts = Receipts(
            index,
            self.loop,
            self.control.send,
            lambda: (self.store.steps_total, self.store.inserted_ticks),
            together_s=0.0 if config.run.fresh else TOGETHER_S,
        )
        self.loop.every(_REPORT_S, self._report)
        self.loop.every(_FSYNC_CHECK_S, self._sync)

    def _sync(self) -> None:
        try:
            self.store.tick(self.loop.now())
        except LogError as error:
            log.error("%s", error)  # said each time: until it passes, a power cut costs more than promised

    def _hello(self) -> m.Hello:
        return m.Hello(
            protocol=m.PROTOCOL,
            version=__version__,
            role="shard",
            name=f"shard {self.config.index}",
            boot_id=self.boot_id,
            shard=self.address,
        )

    def _on_control(self, message: m.Message, bulk: list[Frame]) -> None:
        if isinstance(message, m.Welcome):
            self.current = max(self.current, message.weights_version)
            self._report()
        elif isinstance(message, m.Access):
            self._on_access(message)
        elif isinstance(message, m.Current):
            self.current = max(self.current, message.weights_version)

    def _on_access(self, access: m.Access) -> None:
        """Who may give, and whose sessions are sampled."""
        cut = self.guests.told(access)
        self.store.quarantine(self.guests.quarantined)
        self.network.reconsider()
        if cut:
            # What others had under way is lost with it, and comes again when no verdict comes.
            self.network.reopen(self.pull)
        if not self.ready:
            # Not before the Welcome: without the current version every bundle would seem to come from the future. And
            # not before this: of whom it is to be taken, and what of it may be sampled, was not known.
            self.ready = True
            self.loop.on_readable(self.pull, self._on_bundles)
            self.loop.on_readable(self.samples, self._on_samples)

    def _may_sample(self, key: str) -> bool:
        return key == self.config.staff.trainer

    def _rejected(self, peer: Rejected) -> None:
        """A connection that did not come about."""
        permitted = peer.server != _SAMPLES or peer.reason != "not_admitted"
        self._refuse(peer.key, peer.reason if permitted else "not_permitted")

    def _refuse(self, key: str, reason: str) -> None:
        """Strangers have no rows of their own, or they would take those of nodes."""
        self.store.refuse(key if self.guests.names(key) or self.guests.may_give(key) else "", reason)

    def _on_refusal(self, refusal: m.Refusal) -> None:
        raise P2prlError(f"the broker refused its own shard: {refusal.text}")

    # --- bundles

    def _on_bundles(self) -> None:
        batches: Batches = {}
        offers: list[Offer] = []
        began, size = self.loop.now(), 0
        for taken in range(_PER_TURN):
            received = self.pull.receive()
            if received is None:
                if taken < self._many and not self.config.run.fresh:
                    self.loop.rest(self.pull, _GATHER_S)
                break
            now = self.loop.now()
            size += self._take(received, offers, batches, now)
            if size >= _TOGETHER_BYTES or len(offers) >= _TOGETHER:
                self._judge(offers, batches, now)
                offers, size = [], 0
            if now - began > _TURN_S:
                break
        self._judge(offers, batches, self.loop.now())
        try:
            self.store.flush()
        except LogError as error:
            log.error("%s", error)  # no verdict now: the bundles come again, and are duplicates then
            return
        self.receipts.add(batches)
        self._tell_who_waits()

    def _take(self, received: Received, offers: list[Offer], batches: Batches, now: float) -> int:
        """Add a bundle to `offers`, unless what can be said of it is said without a look into it; returns its bytes."""
        node, parts = received.user, received.frames
        if not self.guests.may_give(node):
            self._refuse(node, "not_admitted")
            return 0
        size = sum(map(len, parts))
        word = self.quotas.judge(node, size, now)
        if word == "drop":
            self.store.refuse(node, "over_quota")
            return 0
        try:
            if len(parts) != 3:
                raise RemoteProtocolError("malformed")
            delivery = frames.decode_to_shard(parts[0])
        except RemoteProtocolError as error:
            # Without a delivery there is no sequence number to answer for.
            self.store.refuse(node, error.reason)
            return 0
        if word == "busy":
            self._hold_back(node)
            verdict = m.Verdict(seq=delivery.seq, status="busy", reason="over_quota")
            batches.setdefault((node, delivery.boot_id), Batch()).verdicts.append(verdict)
            return 0
        offers.append(Offer(node, delivery, parts[1], parts[2]))
        return size

    def _judge(self, offers: list[Offer], batches: Batches, now: float) -> None:
        words = self.store.accept_all(offers, self.current, self.config.run.run_id, now)
        for offer, accepted in zip(offers, words, strict=True):
            key = offer.node, offer.delivery.boot_id
            batch = batches.get(key) or batches.setdefault(key, Batch())
            batch.verdicts.append(accepted.verdict)
            batch.episodes += accepted.episodes

    def _hold_back(self, node: str) -> None:
        """Tell the owner once: it need not be meant ill."""
        if node in self.held_back or len(self.held_back) >= _MAX_NAMED:
            return
        self.held_back.add(node)
        self.store.warn(
            f"node {fingerprint(node)} gives more than limits.node_bytes_per_s or limits.node_bundles_per_s "
            "allows, and is held back; nothing of it is lost"
        )

    # --- samples

    def _on_samples(self) -> None:
        for _ in range(_PER_TURN):
            received = self.samples.receive()
            if received is None:
                return
            try:
                if not self._may_sample(received.user):
                    raise RemoteProtocolError("not_permitted")
                said = frames.decode_sample(received.frames[0])
                if isinstance(said, m.SampleReply) or not 0 <= said.count <= m.MAX_SAMPLE_COUNT:
                    raise RemoteProtocolError("malformed")
                self.store.hear(said.highest)
                if isinstance(said, m.SampleAsk):
                    self._answer(received.peer, said)
                else:
                    self.store.prioritise(*priorities_from_frames(said.count, received.frames[1:]))
            except RemoteProtocolError as error:
                self._refuse(received.user, error.reason)

    def _answer(self, peer: bytes, ask: m.SampleAsk) -> None:
        """Raises RemoteProtocolError for a sample that cannot be."""
        self.current = max(self.current, ask.weights_version)
        queue = self.config.kind == "queue"
        if ask.wait and queue and not self.store.mass() and self._kept is None:
            self._waits = peer, ask
            return
        sample = self._kept or self.store.sample(ask.count, ask.window, self.current)
        drawn = sample.drawn
        reply = msgspec.structs.replace(
            self._stock(),
            ask=ask.ask,
            count=len(sample.versions),
            stale=sample.stale,
            priority_total=drawn.total if drawn else 0.0,
            shared=sample.where is not None,
        )
        self._waits = (peer, None) if queue and not reply.mass else None
        parts: list[Frame] = [frames.encode(reply)]
        if len(sample.versions):
            parts += [] if sample.where is None else [sample.where.data]
            parts += [
                encode_stills(column) if isinstance(column, list) else column.data
                for column in sample.columns
            ]
            parts.append(sample.versions.data)
            parts += [values.data for values in (drawn.ids, drawn.priorities)] if drawn else []
        sent = self.samples.send(parts, peer)
        self._kept = sample if queue and not sent and sample.count else None

    def _stock(self) -> m.SampleReply:
        """What there is now, said to nobody's question."""
        return m.SampleReply(
            ask=0,
            count=0,
            mass=self.store.mass(),
            inserted_ticks=self.store.inserted_ticks,
            boot_id=self.boot_id,
            ticks=self.store.sessions * self.config.run.schema.ticks,
            highest=self.store.highest,
        )

    def _tell_who_waits(self) -> None:
        """A trainer that was told of nothing need not ask again and again: it is told when there is something."""
        if self._waits is None or not self.store.mass():
            return
        (peer, ask), self._waits = self._waits, None
        if ask is not None:
            self._answer(peer, ask)
        else:
            self.samples.send([frames.encode(self._stock())], peer)

    def _report(self) -> None:
        if not self.control.welcomed:
            return
        store, counters = self.store, self.store.counters
        self.control.send(
            m.ShardReport(
                index=self.config.index,
                boot_id=self.boot_id,
                sessions=store.sessions,
                ticks=store.sessions * self.config.run.schema.ticks,
                size_bytes=store.size_bytes,
                inserted_ticks=store.inserted_ticks,
                steps_total=store.steps_total,
                stored=store.stored_total,
                duplicate=counters.duplicate,
                refused=dict(counters.refused),
                stale=counters.stale,
                evicted=counters.evicted,
                refused_by_node={node: dict(reasons) for node, reasons in counters.refused_by_node.items()},
                warnings=[*store.warnings, store.trouble] if store.trouble else list(store.warnings),
            )
        )


def pull_limits(schema: SessionSchema) -> Limits:
    """No larger messages than a bundle of this run can be, and few large ones at a time."""
    largest = min(MAX_PAYLOAD_BYTES, schema.session_bytes() * MAX_SLOTS)
    # Somewhat more: what is only a little too large is refused by name, and does not cost the connection.
    message_bytes = max(largest, frames.MAX_BUNDLE_HEADER_BYTES) + 64 * 1024
    queue = max(4, min(_PER_TURN, _QUEUE_BYTES // message_bytes))
    return Limits(message_bytes=message_bytes, receive_messages=queue)


def child_main() -> int:
    """Run a shard as a child process."""

    def main(config: ShardConfig, loop: Loop) -> int:
        keep_to_itself(config.rings)
        shard = Shard(config, loop)
        emit("ready", sessions=shard.store.sessions)
        try:
            return loop.run()
        finally:
            shard.receipts.say()
            shard.store.close()
            shard.network.close()

    return run_child(ShardConfig, main)
