"""One column of a bundle <-> one block of bytes, by the codec that suits it.

    raw, lz4       as they lie in memory (blocks.py)
    planes         all first bytes of all numbers, then all second ones, each with time innermost; then lz4
    pictures...    each picture once, as what changed (pictures.py)

Which one it is the data says, block by block, and the header tells the receiver. A column is never larger than plain
lz4 would make it; of pictures the first slot speaks for the others.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import lz4.block
import numpy as np

from p2prl.wire import pictures
from p2prl.wire.blocks import (
    LZ4,
    MAX_LZ4_BYTES,
    RAW,
    Array,
    Buffer,
    checked,
    decompressed,
    pack,
    unpack,
    wire_dtype,
)
from p2prl.wire.planes import PLANES, from_planes, to_planes, unsigned

#: All that this p2prl can read.
CODECS = (RAW, LZ4, PLANES, *pictures.AXES)


def pack_column(array: Array, codecs: Collection[str] = CODECS) -> tuple[str, Buffer]:
    """The codec and the block of a column `[rows, slots, *shape]`, whatever its layout in memory.

    Args:
        codecs: that the receiver reads; `raw` and `lz4` everyone does.

    Raises:
        LocalProtocolError: a dtype that cannot cross the wire.
    """
    dtype, shape = array.dtype.name, array.shape[2:]
    if array.size and pictures.is_pictures(dtype, shape):
        codec = pictures.stacking(array)
        if codec in codecs:
            block = pictures.pack_pictures(array, codec)
            # The first slot speaks for the others, where it must be asked: stacks are always worth it.
            if codec != pictures.PICTURES or len(block) < array.shape[1] * len(pack(array[:, 0])[1]):
                return codec, block
    codec, plain = pack(array)
    if PLANES in codecs and 0 < array.nbytes <= MAX_LZ4_BYTES:
        planes = lz4.block.compress(_planes(array), store_size=False)
        if len(planes) < len(plain):
            return PLANES, planes
    return codec, plain


def unpack_column(codec: str, block: Buffer, dtype: str, shape: tuple[int, ...]) -> Array:
    """The column `[rows, slots, *shape]` of a block; read-only, and not always in C order.

    Raises:
        RemoteProtocolError: `bad_codec` if the codec is unknown, or the block is not exactly one column of this dtype
            and shape; `malformed` if a bool is neither 0 nor 1.
    """
    if codec in pictures.AXES:
        return developed(open_pictures(codec, block, dtype, shape), shape)
    if codec == PLANES:
        kind = wire_dtype(dtype)
        plain = decompressed(block, math.prod(shape) * kind.itemsize)
        numbers = from_planes(plain, unsigned(kind.itemsize)).view(kind)
        # A view: whoever keeps it copies it anyway.
        return checked(numbers.reshape(-1, shape[1], shape[0]).T.reshape(shape))
    return unpack(codec, block, dtype, shape)


def open_pictures(codec: str, block: Buffer, dtype: str, shape: tuple[int, ...]) -> pictures.Slots:
    """A column that may be pictures (`pictures.is_pictures`), cut into slots; whatever codec it came with.

    Raises:
        RemoteProtocolError: as `unpack_column`. What the blocks of a codec of pictures hold is not looked at.
    """
    rows, slots, *row = shape
    if codec in pictures.AXES:
        found = pictures.blocks_of(block, slots, dtype, rows, tuple(row))
        return pictures.Slots(codec, [bytes(one) for one in found])
    array = unpack_column(codec, block, dtype, shape)
    lying = [np.ascontiguousarray(array[:, slot]) for slot in range(slots)]
    return pictures.Slots(LZ4, [lz4.block.compress(one, store_size=False) for one in lying])


def developed(column: pictures.Slots, shape: tuple[int, ...]) -> Array:
    """The column `[rows, slots, *shape]`; raises RemoteProtocolError if a block is broken."""
    array = np.empty(shape, np.uint8)
    for slot, block in enumerate(column.blocks):
        pictures.unpack_block(column.codec, block, shape[0], shape[2:]).write(0, array[:, slot])
    array.flags.writeable = False
    return array


def _planes(array: Array) -> Array:
    """The bytes `[itemsize, elements of a row, slots, rows]`."""
    plain = np.ascontiguousarray(array, dtype=wire_dtype(array.dtype.name))
    numbers = plain.view(unsigned(plain.itemsize)).reshape(*array.shape[:2], -1)
    return to_planes(numbers.transpose(2, 1, 0).ravel())
