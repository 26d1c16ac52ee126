"""Rings in memory that a host's shards and its trainer share: a shard says where the samples are, and not what.

All work out by themselves what lies where, from the run's schema, how many shards there are and a ring's places:

    boots, int64 [shards]; stamps, int64 [shards, places]; then each column, [shards, places, rows, *shape]

each at a multiple of 64 bytes. So to the trainer the rings of all shards are one array a column.

A place's *stamp* names the session that it holds, and is -1 while that is being written. No stamp comes again: each
start of a shard has its own, `boots` counts them. So who copied a session and then finds the stamp that it was told
copied that session, and nothing else.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
from dataclasses import dataclass

import numpy as np

from p2prl.core.schema import SessionSchema
from p2prl.replay.params import ReplayParams
from p2prl.replay.samplers import Places
from p2prl.replay.storage import RingStore, Sample, check_ask, in_pictures
from p2prl.wire.bundle import Opened

_ALIGN = 64
#: Stamps of one start of a shard.
_STAMPS_A_BOOT = 1 << 40
#: A part of the ring, and at most so many places, that is overwritten next and therefore not drawn from.
_SPARE_PART, _MOST_SPARE = 16, 512
#: In a place that is being written, or was not written by this start of the shard.
_NOTHING = -1


@dataclass(frozen=True)
class Block:
    """One array: where it begins, in bytes, and what it is."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def end(self) -> int:
        """Where it ends, in bytes."""
        return self.offset + math.prod(self.shape) * np.dtype(self.dtype).itemsize


def can_be_shared(schema: SessionSchema) -> bool:
    """True if all of a session is arrays: pictures are kept as they were sent."""
    return not any(in_pictures(column) for column in schema.columns)


def layout(schema: SessionSchema, shards: int, places: int) -> list[Block]:
    """`boots`, `stamps` and the columns, in that order; the whole ends where the last block does."""
    shapes: list[tuple[tuple[int, ...], str]] = [((shards,), "int64"), ((shards, places), "int64")]
    shapes += [
        ((shards, places, schema.rows(column), *column.shape), column.dtype) for column in schema.columns
    ]
    blocks: list[Block] = []
    for shape, dtype in shapes:
        offset = -(-blocks[-1].end // _ALIGN) * _ALIGN if blocks else 0
        blocks.append(Block(offset, shape, dtype))
    return blocks


def rings_bytes(schema: SessionSchema, shards: int, places: int) -> int:
    """What the memory of all rings takes, in bytes."""
    return max(block.end for block in layout(schema, shards, places))


class SharedRings:
    """The rings as one process sees them.

    Args:
        descriptor: of the memory, which has its size already; it stays open.
        writes: for a shard; the trainer's arrays are read-only.

    Attributes:
        stamps: int64 `[shards * places]`: those of a shard follow each other.
        columns: in the schema's order, `[shards * places, rows, *shape]`.

    Raises:
        OSError: there is no such memory, it is not of this schema and so many shards and places, or this process may
            not have so much more in its address space.
    """

    def __init__(
        self, schema: SessionSchema, shards: int, places: int, descriptor: int, *, writes: bool = False
    ) -> None:
        blocks, size = layout(schema, shards, places), rings_bytes(schema, shards, places)
        held = os.fstat(descriptor).st_size
        if held != size:
            raise OSError(errno.EINVAL, f"shared memory of {held} bytes, expected {size}")
        access = mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ
        memory = mmap.mmap(descriptor, size, access=access)
        self._boots, *arrays = (
            np.ndarray(block.shape, block.dtype, memory, block.offset) for block in blocks
        )
        self.stamps, *self.columns = (values.reshape(shards * places, *values.shape[2:]) for values in arrays)
        self._places = places

    def keep(self, shard: int) -> int:
        """See this shard's ring alone from now on, of which nothing counts any more; returns its first stamp."""
        mine = slice(shard * self._places, (shard + 1) * self._places)
        self.stamps, self.columns = self.stamps[mine], [values[mine] for values in self.columns]
        self._boots[shard] += 1
        self.stamps.fill(_NOTHING)
        return int(self._boots[shard]) * _STAMPS_A_BOOT


class SharedStore(RingStore):
    """A ring whose samples say where they are; their columns are for the trainer to gather.

    What is overwritten next is not drawn from: what was told is there for a while.

    Args:
        spec: names the memory, and this shard's part of it.

    Raises:
        LimitsForbid: there is no memory for it.
        OSError: it cannot be shared.
    """

    def __init__(self, schema: SessionSchema, spec: ReplayParams, rng: np.random.Generator) -> None:
        self._spec = spec
        super().__init__(schema, spec.capacity_bytes, spec.window, rng)
        self._spare = min(self.capacity // _SPARE_PART, _MOST_SPARE)

    def _make_columns(self) -> None:
        # Memory that is shared is never refused before it is used: so ask for as much of the other kind.
        np.empty(rings_bytes(self._schema, 1, self.capacity), np.uint8)
        spec = self._spec
        self._ring = SharedRings(self._schema, spec.shards, self.capacity, spec.rings, writes=True)
        self._next_stamp = self._ring.keep(spec.shard)
        self._columns = list(self._ring.columns)

    def _write(self, at: int, start: int, count: int, arrays: Opened, node: str) -> None:
        stamps = self._ring.stamps[at : at + count]
        stamps[:] = _NOTHING
        super()._write(at, start, count, arrays, node)
        stamps[:] = np.arange(self._next_stamp, self._next_stamp + count)
        self._next_stamp += count

    def _drawable(self) -> Places:
        spared = max(0, self._held + self._spare - self.capacity)
        return self._in_use((self._oldest() + spared) % self.capacity, self._held - spared)

    def sample(self, count: int, window: int, current_version: int) -> Sample:
        """As a ring's, but where they are instead of what they are."""
        check_ask(self._schema, count, window)
        place, first = self._draw(count, window)
        where = np.stack([place, self._ring.stamps[place], first], axis=1)
        return Sample([], self._versions[place], where=where)
