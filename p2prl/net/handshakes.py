"""Handshakes that break before ZAP is asked: libzmq only tells of them through a socket's monitor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from p2prl.net.sockets import Socket

_EVENTS = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
#: Taken at once; what is left is taken the next time.
_PER_TURN = 10_000


class HandshakeWatch:
    """Watches one server.

    Args:
        pair: a PAIR socket of the same context, not connected yet.
        broke: called for each broken handshake, with `no_curve` or `bad_handshake`.
    """

    def __init__(self, raw: zmq.Socket[bytes], pair: Socket, broke: Callable[[str], None]) -> None:
        # It brings asyncio, which only servers shall pay for; and later there may be no file left to open.
        from zmq.utils.monitor import parse_monitor_message

        self._raw, self._broke, self._parse = raw, broke, parse_monitor_message
        self.pair = pair
        endpoint = f"inproc://p2prl-handshakes-{id(self)}"
        # Without a mark: libzmq's I/O thread would wait at a full one, and all sockets with it.
        pair.raw.setsockopt(zmq.RCVHWM, 0)
        raw.monitor(endpoint, _EVENTS)
        pair.connect(endpoint)

    def read(self) -> None:
        """Take what the monitor has to say."""
        for _ in range(_PER_TURN):
            received = self.pair.receive()
            if received is None:
                return
            event = self._parse([bytes(frame) for frame in received.frames])
            mismatch = event["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and (
                event["value"] == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
            )
            self._broke("no_curve" if mismatch else "bad_handshake")

    def close(self) -> None:
        """Before the server is closed: a monitor that nobody reads would stop the I/O thread."""
        self._raw.monitor(None, 0)
        self.pair.close()
