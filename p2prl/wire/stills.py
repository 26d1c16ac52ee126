"""Samples of a column of pictures on their way from a shard to the trainer: undecoded, each session's block once.

u32 little-endian, how many blocks | for each block u8 its codec and u32 its length | for each sample u32 which block
and u32 the row it begins at | the blocks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2prl.wire.blocks import LZ4, Array, Buffer
from p2prl.wire.pictures import AXES, Pictures, unpack_block

#: A number for each codec of a session's pictures: both ends are of one installation.
_CODECS = (LZ4, *AXES)
_BLOCK = np.dtype([("codec", "u1"), ("size", "<u4")])
_SAMPLE = np.dtype([("block", "<u4"), ("row", "<u4")])


@dataclass(frozen=True)
class Still:
    """One sample's part of a column of pictures: rows of a session, from `row` on."""

    codec: str
    block: Buffer
    row: int


def encode_stills(stills: Sequence[Still]) -> bytes:
    """The frame of these samples."""
    places: dict[int, int] = {}
    blocks: list[Still] = []
    samples = np.empty(len(stills), _SAMPLE)
    for index, still in enumerate(stills):
        place = places.setdefault(id(still.block), len(blocks))
        if place == len(blocks):
            blocks.append(still)
        samples[index] = place, still.row
    heads = np.array([(_CODECS.index(one.codec), len(one.block)) for one in blocks], _BLOCK)
    parts = [len(blocks).to_bytes(4, "little"), heads.tobytes(), samples.tobytes()]
    return b"".join([*parts, *(one.block for one in blocks)])


def decode_stills(frame: Buffer, count: int) -> list[Still]:
    """The samples of a frame, which they keep alive. It comes from a shard of this host.

    Raises:
        ValueError: it is not the frame of so many samples.
    """
    view = memoryview(frame)
    if len(view) < 4:
        raise ValueError(f"a frame of {len(view)} bytes")
    number = int.from_bytes(view[:4], "little")
    heads_end = 4 + number * _BLOCK.itemsize
    start = heads_end + count * _SAMPLE.itemsize
    heads = np.frombuffer(view[4:heads_end], _BLOCK)
    samples = np.frombuffer(view[heads_end:start], _SAMPLE)
    ends = (start + np.cumsum(heads["size"], dtype=np.int64)).tolist()
    sound = len(heads) == number and len(samples) == count and (ends[-1] if ends else start) == len(view)
    if (
        not sound
        or max(heads["codec"], default=0) >= len(_CODECS)
        or max(samples["block"], default=-1) >= number
    ):
        raise ValueError(f"a frame of {len(view)} bytes for {count} samples of {number} sessions")
    codecs = [_CODECS[code] for code in heads["codec"].tolist()]
    blocks = [view[first:end] for first, end in zip([start, *ends], ends, strict=False)]
    return [Still(codecs[at], blocks[at], row) for at, row in samples.tolist()]


def develop(stills: Sequence[Still] | Array, session_rows: int, rows: int, shape: tuple[int, ...]) -> Array:
    """The pictures of some samples, uint8 `[len(stills), rows, *shape]`.

    Args:
        session_rows: of each whole session.
        rows: of each sample.

    Raises:
        RemoteProtocolError: a block is broken.
    """
    out = np.empty((len(stills), rows, *shape), np.uint8)
    read: dict[int, Pictures] = {}
    for index, still in enumerate(stills):
        key = id(still.block)
        if key not in read:
            read[key] = unpack_block(still.codec, still.block, session_rows, shape)
        read[key].write(still.row, out[index])
    return out
