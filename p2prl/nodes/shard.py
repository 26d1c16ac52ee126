"""A shard's process: takes bundles, checks and stores them, answers for each, and gives samples to the trainer."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.errors import P2prlError, RemoteProtocolError
from p2prl.net.loop import Loop
from p2prl.net.sockets import Frame, Limits, Network, Received
from p2prl.nodes.control import ControlLine
from p2prl.nodes.process import emit, run_child
from p2prl.nodes.wiring import ShardConfig, push_port, sample_port
from p2prl.replay.log import LogError
from p2prl.replay.params import ReplayParams
from p2prl.replay.shard import ShardStore
from p2prl.wire import frames
from p2prl.wire.bundle import MAX_PAYLOAD_BYTES

log = logging.getLogger("p2prl")

#: Bundles taken before receipts go out and samples are looked after.
_PER_TURN = 100
_REPORT_S = 0.5
_FSYNC_CHECK_S = 0.25
#: Of one ShardReceipts. An episode takes at most 28 bytes: half of what a message on control may have.
_EPISODES_AT_ONCE = 4000


class _Batch:
    """Verdicts of one turn for one boot of one node."""

    def __init__(self) -> None:
        self.verdicts: list[m.Verdict] = []
        self.episodes: list[tuple[float, int, float]] = []


class Shard:
    """Glue between sockets and a ShardStore."""

    def __init__(self, config: ShardConfig, loop: Loop) -> None:
        self.config = config
        self.loop = loop
        self.boot_id = secrets.token_hex(8)
        #: The newest weights version known to exist.
        self.current = -1
        self.ready = False
        self.refused_frames: dict[str, int] = {}
        folder = Path(config.folder) / f"shard-{config.index}"
        params = ReplayParams(
            kind=config.kind,
            capacity_bytes=config.capacity_bytes,
            max_lag=config.run.max_lag,
            window=config.window,
            fsync_interval_s=config.fsync_interval_s,
        )
        self.store = ShardStore.open(folder, config.run.schema, params, seed=config.run.seed + config.index)
        self._listen()

    def _listen(self) -> None:
        config, index = self.config, self.config.index
        self.network = Network(self.loop)
        push, sample = push_port(config.base_port, index), sample_port(config.base_port, index)
        pull_limits = Limits(message_bytes=MAX_PAYLOAD_BYTES, receive_messages=_PER_TURN)
        self.pull = self.network.server(
            "pull", [f"tcp://{host}:{push}" for host in config.bind], config.server_keys, pull_limits
        )
        self.samples = self.network.server(
            "router",
            [f"tcp://{host}:{sample}" for host in config.bind],
            config.server_keys,
            Limits(message_bytes=2_000, send_messages=100, receive_messages=100),
        )
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
        self.loop.on_readable(self.samples, self._on_samples)
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
            if not self.ready:
                # Not before: without the current version every bundle would seem to come from the future.
                self.ready = True
                self.loop.on_readable(self.pull, self._on_bundles)
            self._report()
        elif isinstance(message, m.Current):
            self.current = max(self.current, message.weights_version)

    def _on_refusal(self, refusal: m.Refusal) -> None:
        raise P2prlError(f"the broker refused its own shard: {refusal.text}")

    # --- bundles

    def _on_bundles(self) -> None:
        batches: dict[tuple[str, str], _Batch] = {}
        for _ in range(_PER_TURN):
            received = self.pull.receive()
            if received is None:
                break
            self._take(received, batches)
        for (node, boot_id), batch in batches.items():
            receipts = m.ShardReceipts(
                shard=self.config.index,
                node=node,
                boot_id=boot_id,
                verdicts=batch.verdicts,
                episodes=batch.episodes,
                steps_total=self.store.steps_total,
                inserted_ticks=self.store.inserted_ticks,
            )
            for part in cut_receipts(receipts):
                self.control.send(part)

    def _take(self, received: Received, batches: dict[tuple[str, str], _Batch]) -> None:
        try:
            if len(received.frames) != 3:
                raise RemoteProtocolError("malformed")
            delivery = frames.decode_to_shard(received.frames[0])
        except RemoteProtocolError as error:
            # Without a delivery there is no sequence number to answer for.
            self.store.refuse(received.user, error.reason)
            return
        accepted = self.store.accept(
            received.user,
            delivery,
            received.frames[1],
            received.frames[2],
            self.current,
            self.config.run.run_id,
            self.loop.now(),
        )
        batch = batches.setdefault((received.user, delivery.boot_id), _Batch())
        batch.verdicts.append(accepted.verdict)
        batch.episodes.extend(accepted.episodes)

    # --- samples

    def _on_samples(self) -> None:
        for _ in range(_PER_TURN):
            received = self.samples.receive()
            if received is None:
                return
            try:
                if received.user != self.config.staff.trainer:
                    raise RemoteProtocolError("not_permitted")
                ask = frames.decode_sample(received.frames[0])
                if not isinstance(ask, m.SampleAsk) or not 0 <= ask.count <= m.MAX_SAMPLE_COUNT:
                    raise RemoteProtocolError("malformed")
            except RemoteProtocolError as error:
                self.store.refuse(received.user, error.reason)
                continue
            self._answer(received.peer, ask)

    def _answer(self, peer: bytes, ask: m.SampleAsk) -> None:
        self.current = max(self.current, ask.weights_version)
        try:
            sample = self.store.sample(ask.count, ask.window, self.current)
        except RemoteProtocolError as error:
            self.store.refuse(self.config.staff.trainer, error.reason)
            return
        reply = m.SampleReply(
            ask=ask.ask,
            count=len(sample.versions),
            mass=self.store.mass(),
            inserted_ticks=self.store.inserted_ticks,
            boot_id=self.boot_id,
            ticks=self.store.sessions * self.config.run.schema.ticks,
            stale=sample.stale,
        )
        parts: list[Frame] = [frames.encode(reply)]
        if len(sample.versions):
            parts += [values.data for values in (*sample.columns, sample.versions)]
        self.samples.send(parts, peer)

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
                warnings=list(store.warnings),
            )
        )


def cut_receipts(receipts: m.ShardReceipts) -> Iterator[m.ShardReceipts]:
    """The same in messages that fit on control: short episodes in many slots come to megabytes a turn.

    The verdicts are few (at most one per bundle of a turn) and go last: without them the bundles come again.
    """
    episodes = receipts.episodes
    first = 0
    while len(episodes) - first > _EPISODES_AT_ONCE:
        some = episodes[first : first + _EPISODES_AT_ONCE]
        yield msgspec.structs.replace(receipts, verdicts=[], episodes=some)
        first += _EPISODES_AT_ONCE
    yield msgspec.structs.replace(receipts, episodes=episodes[first:])


def child_main() -> int:
    """Run a shard as a child process."""

    def main(config: ShardConfig, loop: Loop) -> int:
        shard = Shard(config, loop)
        emit("ready", sessions=shard.store.sessions)
        try:
            return loop.run()
        finally:
            shard.store.close()
            shard.network.close()

    return run_child(ShardConfig, main)
