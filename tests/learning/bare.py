"""A bare, in-process training loop: rollout, replay in plain arrays, learner. No sockets, no processes, no clock.

What it shares with the real system is the agent, the rollout, the ladder and the replay's numbers; `lag` bundles pass
before new weights reach the players, as they would over a network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2prl.core.schema import RESET, SessionSchema
from p2prl.learn.contracts import Agent, Array, ReplaySpec, Weights
from p2prl.learn.environments import MakeEnv
from p2prl.learn.rollout import Bundle, Rollout
from p2prl.learn.spaces import agent_schema
from p2prl.replay.prioritised import PrioritisedStore


class UniformStore:
    """Sessions in a ring `[sessions, T(+1), ...]`; windows whose first tick is a real one, at random."""

    def __init__(self, schema: SessionSchema, capacity_bytes: int, seed: int) -> None:
        sessions = capacity_bytes // schema.session_bytes()
        self._schema = schema
        self._rings = {
            c.name: np.empty((sessions, schema.rows(c), *c.shape), c.dtype) for c in schema.columns
        }
        self._sessions, self._at, self._filled = sessions, 0, 0
        self._rng = np.random.default_rng(seed)

    def insert(self, bundle: Bundle) -> None:
        slots = bundle.columns["flags"].shape[1]
        places = (self._at + np.arange(slots)) % self._sessions
        for name, values in bundle.columns.items():
            self._rings[name][places] = values.swapaxes(0, 1)
        self._at = int(places[-1]) + 1
        self._filled = min(self._sessions, self._filled + slots)

    def sample(self, count: int, window: int) -> dict[str, Array]:
        return {**self._windows(count, window), "probability": np.ones(count, np.float32)}

    def prioritise(self, priorities: Array | None) -> None:
        """There are none."""

    def _windows(self, count: int, window: int) -> dict[str, Array]:
        session = self._rng.integers(self._filled, size=count)
        if window == 0:
            return {name: ring[session] for name, ring in self._rings.items()}
        tick = self._rng.integers(self._schema.ticks - window + 1, size=count)
        while (bad := (self._rings["flags"][session, tick] & RESET) != 0).any():
            session[bad] = self._rng.integers(self._filled, size=bad.sum())
            tick[bad] = self._rng.integers(self._schema.ticks - window + 1, size=bad.sum())
        rows = tick[:, None] + np.arange(window + 1)
        return {
            c.name: self._rings[c.name][session[:, None], rows if c.extra_row else rows[:, :-1]]
            for c in self._schema.columns
        }


class PriorityStore:
    """The real ring with priorities, without the shards around it; each batch is answered before the next is drawn."""

    def __init__(self, schema: SessionSchema, capacity_bytes: int, window: int, seed: int) -> None:
        self._schema = schema
        self._ring = PrioritisedStore(schema, capacity_bytes, window, np.random.default_rng(seed))
        self._sessions = 0
        self._ids: Array | None = None

    def insert(self, bundle: Bundle) -> None:
        self._ring.add(self._sessions, bundle.columns, 0)
        self._sessions += bundle.columns["flags"].shape[1]

    def sample(self, count: int, window: int) -> dict[str, Array]:
        sample = self._ring.sample(count, window, 0)
        assert sample.drawn is not None
        self._ids = sample.drawn.ids
        batch = {c.name: values for c, values in zip(self._schema.columns, sample.columns, strict=True)}
        likely = self._ring.mass() * sample.drawn.priorities / sample.drawn.total
        return {**batch, "probability": likely.astype(np.float32)}

    def prioritise(self, priorities: Array | None) -> None:
        if priorities is not None and self._ids is not None:
            self._ring.hear(float(priorities.max()))
            self._ring.prioritise(self._ids, priorities)


class QueueStore:
    """Sessions in the order of arrival, each given out once."""

    def __init__(self) -> None:
        self._waiting: deque[Mapping[str, Array]] = deque()

    def insert(self, bundle: Bundle) -> None:
        for slot in range(bundle.columns["flags"].shape[1]):
            self._waiting.append({name: values[:, slot] for name, values in bundle.columns.items()})

    def take(self, count: int) -> dict[str, Array] | None:
        if len(self._waiting) < count:
            return None
        taken = [self._waiting.popleft() for _ in range(count)]
        return {name: np.stack([one[name] for one in taken]) for name in taken[0]}


@dataclass
class Progress:
    """What a run came to. `solved_at` is None until the criterion was met."""

    steps: int = 0
    updates: int = 0
    solved_at: int | None = None
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns)) if len(self.returns) == 100 else float("-inf")


class Bare:
    """One agent learning in this process."""

    def __init__(
        self, agent: Agent, make_env: MakeEnv, spec: Any, *, slots: int, seed: int, lag: int = 1
    ) -> None:
        self.replay: ReplaySpec = agent.replay()
        self.schema = agent_schema(spec, agent, self.replay.ticks)
        self.learner = agent.learner("cpu", seed)
        self.actor = agent.actor()
        self.actor.load(self.learner.weights())
        self.rollout = Rollout(
            make_env, spec, self.schema, self.actor, slots=slots, ladder=agent.ladder, rank=0, seed=seed
        )
        size = self.replay.capacity_bytes
        self.ring: UniformStore | PriorityStore = (
            PriorityStore(self.schema, size, self.replay.window, seed)
            if self.replay.kind == "prioritised"
            else UniformStore(self.schema, size, seed)
        )
        self.queue = QueueStore()
        self.progress = Progress()
        self._sampled = 0.0
        self._on_the_way: deque[Weights] = deque(maxlen=max(1, lag))

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
        return p

    def _play(self) -> None:
        if len(self._on_the_way) == self._on_the_way.maxlen:
            self.actor.load(self._on_the_way[0])
        bundle = self.rollout.collect()
        (self.queue if self.replay.kind == "queue" else self.ring).insert(bundle)
        self.progress.steps += bundle.steps
        self.progress.returns.extend(total for total, _, level in bundle.episodes if level == 0.0)

    def _learn(self) -> None:
        publish = self._learn_from_queue() if self.replay.kind == "queue" else self._learn_from_windows()
        if publish or not self._on_the_way:
            self._on_the_way.append(self.learner.weights())
        elif len(self._on_the_way) > 1:
            self._on_the_way.append(self._on_the_way[-1])

    def _learn_from_queue(self) -> bool:
        publish = False
        while (batch := self.queue.take(self.replay.batch)) is not None:
            publish |= self.learner.update(batch).publish is not False
            self.progress.updates += 1
        return publish

    def _learn_from_windows(self) -> bool:
        r, p = self.replay, self.progress
        if p.steps < r.min_ticks:
            return False
        while self._sampled < p.steps * r.samples_per_insert:
            update = self.learner.update(self.ring.sample(r.batch, r.window))
            self.ring.prioritise(update.priorities)
            self._sampled += r.batch * (1 if r.window else r.ticks)
            p.updates += 1
        return True
