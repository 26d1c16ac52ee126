"""The trainer's process: samples from the shards, updates the agent, publishes weights, writes checkpoints."""

from __future__ import annotations

import logging
import secrets
import time
from functools import partial
from pathlib import Path

import msgspec

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.standstill import Standstill
from p2prl.errors import LearningFailed, P2prlError, RemoteProtocolError
from p2prl.learn.contracts import Array, Batch, Learner, weights_tolerance
from p2prl.learn.departures import Departures
from p2prl.learn.gathering import Gatherer
from p2prl.learn.sampling import Sampler
from p2prl.net.addresses import endpoint
from p2prl.net.loop import Loop
from p2prl.net.sockets import Frame, Limits, Network, Socket
from p2prl.nodes import checkpoint
from p2prl.nodes.best import BestKeeper
from p2prl.nodes.control import ControlLine
from p2prl.nodes.device import most_threads, use_threads
from p2prl.nodes.files import DiskTrouble
from p2prl.nodes.guard import Guard, advice
from p2prl.nodes.heap import keep_freed_memory
from p2prl.nodes.named_learner import learner_of
from p2prl.nodes.process import emit, run_child
from p2prl.nodes.publisher import Publisher
from p2prl.nodes.recent import Recent
from p2prl.nodes.rings import keep_to_itself
from p2prl.nodes.threads import Threads
from p2prl.nodes.trainer_config import TrainerConfig
from p2prl.nodes.wiring import publish_port
from p2prl.registry import resolve_agent
from p2prl.replay.storage import ring_capacity
from p2prl.wire import frames

log = logging.getLogger("p2prl")

_REPORT_S = 0.05
#: Where samples are in shared memory, small updates are made one after the other for so long before the sockets are
#: looked at again, which costs a fiftieth of one: there are many batches ahead.
_MOMENT_S = 0.005
_SAMPLE_LIMITS = Limits(message_bytes=1_000_000_000, send_messages=100, receive_messages=100)
#: For the broker's last word, which was sent before the order to end.
_LAST_WORD_S = 0.5


