"""Weights <-> bytes: named arrays of declared dtype and shape, and nothing that could run.

A payload is a keyframe, a change against one, or both (keyframes.py). Each of these is

u32 little-endian: length of the index | index: msgpack | blocks

The arrays of a keyframe lie behind each other as numbers of 1, 2, 4 and 8 bytes, a block for each size that occurs.
Where the agent allows it (`weights_tolerance`), float32 arrays of two and more axes travel as float16, if all their
values fit: layers, then, but no biases, statistics or counters. What comes out is float32 again, rounded.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np

from p2prl.core.messages import WEIGHTS_CODEC
from p2prl.core.schema import DTYPE_SIZES
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.wire.blocks import Array, Buffer, dtype_name, wire_dtype
from p2prl.wire.keyframes import join_parts, split_parts
from p2prl.wire.planes import CHANGE, pack_change, pack_numbers, unpack_numbers, unsigned

#: What WeightsHeader.codec says about this format.
CODEC = WEIGHTS_CODEC
#: Decoded bytes that a set of weights may have, unless a caller says less.
MAX_WEIGHTS_BYTES = 1024 * 1024 * 1024
MAX_ARRAYS = 10_000
MAX_INDEX_BYTES = 4 * 1024 * 1024
MAX_NAME_CHARS = 200
MAX_DIMENSIONS = 16
#: Publications of which one is a keyframe: members that missed it find back by the next one at the latest.
KEYFRAME_EACH = 20
#: A change that takes more of the keyframe's bytes than this is none: those after it would take as many.
_WORTH = 0.9
#: Largest values between which float16 keeps every array: rounding then moves no value by more than 2**-11 of the
#: array's largest. Below that they would come near its smallest steps.
_HALF_LEAST, _HALF_MOST = 2.0**-14, 65504.0
_HALF, _FLOAT = np.dtype("<f2"), np.dtype("<f4")
_SIZES = (1, 2, 4, 8)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One array of a keyframe's index; `half`: it travels as float16."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    half: bool = False

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element on the wire."""
        return 2 if self.half else DTYPE_SIZES[self.dtype]


class Block(msgspec.Struct, frozen=True, array_like=True):
    """All numbers of one size; `size` is the block's length."""

    codec: str
    size: int


class Index(msgspec.Struct, frozen=True, array_like=True):
    """Of a keyframe. The blocks are those of 1, 2, 4 and 8 bytes; a size that does not occur has none."""

    entries: list[Entry]
    blocks: list[Block]


class ChangeIndex(msgspec.Struct, frozen=True, array_like=True):
    """Of a change: the CRC-32 of the keyframe that it is against, and blocks as there."""

    keyframe: int
    blocks: list[Block]


_index = msgspec.msgpack.Decoder(Index)
_change_index = msgspec.msgpack.Decoder(ChangeIndex)
_I = TypeVar("_I", Index, ChangeIndex)
#: Unsigned integers `[n]` by their size.
Numbers = dict[int, Array]


@dataclass
class _Keyframe:
    """One that was sent or received."""

    check: int
    entries: list[Entry]
    numbers: Numbers
    size: int
    #: Publications since, this one included.
    age: int = 1


@dataclass(frozen=True)
class Encoded:
    """One publication.

    Attributes:
        whole: it is a keyframe; else a change.
    """

    payload: bytes
    whole: bool
    _keyframe: _Keyframe | None = field(default=None, repr=False)


class WeightsEncoder:
    """Encodes one publication after another.

    Args:
        halves: float16 is allowed.
        keyframe_each: so many publications have one keyframe.
    """

    def __init__(self, halves: bool = False, keyframe_each: int = KEYFRAME_EACH) -> None:
        self._halves, self._each = halves, keyframe_each
        self._keyframe: _Keyframe | None = None

    def encode(self, weights: Mapping[str, Array]) -> Encoded:
        """A keyframe if one is due, or a change would be hardly smaller. Nothing is taken for sent: see `sent`.

        Raises:
            LocalProtocolError: a dtype that cannot cross the wire, or more than a receiver takes.
        """
        entries, numbers = _lay_out(weights, self._halves)
        keyframe = self._keyframe
        if keyframe is not None and keyframe.age < self._each and keyframe.entries == entries:
            change = _encode_change(keyframe, numbers)
            if len(change) < _WORTH * keyframe.size:
                return Encoded(join_parts(b"", change), whole=False, _keyframe=keyframe)
        section = _encode_keyframe(entries, numbers)
        made = _Keyframe(zlib.crc32(section), entries, numbers, len(section))
        return Encoded(join_parts(section, b""), whole=True, _keyframe=made)

    def sent(self, encoded: Encoded) -> None:
        """This one is on its way: if it is a keyframe, what follows may refer to it."""
        if encoded.whole:
            self._keyframe = encoded._keyframe
        elif self._keyframe is not None:
            self._keyframe.age += 1

    def still_fits(self, encoded: Encoded) -> bool:
        """False if it is a change against a keyframe that is not the last one any more."""
        return encoded.whole or encoded._keyframe is self._keyframe

    def restart(self) -> None:
        """Somebody has no keyframe: the next publication is one."""
        self._keyframe = None


