"""Weights on their way: a keyframe, what changed since one, or both. Opaque to those who pass them on.

u32 bytes of the keyframe | u32 bytes of the change | keyframe | change        (both little-endian)

A change is against one keyframe, never against another change: whoever has the keyframe can read every change on it,
whatever was lost between. Together they are the newest weights, whole. wire/weights.py opens both.
"""

from __future__ import annotations

import struct

import msgspec

from p2prl.core.messages import WeightsHeader
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.wire import frames

Frame = bytes | memoryview
_SIZES = struct.Struct("<II")


def join_parts(keyframe: Frame, change: Frame) -> bytes:
    """The payload of a keyframe and a change; either may be empty."""
    if max(len(keyframe), len(change)) >= 1 << 32:
        raise LocalProtocolError("weights of 4 GiB and more cannot be sent")
    return b"".join([_SIZES.pack(len(keyframe), len(change)), keyframe, change])


def split_parts(payload: Frame) -> tuple[memoryview, memoryview]:
    """The keyframe and the change of a payload, as views; RemoteProtocolError `malformed` if it is not one."""
    view = memoryview(payload)
    if len(view) < _SIZES.size:
        raise RemoteProtocolError("malformed", "weights that are cut off")
    keyframe, change = _SIZES.unpack(view[: _SIZES.size])
    if not keyframe + change or len(view) != _SIZES.size + keyframe + change:
        raise RemoteProtocolError("malformed", "weights whose parts do not add up to the payload")
    parts = view[_SIZES.size :]
    return parts[:keyframe], parts[keyframe:]


def needed_for_last(sets: list[tuple[WeightsHeader, Frame]]) -> list[Frame]:
    """Payloads to read of weights that came one after the other, to have the last: it, and what has its keyframe."""
    if not sets:
        return []
    *before, (header, newest) = sets
    keyframes = [] if header.whole else [payload for other, payload in before if other.whole]
    return [*keyframes[-1:], newest]


class Stock:
    """The newest weights, in parts, for those who hand them on: each receiver gets only what it lacks.

    Attributes:
        keyframe: the version of the keyframe that is here; -1 for none.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Another run began."""
        self.keyframe = -1
        self._header: WeightsHeader | None = None
        self._parts: tuple[Frame, Frame] = (b"", b"")
        self._made: dict[bool, list[Frame]] = {}

    @property
    def header(self) -> WeightsHeader | None:
        """Of the newest weights; None before the first."""
        return self._header

    def take(self, header: WeightsHeader, payload: Frame) -> bool:
        """Newer weights came. False if they are a change against a keyframe that is not here; nothing changed then.

        Raises:
            RemoteProtocolError: `malformed`.
        """
        keyframe, change = split_parts(payload)
        if header.whole != bool(keyframe):
            raise RemoteProtocolError("malformed", "weights that are whole, or not, unlike their header says")
        if not header.whole:
            if header.keyframe != self.keyframe:
                return False
            keyframe = memoryview(self._parts[0])
        self.keyframe, self._header = header.keyframe, header
        self._parts = (keyframe, change)
        self._made = {header.whole: [frames.encode(header), payload]}
        return True

    def parts_for(self, keyframe: int = -1) -> list[Frame]:
        """Header and payload of the newest weights, for somebody who has the keyframe of this version."""
        assert self._header is not None
        whole = keyframe != self.keyframe or not self._parts[1]
        if whole not in self._made:
            payload = join_parts(self._parts[0] if whole else b"", self._parts[1])
            header = msgspec.structs.replace(self._header, whole=whole, size_bytes=len(payload))
            self._made[whole] = [frames.encode(header), payload]
        return self._made[whole]
