"""Whole sessions of pictures, decoded one after the other into the same memory.

To combine one picture with the one before takes a call of numpy, which costs more than the work itself where pictures
are small. So what changed from each to the next is put together to what changed over two, at once for a whole session;
then a call does two pictures. And as each session takes the place of the one before, all stays in the processor's
cache.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from p2prl.wire.blocks import Array, Buffer, decompressed
from p2prl.wire.pictures import AXES, Run, parts, pictures_in, runs_of, stacks_of, wide

#: Larger pictures gain nothing by it.
_MOST_BYTES = 16 * 1024


def may_reel(codec: str, shape: tuple[int, ...]) -> bool:
    """Whether a Reel is of use for rows of this shape."""
    return codec in AXES and math.prod(parts(shape, AXES[codec])[1]) <= _MOST_BYTES


class Reel:
    """Sessions of as many rows of one shape, one at a time.

    Args:
        codec: a key of AXES.
        rows: of a session.
        shape: of a row; see `may_reel`.
    """

    def __init__(self, codec: str, rows: int, shape: tuple[int, ...]) -> None:
        self._axis = AXES[codec]
        self._rows, (self._stack, picture) = rows, parts(shape, self._axis)
        self._front = 0 if self._axis is None else (rows + 6) // 8
        most = rows * self._stack  # if each row breaks the sequence
        # An odd one at the end has company that is never shown.
        self._kept = np.zeros((most + most % 2, *picture), np.uint8)
        self._pictures = wide(self._kept.reshape(len(self._kept), -1))
        self._size = math.prod(picture)
        self._twos = list(itertools.pairwise(self._pictures.reshape(len(self._kept) // 2, -1)))
        self._runs: tuple[Run, ...] = ()
        self._unbroken = stacks_of(self._kept, self._stack, rows, self._axis)

    def load(self, block: Buffer) -> None:
        """Decode a session's block.

        Raises:
            RemoteProtocolError: `bad_codec` if it is not exactly a session's.
        """
        self._runs = runs_of(bytes(block[: self._front]), self._rows, self._stack)
        count = pictures_in(self._runs, self._stack)
        plain = decompressed(memoryview(block)[self._front :], count * self._size)
        changed = np.frombuffer(plain, self._pictures.dtype).reshape(count, -1)
        self._pictures[0] = changed[0]
        np.bitwise_xor(changed[1:], changed[:-1], self._pictures[1:count])
        for before, two in self._twos[: (count - 1) // 2]:
            np.bitwise_xor(before, two, two)

    def write(self, out: Array) -> None:
        """The session's rows, uint8 `[rows, *shape]`, as the environment gave them."""
        if len(self._runs) == 1:
            out[...] = self._unbroken
            return
        for first, end, oldest in self._runs:
            out[first:end] = stacks_of(self._kept[oldest:], self._stack, end - first, self._axis)
