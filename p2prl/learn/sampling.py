"""The trainer's sampler: many shards as if they were one, and a few batches ahead of the learner.

Pure bookkeeping on numpy arrays; the trainer's process carries out the asks. A `group` is a handful of batches that are
asked for together: each batch's samples are drawn from the shards in proportion to their mass, all shards are asked at
once, and when all have answered (or were lost) the rows are shuffled and cut into batches.

Of a prioritised replay a shard's mass is the sum of its priorities. A shard answers with what the sum was as it drew,
so each sample's probability is known as it was, whatever changed since its shard was chosen: (the shard's part of the
group) x (priority / sum). A batch has it relative to uniform sampling, where it is 1 / (all places) for each. Only that
number of places is as last heard of, and may lag by what came in a moment: one factor for all samples of a group.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from p2prl.core.limiter import Limiter
from p2prl.core.messages import Priorities, SampleAsk, SampleReply
from p2prl.core.schema import SessionSchema
from p2prl.learn.contracts import Array, ReplaySpec
from p2prl.learn.departures import Departures
from p2prl.learn.gathering import Gatherer
from p2prl.learn.groups import Group, Origin, Shard
from p2prl.learn.pacing import GROUPS_AHEAD, group_batches, limiter, ticks_each
from p2prl.learn.samples import checked_priorities, darkrooms

#: How long a shard may take to answer before its part is given up, and after how long one that was asked for nothing is
#: asked for its mass.
_ANSWER_S = 2.0
_ASK_MASS_S = 0.05


class Sampler:
    """Plans asks, takes replies, cuts batches.

    Args:
        sampled_total: ticks that the run took so far, when it is resumed: one a window, all those of a whole session.
        gatherer: of what is in memory that shards share; None if nothing is.
        departures: of a queue, when the run is resumed.
    """

    def __init__(
        self,
        schema: SessionSchema,
        spec: ReplaySpec,
        seed: int,
        sampled_total: int = 0,
        gatherer: Gatherer | None = None,
        departures: Departures | None = None,
    ) -> None:
        self._schema = schema
        self._spec = spec
        self._queue = spec.kind == "queue"
        self._prioritised = spec.kind == "prioritised"
        self._darkrooms = darkrooms(schema, spec.window)
        #: What a sample counts for in the limiter and in `sampled_total`.
        self._ticks_each = ticks_each(schema, spec)
        self._group_batches = group_batches(schema, spec, gatherer is not None)
        self._rng = np.random.default_rng(seed)
        self._shards: dict[int, Shard] = {}
        self._ids = itertools.count(1)
        self._groups: list[Group] = []
        self._batches: deque[list[Array]] = deque()
        self._rest: list[list[Array]] = []
        self._gatherer = gatherer
        #: Of the batch that was given last.
        self._origin: Origin | None = None
        #: The highest priority seen in any shard; 0 for none.
        self.highest = 0.0
        self.limiter: Limiter = limiter(schema, spec, sampled_total)
        self.sampled_total = sampled_total
        self.departures = departures or Departures(schema.ticks)
        self.stale = 0

    # --- what can be seen

    @property
    def ready(self) -> bool:
        """True if `next_batch` would give one."""
        return self._waiting > 0

    @property
    def _waiting(self) -> int:
        """Batches that wait to be taken."""
        shared = self._gatherer.waiting if self._gatherer is not None else 0
        return len(self._batches) + shared // self._spec.batch

    @property
    def stored_ticks(self) -> int:
        """Ticks in all shards that answer, as far as known."""
        return sum(shard.ticks for shard in self._shards.values())

    @property
    def inserted_ticks(self) -> int:
        """Ticks inserted since the run began, as far as known."""
        return sum(shard.inserted for shard in self._shards.values())

    @property
    def _held(self) -> int:
        """Sessions that were taken out of a queue, and wait here."""
        return len(self._batches) * self._spec.batch + sum(len(part[-1]) for part in self._rest)

    @property
    def _held_ticks(self) -> int:
        return self._held * self._schema.ticks

    @property
    def short(self) -> bool:
        """True if the next update needs more ticks than were inserted."""
        return not self.limiter.can_sample(self._spec.batch * self._ticks_each)

    def why_waiting(self) -> str:
        """One line for people: why there is no batch."""
        inserted, spec = self.inserted_ticks, self._spec
        if not any(shard.boot_id for shard in self._shards.values()):
            return "waiting for shards"
        if inserted < spec.min_ticks and not self._queue:
            return f"waiting for sessions: {inserted} of {spec.min_ticks} ticks before the first update"
        if not self.short:
            return "waiting for sessions, or for the shards' answer"
        if not self._queue:
            ratio = f"samples_per_insert = {spec.samples_per_insert:g}"
            return f"waiting for sessions: what is stored was sampled as often as {ratio} allows"
        here = self.stored_ticks + self._held_ticks
        return (
            f"waiting for sessions: {here} of the {spec.batch * self._ticks_each} ticks that an update takes"
        )

    # --- events

    def shards_listed(self, boots: Mapping[int, str]) -> None:
        """The shards as they are now: index -> boot id, empty if down. A restarted shard's asks are given up."""
        for index, boot_id in boots.items():
            shard = self._shards.setdefault(index, Shard())
            if shard.boot_id != boot_id:
                self._give_up(index, list(shard.asks))
                shard.boot_id, shard.heard, shard.stands = boot_id, False, False
                if not boot_id:
                    shard.mass = shard.ticks = 0
                    shard.weight = 0.0

    def asks(self, now: float, weights_version: int) -> list[tuple[int, SampleAsk]]:
        """What to ask which shard now."""
        for index, shard in self._shards.items():
            late = [ask for ask, (deadline, _) in shard.asks.items() if deadline <= now]
            self._give_up(index, late)
        planned = self._ask_queue() if self._queue else self._ask_ring()
        for index, _, _ in planned:
            self._shards[index].asked_at = now
        for index, shard in self._shards.items():
            if shard.boot_id and not shard.asks and now - shard.asked_at >= _ASK_MASS_S:
                shard.asked_at = now
                planned.append((index, 0, None))
        return [self._ask(index, count, group, now, weights_version) for index, count, group in planned]

    def _ask(
        self, index: int, count: int, group: Group | None, now: float, weights_version: int
    ) -> tuple[int, SampleAsk]:
        ask = next(self._ids)
        if group is not None:
            group.waiting.add((index, ask))
            self._shards[index].asks[ask] = (now + _ANSWER_S, group)
        return index, SampleAsk(
            ask=ask,
            count=count,
            window=self._spec.window,
            weights_version=weights_version,
            highest=self.highest,
            wait=group is None and count > 0,
        )

    def replied(self, index: int, reply: SampleReply, columns: Sequence[Array]) -> None:
        """A shard answered. `columns`: what `Gatherer.columns` gave."""
        shard = self._shards.get(index)
        if shard is None:
            return
        shard.mass, shard.ticks, shard.inserted = reply.mass, reply.ticks, reply.inserted_ticks
        if not shard.met:
            self._meet(shard, reply)
        shard.heard, shard.stands = True, False
        shard.weight = reply.priority_total if self._prioritised else float(reply.mass)
        self.highest = max(self.highest, reply.highest)
        self.limiter.inserted(self.inserted_ticks)
        self.stale += reply.stale
        if self._queue and reply.stale:
            self._left_queue(reply.stale * self._schema.ticks)
        entry = shard.asks.pop(reply.ask, None)
        if entry is None:
            if self._queue and reply.count:  # it waited, or is late; a queue gives each session only once
                self._rest.append(list(columns))
                self._cut()
            self._take_stock()
            return
        _, group = entry
        group.waiting.discard((index, reply.ask))
        if reply.count and reply.shared:
            group.shared += columns
        elif reply.count:
            group.parts.append((index, self._part(index, reply, columns)))
        else:
            group.shares.pop(index, None)
        self._finish(group)

    def _meet(self, shard: Shard, reply: SampleReply) -> None:
        """What left it so far did so before this trainer, but for what it gives and drops now."""
        shard.met = True
        self.limiter.found(reply.inserted_ticks)
        if self._queue:
            left = reply.inserted_ticks - reply.ticks - (reply.count + reply.stale) * self._schema.ticks
            self.departures.met(left)

    def _part(self, index: int, reply: SampleReply, columns: Sequence[Array]) -> list[Array]:
        """With priorities: also how likely each sample was in its shard, which shard that is, and the ids."""
        if not self._prioritised:
            return list(columns)
        *columns, ids, priorities = columns
        likely = priorities.astype(np.float64) / reply.priority_total
        return [*columns, likely, np.full(len(ids), index), ids]

    def next_batch(self) -> dict[str, Array] | None:
        """The next batch, as contracts.py says; None if there is none yet."""
        columns = self._batches.popleft() if self._batches else self._gathered()
        if columns is None:
            return None
        count = len(columns[-1])
        taken = count * self._ticks_each
        self.sampled_total += taken
        if self._queue:
            self._left_queue(taken)
        batch = {column.name: values for column, values in zip(self._schema.columns, columns, strict=False)}
        for name, darkroom in self._darkrooms.items():
            batch[name] = darkroom.develop(batch[name])
        batch["version"], *more = columns[len(self._schema.columns) :]
        if self._prioritised:
            probability, shards, ids = more
            batch["probability"] = np.maximum(probability, np.finfo(np.float32).tiny).astype(np.float32)
            self._origin = Origin(shards, ids)
        elif not self._queue:
            batch["probability"] = np.ones(count, np.float32)
        return batch

    def _gathered(self) -> list[Array] | None:
        """A batch out of shared memory. What was overwritten before it was there is not counted as taken."""
        if self._gatherer is None:
            return None
        before = self._gatherer.overwritten
        columns = self._gatherer.next_batch(self._spec.batch)
        self.limiter.sampled((before - self._gatherer.overwritten) * self._ticks_each)
        return columns

    def _left_queue(self, ticks: int) -> None:
        self.limiter.sampled(ticks)
        self.departures.gone(ticks)

    def prioritise(self, priorities: Array) -> list[tuple[int, Priorities, list[Array]]]:
        """What to tell which shard about the batch that was given last: a message, and the two arrays that follow it.

        Args:
            priorities: as in Update. Without prioritised replay there is nobody to tell.

        Raises:
            P2prlError: they are not what the contract says.
        """
        if self._origin is None:
            return []
        shards, ids = self._origin.shards, self._origin.ids
        values = checked_priorities(priorities, len(shards))
        self.highest = max(self.highest, float(values.max()))
        told = []
        for index in np.unique(shards).tolist():
            here = shards == index
            message = Priorities(count=int(np.count_nonzero(here)), highest=self.highest)
            told.append((index, message, [ids[here], values[here]]))
        return told

    # --- inside

    def _ask_ring(self) -> list[tuple[int, int, Group | None]]:
        planned: list[tuple[int, int, Group | None]] = []
        batch_ticks = self._spec.batch * self._ticks_each
        while len(self._groups) + self._waiting / self._group_batches < GROUPS_AHEAD:
            batches = self._group_batches
            while batches > 1 and not self.limiter.can_sample(batches * batch_ticks):
                batches //= 2
            shares = {
                index: shard.weight for index, shard in self._shards.items() if shard.boot_id and shard.weight
            }
            if not shares or not self.limiter.can_sample(batches * batch_ticks):
                break
            weights = np.array(list(shares.values()))
            counts = self._rng.multinomial(batches * self._spec.batch, weights / weights.sum())
            # Counted when asked for: what is under way is as good as taken.
            self.limiter.sampled(batches * batch_ticks)
            group = Group(shares=shares)
            self._groups.append(group)
            planned += [(index, int(n), group) for index, n in zip(shares, counts, strict=True) if n]
        return planned

    def _ask_queue(self) -> list[tuple[int, int, Group | None]]:
        want = 2 * self._spec.batch - self._held
        if self._groups or want <= 0:
            return []
        live = [(index, shard.mass) for index, shard in self._shards.items() if shard.boot_id and shard.mass]
        total = sum(mass for _, mass in live)
        if not total:
            return self._stand()
        group = Group()
        self._groups.append(group)
        # In proportion, rounded up: a few too many only wait for the next batch.
        return [(index, min(mass, -(-want * mass // total)), group) for index, mass in live]

    def _stand(self) -> list[tuple[int, int, Group | None]]:
        """Questions to empty queues: what comes there is to come here at once, but not to grow old beside an update."""
        asked: list[tuple[int, int, Group | None]] = []
        for index, shard in self._shards.items():
            if shard.boot_id and not shard.stands and not self.ready:
                shard.stands = True
                asked.append((index, self._spec.batch, None))
        return asked

    def _take_stock(self) -> None:
        """What a queue gave to a trainer that was killed, or lost with a shard, waits nowhere any more.

        Without this each kill would take some of the capacity for good, until nobody may insert.
        """
        shards = self._shards.values()
        if self._queue and not self._groups and all(shard.boot_id and shard.heard for shard in shards):
            self.limiter.waiting(self.stored_ticks + self._held_ticks)

    def _give_up(self, index: int, asks: list[int]) -> None:
        for ask in asks:
            _, group = self._shards[index].asks.pop(ask)
            group.waiting.discard((index, ask))
            self._shards[index].mass, self._shards[index].weight = 0, 0.0
            group.shares.pop(index, None)
            self._finish(group)

    def _finish(self, group: Group) -> None:
        if group.waiting or group not in self._groups:
            return
        self._groups.remove(group)
        if self._prioritised:
            self._weigh(group)
        if group.shared and self._gatherer is not None:
            self._gatherer.add(group.shared, self._rng)
        self._rest += [part for _, part in group.parts]
        self._cut()

    def _cut(self) -> None:
        """What came into batches."""
        if not self._rest:
            return
        columns = [np.concatenate(parts) for parts in zip(*self._rest, strict=True)]
        if not self._queue:
            order = self._rng.permutation(len(columns[-1]))
            columns = [values.take(order, axis=0) for values in columns]
        size, start = self._spec.batch, 0
        while len(columns[-1]) - start >= size:
            self._batches.append([values[start : start + size] for values in columns])
            start += size
        rest = [values[start:] for values in columns]
        self._rest = [rest] if len(rest[-1]) else []

    def _weigh(self, group: Group) -> None:
        """From how likely each sample was in its shard to how likely it was among all places, relative to uniform.

        The share of a shard that gave nothing (it was lost, or all of it is quarantined) falls to the rest.
        """
        places = sum(shard.mass for shard in self._shards.values())
        planned = sum(group.shares.values())
        likely_at = len(self._schema.columns) + 1
        for index, part in group.parts:
            part[likely_at] = part[likely_at] * (places * group.shares[index] / planned)
