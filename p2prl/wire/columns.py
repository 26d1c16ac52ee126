"""One column of a bundle <-> one block of bytes, by the codec that suits it.

    raw, lz4       as they lie in memory (blocks.py)
    planes         all first bytes of all numbers, then all second ones, each with time innermost; then lz4
    pictures...    each picture once, as what changed (pictures.py)

Which one it is the data says, block by block, and the header tells the receiver. A column is never larger than plain
lz4 would make it; of pictures the first slot speaks for the others. Planes of a column that gained next to nothing are
left out for some bundles.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import lz4.block
import numpy as np

from p2prl.core.messages import BUNDLE_CODECS
from p2prl.core.schema import DTYPE_SIZES
from p2prl.errors import LocalProtocolError
from p2prl.wire import pictures
from p2prl.wire.blocks import (
    LZ4,
    MAX_LZ4_BYTES,
    RAW,
    Array,
    Buffer,
    checked,
    decompressed,
    dtype_name,
    pack,
    unpack,
    wire_dtype,
)
from p2prl.wire.planes import PLANES, from_planes, to_planes, unsigned

#: All that this p2prl can read.
CODECS = (*BUNDLE_CODECS, PLANES, *pictures.AXES)


#: Planes that saved fewer bytes than this are not tried for so many bundles.
_WORTH_BYTES, _SKIPPED = 16, 15
#: Up to here one copy, byte by byte, is faster than one for each place of a byte. Alone it would be up to 32 kB; beside
#: other processes on the same core what it jumps about in does not stay in the first cache.
_AT_ONCE_BYTES = 8 * 1024


class ColumnPacker:
    """Packs one column of bundle after bundle, and tries only what was of use before."""

    def __init__(self, dtype: str, shape: tuple[int, ...], codecs: Collection[str] = CODECS) -> None:
        """
        Args:
            shape: of a row.
            codecs: that the receiver reads; `raw` and `lz4` everyone does.

        Raises:
            LocalProtocolError: a dtype that cannot cross the wire.
        """
        if dtype not in DTYPE_SIZES:
            raise LocalProtocolError(
                f"arrays of {dtype} cannot cross the wire; use one of {', '.join(DTYPE_SIZES)}"
            )
        self._kind, self._codecs = wire_dtype(dtype), codecs
        self._unsigned = unsigned(self._kind.itemsize)
        self._may_be_pictures = pictures.is_pictures(dtype, shape)
        #: Bundles for which planes are not tried.
        self._skip = 0 if PLANES in codecs else math.inf

    def pack(self, column: Array | pictures.Stacks) -> tuple[str, Buffer]:
        """The codec and the block of the column `[rows, slots, *shape]`, whatever its layout in memory."""
        if not isinstance(column, pictures.Stacks):
            return self._pack_array(column)
        if pictures.STACKED_FIRST in self._codecs:
            return pictures.STACKED_FIRST, column.block()
        return self._pack_array(column.array())

    def _pack_array(self, array: Array) -> tuple[str, Buffer]:
        plain = np.ascontiguousarray(array, dtype=self._kind)
        if plain.nbytes == 0:
            return RAW, b""
        if plain.nbytes > MAX_LZ4_BYTES:
            return RAW, plain.tobytes()
        if self._may_be_pictures:
            codec = pictures.stacking(plain)
            if codec in self._codecs:
                block = pictures.pack_pictures(plain, codec)
                # The first slot speaks for the others, where it must be asked: stacks are always worth it.
                if codec != pictures.PICTURES or len(block) < plain.shape[1] * len(pack(plain[:, 0])[1]):
                    return codec, block
        return self._pack_numbers(plain)

    def _pack_numbers(self, plain: Array) -> tuple[str, Buffer]:
        block: bytes = lz4.block.compress(plain, store_size=False)
        if self._skip:
            self._skip -= 1
        else:
            planes: bytes = lz4.block.compress(self._planes(plain), store_size=False)
            if len(planes) > len(block) - _WORTH_BYTES:
                self._skip = _SKIPPED
            if len(planes) < len(block) and len(planes) < plain.nbytes:
                return PLANES, planes
        return (LZ4, block) if len(block) < plain.nbytes else (RAW, plain.tobytes())

    def _planes(self, plain: Array) -> Array | bytes:
        """The bytes `[itemsize, elements of a row, slots, rows]`."""
        if plain.nbytes <= _AT_ONCE_BYTES:
            return plain.view(np.uint8).reshape(*plain.shape[:2], -1, plain.itemsize).tobytes("F")
        numbers = plain.view(self._unsigned).reshape(*plain.shape[:2], -1)
        return to_planes(numbers.transpose(2, 1, 0).ravel())


def pack_column(array: Array, codecs: Collection[str] = CODECS) -> tuple[str, Buffer]:
    """One column `[rows, slots, *shape]` by itself, as a `ColumnPacker` packs its first; raises as it does."""
    return ColumnPacker(dtype_name(array.dtype), array.shape[2:], codecs).pack(array)


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
        if kind.itemsize == 1:
            numbers = np.frombuffer(plain, kind)
        else:
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
