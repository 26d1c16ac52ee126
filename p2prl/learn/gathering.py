"""Samples out of memory that the shards share: a batch's arrays are filled when the batch is taken.

A shard draws as for any other trainer, and says where its samples are. It goes on writing meanwhile. So after each copy
the stamps are compared (replay/shared.py): what was overwritten is left out, and others that were drawn take its place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2prl.core.messages import SampleReply
from p2prl.core.schema import SessionSchema
from p2prl.learn.contracts import Array, ReplaySpec
from p2prl.learn.samples import columns_from_frames
from p2prl.replay.shared import SharedRing

#: What is known of a sample, as int64: a row of `drawn`.
_SHARD, _PLACE, _STAMP, _FIRST, _VERSION = range(5)


class Gatherer:
    """Samples that were drawn, in the order in which they will be given.

    Args:
        descriptors: of each shard's ring.
        places: of each ring.

    Attributes:
        overwritten: samples that were gone before they were gathered.
    """

    def __init__(
        self, schema: SessionSchema, spec: ReplaySpec, descriptors: Sequence[int], places: int
    ) -> None:
        self._schema, self._spec, self._window = schema, spec, spec.window
        self._descriptors, self._places = descriptors, places
        self._rings: dict[int, SharedRing] = {}
        self._drawn: Array = np.empty((0, 5), np.int64)
        self.overwritten = 0

    @property
    def waiting(self) -> int:
        """Samples that were drawn and not given."""
        return len(self._drawn)

    def columns(self, index: int, reply: SampleReply, payload: Sequence[memoryview | bytes]) -> list[Array]:
        """The arrays of shard `index`'s reply: as `columns_from_frames`, or a single one for `add`, int64 `[count, 5]`.

        Raises:
            ValueError: the frames are not of the right sizes, or say what cannot be.
        """
        if not reply.count:
            return []
        if reply.shared:
            return [self._read(index, reply.count, payload)]
        return columns_from_frames(self._schema, self._spec, reply.count, payload)

    def _read(self, index: int, count: int, payload: Sequence[memoryview | bytes]) -> Array:
        if index not in self._rings:
            if not 0 <= index < len(self._descriptors):
                raise ValueError(f"nothing is shared with shard {index}")
            self._rings[index] = SharedRing(self._schema, self._places, self._descriptors[index])
        where, versions = payload
        drawn = np.empty((count, 5), np.int64)
        drawn[:, _SHARD] = index
        drawn[:, _PLACE:_VERSION] = np.frombuffer(where, np.int64).reshape(count, 3)
        drawn[:, _VERSION] = np.frombuffer(versions, np.int64).reshape(count)
        most = [self._places - 1, self._schema.ticks - self._window if self._window else 0]
        asked = drawn[:, [_PLACE, _FIRST]]
        if (asked < 0).any() or (asked > most).any():
            raise ValueError("a sample of what is not there")
        return drawn

    def add(self, parts: Sequence[Array], rng: np.random.Generator) -> None:
        """Shuffle what the shards drew, and give it after what waits already."""
        drawn = np.concatenate(parts)
        self._drawn = np.concatenate([self._drawn, drawn.take(rng.permutation(len(drawn)), axis=0)])

    def next_batch(self, count: int) -> list[Array] | None:
        """`count` samples, one fresh array `[count, rows, *shape]` a column and the versions; those of one shard stand
        together. None if too few are left.
        """
        if self.waiting < count:
            return None
        drawn = self._take(count)
        columns, there = self._gather(drawn)
        while not there.all():
            holes = np.flatnonzero(~there)
            self.overwritten += len(holes)
            if self.waiting < len(holes):
                self._drawn = np.concatenate([drawn[there], self._drawn])
                return None
            drawn[holes] = instead = self._take(len(holes))
            filled, there[holes] = self._gather(instead)
            for column, values in zip(columns, filled, strict=True):
                column[holes] = values
        return [*columns, drawn[:, _VERSION].copy()]

    def _take(self, count: int) -> Array:
        """The first that wait, by shard."""
        taken, self._drawn = self._drawn[:count], self._drawn[count:]
        return taken.take(np.argsort(taken[:, _SHARD], kind="stable"), axis=0)

    def _gather(self, drawn: Array) -> tuple[list[Array], Array]:
        """The columns of these samples, which are in order of their shards; and which of them were still there."""
        columns = [
            np.empty((len(drawn), self._schema.rows(column, self._window), *column.shape), column.dtype)
            for column in self._schema.columns
        ]
        there, start = np.empty(len(drawn), bool), 0
        for index, count in enumerate(np.bincount(drawn[:, _SHARD]).tolist()):
            part = slice(start, start + count)
            if count:
                self._copy(index, drawn[part], [values[part] for values in columns])
                stamps = self._rings[index].stamps
                there[part] = stamps[drawn[part, _PLACE]] == drawn[part, _STAMP]
            start += count
        return columns, there

    def _copy(self, index: int, drawn: Array, into: Sequence[Array]) -> None:
        place = drawn[:, _PLACE]
        for column, store, values in zip(self._schema.columns, self._rings[index].columns, into, strict=True):
            # The places were looked at as they came; with "raise" take would fill an array of its own first.
            if not self._window:
                store.take(place, axis=0, out=values, mode="clip")
                continue
            first = place * self._schema.rows(column) + drawn[:, _FIRST]
            rows = first[:, None] + np.arange(self._window + column.extra_row)
            flat = store.reshape(self._places * self._schema.rows(column), *column.shape)
            flat.take(rows, axis=0, out=values, mode="clip")
