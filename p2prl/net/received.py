"""A message as it came: its frames without a copy, and what libzmq knows of who sent it."""

from __future__ import annotations

from typing import cast

import zmq

Frame = bytes | memoryview


class Received:
    """One message.

    Attributes:
        peer: the ROUTER's name for the connection; empty on other sockets.
        user: the peer's CURVE key in Z85; empty on clients, and without CURVE.
        frames: the message.
    """

    __slots__ = ("_parts", "frames", "peer", "user")

    def __init__(self, peer: bytes, user: str, parts: list[zmq.Frame]) -> None:
        self.peer, self.user, self._parts = peer, user, parts
        self.frames: list[Frame] = [part.buffer for part in parts]

    @property
    def address(self) -> str:
        """The peer's IP address; empty where there is none (ipc)."""
        return text_of(self._parts[0], "Peer-Address").removeprefix("::ffff:") if self._parts else ""


def as_came(frame: Frame) -> Frame | zmq.Frame:
    """What is passed on whole goes as libzmq gave it, without a copy."""
    if isinstance(frame, memoryview) and isinstance(frame.obj, zmq.Frame) and frame.nbytes == len(frame.obj):
        return frame.obj
    return frame


def text_of(frame: zmq.Frame, name: str) -> str:
    """A property of the connection that a frame came by; empty if it has none."""
    try:
        return cast(str, frame.get(name))
    except zmq.ZMQError:  # EINVAL: the connection has no such property (no CURVE, or ipc)
        return ""
