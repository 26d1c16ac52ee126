"""A process's line to the broker: says Hello until it is welcomed, and again whenever the broker forgot it."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.core import messages as m
from p2prl.errors import RemoteProtocolError
from p2prl.net.keys import KeyPair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Frame, Limits, Network
from p2prl.wire import frames

_HELLO_S = 1.0
_PER_TURN = 200
#: Welcome and WeightsHeader are followed by a network. Many may wait, for the reason that member.py gives for weights.
_LIMITS = Limits(message_bytes=512_000_000, send_messages=1000, receive_messages=10_000)


class ControlLine:
    """The control DEALER of a member, shard, trainer or client.

    Args:
        hello: makes the current Hello; called each time one is sent.
        take: gets each other message and the frames behind it, once this process was welcomed (and the Welcome first).
        refused: gets a Refusal.
    """

    def __init__(
        self,
        loop: Loop,
        network: Network,
        endpoint: str,
        keys: KeyPair,
        server_key: str,
        hello: Callable[[], m.Hello],
        take: Callable[[m.Message, list[Frame]], None],
        refused: Callable[[m.Refusal], None],
    ) -> None:
        self._loop = loop
        self._hello = hello
        self._take = take
        self._refused = refused
        self._network, self._keys, self._server_key = network, keys, server_key
        self._socket = network.client("dealer", endpoint, keys, server_key, _LIMITS)
        self.welcomed = False
        self.heard = loop.now()
        self.malformed = 0
        loop.on_readable(self._socket, self._on_readable)
        self._timer = loop.every(_HELLO_S, self.say_hello, first_s=0.0)

    def send(self, message: m.Message, *bulk: Frame) -> bool:
        """Queue a message; False if the broker has been away for so long that nothing more is kept.

        Raises:
            LocalProtocolError: the message is larger than the broker takes.
        """
        return self._socket.send([frames.encode_to_broker(message), *bulk])

    def silent_s(self) -> float:
        """Seconds since the broker said anything."""
        return self._loop.now() - self.heard

    def close(self) -> None:
        """Stop speaking; what is queued still goes within the linger time."""
        self._timer.cancel()
        self._loop.forget(self._socket)
        self._socket.close()

    def redial(self, endpoint: str) -> None:
        """Dial anew, perhaps somewhere else: the host moved, or refused us, after which libzmq never dials again."""
        self._loop.forget(self._socket)
        self._socket.close()
        self._socket = self._network.client("dealer", endpoint, self._keys, self._server_key, _LIMITS)
        self._loop.on_readable(self._socket, self._on_readable)
        self.hello_again()

    def hello_again(self) -> None:
        """Introduce ourselves anew."""
        self.welcomed = False
        self.say_hello()

    def say_hello(self) -> None:
        """Introduce ourselves, unless we were welcomed. The loop repeats it; before it runs, one may come first."""
        if not self.welcomed:
            self.send(self._hello())

    def _on_readable(self) -> None:
        for _ in range(_PER_TURN):
            received = self._socket.receive()
            if received is None:
                return
            self.heard = self._loop.now()
            try:
                message = frames.decode_from_broker(received.frames[0])
            except (RemoteProtocolError, IndexError):
                self.malformed += 1  # an admitted host of a newer version may say things we do not know
                continue
            self._handle(message, received.frames[1:])

    def _handle(self, message: m.Message, bulk: list[Frame]) -> None:
        if isinstance(message, m.HelloAgain):
            # After an outage the broker answers every heartbeat that had piled up with one; one Hello will do, and the
            # timer repeats it until there is a Welcome.
            if self.welcomed:
                self.hello_again()
        elif isinstance(message, m.Refusal):
            self._refused(message)
        elif isinstance(message, m.Welcome):
            self.welcomed = True
            self._take(message, bulk)
        elif self.welcomed:
            self._take(message, bulk)
