"""Sessions of pictures <-> bytes: each picture once, and of each only what changed since the one before.

A row of an observation is one picture, or a stack of the last few, as for Atari: then the next row is this one moved up
by one picture, and only the newest of it is kept. Where that does not hold, as where an episode begins, the row breaks
the sequence and is kept whole.

What is kept of a slot is combined with the picture before by exclusive or, which leaves mostly zeros, and goes through
lz4; and then all slots' blocks do once more, because what lz4 makes of long runs of zeros is itself a run.

    column: for each slot u32 little-endian, the length of its block | lz4 of all the blocks, one after the other
    block:  where rows are stacks a bit for each row but the first, that it breaks the sequence | lz4 of the pictures
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import lz4.block
import numpy as np

from p2prl.errors import RemoteProtocolError
from p2prl.wire.blocks import LZ4, Array, Buffer, decompressed

PICTURES, STACKED_FIRST, STACKED_LAST = "pictures", "pictures-first", "pictures-last"
#: Codec -> which axis of a row counts the pictures of a stack; None for rows that are one picture.
AXES: dict[str, int | None] = {PICTURES: None, STACKED_FIRST: 0, STACKED_LAST: -1}
#: Rows of fewer bytes are not worth it.
MIN_BYTES = 512
#: More pictures than this are no stack.
MOST_STACKED = 32
#: Stacks are packed in as many slots at once as have rows of so many bytes: two such rows fit a processor's own cache.
_ROW_BYTES = 256 * 1024


class Run(NamedTuple):
    """Rows from `first` to `end` of which none breaks the sequence, and where the first one's oldest picture is."""

    first: int
    end: int
    oldest: int


class Pictures(NamedTuple):
    """Some of the pictures of one slot.

    Attributes:
        kept: uint8 `[n, *shape of a picture]`, each picture once.
        before: pictures of the slot that were left out at the beginning.
        runs: of all rows. stack: pictures of a row. axis: which of a row's counts them, as in AXES.
    """

    kept: Array
    before: int
    runs: tuple[Run, ...]
    stack: int
    axis: int | None

    def write(self, start: int, out: Array) -> None:
        """Write the rows from `start` on as the environment gave them.

        Args:
            out: uint8 `[rows, *shape]`, as many as are wanted.
        """
        stop = start + len(out)
        for first, end, oldest in self.runs:
            begin, upto = max(start, first), min(stop, end)
            if begin < upto:
                kept = self.kept[oldest - self.before + begin - first :]
                out[begin - start : upto - start] = stacks_of(kept, self.stack, upto - begin, self.axis)


def stacks_of(kept: Array, stack: int, rows: int, axis: int | None) -> Array:
    """A view of pictures `[n, *shape of a picture]` as rows that nothing breaks, from the first picture on.

    Each row begins one picture after the row before, and shares the others with it.
    """
    if axis is None:
        return kept[:rows]
    one, *inner = kept.strides
    rows_first = np.ndarray((rows, stack, *kept.shape[1:]), np.uint8, kept, 0, (one, one, *inner))
    return _from_front(rows_first, 1, axis)


class Stacks(NamedTuple):
    """A column of stacks counted by their first axis, each picture once: known as such when they were played.

    Attributes:
        kept: of each slot uint8 `[n, *shape of a picture]`, the pictures in the order of time.
        breaks: bool `[rows - 1, slots]`, which rows break the sequence: all their pictures are kept.
        stack: pictures of a row.
    """

    kept: list[Array]
    breaks: Array
    stack: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the column: `[rows, slots, stack, *shape of a picture]`."""
        rows, slots = self.breaks.shape
        return rows + 1, slots, self.stack, *self.kept[0].shape[1:]

    def block(self) -> bytes:
        """As `pack_pictures` packs the column."""
        return _joined(
            [
                np.packbits(self.breaks[:, slot]).tobytes() + _pack(kept.reshape(len(kept), -1))
                for slot, kept in enumerate(self.kept)
            ]
        )

    def array(self) -> Array:
        """The column itself."""
        column = np.empty(self.shape, np.uint8)
        for slot, kept in enumerate(self.kept):
            runs = runs_of(np.packbits(self.breaks[:, slot]).tobytes(), len(column), self.stack)
            Pictures(kept, 0, runs, self.stack, AXES[STACKED_FIRST]).write(0, column[:, slot])
        return column


@dataclass(frozen=True)
class Slots:
    """A column of pictures as it was sent: a codec, and the block of each slot, for `unpack_block`."""

    codec: str
    blocks: list[bytes]


def is_pictures(dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether a column of this dtype, with rows of this shape, may be pictures."""
    return dtype == "uint8" and len(shape) >= 2 and math.prod(shape) >= MIN_BYTES


