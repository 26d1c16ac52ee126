"""The trainer's weights on their way out: encoded beside the updates, sent in order, and only the newest.

Large weights take a moment to encode: that is done in a thread of its own, one set at a time (numpy and lz4 let the
updates run meanwhile). What the learner has when that one is done goes next; what lay between is never encoded. Small
ones are encoded at once, which is cheaper than to change threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from p2prl.core import messages as m
from p2prl.learn.contracts import Weights
from p2prl.net.keys import KeyPair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Limits, Network
from p2prl.wire import frames
from p2prl.wire.weights import CODEC, Encoded, WeightsEncoder

#: Few: what waits here while the broker is away is old when it is back.
_LIMITS = Limits(message_bytes=1_000, send_messages=2, receive_messages=1)
#: Up to so many bytes (float32) are encoded at once: it takes about a millisecond.
_AT_ONCE_BYTES = 1_000_000
_WAKE = "inproc://encoded"


class Publisher:
    """One publication at a time.

    Args:
        address: the broker's publish socket.
        halves: actors may act with weights that were rounded to 16 bits.
        gone: called when a publication has ended: with its header, or None if it was not sent.

    Attributes:
        version: of the last weights that were sent; versions never go back.
    """

    def __init__(
        self,
        loop: Loop,
        network: Network,
        address: str,
        keys: KeyPair,
        server_key: str,
        halves: bool,
        gone: Callable[[m.WeightsHeader | None], None],
    ) -> None:
        self.version = -1
        self._gone = gone
        self._encoder = WeightsEncoder(halves)
        self._keyframe = -1
        self._header: m.WeightsHeader | None = None
        self._socket = network.client("push", address, keys, server_key, _LIMITS)
        self._pool = ThreadPoolExecutor(1, "weights")
        self._future: Future[Encoded] | None = None
        self._ear, self._mouth = (
            network.server("pair", [_WAKE], None),
            network.client("pair", _WAKE, None, None),
        )
        loop.on_readable(self._ear, self._encoded)

    @property
    def busy(self) -> bool:
        """A publication is under way: the next must wait."""
        return self._header is not None

    def publish(self, weights: Weights, run_id: str, updates: int, candidate: bool) -> None:
        """Begin with a publication; `weights` are copies that nobody changes."""
        # The rest is known when it is sent.
        self._header = m.WeightsHeader(
            run_id=run_id, version=-1, codec=CODEC, size_bytes=0, updates=updates, candidate=candidate
        )
        if sum(array.nbytes for array in weights.values()) <= _AT_ONCE_BYTES:
            self._send(self._encoder.encode(weights))
        else:
            self._future = self._pool.submit(self._encode, weights)

    def restart(self, version: int) -> None:
        """A broker that has nothing: the next publication is a keyframe, and its version above `version`."""
        self.version = max(self.version, version)
        self._encoder.restart()

    def settle(self) -> None:
        """Wait for the publication under way, and send it."""
        future, self._future = self._future, None
        if future is not None:
            self._send(future.result())

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()

    def _encode(self, weights: Weights) -> Encoded:
        try:
            return self._encoder.encode(weights)
        finally:
            self._mouth.send([b""])

    def _encoded(self) -> None:
        while self._ear.receive() is not None:
            self.settle()  # the thread said so at its very end

    def _send(self, encoded: Encoded) -> None:
        assert self._header is not None
        version = self.version + 1
        header = msgspec.structs.replace(
            self._header,
            version=version,
            size_bytes=len(encoded.payload),
            keyframe=version if encoded.whole else self._keyframe,
            whole=encoded.whole,
        )
        self._header = None
        # Never waits for the broker: while its socket is full, these are skipped, and the newest go when due again.
        fits = self._encoder.still_fits(encoded)
        if not fits or not self._socket.send([frames.encode(header), encoded.payload]):
            self._gone(None)
            return
        self._encoder.sent(encoded)
        self.version, self._keyframe = version, header.keyframe
        self._gone(header)
