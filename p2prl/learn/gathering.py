"""Samples out of memory that the shards share: a batch's arrays are filled when it is taken, or is soon.

A shard draws as for any other trainer, and says where its samples are. It goes on writing meanwhile. So after each copy
the stamps are compared (replay/shared.py): what was overwritten is left out, and others that were drawn take its place.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import numpy as np

from p2prl.core.messages import SampleReply
from p2prl.core.schema import Column, SessionSchema
from p2prl.errors import LimitsForbid
from p2prl.learn.contracts import Array, ReplaySpec
from p2prl.learn.samples import batch_bytes, columns_from_frames
from p2prl.replay.shared import SharedRings, rings_bytes
from p2prl.words import sized

log = logging.getLogger("p2prl")

#: What is known of a sample, as int64: a row of `drawn`.
_PLACE, _STAMP, _FIRST, _VERSION = range(4)
#: Small batches are gathered together, up to so many bytes: a copy of little costs as much as one of more.
_AT_ONCE_BYTES = 250_000
#: A part of the samples that were given: if more than this were overwritten, people are told.
_MANY = 0.01


class Gatherer:
    """Samples that were drawn, in the order in which they will be given.

    Args:
        descriptor: of the memory of all rings; -1 if nothing is shared.
        shards: how many rings there are.
        places: of each ring.

    Attributes:
        overwritten: samples that were gone before they were gathered.
        given: samples in all batches so far.

    Raises:
        LimitsForbid: this process has no room for the rings.
    """

    def __init__(
        self, schema: SessionSchema, spec: ReplaySpec, descriptor: int, shards: int, places: int
    ) -> None:
        self._schema, self._spec, self._window = schema, spec, spec.window
        self._shards, self._places = shards, places
        self._rings = _seen(schema, shards, places, descriptor) if descriptor >= 0 else None
        self._drawn: Array = np.empty((4, 0), np.int64)
        self._at_once = max(1, _AT_ONCE_BYTES // max(1, batch_bytes(schema, spec)))
        self._gathered: deque[list[Array]] = deque()
        self.overwritten = self.given = 0

    @property
    def waiting(self) -> int:
        """Samples that were drawn and not given."""
        return len(self._drawn[_PLACE]) + sum(len(batch[-1]) for batch in self._gathered)

    def columns(self, index: int, reply: SampleReply, payload: Sequence[memoryview | bytes]) -> list[Array]:
        """The arrays of shard `index`'s reply: as `columns_from_frames`, or a single one for `add`, int64 `[4, count]`.

        Raises:
            ValueError: the frames are not of the right sizes, or say what cannot be.
        """
        if not reply.count:
            return []
        if reply.shared:
            return [self._read(index, reply.count, payload)]
        return columns_from_frames(self._schema, self._spec, reply.count, payload)

    def _read(self, index: int, count: int, payload: Sequence[memoryview | bytes]) -> Array:
        if self._rings is None or not 0 <= index < self._shards:
            raise ValueError(f"nothing is shared with shard {index}")
        where, versions = payload
        drawn = np.empty((4, count), np.int64)
        drawn[_PLACE:_VERSION] = np.frombuffer(where, np.int64).reshape(count, 3).T
        drawn[_VERSION] = np.frombuffer(versions, np.int64).reshape(count)
        most = self._schema.ticks - self._window if self._window else 0
        for values, below in ((drawn[_PLACE], self._places), (drawn[_FIRST], most + 1)):
            if values.min() < 0 or values.max() >= below:
                raise ValueError("a sample of what is not there")
        drawn[_PLACE] += index * self._places
        return drawn

    def add(self, parts: Sequence[Array], rng: np.random.Generator) -> None:
        """Shuffle what the shards drew, and give it after what waits already."""
        drawn = np.concatenate(parts, axis=1)
        drawn = drawn.take(rng.permutation(drawn.shape[1]), axis=1)
        self._drawn = np.concatenate([self._drawn, drawn], axis=1)

    def next_batch(self, count: int) -> list[Array] | None:
        """`count` samples, one fresh array `[count, rows, *shape]` a column and the versions; None if too few are left.

        An array may be a part of a larger one, of which no other batch has this part.
        """
        while not self._gathered:
            if self.waiting < count:
                return None
            self._fill(count)
        self.given += count
        return self._gathered.popleft()

    def tell(self) -> None:
        """At the end: a line in the log if many samples were overwritten."""
        if self.overwritten > self.given * _MANY:
            log.info(
                "%d samples were overwritten before they were used, %d were used: the replay is small beside what is "
                "played in a moment; others were drawn instead",
                self.overwritten,
                self.given,
            )

    def _fill(self, count: int) -> None:
        """Gather what the next batches are made of; nothing if too many samples of it were overwritten."""
        batches = min(self._at_once, self._drawn.shape[1] // count)
        drawn = self._take(batches * count)
        columns, there = self._gather(drawn)
        while not there.all():
            holes = np.flatnonzero(~there)
            self.overwritten += len(holes)
            if self._drawn.shape[1] < len(holes):
                self._drawn = np.concatenate([drawn[:, there], self._drawn], axis=1)
                return
            drawn[:, holes] = instead = self._take(len(holes))
            filled, there[holes] = self._gather(instead)
            for column, values in zip(columns, filled, strict=True):
                column[holes] = values
        columns.append(drawn[_VERSION])
        for start in range(0, batches * count, count):
            self._gathered.append([values[start : start + count] for values in columns])

    def _take(self, count: int) -> Array:
        """The first that wait."""
        taken, self._drawn = self._drawn[:, :count], self._drawn[:, count:]
        return taken

    def _gather(self, drawn: Array) -> tuple[list[Array], Array]:
        """The columns of these samples, and which of them were still there."""
        assert self._rings is not None, "nothing can have been drawn"
        place = drawn[_PLACE]
        stores = zip(self._schema.columns, self._rings.columns, strict=True)
        columns = [self._copy(column, store, drawn) for column, store in stores]
        there: Array = self._rings.stamps.take(place) == drawn[_STAMP]
        return columns, there

    def _copy(self, column: Column, store: Array, drawn: Array) -> Array:
        if not self._window:
            whole: Array = store.take(drawn[_PLACE], axis=0)
            return whole
        each = self._schema.rows(column)
        first = drawn[_PLACE] * each + drawn[_FIRST]
        rows = first[:, None] + np.arange(self._window + column.extra_row)
        windows: Array = store.reshape(len(store) * each, *column.shape).take(rows, axis=0)
        return windows


def _seen(schema: SessionSchema, shards: int, places: int, descriptor: int) -> SharedRings:
    try:
        return SharedRings(schema, shards, places, descriptor)
    except OSError as error:
        size = rings_bytes(schema, shards, places)
        raise LimitsForbid(
            f"the trainer cannot map the replay's {sized(size)}, which its shards share with it ({error}): "
            "set replay.capacity_bytes lower, or allow it more memory (ulimit -v)"
        ) from error
