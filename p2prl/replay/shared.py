"""A ring in memory that a host's shard and its trainer share: the shard says where the samples are, and not what.

Both work out by themselves what lies where, from the run's schema and the ring's places:

    boots, int64 [1]; stamps, int64 [places]; then each column, [places, rows, *shape]; each at a multiple of 64 bytes

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


def layout(schema: SessionSchema, places: int) -> list[Block]:
    """`boots`, `stamps` and the columns, in that order; the whole ends where the last block does."""
    shapes: list[tuple[tuple[int, ...], str]] = [((1,), "int64"), ((places,), "int64")]
    shapes += [((places, schema.rows(column), *column.shape), column.dtype) for column in schema.columns]
    blocks: list[Block] = []
    for shape, dtype in shapes:
        offset = -(-blocks[-1].end // _ALIGN) * _ALIGN if blocks else 0
        blocks.append(Block(offset, shape, dtype))
    return blocks


def ring_bytes(schema: SessionSchema, places: int) -> int:
    """What the memory of a ring takes, in bytes."""
    return max(block.end for block in layout(schema, places))


class SharedRing:
    """The arrays as one process sees them.

    Args:
        descriptor: of the memory, which has its size already; it stays open.
        writes: for the shard; the trainer's arrays are read-only.

    Attributes:
        stamps: int64 `[places]`.
        columns: in the schema's order, `[places, rows, *shape]`.

    Raises:
        OSError: there is no such memory, it is not a ring of this schema and so many places, or this process may not
            have so much more in its address space.
    """

    def __init__(self, schema: SessionSchema, places: int, descriptor: int, *, writes: bool = False) -> None:
        blocks, size = layout(schema, places), ring_bytes(schema, places)
        held = os.fstat(descriptor).st_size
        if held != size:
            raise OSError(errno.EINVAL, f"shared memory of {held} bytes, expected {size}")
        access = mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ
        memory = mmap.mmap(descriptor, size, access=access)
        self.boots, self.stamps, *self.columns = (
            np.ndarray(block.shape, block.dtype, memory, block.offset) for block in blocks
        )

    def begin(self) -> int:
        """Nothing in it counts any more; returns the first of this start's stamps."""
        self.boots += 1
        self.stamps.fill(_NOTHING)
        return int(self.boots[0]) * _STAMPS_A_BOOT


class SharedStore(RingStore):
    """A ring whose samples say where they are; their columns are for the trainer to gather.

    What is overwritten next is not drawn from: what was told is there for a while.

    Args:
        descriptor: of the memory.

    Raises:
        LimitsForbid: there is no memory for it.
        OSError: it cannot be shared.
    """

    def __init__(
        self,
        schema: SessionSchema,
        capacity_bytes: int,
        window: int,
        rng: np.random.Generator,
        descriptor: int,
    ) -> None:
        self._descriptor = descriptor
        super().__init__(schema, capacity_bytes, window, rng)
        self._spare = min(self.capacity // _SPARE_PART, _MOST_SPARE)
        self._next_stamp = self._ring.begin()

    def _make_columns(self) -> None:
        # Memory that is shared is never refused before it is used: so ask for as much of the other kind.
        np.empty(ring_bytes(self._schema, self.capacity), np.uint8)
        self._ring = SharedRing(self._schema, self.capacity, self._descriptor, writes=True)
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
