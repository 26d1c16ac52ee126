"""One shard's whole state, without a socket or a clock: what is taken, kept, and given to the trainer.

The order in `accept` is the promise: a bundle is in the log before it is in the store, and in the store
before the verdict is given. So a shard that was killed holds, when it is opened again, all that it ever
acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
import numpy as np

from p2prl.core.dedup import Dedup
from p2prl.core.messages import Delivery
from p2prl.core.schema import SessionSchema, check_schema
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.replay.counters import Counters
from p2prl.replay.judge import Judge
from p2prl.replay.log import SNAPSHOT, LogError, SegmentLog
from p2prl.replay.params import ReplayParams
from p2prl.replay.prioritised import PrioritisedStore
from p2prl.replay.queue import QueueStore
from p2prl.replay.records import (
    BUNDLE,
    CONSUMED,
    Snapshot,
    StoredBundle,
    decode_bundle_record,
    decode_consumed,
    decode_snapshot,
    encode_bundle_record,
    encode_record,
)
from p2prl.replay.shared import SharedStore
from p2prl.replay.storage import RingStore, Sample, Store, check_ask, ring_capacity
from p2prl.replay.verdicts import Accepted, Offer, Ready, verdict
from p2prl.wire.blocks import Array, Buffer
from p2prl.wire.bundle import BundleReader
from p2prl.wire.frames import Frame, decode_bundle_header
from p2prl.words import many

_MAX_WARNINGS = 20


class ShardStore:
    """One shard. Made by `open`; every method may be called after any bytes from outside."""

    def __init__(self, folder: Path, schema: SessionSchema, spec: ReplayParams, seed: int) -> None:
        self._schema = schema
        self._spec = spec
        self._dedup = Dedup()
        #: The number that the next session gets.
        self._next_session = 0
        #: Sessions below this left the queue, served or stale. Unused by a ring.
        self._consumed = 0
        #: True if `_consumed` is ahead of the log, because the disk was full.
        self._consumed_unlogged = False
        self._last_sync = 0.0
        #: T per session, RESET ticks included, since the run began.
        self.inserted_ticks = 0
        #: Ticks that are not RESET, and bundles, since the run began.
        self.steps_total = self.stored_total = 0
        self.counters = Counters()
        #: One line for people for each thing found wrong with the log.
        self.warnings: list[str] = []
        #: What is wrong with the disk, until it takes something again; else empty.
        self.trouble = ""
        self._log = SegmentLog(folder, spec.segment_bytes, self._snapshot)
        recovered = self._read_log()
        self._store = self._make_store(np.random.default_rng([seed, self._next_session]))
        self._restore(recovered)
        self._judge = Judge(schema, spec, self._dedup, self.counters, self._store.full)

    @classmethod
    def open(cls, folder: Path, schema: SessionSchema, spec: ReplayParams, seed: int) -> ShardStore:
        """A shard with everything that its log holds.

        Args:
            folder: this shard's own; made if missing.
            seed: of the sampler.

        Raises:
            LimitsForbid: there is no memory for its capacity.
            LogError: the folder cannot be written.
        """
        problem = check_schema(schema)
        if problem:
            raise LocalProtocolError(f"the run's schema cannot be used: {problem}")
        return cls(folder, schema, spec, seed)

    def _make_store(self, rng: np.random.Generator) -> Store:
        schema, spec = self._schema, self._spec
        if spec.kind == "queue":
            return QueueStore(schema, spec.capacity_bytes, spec.max_lag)
        if spec.kind == "prioritised":
            return PrioritisedStore(schema, spec.capacity_bytes, spec.window, rng)
        if spec.rings >= 0:
            try:
                return SharedStore(schema, spec, rng)
            except OSError as error:
                self.warn(f"memory cannot be shared with the trainer, so samples go through sockets: {error}")
        return RingStore(schema, spec.capacity_bytes, spec.window, rng)

    # --- recovery -------------------------------------------------------------------------------------------

    def _read_log(self) -> deque[StoredBundle]:
        """Counters and dedup from all records; the bundles that may still be live, oldest first."""
        live, names = deque[StoredBundle](), set[tuple[str, str, int]]()
        for kind, body in self._log.records():
            try:
                if kind == SNAPSHOT:
                    self._apply_snapshot(decode_snapshot(body))
                elif kind == CONSUMED:
                    self._consumed = max(self._consumed, decode_consumed(body))
                elif kind == BUNDLE:
                    bundle = decode_bundle_record(body)
                    if (name := (bundle.node, bundle.boot_id, bundle.seq)) in names:
                        continue  # logged again: the first write failed, and could not be taken back
                    names.add(name)
                    self._count(bundle)
                    self._log.hold(bundle.first + bundle.slots)
                    live.append(bundle)
            except msgspec.MsgspecError as error:
                self.warn(f"replay log: a record of kind {kind} cannot be read: {error}")
            self._drop_dead(live)
        # Where bundles rotted, numbers that were served must not be given to new sessions.
        self._next_session = max(self._next_session, self._consumed)
        for line in self._log.damage:
            self.warn(f"replay log: {line}")
        return live

    def warn(self, line: str) -> None:
        """For the host's owner: each line once, and not without end."""
        if line not in self.warnings and len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(line)

    def _apply_snapshot(self, snapshot: Snapshot) -> None:
        self._next_session = max(self._next_session, snapshot.next_session)
        self._consumed = max(self._consumed, snapshot.consumed)
        self.inserted_ticks = max(self.inserted_ticks, snapshot.inserted_ticks)
        self.steps_total = max(self.steps_total, snapshot.steps)
        self.stored_total = max(self.stored_total, snapshot.stored)
        self._dedup.restore(snapshot.seen)

    def _drop_dead(self, live: deque[StoredBundle]) -> None:
        """Forget compressed bundles that cannot be live any more, so that a long log fits in memory."""
        dead = self._consumed
        if self._spec.kind != "queue":
            dead = self._next_session - ring_capacity(self._schema, self._spec.capacity_bytes)
        while live and live[0].first + live[0].slots <= dead:
            live.popleft()

    def _restore(self, bundles: deque[StoredBundle]) -> None:
        """Decode what is live into the store. What is of another schema, or rotted, is warned of."""
        lost, reader = 0, BundleReader(self._schema)
        for bundle in bundles:
            try:
                header = decode_bundle_header(bundle.header)
                arrays = reader.open(header, bundle.payload)
            except RemoteProtocolError:
                lost += 1
                continue
            self._store.add(bundle.first, arrays, header.version, bundle.node)
        if isinstance(self._store, QueueStore):
            self._store.skip(self._consumed)
        if lost:
            self.warn(f"replay log: left out {many(lost, 'bundle')} of another schema, or broken")

    def _snapshot(self) -> bytes:
        return encode_record(
            Snapshot(
                self._next_session,
                self._consumed,
                self.inserted_ticks,
                self.steps_total,
                self.stored_total,
                self._dedup.snapshot(),
            )
        )

    def _count(self, bundle: StoredBundle) -> None:
        """A bundle is in the log: it counts, and will never be taken again."""
        self._dedup.mark(bundle.node, bundle.boot_id, bundle.seq)
        self._next_session = max(self._next_session, bundle.first + bundle.slots)
        self.inserted_ticks += self._schema.ticks * bundle.slots
        self.steps_total += bundle.steps
        self.stored_total += 1

    # --- bundles --------------------------------------------------------------------------------------------

    def accept(
        self,
        node: str,
        delivery: Delivery,
        header_frame: Frame,
        payload: Buffer,
        current_version: int,
        run_id: str,
        now: float,
    ) -> Accepted:
        """`accept_all` of one bundle."""
        offer = Offer(node, delivery, header_frame, payload)
        return self.accept_all([offer], current_version, run_id, now)[0]

    def accept_all(
        self, offers: Sequence[Offer], current_version: int, run_id: str, now: float
    ) -> list[Accepted]:
        """Take each bundle, or say why not. When its verdict is `stored` it survives a kill of this process.

        What becomes of one is what would become of it alone, after those before it: they decide whether it is a
        duplicate, and whether a queue has room. But all go into the log at once.

        Args:
            current_version: of the weights, the newest that this shard has heard of.
            now: any clock that only grows, in seconds.

        `busy` asks the member to send it again later: the queue or the disk is full, or the bundle was played
        with weights that this shard may hear of in a moment.
        """
        words: dict[int, Accepted] = {}
        ready: dict[int, Ready] = {}
        names: set[tuple[str, str, int]] = set()
        for place, offer in enumerate(offers):
            if ready and (self._spec.kind == "queue" or offer.name in names):
                words |= self._keep(ready, now)
                ready = {}
            found = self._judge.judge(offer, current_version, run_id)
            if isinstance(found, Ready):
                ready[place] = found
                names.add(offer.name)
            else:
                words[place] = found
        words |= self._keep(ready, now)
        return [words[place] for place in range(len(offers))]

    def _keep(self, ready: dict[int, Ready], now: float) -> dict[int, Accepted]:
        """The words on bundles that may be kept."""
        if not ready:
            return {}
        try:
            if self._spec.fsync_interval_s > 0:
                # Before the append: a disk that fails here fails while nothing has changed.
                self._sync_if_due(now)
        except LogError as error:
            return self._busy(ready, error)
        return self._kept(ready)

    def _kept(self, ready: dict[int, Ready]) -> dict[int, Accepted]:
        """A disk that does not take all of them may take some."""
        try:
            self._log_and_store(ready.values())
        except LogError as error:
            if len(ready) == 1:
                return self._busy(ready, error)
            one_by_one = [self._kept({place: one}) for place, one in ready.items()]
            return dict(word for words in one_by_one for word in words.items())
        return {place: one.stored() for place, one in ready.items()}

    def _busy(self, ready: dict[int, Ready], error: LogError) -> dict[int, Accepted]:
        self.trouble = str(error)
        said = ("busy", "disk_full" if error.full else "disk", self.trouble)
        return {place: verdict(one.offer.delivery, *said) for place, one in ready.items()}

    def _log_and_store(self, ready: Collection[Ready]) -> None:
        """In this order. Raises LogError, and then nothing has changed."""
        bundles, first = [], self._next_session
        for one in ready:
            bundles.append(one.record(first))
            first += one.header.slots
        bodies = [encode_bundle_record(to, one.offer.payload) for one, to in zip(ready, bundles, strict=True)]
        self._log.append_all(
            [(BUNDLE, body, to.first + to.slots) for to, body in zip(bundles, bodies, strict=True)]
        )
        self.trouble = ""
        for one, to in zip(ready, bundles, strict=True):
            self._count(to)
            self.counters.evicted += self._store.add(to.first, one.arrays, one.header.version, to.node)
        self.counters.stored += len(bundles)
        self._release()

    def refuse(self, node: str, reason: str) -> None:
        """Count a frame that was not even a Delivery."""
        self.counters.refuse(node, reason)

    # --- samples --------------------------------------------------------------------------------------------

    def quarantine(self, nodes: frozenset[str]) -> None:
        """Sessions of these nodes, and of no others, are not sampled from now on.

        They are left out of `mass` and `sessions`. A ring keeps them as long as others, a queue until it is their
        turn; so far they come back. The log keeps who gave what, but not this: it is to be said after each start.
        """
        self._store.quarantine(nodes)

    def sample(self, count: int, window: int, current_version: int) -> Sample:
        """Up to `count` samples: windows, or whole sessions as a queue's always are; see storage.py.

        What a queue gives is in the log as consumed before it is given: a session may be lost with a killed
        trainer, but it is never trained on twice.

        Raises:
            RemoteProtocolError: a count or window that cannot be.
        """
        check_ask(self._schema, 0, window)
        sample = self._store.sample(count, window, current_version)
        if self._spec.kind == "queue":
            self._consume()
        return sample

    def hear(self, highest: float) -> None:
        """The highest priority that the trainer knows of; 0 for none.

        Raises:
            RemoteProtocolError: it is no priority.
        """
        if isinstance(self._store, PrioritisedStore):
            self._store.hear(highest)

    def prioritise(self, ids: Array, priorities: Array) -> None:
        """The trainer's word on samples that were given to it; see prioritised.py. They are not in the log.

        Raises:
            RemoteProtocolError: one of them cannot be, or this replay has no priorities.
        """
        if not isinstance(self._store, PrioritisedStore):
            raise RemoteProtocolError("malformed", f"priorities for a {self._spec.kind} replay")
        self._store.prioritise(ids, priorities)

    @property
    def highest(self) -> float:
        """The highest priority that this shard has heard of; 0 for none."""
        return self._store.highest if isinstance(self._store, PrioritisedStore) else 0.0

    def _consume(self) -> None:
        consumed = self._store.first_live(self._next_session)
        if consumed == self._consumed:
            return
        self._consumed = consumed
        self._log_consumed()
        self._release()

    def _log_consumed(self) -> None:
        """On a full disk the queue is served all the same, or nothing would ever empty it."""
        try:
            self._log.append(CONSUMED, encode_record(self._consumed))
        except LogError as error:
            self._consumed_unlogged = True
            self.trouble = str(error)
        else:
            self._consumed_unlogged, self.trouble = False, ""

    def mass(self) -> int:
        """What could be sampled now; what is counted depends on the store."""
        return self._store.mass()

    @property
    def sessions(self) -> int:
        """Sessions held, of a ring without those of quarantined nodes."""
        return self._store.sessions

    @property
    def size_bytes(self) -> int:
        """Bytes of all that is held, as it is held."""
        return self._store.size_bytes

    # --- upkeep ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Now and then: what is due. Raises LogError if the disk fails; it may be called again."""
        if self._consumed_unlogged:
            self._log_consumed()
        self._sync_if_due(now)

    def flush(self) -> None:
        """Before verdicts are passed on: with an interval of 0 what they say is on the disk. Raises LogError.

        Once for many verdicts: bringing something to the disk takes milliseconds.
        """
        if self._spec.fsync_interval_s <= 0:
            self._log.sync()

    def _sync_if_due(self, now: float) -> None:
        if now - self._last_sync >= self._spec.fsync_interval_s:
            self._last_sync = now
            self._log.sync()

    def _release(self) -> None:
        """Delete what is dead. What cannot be deleted now is tried again with the next bundle or sample."""
        try:
            self._log.release(self._store.first_live(self._next_session))
        except LogError as error:
            self.trouble = str(error)

    def close(self) -> None:
        """Bring the log to the disk and let go of it."""
        self._log.close()
