"""The trainer's sampler: many shards as if they were one, and a few batches ahead of the learner.

Pure bookkeeping on numpy arrays; the trainer's process carries out the asks. A `group` is a handful of batches that are
asked for together: each batch's samples are drawn from the shards in proportion to their mass, all shards are asked at
once, and when all have answered (or were lost) the rows are shuffled and cut into batches.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from p2prl.core.limiter import Limiter, QueueLimiter, RateLimiter
from p2prl.core.messages import SampleAsk, SampleReply
from p2prl.core.schema import SessionSchema
from p2prl.learn.contracts import Array, ReplaySpec

#: Batches per group, and groups under way or waiting, of a uniform buffer. Measured: the dialogue's cost per batch is
#: small from 4 on, and more only makes samples older.
_GROUP_BATCHES = 4
_GROUPS_AHEAD = 2
#: How long a shard may take to answer before its part is given up, and how often an idle sampler asks for the mass.
_ANSWER_S = 2.0
_ASK_MASS_S = 0.05
#: Ticks that inserting may run ahead of the ratio, as a part of the capacity in ticks and at least this many.
_TOLERANCE_TICKS = 2_000


@dataclass
class _Shard:
    boot_id: str = ""
    mass: int = 0
    ticks: int = 0
    inserted: int = 0
    #: It answered since it came up.
    heard: bool = False
    #: Asks under way: id -> (deadline, group).
    asks: dict[int, tuple[float, _Group]] = field(default_factory=dict)


@dataclass
class _Group:
    waiting: set[tuple[int, int]] = field(default_factory=set)
    parts: list[list[Array]] = field(default_factory=list)


class Sampler:
    """Plans asks, takes replies, cuts batches.

    Args:
        sampled_total: ticks that the run took so far, when it is resumed: one a window, all those of a whole session.
    """

    def __init__(self, schema: SessionSchema, spec: ReplaySpec, seed: int, sampled_total: int = 0) -> None:
        self._schema = schema
        self._spec = spec
        self._queue = spec.kind == "queue"
        #: What a sample counts for in the limiter and in `sampled_total`.
        self._ticks_each = _ticks_each(schema, spec)
        self._rng = np.random.default_rng(seed)
        self._shards: dict[int, _Shard] = {}
        self._ids = itertools.count(1)
        self._groups: list[_Group] = []
        self._batches: deque[list[Array]] = deque()
        self._rest: list[list[Array]] = []
        self._mass_asked = -1e9
        self.limiter: Limiter = _limiter(schema, spec, sampled_total)
        self.sampled_total = sampled_total
        self.stale = 0

    # --- what can be seen

    @property
    def ready(self) -> bool:
        """True if `next_batch` would give one."""
        return bool(self._batches)

    @property
    def stored_ticks(self) -> int:
        """Ticks in all shards that answer, as far as known."""
        return sum(shard.ticks for shard in self._shards.values())

    @property
    def inserted_ticks(self) -> int:
        """Ticks inserted since the run began, as far as known."""
        return sum(shard.inserted for shard in self._shards.values())

    def why_waiting(self) -> str:
        """One line for people: why there is no batch."""
        inserted, spec = self.inserted_ticks, self._spec
        down = [index for index, shard in self._shards.items() if not shard.boot_id]
        if down or not self._shards:
            return f"waiting for shard {down[0]}" if down else "waiting for shards"
        if inserted < spec.min_ticks and not self._queue:
            return f"waiting for sessions: {inserted} of {spec.min_ticks} ticks before the first update"
        if self.limiter.can_sample(spec.batch * self._ticks_each):
            return "waiting for sessions, or for the shards' answer"
        if not self._queue:
            ratio = f"samples_per_insert = {spec.samples_per_insert:g}"
            return f"waiting for sessions: what is stored was sampled as often as {ratio} allows"
        return f"waiting for sessions: an update takes {spec.batch * self._ticks_each} ticks"

    # --- events

    def shards_listed(self, boots: Mapping[int, str]) -> None:
        """The shards as they are now: index -> boot id, empty if down. A restarted shard's asks are given up."""
        for index, boot_id in boots.items():
            shard = self._shards.setdefault(index, _Shard())
            if shard.boot_id != boot_id:
                self._give_up(index, list(shard.asks))
                shard.boot_id, shard.heard = boot_id, False
                if not boot_id:
                    shard.mass = shard.ticks = 0

    def asks(self, now: float, weights_version: int) -> list[tuple[int, SampleAsk]]:
        """What to ask which shard now."""
        for index, shard in self._shards.items():
            late = [ask for ask, (deadline, _) in shard.asks.items() if deadline <= now]
            self._give_up(index, late)
        planned = self._ask_queue(now) if self._queue else self._ask_uniform(now)
        if not planned and not self._groups and not self._batches and now - self._mass_asked >= _ASK_MASS_S:
            self._mass_asked = now
            planned = [(index, 0, None) for index, shard in self._shards.items() if shard.boot_id]
        result = []
        for index, count, group in planned:
            ask = next(self._ids)
            if group is not None:
                group.waiting.add((index, ask))
                self._shards[index].asks[ask] = (now + _ANSWER_S, group)
            message = SampleAsk(
                ask=ask, count=count, window=self._spec.window, weights_version=weights_version
            )
            result.append((index, message))
        return result

    def replied(self, index: int, reply: SampleReply, columns: Sequence[Array]) -> None:
        """A shard answered. `columns`: one array `[count, rows, ...]` per schema column, then the versions."""
        shard = self._shards.get(index)
        if shard is None:
            return
        shard.mass, shard.ticks, shard.inserted = reply.mass, reply.ticks, reply.inserted_ticks
        shard.heard = True
        self.limiter.inserted(self.inserted_ticks)
        self.stale += reply.stale
        if self._queue and reply.stale:
            self.limiter.sampled(reply.stale * self._schema.ticks)
        entry = shard.asks.pop(reply.ask, None)
        if entry is None:
            if self._queue and reply.count:  # late, but a queue gives each session only once: keep it
                self._rest.append(list(columns))
            self._take_stock()
            return
        _, group = entry
        group.waiting.discard((index, reply.ask))
        if reply.count:
            group.parts.append(list(columns))
        self._finish(group)

    def next_batch(self) -> dict[str, Array] | None:
        """The next batch, `[N, window(+1), ...]` per column and `version` `[N]`; None if there is none yet."""
        if not self._batches:
            return None
        columns = self._batches.popleft()
        count = len(columns[-1])
        taken = count * self._ticks_each
        self.sampled_total += taken
        if self._queue:
            self.limiter.sampled(taken)
        batch = {column.name: values for column, values in zip(self._schema.columns, columns, strict=False)}
        batch["version"] = columns[-1]
        return batch

    # --- inside

    def _ask_uniform(self, now: float) -> list[tuple[int, int, _Group | None]]:
        planned: list[tuple[int, int, _Group | None]] = []
        batch_ticks = self._spec.batch * self._ticks_each
        while len(self._groups) + len(self._batches) / _GROUP_BATCHES < _GROUPS_AHEAD:
            batches = _GROUP_BATCHES
            while batches > 1 and not self.limiter.can_sample(batches * batch_ticks):
                batches //= 2
            live = [
                (index, shard.mass) for index, shard in self._shards.items() if shard.boot_id and shard.mass
            ]
            if not live or not self.limiter.can_sample(batches * batch_ticks):
                break
            masses = np.array([mass for _, mass in live], np.float64)
            counts = self._rng.multinomial(batches * self._spec.batch, masses / masses.sum())
            # Counted when asked for: what is under way is as good as taken.
            self.limiter.sampled(batches * batch_ticks)
            group = _Group()
            self._groups.append(group)
            planned += [(index, int(n), group) for (index, _), n in zip(live, counts, strict=True) if n]
        return planned

    def _ask_queue(self, now: float) -> list[tuple[int, int, _Group | None]]:
        waiting = sum(len(part[-1]) for part in self._rest) + len(self._batches) * self._spec.batch
        want = 2 * self._spec.batch - waiting
        if self._groups or want <= 0:
            return []
        live = [(index, shard.mass) for index, shard in self._shards.items() if shard.boot_id and shard.mass]
        total = sum(mass for _, mass in live)
        if not total:
            return []
        group = _Group()
        self._groups.append(group)
        # In proportion, rounded up: a few too many only wait for the next batch.
        return [(index, min(mass, -(-want * mass // total)), group) for index, mass in live]

    def _take_stock(self) -> None:
        """What a queue gave to a trainer that was killed, or lost with a shard, waits nowhere any more.

        Without this each kill would take some of the capacity for good, until nobody may insert.
        """
        shards = self._shards.values()
        if self._queue and not self._groups and all(shard.boot_id and shard.heard for shard in shards):
            here = len(self._batches) * self._spec.batch + sum(len(part[-1]) for part in self._rest)
            self.limiter.waiting(self.stored_ticks + here * self._schema.ticks)

    def _give_up(self, index: int, asks: list[int]) -> None:
        for ask in asks:
            _, group = self._shards[index].asks.pop(ask)
            group.waiting.discard((index, ask))
            self._shards[index].mass = 0
            self._finish(group)

    def _finish(self, group: _Group) -> None:
        if group.waiting or group not in self._groups:
            return
        self._groups.remove(group)
        self._rest += group.parts
        if not self._rest:
            return
        columns = [np.concatenate(parts) for parts in zip(*self._rest, strict=True)]
        if not self._queue:
            order = self._rng.permutation(len(columns[-1]))
            columns = [values[order] for values in columns]
        size, start = self._spec.batch, 0
        while len(columns[-1]) - start >= size:
            self._batches.append([values[start : start + size] for values in columns])
            start += size
        rest = [values[start:] for values in columns]
        self._rest = [rest] if len(rest[-1]) else []


def _ticks_each(schema: SessionSchema, spec: ReplaySpec) -> int:
    """Ticks that one sample counts for: a window its first alone, a whole session all of them."""
    return schema.ticks if spec.kind == "queue" or spec.window == 0 else 1


def _limiter(schema: SessionSchema, spec: ReplaySpec, sampled_total: int) -> Limiter:
    batch_ticks = spec.batch * _ticks_each(schema, spec)
    if spec.kind == "queue":
        capacity_ticks = spec.capacity_bytes // max(1, schema.session_bytes()) * schema.ticks
        return QueueLimiter(capacity_ticks, batch_ticks, sampled_total)
    ahead = batch_ticks * _GROUP_BATCHES * _GROUPS_AHEAD
    tolerance = max(ahead, spec.samples_per_insert * _TOLERANCE_TICKS)
    return RateLimiter(spec.samples_per_insert, spec.min_ticks, tolerance, batch_ticks, sampled_total)


def columns_from_frames(
    schema: SessionSchema, count: int, window: int, payload: Sequence[memoryview | bytes]
) -> list[Array]:
    """The arrays of a SampleReply: one per column, then the versions.

    Args:
        window: ticks per sample; 0 for whole sessions.

    Raises:
        ValueError: the frames are not exactly of the schema's sizes.
    """
    if len(payload) != len(schema.columns) + 1:
        raise ValueError(f"a sample of {len(payload)} frames, expected {len(schema.columns) + 1}")
    arrays: list[Array] = []
    for column, frame in zip(schema.columns, payload, strict=False):
        rows = schema.rows(column, window)
        arrays.append(np.frombuffer(frame, column.dtype).reshape(count, rows, *column.shape))
    return [*arrays, np.frombuffer(payload[-1], np.int64).reshape(count)]
