"""Weights <-> bytes: named arrays of declared dtype and shape, and nothing that could run.

u32 little-endian: length of the index | index: msgpack list of entries | the entries' blocks in order
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.wire.blocks import Array, Buffer, pack, unpack, wire_dtype

#: What WeightsHeader.codec says about this format.
CODEC = "lz4-named"
#: Decoded bytes that a set of weights may have, unless a caller says less.
MAX_WEIGHTS_BYTES = 1024 * 1024 * 1024
MAX_ARRAYS = 10_000
MAX_INDEX_BYTES = 4 * 1024 * 1024
MAX_NAME_CHARS = 200
MAX_DIMENSIONS = 16


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One array of the index; `size` is its block's length in the payload."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    size: int


_index = msgspec.msgpack.Decoder(list[Entry])


def encode_weights(weights: Mapping[str, Array]) -> bytes:
    """The payload of named arrays, of any layout in memory.

    Raises:
        LocalProtocolError: a dtype that cannot cross the wire, or more arrays than a receiver takes.
    """
    if len(weights) > MAX_ARRAYS:
        raise LocalProtocolError(f"{len(weights)} arrays of weights; at most {MAX_ARRAYS} can be sent")
    entries, blocks = [], []
    for name, value in weights.items():
        array = np.asarray(value)
        codec, block = pack(array)
        entries.append(Entry(name, array.dtype.name, array.shape, codec, len(block)))
        blocks.append(block)
    index = msgspec.msgpack.encode(entries)
    return b"".join([len(index).to_bytes(4, "little"), index, *blocks])


def decode_weights(payload: Buffer, max_bytes: int = MAX_WEIGHTS_BYTES) -> dict[str, Array]:
    """The arrays of a payload, read-only.

    Args:
        max_bytes: what all arrays together may take, decoded.

    Raises:
        RemoteProtocolError: `malformed`, `oversize` or `bad_codec`.
    """
    view = memoryview(payload)
    entries, start = _read_index(view)
    _check_index(entries, len(view) - start, max_bytes)
    weights: dict[str, Array] = {}
    for entry in entries:
        weights[entry.name] = unpack(entry.codec, view[start : start + entry.size], entry.dtype, entry.shape)
        start += entry.size
    return weights


def _read_index(view: memoryview) -> tuple[list[Entry], int]:
    """The index, and where the blocks begin."""
    end = 4 + int.from_bytes(view[:4], "little")
    if len(view) < 4 or end > min(len(view), 4 + MAX_INDEX_BYTES):
        raise RemoteProtocolError("malformed", "weights whose index is cut off or too long")
    try:
        return _index.decode(view[4:end]), end
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError("malformed", f"weights with a broken index: {error}") from error


def _check_index(entries: list[Entry], blocks_bytes: int, max_bytes: int) -> None:
    """All sizes add up and stay in bounds, before a byte is decompressed."""
    if len(entries) > MAX_ARRAYS or len({entry.name for entry in entries}) != len(entries):
        raise RemoteProtocolError("malformed", "weights with too many arrays, or two of one name")
    total = 0
    for entry in entries:
        if len(entry.name) > MAX_NAME_CHARS or len(entry.shape) > MAX_DIMENSIONS:
            raise RemoteProtocolError("malformed", "weights with a name or shape that is too long")
        if entry.size < 0 or min(entry.shape, default=0) < 0:
            raise RemoteProtocolError("malformed", "weights with a negative size")
        # A side of zero counts as one, or it would hide others that no array can have.
        total += math.prod(max(1, side) for side in entry.shape) * wire_dtype(entry.dtype).itemsize
    if total > max_bytes:
        raise RemoteProtocolError("oversize", f"weights of {total} bytes where {max_bytes} are allowed")
    if sum(entry.size for entry in entries) != blocks_bytes:
        raise RemoteProtocolError("malformed", "the arrays' sizes do not add up to the payload")