def pack_pictures(array: Array, codec: str) -> bytes:
    """The block of a column of pictures, uint8 `[rows, slots, *shape]`, at least one of each; a key of AXES."""
    axis, slots = AXES[codec], array.shape[1]
    # Some slots at a time, so that what is done with them finds them in the processor's cache.
    if axis is None:
        blocks = [_pack(array[:, slot].reshape(len(array), -1)) for slot in range(slots)]
    else:
        some = max(1, _ROW_BYTES // math.prod(array.shape[2:]))
        blocks = [
            block
            for first in range(0, slots, some)
            for block in _pack_stacks(_to_front(array[:, first : first + some], 2, axis))
        ]
    return _joined(blocks)


def stacking(array: Array) -> str:
    """The codec for how the rows of a column `[rows, slots, *shape]` are stacked, if they are."""
    for codec, axis in AXES.items():
        if axis is not None and 2 <= array.shape[2:][axis] <= MOST_STACKED and len(array) > 1:
            fronted = _to_front(array[:, 0], 1, axis)
            # The second row may begin an episode, and the third as well.
            if any(
                (fronted[row + 1, :-1] == fronted[row, 1:]).all() for row in range(min(3, len(array) - 1))
            ):
                return codec
    return PICTURES


def _pack(rows: Array) -> bytes:
    """One slot of pictures, `[rows, size]`."""
    changed = np.empty(rows.shape, np.uint8)
    changed[0] = rows[0]
    np.bitwise_xor(rows[1:], rows[:-1], out=changed[1:])
    return _compressed(changed)


def _pack_stacks(rows: Array) -> list[bytes]:
    """Some slots of stacks, `[rows, slots, stack, *picture]`: the block of each."""
    breaks, changed = _compared(rows)
    unbroken = bytes((len(breaks) + 7) // 8)
    blocks = []
    for slot, is_broken in enumerate(np.any(breaks, axis=0).tolist()):
        if is_broken:
            whole = _with_whole_rows(changed[slot], rows[:, slot], breaks[:, slot])
            blocks.append(np.packbits(breaks[:, slot]).tobytes() + _compressed(whole))
        else:
            blocks.append(unbroken + _compressed(changed[slot]))
    return blocks


def _compared(rows: Array) -> tuple[Array, Array]:
    """Each row beside the one before.

    They are read in the order in which they lie, each once, and what is done with one is done with a copy of it in the
    cache: to fetch them from memory takes longer than all the rest but lz4.

    Returns:
        breaks: bool `[rows - 1, slots]`, which rows break the sequence.
        changed: uint8 `[slots, pictures, bytes of a picture]`, as in Pictures if none breaks it: of the first row what
            changed from each picture to the next, then of each row what changed from the newest picture before.
    """
    count, slots, stack = rows.shape[:3]
    size = math.prod(rows.shape[3:])
    # In a row: all pictures of a slot but its first one, and where they must be in the next row.
    later = [(at + size, at + stack * size, at) for at in range(0, slots * stack * size, stack * size)]
    breaks = np.zeros((count - 1, slots), bool)
    changed = np.empty((slots, count - 1 + stack, size), np.uint8)
    now, pictures = _copied(rows[0], size)
    changed[:, 0] = pictures[:, 0]
    np.bitwise_xor(pictures[:, 1:], pictures[:, :-1], out=changed[:, 1:stack])
    for at in range(1, count):
        before, old = memoryview(now), pictures
        now, pictures = _copied(rows[at], size)
        # As bytes: nothing that numpy has compares as fast.
        broken = [not now.startswith(before[start:end], place) for start, end, place in later]
        if True in broken:
            breaks[at - 1] = broken
        np.bitwise_xor(pictures[:, -1], old[:, -1], out=changed[:, stack - 1 + at])
    return breaks, changed


def _copied(row: Array, size: int) -> tuple[bytes, Array]:
    """One row of stacks, `[slots, stack, *picture]`: a copy, and the same as uint8 `[slots, stack, size]`."""
    copy = np.ascontiguousarray(row).tobytes()
    return copy, np.frombuffer(copy, np.uint8).reshape(row.shape[0], row.shape[1], size)


def _with_whole_rows(changed: Array, rows: Array, breaks: Array) -> Array:
    """What changed in one slot, with all pictures of each row that breaks the sequence in the place of its newest."""
    stack, size = rows.shape[1], changed.shape[1]
    parts, done = [], 0
    for row in (np.flatnonzero(breaks) + 1).tolist():
        newest, pictures = rows[row - 1, -1].reshape(1, size), rows[row].reshape(stack, size)
        parts += [changed[done : stack - 1 + row], pictures[:1] ^ newest, pictures[1:] ^ pictures[:-1]]
        done = stack + row
    return np.concatenate([*parts, changed[done:]])


def _joined(blocks: list[bytes]) -> bytes:
    sizes = b"".join(len(block).to_bytes(4, "little") for block in blocks)
    return sizes + _compressed(b"".join(blocks))


def _compressed(data: Array | bytes) -> bytes:
    block: bytes = lz4.block.compress(data, store_size=False)
    return block


def blocks_of(column: Buffer, slots: int, dtype: str, rows: int, shape: tuple[int, ...]) -> list[memoryview]:
    """The block of each slot, for `unpack_block`: they can be kept and read each by itself.

    Raises:
        RemoteProtocolError: `bad_codec` if these are not so many blocks, or the column holds no pictures.
    """
    view = memoryview(column)
    if not rows or not is_pictures(dtype, shape) or len(view) <= 4 * slots:
        raise RemoteProtocolError("bad_codec", f"{len(view)} bytes are no column of pictures")
    sizes = np.frombuffer(view[: 4 * slots], "<u4").tolist()
    largest = math.prod(shape) * rows
    if max(sizes) > largest + largest // 255 + 16 + rows:  # LZ4_compressBound: no honest block is larger
        raise RemoteProtocolError("bad_codec", f"a block of {max(sizes)} bytes for {largest}")
    inner = memoryview(decompressed(view[4 * slots :], sum(sizes)))
    return [inner[start:end] for start, end in itertools.pairwise(itertools.accumulate([0, *sizes]))]


def check_blocks(column: Slots, rows: int, shape: tuple[int, ...]) -> None:
    """Raises as `unpack_block` does for each slot, without doing all of its work."""
    axis = _axis(column.codec)
    stack, picture = parts(shape, axis)
    size, unused = math.prod(picture), -(rows - 1) % 8
    for block in column.blocks:
        breaks, changed = _cut(axis, block, rows)
        # The last bits of the last byte may say anything: there are no rows for them.
        whole = (int.from_bytes(breaks, "big") >> unused).bit_count()
        decompressed(changed, (stack + rows - 1 + whole * (stack - 1)) * size)


def unpack_block(
    codec: str, block: Buffer, rows: int, shape: tuple[int, ...], first: int = 0, end: int | None = None
) -> Pictures:
    """The pictures of one slot, or of its rows from `first` to `end`.

    Args:
        codec: a key of AXES, or LZ4 for rows that lie one after the other.

    Raises:
        RemoteProtocolError: `bad_codec` if it is not exactly `rows` rows of this shape.
    """
    axis = _axis(codec)
    stack, picture = parts(shape, axis)
    front, rest = _cut(axis, block, rows)
    runs = runs_of(bytes(front), rows, stack)
    size = math.prod(picture)
    plain = decompressed(rest, pictures_in(runs, stack) * size, writable=True)
    changed = np.frombuffer(plain, np.uint8).reshape(-1, size)
    oldest, beyond = _needed(runs, stack, first, rows if end is None else end)
    if codec != LZ4:
        _sum_up(changed[:beyond], oldest)
    return Pictures(changed[oldest:beyond].reshape(-1, *picture), oldest, runs, stack, axis)


@lru_cache(maxsize=256)
def runs_of(breaks: bytes, rows: int, stack: int) -> tuple[Run, ...]:
    """A slot's rows, cut where a row breaks the sequence. `breaks`: the bits in front of a block."""
    bits = int.from_bytes(breaks, "big") >> max(0, 8 * len(breaks) - (rows - 1))
    firsts = [0, *(row for row in range(1, rows) if bits >> (rows - 1 - row) & 1)]
    ends = [*firsts[1:], rows]
    return tuple(
        Run(first, end, first + index * (stack - 1))
        for index, (first, end) in enumerate(zip(firsts, ends, strict=True))
    )


def pictures_in(runs: tuple[Run, ...], stack: int) -> int:
    """How many pictures these rows have, each counted once."""
    first, end, oldest = runs[-1]
    return oldest + end - first + stack - 1


def _needed(runs: tuple[Run, ...], stack: int, first: int, end: int) -> tuple[int, int]:
    """The pictures of the rows from `first` to `end`: the oldest one, and the one after the newest."""
    begins = next(run for run in reversed(runs) if run.first <= first)
    ends = next(run for run in reversed(runs) if run.first < end)
    return begins.oldest + first - begins.first, ends.oldest + end - ends.first + stack - 1


def _axis(codec: str) -> int | None:
    return None if codec == LZ4 else AXES[codec]


def _cut(axis: int | None, block: Buffer, rows: int) -> tuple[memoryview, memoryview]:
    """The bits that say which rows break the sequence, and the lz4 of the pictures."""
    view = memoryview(block)
    front = 0 if axis is None else (rows + 6) // 8
    if len(view) < front:
        raise RemoteProtocolError("bad_codec", f"a block of {len(view)} bytes")
    return view[:front], view[front:]


def _sum_up(changed: Array, first: int) -> None:
    """Make what changed from each picture to the next the pictures, from `first` on: where they lie."""
    change = wide(changed)
    if first:  # what came before is of use as a sum alone
        change[first] = np.bitwise_xor.reduce(change[: first + 1], axis=0)
    # One by one: what accumulate does is the same, and slower.
    for before, picture in itertools.pairwise(list(change[first:])):
        np.bitwise_xor(before, picture, picture)


def wide(rows: Array) -> Array:
    """Rows of bytes as rows of words, where they are some."""
    return rows.view(np.uint64) if rows.shape[-1] % 8 == 0 else rows


def parts(shape: tuple[int, ...], axis: int | None) -> tuple[int, tuple[int, ...]]:
    """How many pictures a row has, and the shape of one."""
    if axis is None:
        return 1, shape
    return (shape[0], shape[1:]) if axis == 0 else (shape[-1], shape[:-1])


def _to_front(array: Array, before: int, axis: int | None) -> Array:
    """The axis that counts pictures behind `before` others; a view."""
    return array if axis in (None, 0) else np.moveaxis(array, -1, before)


def _from_front(array: Array, before: int, axis: int | None) -> Array:
    return array if axis in (None, 0) else np.moveaxis(array, before, -1)