class Trainer:
    """Glue between sockets, a Sampler and a Learner."""

    def __init__(self, config: TrainerConfig, loop: Loop) -> None:
        self.config = config
        self.loop = loop
        self.boot_id = secrets.token_hex(8)
        self.folder = Path(config.folder) / "checkpoints"
        self.device = ""
        self.learner: Learner | None = None
        self.updates = 0
        self.progress = m.RunProgress(steps=0, episodes=0, return_mean=None, return_episodes=0)
        self.keeper = BestKeeper(self.folder, config.eval_episodes, config.goal, self._write)
        #: Something is new since the last publication; something is to be published as soon as that can be.
        self._unpublished, self._hurry = False, False
        self._published_at = -1e9
        self._ceiling_told: int | None = None
        #: Of the publication under way: the state behind a candidate, and whether its weights are new.
        self._behind: checkpoint.Snapshot | None = None
        self._changed = False
        self._saved_updates = self._term = -1
        self._disk = DiskTrouble("checkpoints")
        self.guard = Guard(self.folder)
        self.standstill = Standstill(loop.now())
        #: Why this process ends, in a line; empty while all is well.
        self._failed = ""
        #: Why the run ends, as the broker said.
        self._stopping = ""
        self._metrics, self._lags = Recent(), Recent()
        self._sockets: dict[int, tuple[int, Socket]] = {}
        self.network = Network()
        self.control = ControlLine(
            loop,
            self.network,
            endpoint(config.host, config.base_port),
            config.keys,
            config.server_key,
            self._hello,
            self._on_control,
            self._on_refusal,
        )
        self.publisher = Publisher(
            loop,
            self.network,
            endpoint(config.host, publish_port(config.base_port)),
            config.keys,
            config.server_key,
            weights_tolerance(resolve_agent(config.agent)) > 0,
            self._published,
        )
        loop.every(_REPORT_S, self.report, first_s=0.0)

    # --- starting

    def start(self) -> None:
        """Make the learner, which may import torch; then take back a checkpoint, if there is one."""
        self.control.say_hello()  # it goes out meanwhile: the broker is to know that we are starting
        config = self.config
        self.device, self.learner = learner_of(config)
        self.guard.advice = advice(resolve_agent(config.agent), config.run.agent_settings, config.run.env_id)
        self.threads = Threads(most_threads(self.device), use_threads)
        checkpoint.tidy(self.folder)
        last = checkpoint.load_last(self.folder)
        sampled, departures = 0, Departures(config.run.schema.ticks, config.shards)
        if last is not None:
            checkpoint.check_fits(last, self.learner.weights())
            checkpoint.set_aside(self.folder, last)
            self.learner.load(last.learner)
            self.publisher.version, self.updates = last.meta.version, last.meta.updates
            sampled, self.guard.skipped = last.meta.sampled, last.meta.skipped
            departures = Departures(config.run.schema.ticks, config.shards, last.meta.left, last.meta.lost)
            self._saved_updates = self.updates
            self.keeper.resume()
            log.info("resumed from %s: %s", last.path, last.meta.told())
        seed = config.run.seed + self.updates
        places = ring_capacity(config.run.schema, config.shard_bytes)
        self.gatherer = Gatherer(config.run.schema, config.replay, config.rings, config.shards, places)
        gatherer = self.gatherer if config.rings >= 0 else None
        self.sampler = Sampler(config.run.schema, config.replay, seed, sampled, gatherer, departures)
        self.standstill = Standstill(self.loop.now())
        self.loop.every(config.checkpoint_interval_s, self.save)
        self.loop.when_idle(self._work)
        emit("ready", device=self.device, updates=self.updates, version=self.publisher.version)

    def _hello(self) -> m.Hello:
        return m.Hello(
            protocol=m.PROTOCOL, version=__version__, role="trainer", name="trainer", boot_id=self.boot_id
        )

    # --- the broker's words

    def _on_control(self, message: m.Message, bulk: list[Frame]) -> None:
        if isinstance(message, m.Welcome):
            self._connect(message.shards)
            if message.term != self._term:
                # A broker that restarted has no weights; and a version that was seen must never come again.
                self._term = message.term
                self.publisher.restart(message.weights_version)
                self._publish_if_due(now=True)
        elif isinstance(message, m.ShardList):
            self._connect(message.shards)
        elif isinstance(message, m.RunProgress):
            self.progress = message
            if self.learner is not None:
                self.keeper.heard(message, self.loop.now(), self._snapshot)
        elif isinstance(message, m.Stopping):
            self._stopping = message.reason
            if message.reason == "return" and self.learner is not None:
                self.keeper.goal_reached(self._snapshot)

    def _on_refusal(self, refusal: m.Refusal) -> None:
        raise P2prlError(f"the broker refused its own trainer: {refusal.text}")

    def _connect(self, shards: list[m.ShardAddress]) -> None:
        config = self.config
        for shard in shards:
            known = self._sockets.get(shard.index)
            if known is not None and known[0] == shard.sample_port:
                continue
            if known is not None:
                self.loop.forget(known[1])
                known[1].close()
            address = endpoint(config.host, shard.sample_port)
            socket = self.network.client("dealer", address, config.keys, config.server_key, _SAMPLE_LIMITS)
            self._sockets[shard.index] = (shard.sample_port, socket)
            self.loop.on_readable(socket, partial(self._on_sample, shard.index))
        self.sampler.shards_listed({shard.index: shard.boot_id for shard in shards})

    # --- training

    def _work(self) -> bool:
        """An update, if there is a batch, or small ones for a moment; True if there may be more to do at once."""
        self._ask()
        until = self.loop.now() + (_MOMENT_S if self.config.rings >= 0 else 0.0)
        while self.learner is not None and (batch := self.sampler.next_batch()) is not None:
            self._tell_players(idle=False)  # they may go on while this update is made
            self._update(batch)
            if self.loop.now() >= until:
                return True
        if self.learner is not None and not (self.publisher.busy or self._hurry):
            self._tell_players(idle=True)  # with the weights that were just published
        return False

    def _tell_players(self, idle: bool) -> None:
        """Those who wait for room before they play: at once, if there is more."""
        if self.config.replay.fresh:
            self.sampler.limiter.idle(idle)
            if self.sampler.limiter.insert_ceiling() != self._ceiling_told:
                self.report()

    def _update(self, batch: Batch) -> None:
        assert self.learner is not None
        versions = batch["version"]
        self._lags.add({"lag": max(0.0, self.publisher.version - int(versions.sum()) / len(versions))})
        began = self.loop.now()
        update = self.learner.update(batch)
        now = self.loop.now()
        self.threads.updated(now - began)
        self.standstill.updated(now)
        if self.guard.skips(update, now):
            if self.guard.hopeless:
                self.save()
                self.guard.give_up(self.guard.hopeless)
            return
        self.updates += 1
        if update.priorities is not None:
            self._prioritise(update.priorities)
        self._metrics.add(update.metrics)
        self._unpublished = self._unpublished or update.publish is not False
        self._publish_if_due(now=update.publish is True)

    def _prioritise(self, priorities: Array) -> None:
        """Tell the shards. What does not go through leaves old priorities, which only costs some learning."""
        for index, message, arrays in self.sampler.prioritise(priorities):
            if index in self._sockets:
                self._sockets[index][1].send([frames.encode(message), *(values.data for values in arrays)])

    def _ask(self) -> None:
        for index, ask in self.sampler.asks(self.loop.now(), self.publisher.version):
            if index in self._sockets:
                self._sockets[index][1].send([frames.encode(ask)])

    def _on_sample(self, index: int) -> None:
        socket = self._sockets[index][1]
        while (received := socket.receive()) is not None:
            try:
                reply = frames.decode_sample(received.frames[0])
                if not isinstance(reply, m.SampleReply):
                    continue
                columns = self.gatherer.columns(index, reply, received.frames[1:])
            except (RemoteProtocolError, ValueError, IndexError) as error:
                raise P2prlError(f"shard {index} sent a sample that is not one: {error}") from error
            self.sampler.replied(index, reply, columns)

    def _publish_if_due(self, now: bool = False) -> None:
        self._hurry |= now
        due = self.loop.now() - self._published_at >= self.config.publish_interval_s
        wanted = self._hurry or (due and (self._unpublished or self.keeper.overdue))
        if wanted and not self.publisher.busy:
            self._publish()

    def _publish(self) -> None:
        if self.learner is None or not self.control.welcomed:
            return
        weights, candidate = self.guard.weights(self.learner.weights()), self.keeper.wanted
        self._behind = self._snapshot().copy() if candidate else None
        self._changed, self._unpublished, self._hurry = self._unpublished, False, False
        self._published_at = self.loop.now()
        self.publisher.publish(weights, self.config.run.run_id, self.updates, candidate)

    def _published(self, header: m.WeightsHeader | None) -> None:
        """The publication under way was sent; None: it was not, and the newest go when due again."""
        if header is None:
            self._unpublished = True
            return
        behind, self._behind = self._behind, None
        if behind is not None:
            meta = msgspec.structs.replace(behind.meta, version=header.version)
            behind = msgspec.structs.replace(behind, meta=meta)
        self.keeper.published(self._published_at, behind, self._changed)
        if self._saved_updates <= 0 < self.updates:
            self.save()  # the first one: what plays can be evaluated, too
        self._publish_if_due()

    # --- telling and saving

    def report(self) -> None:
        """Tell the broker how far training is."""
        if not self.control.welcomed:
            return
        if not self.guard.given_up:
            self._publish_if_due()  # the last of a burst of updates, while the next sessions are waited for
        state, reason = self._state()
        self._ceiling_told = self.sampler.limiter.insert_ceiling() if self.learner is not None else None
        self.control.send(
            m.TrainerReport(
                state=state,
                reason=reason,
                updates=self.updates,
                sampled=self.sampler.sampled_total if self.learner is not None else 0,
                sessions_lost=self.sampler.departures.lost if self.learner is not None else 0,
                weights_version=self.publisher.version,
                lag_mean=self._lags.means().get("lag"),
                insert_ceiling=self._ceiling_told,
                metrics=self._metrics.means(),
                device=self.device,
                updates_skipped=self.guard.skipped,
                short=self.learner is not None and self.sampler.short,
            )
        )

    def _state(self) -> tuple[m.TrainerState, str]:
        """This process's state, and what there is to say about it."""
        now = self.loop.now()
        if self._failed:
            return "failed", self._failed
        if self.learner is None:
            return "starting", ""
        self.standstill.inserted(self.sampler.inserted_ticks, now)
        state, reason = self.standstill.look(self.sampler.why_waiting(), now, self.sampler.short)
        return state, "; ".join(text for text in (reason, self.guard.news(now)) if text)

    def failed(self, error: Exception) -> None:
        """This process ends because of `error`; the broker is told with the last report."""
        self._failed = str(error) if isinstance(error, P2prlError) else f"{type(error).__name__}: {error}"

    def end(self) -> None:
        """The last checkpoint and the last report; then close."""
        try:
            if self.config.goal is not None and self.control.welcomed and not self._failed:
                # The order to end may overtake the broker's word that the goal was reached, as during a long update.
                self.loop.run_on(lambda: bool(self._stopping), _LAST_WORD_S)
            self.save()
        except LearningFailed as error:
            log.error("%s", error)
        self.gatherer.tell()
        self.publisher.settle()
        self.report()  # so that the run's last figures are the last
        self.publisher.settle()
        self.publisher.close()
        self.network.close()

    def _meta(self) -> checkpoint.Meta:
        return checkpoint.Meta(
            version=self.publisher.version,
            updates=self.updates,
            sampled=self.sampler.sampled_total,
            steps=self.progress.steps,
            episodes=self.progress.episodes,
            return_mean=self.progress.return_mean,
            return_episodes=self.progress.return_episodes,
            skipped=self.guard.skipped,
            inserted=self.sampler.inserted_ticks,
            left=self.sampler.departures.left,
            lost=self.sampler.departures.lost,
            returns=self.progress.returns,
        )

    def _snapshot(self) -> checkpoint.Snapshot:
        """The state of now. Raises LearningFailed if it is not finite, and so not to be kept."""
        assert self.learner is not None
        state, weights = self.guard.state(self.learner.save()), self.guard.weights(self.learner.weights())
        return checkpoint.Snapshot(self._meta(), state, weights)

    def save(self) -> None:
        """Write a checkpoint, if anything was learned since the last. Raises LearningFailed if it is no good."""
        if self.learner is None or self.guard.given_up or self.updates == self._saved_updates:
            return
        if self._write(self._snapshot()):
            self._saved_updates = self.updates
            checkpoint.prune(self.folder, self.config.keep_checkpoints)

    def _write(self, state: checkpoint.Snapshot, name: str = "", keep_old: str = "") -> bool:
        """Write a checkpoint. A full disk is said, not fatal."""
        try:
            checkpoint.save(
                self.folder, state.meta, state.learner, state.weights, name=name, keep_old=keep_old
            )
        except OSError as error:
            self._disk.failed(error)
            return False
        self._disk.passed()
        return True


def child_main() -> int:
    """Run a trainer as a child process."""

    def main(config: TrainerConfig, loop: Loop) -> int:
        keep_to_itself(config.rings)
        if config.check:
            checkpoint.check_fits(checkpoint.load(Path(config.check)), learner_of(config)[1].weights())
            return 0
        began = time.monotonic()
        keep_freed_memory()
        trainer = Trainer(config, loop)
        trainer.start()
        log.debug("trainer ready after %.1f s", time.monotonic() - began)
        try:
            return loop.run()
        except Exception as error:
            trainer.failed(error)
            raise
        finally:
            trainer.end()

    return run_child(TrainerConfig, main)
