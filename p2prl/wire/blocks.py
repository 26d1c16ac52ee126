"""One array <-> one block of bytes, compressed with lz4 where that makes it smaller.

A block holds nothing but the array's elements, little-endian, in C order: its dtype and shape are known
beforehand, so its exact decoded size is too. No size inside the bytes is ever believed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import lz4.block
import numpy as np
import numpy.typing as npt

from p2prl.core.schema import DTYPE_SIZES
from p2prl.errors import LocalProtocolError, RemoteProtocolError

Array = npt.NDArray[Any]
Buffer = bytes | memoryview

RAW = "raw"
LZ4 = "lz4"

#: No lz4 block grows by more than this when it is decoded: each byte of a match's length stands for at most
#: 255 (lz4_Block_format.md). A block that claims more is refused before memory is taken for it.
MAX_LZ4_RATIO = 255

#: What one lz4 block may hold (LZ4_MAX_INPUT_SIZE); larger arrays travel raw.
MAX_LZ4_BYTES = 0x7E000000


@lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, which numpy puts together anew each time."""
    return dtype.name


@lru_cache(maxsize=64)
def wire_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype of a name in DTYPE_SIZES, little-endian.

    Raises:
        RemoteProtocolError: `malformed`, for any other name: names from outside never reach numpy.
    """
    if name not in DTYPE_SIZES:
        raise RemoteProtocolError("malformed", f"{name[:40]!r} is not a dtype of this protocol")
    return np.dtype(name).newbyteorder("<")


def pack(array: Array) -> tuple[str, Buffer]:
    """The codec's name and the block of an array, whatever its layout in memory."""
    name = dtype_name(array.dtype)
    if name not in DTYPE_SIZES:
        raise LocalProtocolError(
            f"arrays of {array.dtype} cannot cross the wire; use one of {', '.join(DTYPE_SIZES)}"
        )
    plain = np.ascontiguousarray(array, dtype=wire_dtype(name))
    if plain.nbytes == 0:
        return RAW, b""
    if plain.nbytes <= MAX_LZ4_BYTES:
        block: bytes = lz4.block.compress(plain, store_size=False)
        if len(block) < plain.nbytes:
            return LZ4, block
    return RAW, plain.tobytes()


def unpack(codec: str, block: Buffer, dtype: str, shape: tuple[int, ...]) -> Array:
    """The array of a block; read-only, and a view of `block` where the codec is `raw`.

    Raises:
        RemoteProtocolError: `bad_codec` if the codec is unknown, or the block is not exactly one array of
            this dtype and shape; `malformed` if a bool is neither 0 nor 1.
    """
    kind = wire_dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    plain = _plain(codec, block, size)
    return checked(np.frombuffer(plain, dtype=kind).reshape(shape) if size else np.empty(shape, kind))


def checked(array: Array) -> Array:
    """A decoded array, made read-only; RemoteProtocolError `malformed` if a bool is neither 0 nor 1."""
    # numpy's own code takes a bool's byte for 0 or 1; any other value makes it contradict itself.
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise RemoteProtocolError("malformed", "a bool that is neither 0 nor 1")
    array.flags.writeable = False
    return array


def _plain(codec: str, block: Buffer, size: int) -> Buffer | bytearray:
    """The `size` bytes that `block` decodes to."""
    if codec == RAW:
        if len(block) != size:
            raise RemoteProtocolError("bad_codec", f"{len(block)} raw bytes where {size} are due")
        return block
    if codec != LZ4:
        raise RemoteProtocolError("bad_codec", f"unknown codec {codec[:40]!r}")
    return decompressed(block, size)


def decompressed(block: Buffer, size: int, writable: bool = False) -> bytes | bytearray:
    """The `size` bytes that one lz4 block holds; RemoteProtocolError `bad_codec` if it does not."""
    if not 0 < size <= min(MAX_LZ4_BYTES, len(block) * MAX_LZ4_RATIO):
        raise RemoteProtocolError("bad_codec", f"{len(block)} bytes of lz4 cannot hold {size}")
    try:
        plain: bytes | bytearray = lz4.block.decompress(
            block, uncompressed_size=size, return_bytearray=writable
        )
    except lz4.block.LZ4BlockError as error:
        raise RemoteProtocolError("bad_codec", f"broken lz4 block: {error}") from error
    if len(plain) != size:
        raise RemoteProtocolError("bad_codec", f"a block of {len(plain)} bytes where {size} are due")
    return plain
