"""Samples of a column of pictures on their way from a shard to the trainer: undecoded, each session's block once.

u32 little-endian, how many blocks | for each block u8 its codec and u32 its length | for each sample u32 which block
and u32 the row it begins at | the blocks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from p2prl.wire.blocks import LZ4, Array, Buffer
from p2prl.wire.pictures import AXES, unpack_block
from p2prl.wire.reels import Reel, may_reel

#: A number for each codec of a session's pictures: both ends are of one installation.
_CODECS = (LZ4, *AXES)
_BLOCK = np.dtype([("codec", "u1"), ("size", "<u4")])
_SAMPLE = np.dtype([("block", "<u4"), ("row", "<u4")])


class Still(NamedTuple):
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


class Darkroom:
    """Develops samples of a column of pictures, batch after batch; what it needs of memory it keeps.

    Args:
        session_rows: of each whole session.
        rows: of each sample.
        shape: of a row.
    """

    def __init__(self, session_rows: int, rows: int, shape: tuple[int, ...]) -> None:
        self._session_rows, self._rows, self._shape = session_rows, rows, shape
        self._reels: dict[str, Reel] = {}

    def develop(self, stills: Sequence[Still] | Array) -> Array:
        """The pictures of some samples, uint8 `[len(stills), rows, *shape]`.

        Raises:
            RemoteProtocolError: a block is broken.
        """
        out = np.empty((len(stills), self._rows, *self._shape), np.uint8)
        samples: dict[int, list[tuple[int, Still]]] = {}
        for index, still in enumerate(stills):
            samples.setdefault(id(still.block), []).append((index, still))
        # Session by session: what is decoded of one is in the processor's cache until all its samples are written.
        for same in samples.values():
            _, still = same[0]
            reel = self._reel(still.codec)
            if reel is None:
                self._develop_rows(same, out)
                continue
            reel.load(still.block)
            for index, _ in same:
                reel.write(out[index])
        return out

    def _reel(self, codec: str) -> Reel | None:
        """Where samples are whole sessions, and it is of use."""
        if codec not in self._reels and self._rows == self._session_rows and may_reel(codec, self._shape):
            self._reels[codec] = Reel(codec, self._rows, self._shape)
        return self._reels.get(codec)

    def _develop_rows(self, same: Sequence[tuple[int, Still]], out: Array) -> None:
        """Samples of one session, by where they are in the batch."""
        still, begins = same[0][1], [one.row for _, one in same]
        first, end = min(begins), max(begins) + self._rows
        pictures = unpack_block(still.codec, still.block, self._session_rows, self._shape, first, end)
        for (index, _), row in zip(same, begins, strict=True):
            pictures.write(row, out[index])
