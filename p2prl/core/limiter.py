"""How fast sampling and inserting may go against each other.

`RateLimiter` is reverb's SampleToInsertRatio (github.com/google-deepmind/reverb, rate_limiters.py): with
D = inserted x samples_per_insert - sampled, which starts at O = min_size x samples_per_insert when the buffer
becomes large enough, D stays within O +- tolerance. Two things differ. Inserting is not blocked call by call:
members are told how far the inserted ticks may go, and any positive room admits one whole bundle, so a bundle
may overshoot. And the tolerance is never smaller than what lets a whole batch pass, so the two sides cannot
wait for each other (acme#207).
"""

from __future__ import annotations

import math
from typing import Protocol


class Limiter(Protocol):
    """What the trainer asks before it samples, and tells the broker for the members."""

    def can_sample(self, count: int) -> bool:
        """True if `count` more may be sampled now."""

    def insert_ceiling(self) -> int | None:
        """How far the inserted ticks may go in all; None for no limit."""

    def sampled(self, count: int) -> None:
        """`count` more were sampled."""

    def inserted(self, total: int) -> None:
        """`total` ticks were inserted since the run began."""

    def waiting(self, total: int) -> None:
        """`total` ticks wait in the shards, by their own count; said when nothing is in flight."""

    def found(self, count: int) -> None:
        """`count` ticks had been inserted into one of the shards when this trainer first heard of it."""

    def idle(self, idle: bool) -> None:
        """The learner waits for its next batch; or does so no more."""


class RateLimiter:
    """The limiter of a buffer that is sampled at random. What is sampled is counted in ticks: one for a window (its
    first), all its ticks for a whole session.

    Args:
        samples_per_insert: how many times a tick is sampled on average; 0 for no limit.
        min_size: ticks inserted before the first sample.
        tolerance: how many sampled ticks the ratio may be off either way; raised to batch + samples_per_insert.
        batch: the largest `count` that will be sampled at once.
        sampled_total: ticks sampled so far, when a run is resumed.
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size: int,
        tolerance: float = 0.0,
        batch: int = 1,
        sampled_total: int = 0,
    ) -> None:
        self._ratio = samples_per_insert
        self._min_size = max(1, min_size)
        # Both sides blocked needs O + T - ratio < D < O - T + batch: no such D once 2 T >= ratio + batch.
        # Twice that, so that rounding cannot make one.
        self._tolerance = max(tolerance, batch + samples_per_insert)
        self._offset = samples_per_insert * self._min_size
        #: Ticks inserted before this trainer, and of them those that it knows of: a trainer that was killed may have
        #: sampled more than its last checkpoint says, and so let in more.
        self._found = 0
        self._known = self._allowed(sampled_total) if sampled_total else math.inf
        #: Samples and ticks so far, since the run began.
        self.sampled_total = sampled_total
        self.inserted_total = 0

    def can_sample(self, count: int) -> bool:
        """True if the buffer is large enough and `count` more samples keep D at or above O - tolerance."""
        if self.inserted_total < self._min_size:
            return False
        if self._ratio <= 0:
            return True
        ahead = self.inserted_total * self._ratio - self.sampled_total
        return ahead - count >= self._offset - self._tolerance

    def insert_ceiling(self) -> int | None:
        """The most inserted ticks that keep D at or below O + tolerance, and at least `min_size`.

        What a killed trainer let in beyond that is allowed on top: it takes its successor some time to sample so much
        again, and players do not wait for that.
        """
        if self._ratio <= 0:
            return None
        beyond = max(0.0, self._found - self._known)
        return max(self._min_size, math.floor(self._allowed(self.sampled_total) + beyond))

    def _allowed(self, sampled: int) -> float:
        return (sampled + self._offset + self._tolerance) / self._ratio if self._ratio > 0 else math.inf

    def sampled(self, count: int) -> None:
        """`count` more ticks were sampled."""
        self.sampled_total += count

    def inserted(self, total: int) -> None:
        """`total` ticks were inserted since the run began. A shard that is lost does not take them back."""
        self.inserted_total = max(self.inserted_total, total)

    def waiting(self, total: int) -> None:
        """Does not matter: what is sampled does not go."""

    def found(self, count: int) -> None:
        """`count` ticks had been inserted into one of the shards when this trainer first heard of it."""
        self._found += count

    def idle(self, idle: bool) -> None:
        """Does not matter: the tolerance is larger than a batch."""


class QueueLimiter:
    """The limiter of a queue: what was inserted and not yet consumed stays within a capacity.

    A batch that an idle learner waits for is room beside the capacity: it will not wait in the shards. So players go on
    with the newest weights while that batch is still on its way; what they play is one update old when it is learned
    from, as if they had begun once the learner took the batch.

    Args:
        capacity: ticks that may wait in all shards together; raised to `batch`, or no batch could ever be
            complete.
        batch: ticks that are consumed at once.
        consumed_total: ticks consumed so far, when a run is resumed.
    """

    def __init__(self, capacity: int, batch: int = 1, consumed_total: int = 0) -> None:
        self._capacity, self._batch = max(1, capacity, batch), batch
        self._idle = False
        #: Ticks consumed, dropped as stale or lost, and ticks inserted, since the run began.
        self.consumed_total = consumed_total
        self.inserted_total = 0

    def can_sample(self, count: int) -> bool:
        """True if `count` ticks wait."""
        return self.inserted_total - self.consumed_total >= count

    def insert_ceiling(self) -> int | None:
        """Consumed + capacity, and a batch more while the learner is idle."""
        return self.consumed_total + self._capacity + (self._batch if self._idle else 0)

    def sampled(self, count: int) -> None:
        """`count` more ticks were consumed, or dropped as stale."""
        self.consumed_total += count

    def inserted(self, total: int) -> None:
        """`total` ticks were inserted since the run began. A shard that is lost does not take them back."""
        self.inserted_total = max(self.inserted_total, total)

    def waiting(self, total: int) -> None:
        """`total` ticks wait in the shards, by their own count.

        Call it when nothing is in flight. Ticks that were lost with a shard will never be consumed; without
        this they would fill the capacity for ever.
        """
        self.consumed_total = max(self.consumed_total, self.inserted_total - total)

    def found(self, count: int) -> None:
        """Does not matter: `waiting` tells what is left of it."""

    def idle(self, idle: bool) -> None:
        """The learner waits for its next batch; or does so no more."""
        self._idle = idle
