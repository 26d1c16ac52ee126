"""A bare, in-process training loop: rollout, replay in plain arrays, learner. No sockets, no processes, no clock.

What it shares with the real system is the agent, the rollout, the ladder and the replay's numbers. How late the
players' weights are is chosen: by `lag` versions, exactly, or by `delay` bundles, as on a network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2prl.core.schema import SessionSchema
from p2prl.learn.contracts import Agent, Array, ReplaySpec, Weights, weights_tolerance
from p2prl.learn.environments import MakeEnv
from p2prl.learn.playing import Bundle
from p2prl.learn.rollout import Rollout
from p2prl.learn.samples import darkrooms
from p2prl.learn.spaces import agent_schema
from p2prl.replay.prioritised import PrioritisedStore
from p2prl.replay.storage import Drawn, RingStore, in_pictures
from p2prl.wire.columns import open_pictures, pack_column
from p2prl.wire.pictures import Slots
from p2prl.wire.weights import WeightsDecoder, WeightsEncoder


class Ring:
    """A shard's own ring, uniform or with priorities; each batch is answered before the next is drawn."""

    def __init__(self, schema: SessionSchema, replay: ReplaySpec, seed: int) -> None:
        kind = PrioritisedStore if replay.kind == "prioritised" else RingStore
        self._ring = kind(schema, replay.capacity_bytes, replay.window, np.random.default_rng(seed))
        self._schema, self._sessions = schema, 0
        self._drawn: Drawn | None = None

    def insert(self, bundle: Bundle, version: int) -> None:
        opened: dict[str, Array | Slots] = dict(bundle.columns)
        for column in filter(in_pictures, self._schema.columns):
            values = bundle.columns[column.name]
            opened[column.name] = open_pictures(*pack_column(values), column.dtype, values.shape)
        self._ring.add(self._sessions, opened, version)
        self._sessions += bundle.columns["flags"].shape[1]

    def sample(self, count: int, window: int) -> dict[str, Array]:
        sample = self._ring.sample(count, window, 0)
        self._drawn = drawn = sample.drawn
        likely = (
            np.ones(sample.count) if drawn is None else self._ring.mass() * drawn.priorities / drawn.total
        )
        rooms = darkrooms(self._schema, window)
        batch = {
            column.name: rooms[column.name].develop(values) if isinstance(values, list) else values
            for column, values in zip(self._schema.columns, sample.columns, strict=True)
        }
        return {**batch, "probability": likely.astype(np.float32), "version": sample.versions}

    def prioritise(self, priorities: Array | None) -> None:
        if priorities is not None and self._drawn is not None and isinstance(self._ring, PrioritisedStore):
            self._ring.hear(float(priorities.max()))
            self._ring.prioritise(self._drawn.ids, priorities)


class QueueStore:
    """Sessions in the order of arrival, each given out once; those older than `max_lag` versions never."""

    def __init__(self, max_lag: int) -> None:
        self.stale = 0
        self._max_lag = max_lag
        self._waiting: deque[Mapping[str, Array]] = deque()

    def insert(self, bundle: Bundle, version: int) -> None:
        for slot in range(bundle.columns["flags"].shape[1]):
            row = {name: values[:, slot] for name, values in bundle.columns.items()}
            self._waiting.append({**row, "version": np.asarray(version, np.int64)})

    def take(self, count: int, version: int) -> dict[str, Array] | None:
        if self._max_lag:
            fresh = [one for one in self._waiting if version - int(one["version"]) <= self._max_lag]
            self.stale += len(self._waiting) - len(fresh)
            self._waiting = deque(fresh)
        if len(self._waiting) < count:
            return None
        taken = [self._waiting.popleft() for _ in range(count)]
        return {name: np.stack([one[name] for one in taken]) for name in taken[0]}


@dataclass
class Progress:
    """What a run came to.

    Attributes:
        solved_at: the updates done when the criterion was met, or None.
        lags: mean lag of each update's sessions, in versions.
        curve: (steps, mean return) once 100 episodes are over, a point a bundle.
    """

    steps: int = 0
    updates: int = 0
    solved_at: int | None = None
    stale: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    lags: list[float] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns)) if len(self.returns) == 100 else float("-inf")


