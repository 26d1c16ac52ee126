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
from p2prl.core.schema import SessionSchema
from p2prl.errors import LimitsForbid
from p2prl.learn.contracts import Array, ReplaySpec
from p2prl.learn.samples import batch_bytes, columns_from_frames
from p2prl.replay.shared import SharedRing, ring_bytes
from p2prl.words import sized

log = logging.getLogger("p2prl")

#: What is known of a sample, as int64: a row of `drawn`.
_SHARD, _PLACE, _STAMP, _FIRST, _VERSION = range(5)
#: Small batches are gathered together, up to so many bytes: a copy of little costs as much as one of more.
_AT_ONCE_BYTES = 250_000
#: A part of the samples that were given: if more than this were overwritten, people are told.
_MANY = 0.01


class Gatherer:
    """Samples that were drawn, in the order in which they will be given.

    Args:
        descriptors: of each shard's ring.
        places: of each ring.

    Attributes:
        overwritten: samples that were gone before they were gathered.
        given: samples in all batches so far.

    Raises:
        LimitsForbid: this process has no room for the rings.
    """

    def __init__(
        self, schema: SessionSchema, spec: ReplaySpec, descriptors: Sequence[int], places: int
    ) -> None:
        self._schema, self._spec, self._window = schema, spec, spec.window
        self._places = places
        self._rows = [
            ((schema.rows(column, spec.window), *column.shape), column.dtype) for column in schema.columns
        ]
        self._rings = _seen(schema, descriptors, places)
        self._drawn: Array = np.empty((5, 0), np.int64)
        self._at_once = max(1, _AT_ONCE_BYTES // max(1, batch_bytes(schema, spec)))
        self._gathered: deque[list[Array]] = deque()
        self.overwritten = self.given = 0

    @property
    def waiting(self) -> int:
        """Samples that were drawn and not given."""
        return len(self._drawn[_SHARD]) + sum(len(batch[-1]) for batch in self._gathered)

    def columns(self, index: int, reply: SampleReply, payload: Sequence[memoryview | bytes]) -> list[Array]:
        """The arrays of shard `index`'s reply: as `columns_from_frames`, or a single one for `add`, int64 `[5, count]`.

        Raises:
            ValueError: the frames are not of the right sizes, or say what cannot be.
        """
        if not reply.count:
            return []
        if reply.shared:
            return [self._read(index, reply.count, payload)]
        return columns_from_frames(self._schema, self._spec, reply.count, payload)

    def _read(self, index: int, count: int, payload: Sequence[memoryview | bytes]) -> Array:
        if not 0 <= index < len(self._rings):
            raise ValueError(f"nothing is shared with shard {index}")
        where, versions = payload
        drawn = np.empty((5, count), np.int64)
        drawn[_SHARD] = index
        drawn[_PLACE:_VERSION] = np.frombuffer(where, np.int64).reshape(count, 3).T
        drawn[_VERSION] = np.frombuffer(versions, np.int64).reshape(count)
        most = self._schema.ticks - self._window if self._window else 0
        for values, below in ((drawn[_PLACE], self._places), (drawn[_FIRST], most + 1)):
            if values.min() < 0 or values.max() >= below:
                raise ValueError("a sample of what is not there")
        return drawn

    def add(self, parts: Sequence[Array], rng: np.random.Generator) -> None:
        """Shuffle what the shards drew, and give it after what waits already."""
        drawn = np.concatenate(parts, axis=1)
        drawn = drawn.take(rng.permutation(drawn.shape[1]), axis=1)
        self._drawn = np.concatenate([self._drawn, drawn], axis=1)

    def next_batch(self, count: int) -> list[Array] | None:
        """`count` samples, one fresh array `[count, rows, *shape]` a column and the versions; those of one shard stand
        together. None if too few are left.
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
        self._gathered += _dealt(columns, batches) if batches > 1 else [columns]

    def _take(self, count: int) -> Array:
        """The first that wait, by shard."""
        taken, self._drawn = self._drawn[:, :count], self._drawn[:, count:]
        by_shard: Array = taken.take(taken[_SHARD].argsort(kind="stable"), axis=1)
        return by_shard

    def _gather(self, drawn: Array) -> tuple[list[Array], Array]:
        """The columns of these samples, which are in order of their shards; and which of them were still there."""
        size = drawn.shape[1]
        columns = [np.empty((size, *shape), dtype) for shape, dtype in self._rows]
        there, start = np.empty(size, bool), 0
        for index, count in enumerate(np.bincount(drawn[_SHARD]).tolist()):
            if count:
                part, ring = slice(start, start + count), self._rings[index]
                self._copy(ring, drawn[:, part], [values[part] for values in columns])
                np.equal(ring.stamps.take(drawn[_PLACE, part]), drawn[_STAMP, part], out=there[part])
            start += count
        return columns, there

    def _copy(self, ring: SharedRing, drawn: Array, into: Sequence[Array]) -> None:
        # The places were looked at as they came; with "raise" take would fill an array of its own first.
        if not self._window:
            for store, values in zip(ring.columns, into, strict=True):
                store.take(drawn[_PLACE], axis=0, out=values, mode="clip")
            return
        for column, store, values in zip(self._schema.columns, ring.columns, into, strict=True):
            first = drawn[_PLACE] * self._schema.rows(column) + drawn[_FIRST]
            rows = first[:, None] + np.arange(self._window + column.extra_row)
            flat = store.reshape(self._places * self._schema.rows(column), *column.shape)
            flat.take(rows, axis=0, out=values, mode="clip")


def _seen(schema: SessionSchema, descriptors: Sequence[int], places: int) -> list[SharedRing]:
    try:
        return [SharedRing(schema, places, descriptor) for descriptor in descriptors]
    except OSError as error:
        size = ring_bytes(schema, places) * len(descriptors)
        raise LimitsForbid(
            f"the trainer cannot map the replay's {sized(size)}, which its shards share with it ({error}): "
            "set replay.capacity_bytes lower, or allow it more memory (ulimit -v)"
        ) from error


def _dealt(columns: Sequence[Array], batches: int) -> list[list[Array]]:
    """So many batches. The samples are dealt out in turn, like cards: so each batch has its part of each shard's."""
    dealt = [
        np.ascontiguousarray(values.reshape(-1, batches, *values.shape[1:]).swapaxes(0, 1))
        for values in columns
    ]
    return [list(batch) for batch in zip(*dealt, strict=True)]