class WeightsDecoder:
    """Decodes one payload after another, and remembers the last keyframe.

    Args:
        max_bytes: what all arrays together may take, decoded.
    """

    def __init__(self, max_bytes: int = MAX_WEIGHTS_BYTES) -> None:
        self._max_bytes = max_bytes
        self._keyframe: _Keyframe | None = None

    def read(self, payload: Buffer) -> dict[str, Array]:
        """The arrays, read-only.

        Raises:
            RemoteProtocolError: `malformed`, `oversize` or `bad_codec`; also for a change against another keyframe
                than the last. What was there before stays.
        """
        section, change = split_parts(payload)
        keyframe = self._decode_keyframe(section) if section else self._keyframe
        if keyframe is None:
            raise RemoteProtocolError("malformed", "a change of weights without its keyframe")
        numbers = _decode_change(keyframe, change) if change else keyframe.numbers
        weights = _arrays(keyframe.entries, numbers)
        self._keyframe = keyframe
        return weights

    def _decode_keyframe(self, section: memoryview) -> _Keyframe:
        index, start = _read_index(_index, section)
        _check_entries(index.entries, self._max_bytes)
        numbers = _unpack_blocks(index.blocks, section[start:], _counts(index.entries), {})
        return _Keyframe(zlib.crc32(section), index.entries, numbers, len(section))


def encode_weights(weights: Mapping[str, Array], halves: bool = False) -> bytes:
    """The payload of named arrays, of any layout in memory, by itself.

    Raises:
        LocalProtocolError: a dtype that cannot cross the wire, or more than a receiver takes.
    """
    return WeightsEncoder(halves).encode(weights).payload


def decode_weights(payload: Buffer, max_bytes: int = MAX_WEIGHTS_BYTES) -> dict[str, Array]:
    """The arrays of a payload that has its keyframe in it, read-only; raises as WeightsDecoder.read does."""
    return WeightsDecoder(max_bytes).read(payload)


# --- encoding


def _lay_out(weights: Mapping[str, Array], halves: bool) -> tuple[list[Entry], Numbers]:
    """The index and the numbers of arrays, as they will travel."""
    if len(weights) > MAX_ARRAYS:
        raise LocalProtocolError(f"{len(weights)} arrays of weights; at most {MAX_ARRAYS} can be sent")
    arrays = [np.asarray(value) for value in weights.values()]
    entries = [
        Entry(name, _name(array), array.shape, halves and _fits_half(array))
        for name, array in zip(weights, arrays, strict=True)
    ]
    size = sum(array.nbytes for array in arrays)
    if size > MAX_WEIGHTS_BYTES:
        raise LocalProtocolError(f"weights of {size} bytes; at most {MAX_WEIGHTS_BYTES} can be sent")
    numbers = {size: np.empty(count, unsigned(size)) for size, count in _counts(entries).items()}
    at = dict.fromkeys(numbers, 0)
    for entry, array in zip(entries, arrays, strict=True):
        if entry.count:
            size, end = entry.itemsize, at[entry.itemsize] + entry.count
            wire = _HALF if entry.half else wire_dtype(entry.dtype)
            numbers[size][at[size] : end].view(wire)[...] = array.reshape(-1)
            at[size] = end
    return entries, numbers


def _name(array: Array) -> str:
    name = dtype_name(array.dtype)
    if name not in DTYPE_SIZES:
        raise LocalProtocolError(
            f"arrays of {array.dtype} cannot cross the wire; use one of {', '.join(DTYPE_SIZES)}"
        )
    return name


def _fits_half(array: Array) -> bool:
    """A layer's weights, which float16 rounds by no more than 2**-11 of the largest."""
    if array.dtype != np.float32 or array.ndim < 2 or not array.size:
        return False
    largest = max(float(array.max()), -float(array.min()))
    return largest == 0.0 or _HALF_LEAST <= largest <= _HALF_MOST  # neither is true of NaN


def _encode_keyframe(entries: list[Entry], numbers: Numbers) -> bytes:
    # Halves among others of two bytes are but few: plain lz4 gains nothing on layers.
    rounded = any(entry.half for entry in entries)
    packed = [pack_numbers(values, not (rounded and size == 2)) for size, values in numbers.items()]
    blocks = [Block(codec, len(block)) for codec, block in packed]
    return _section(Index(entries, blocks), [block for _, block in packed])