class Bare:
    """One agent learning in this process.

    A version is what the learner publishes: each update's weights where the agent says so (`Update.publish`), else
    those after all updates on one bundle. Sessions wait for nobody else, so with as many slots as a batch has sessions
    each is learned from `lag` versions after the one that played it: `lag=0` is the textbook's loop, on-policy.

    Args:
        lag: versions that the players are behind, once there are so many.
        delay: bundles that pass before the players have new weights, beside that.
        wire: the players' weights went through the wire's format, rounded as far as the agent allows.
    """

    def __init__(
        self,
        agent: Agent,
        make_env: MakeEnv,
        spec: Any,
        *,
        slots: int,
        seed: int,
        lag: int = 0,
        delay: int = 0,
        wire: bool = False,
    ) -> None:
        self.replay: ReplaySpec = agent.replay()
        self.schema = agent_schema(spec, agent, self.replay.ticks)
        self.learner = agent.learner("cpu", seed)
        self._encoder = WeightsEncoder(weights_tolerance(type(agent)) > 0) if wire else None
        self._decoder = WeightsDecoder()
        #: Of what went through the wire's format: publications that were rounded, and that were changes.
        self.rounded = self.changes = 0
        self.actor = agent.actor()
        first = self._weights()
        self.actor.load(first)
        self.rollout = Rollout(
            make_env, spec, self.schema, self.actor, slots=slots, ladder=agent.ladder, rank=0, seed=seed
        )
        self.ring = Ring(self.schema, self.replay, seed)
        self.queue = QueueStore(self.replay.max_lag)
        self.progress = Progress()
        self.version = 0
        self._sampled = 0.0
        self._published: deque[tuple[int, Weights]] = deque(maxlen=lag + 1)
        self._published.append((0, first))
        self._on_the_way: deque[tuple[int, Weights]] = deque(maxlen=delay + 1)

    def run(self, target: float, max_updates: int, max_steps: int) -> Progress:
        """Until the mean of the last 100 episodes of the least exploring slots is `target`, or a bound."""
        p = self.progress
        try:
            while p.updates < max_updates and p.steps < max_steps:
                self._play()
                if p.mean >= target:
                    p.solved_at = p.updates
                    break
                self._learn()
        finally:
            self.rollout.close()
        p.stale = self.queue.stale
        return p

    def _play(self) -> None:
        self._on_the_way.append(self._published[0])
        version, weights = self._on_the_way[0]
        self.actor.load(weights)
        bundle = self.rollout.collect()
        (self.queue if self.replay.kind == "queue" else self.ring).insert(bundle, version)
        p = self.progress
        p.steps += bundle.steps
        p.returns.extend(total for total, _, level in bundle.episodes if level == 0.0)
        if p.mean > float("-inf"):
            p.curve.append((p.steps, p.mean))

    def _learn(self) -> None:
        if self.replay.kind == "queue":
            self._learn_from_queue()
        else:
            self._learn_from_windows()

    def _learn_from_queue(self) -> None:
        learned = False
        while (batch := self.queue.take(self.replay.batch, self.version)) is not None:
            publish = self._update(batch)
            learned |= publish is None
            if publish:
                self._publish()
        if learned:
            self._publish()

    def _learn_from_windows(self) -> None:
        r, p = self.replay, self.progress
        if p.steps < r.min_ticks:
            return
        before = p.updates
        while self._sampled < p.steps * r.samples_per_insert:
            self._update(self.ring.sample(r.batch, r.window))
            self._sampled += r.batch * (1 if r.window else r.ticks)
        if p.updates > before:
            self._publish()

    def _update(self, batch: Mapping[str, Array]) -> bool | None:
        self.progress.lags.append(self.version - float(batch["version"].mean()))
        self.progress.updates += 1
        update = self.learner.update(batch)
        if self.replay.kind != "queue":
            self.ring.prioritise(update.priorities)
        return update.publish

    def _publish(self) -> None:
        self.version += 1
        self._published.append((self.version, self._weights()))

    def _weights(self) -> Weights:
        weights = self.learner.weights()
        if self._encoder is None:
            return weights
        encoded = self._encoder.encode(weights)
        self._encoder.sent(encoded)
        self.changes += not encoded.whole
        read = self._decoder.read(encoded.payload)
        self.rounded += any((values != weights[name]).any() for name, values in read.items())
        return read