def _encode_change(keyframe: _Keyframe, numbers: Numbers) -> bytes:
    packed: list[Buffer] = [pack_change(values, keyframe.numbers[size]) for size, values in numbers.items()]
    return _section(
        ChangeIndex(keyframe.check, [Block(CHANGE, len(block)) for block in packed]),
        packed,
    )


def _section(index: Index | ChangeIndex, blocks: list[Buffer]) -> bytes:
    head = msgspec.msgpack.encode(index)
    return b"".join([len(head).to_bytes(4, "little"), head, *blocks])


def _counts(entries: list[Entry]) -> dict[int, int]:
    """How many numbers there are of each size that occurs."""
    counts = dict.fromkeys(_SIZES, 0)
    for entry in entries:
        counts[entry.itemsize] += entry.count
    return {size: count for size, count in counts.items() if count}


# --- decoding


def _read_index(decoder: msgspec.msgpack.Decoder[_I], section: memoryview) -> tuple[_I, int]:
    """The index of a section, and where its blocks begin."""
    end = 4 + int.from_bytes(section[:4], "little")
    if len(section) < 4 or end > min(len(section), 4 + MAX_INDEX_BYTES):
        raise RemoteProtocolError("malformed", "weights whose index is cut off or too long")
    try:
        return decoder.decode(section[4:end]), end
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError("malformed", f"weights with a broken index: {error}") from error


def _check_entries(entries: list[Entry], max_bytes: int) -> None:
    """All sizes stay in bounds, before a byte is decompressed."""
    if len(entries) > MAX_ARRAYS or len({entry.name for entry in entries}) != len(entries):
        raise RemoteProtocolError("malformed", "weights with too many arrays, or two of one name")
    total = 0
    for entry in entries:
        if len(entry.name) > MAX_NAME_CHARS or len(entry.shape) > MAX_DIMENSIONS:
            raise RemoteProtocolError("malformed", "weights with a name or shape that is too long")
        if min(entry.shape, default=0) < 0 or (entry.half and entry.dtype != "float32"):
            raise RemoteProtocolError("malformed", "weights with a negative size, or halves of another dtype")
        # A side of zero counts as one, or it would hide others that no array can have.
        total += math.prod(max(1, side) for side in entry.shape) * wire_dtype(entry.dtype).itemsize
    if total > max_bytes:
        raise RemoteProtocolError("oversize", f"weights of {total} bytes where {max_bytes} are allowed")


def _unpack_blocks(blocks: list[Block], data: memoryview, counts: dict[int, int], before: Numbers) -> Numbers:
    """The numbers of a section's blocks."""
    if len(blocks) != len(counts) or min((block.size for block in blocks), default=0) < 0:
        raise RemoteProtocolError("malformed", "weights with other blocks than their arrays need")
    if sum(block.size for block in blocks) != len(data):
        raise RemoteProtocolError("malformed", "the blocks' sizes do not add up to the payload")
    numbers: Numbers = {}
    start = 0
    for block, (size, count) in zip(blocks, counts.items(), strict=True):
        part = data[start : start + block.size]
        numbers[size] = unpack_numbers(block.codec, part, count, size, before.get(size))
        start += block.size
    return numbers


def _decode_change(keyframe: _Keyframe, section: memoryview) -> Numbers:
    index, start = _read_index(_change_index, section)
    if index.keyframe != keyframe.check:
        raise RemoteProtocolError("malformed", "a change of weights against another keyframe")
    return _unpack_blocks(index.blocks, section[start:], _counts(keyframe.entries), keyframe.numbers)


def _arrays(entries: list[Entry], numbers: Numbers) -> dict[str, Array]:
    """Read-only arrays; those that are not rounded are views."""
    at = dict.fromkeys(_SIZES, 0)
    weights: dict[str, Array] = {}
    for entry in entries:
        kind, size = wire_dtype(entry.dtype), entry.itemsize
        if entry.count:
            flat = numbers[size][at[size] : at[size] + entry.count]
            at[size] += entry.count
            array = flat.view(_HALF).astype(_FLOAT) if entry.half else flat.view(kind)
            array = array.reshape(entry.shape)
        else:
            array = np.empty(entry.shape, kind)
        # numpy's own code takes a bool's byte for 0 or 1; any other value makes it contradict itself.
        if entry.dtype == "bool" and entry.count and array.view(np.uint8).max() > 1:
            raise RemoteProtocolError("malformed", "a bool that is neither 0 nor 1")
        array.flags.writeable = False
        weights[entry.name] = array
    return weights
