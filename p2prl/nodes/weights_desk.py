"""The broker's weights: taken from the trainer alone, kept, and broadcast."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.core import messages as m
from p2prl.errors import RemoteProtocolError
from p2prl.net.loop import Loop
from p2prl.net.sockets import Frame, Limits, Network, Received
from p2prl.nodes.broker_file import Saved
from p2prl.nodes.wiring import BrokerConfig, publish_port
from p2prl.wire import frames
from p2prl.wire.keyframes import Stock

#: The trainer's socket, by name.
PUBLISH = "publish"
#: Subscriptions that are read before others have a turn.
_PER_TURN = 1000
#: Only the trainer gets through to this socket: a message there is a whole network.
_PUBLISH_LIMITS = Limits(message_bytes=512_000_000, receive_messages=2)
#: A slow subscriber misses versions instead of filling our memory; it pulls what it missed.
_WEIGHTS_LIMITS = Limits(message_bytes=1_000, send_messages=3, receive_messages=100)


class WeightsDesk:
    """Two sockets and the newest weights.

    Args:
        admits: says which keys may subscribe.
        refuse: counts a refusal, by key and reason.
        expel: puts a key out at once: each further message would cost memory for as long as it is connected.
        announce: called with a new version before anybody can have it; False if it cannot be remembered, and so must
            not be given out yet.
        offered: gets each version that is a candidate for evaluation, whole, when it is given out.
    """

    def __init__(
        self,
        loop: Loop,
        network: Network,
        config: BrokerConfig,
        saved: Saved,
        admits: Callable[[str], bool],
        refuse: Callable[[str, str], None],
        expel: Callable[[str], None],
        announce: Callable[[int], bool],
        offered: Callable[[m.WeightsHeader, list[Frame]], None],
    ) -> None:
        self._network, self._trainer, self._saved = network, config.staff.trainer, saved
        self._refuse, self._expel, self._announce, self._offered = refuse, expel, announce, offered
        #: What was given out, and what the trainer published. They differ while the disk is full: a version that the
        #: file does not name might come again after a kill.
        self._given, self._published, self._held = Stock(), Stock(), False
        base = config.base_port

        def at(port: int) -> list[str]:
            return [f"tcp://{host}:{port}" for host in config.bind]

        self._broadcast = network.server(
            "xpub", at(base + 2), config.keys, _WEIGHTS_LIMITS, admits, "weights"
        )
        self._taking = network.server(
            "pull", at(publish_port(base)), config.keys, _PUBLISH_LIMITS, self._may_publish, PUBLISH
        )
        loop.on_readable(self._broadcast, self._on_subscription)
        loop.on_readable(self._taking, self.take)

    def newer_than(self, version: int, keyframe: int = -1) -> list[Frame]:
        """The newest weights as frames, if they are newer, for somebody who has the keyframe of that version."""
        if self._given.header is None or version >= self._saved.weights_version:
            return []
        return self._given.parts_for(keyframe)

    def cut(self) -> None:
        """End all subscriptions; those who may come back by themselves, and pull what they missed."""
        self._network.reopen(self._broadcast)

    def _may_publish(self, key: str) -> bool:
        """Before anything is read: what is large may only come from the trainer."""
        return key == self._trainer

    def _on_subscription(self) -> None:
        """A late joiner got its weights with the welcome: there is nothing to do but to look whether it is one.

        A member subscribes to everything, in one byte. ZeroMQ keeps any other topic, at some fifty bytes a letter.
        """
        for _ in range(_PER_TURN):
            received = self._broadcast.receive()
            if received is None:
                return
            # Without a key: libzmq unsubscribes for one that is gone.
            if received.user and sum(len(frame) for frame in received.frames) > 1:
                self._refuse(received.user, "malformed")
                self._expel(received.user)
                return  # with its connection goes what else it asked for

    def take(self) -> None:
        """What the trainer published; without anything new, nothing."""
        while (received := self._taking.receive()) is not None:
            try:
                self._publish(received)
            except RemoteProtocolError as error:
                self._refuse(received.user, error.reason)

    def _publish(self, received: Received) -> None:
        if received.user != self._trainer:
            raise RemoteProtocolError("not_permitted")
        if len(received.frames) != 2:
            raise RemoteProtocolError("malformed")
        header = frames.decode_weights_header(received.frames[0])
        if header.version <= self._saved.weights_version and self._given.header is not None:
            return  # versions never go back
        if self._published.take(header, bytes(received.frames[1])):  # else it is meant for the broker before
            self._held = True
            self.publish_held()

    def publish_held(self) -> None:
        """Give out the newest weights that the trainer published, if they were not yet, and now can be."""
        header, before = self._published.header, self._saved.weights_version
        if not self._held or header is None:
            return
        # A restarted trainer may publish again what a restarted broker already counted.
        self._saved.weights_version = max(before, header.version)
        if not self._announce(self._saved.weights_version):
            self._saved.weights_version = before
            return
        self._held = False
        # Whole, if a keyframe was held and passed over.
        parts = self._published.parts_for(self._given.keyframe)
        self._given.take(frames.decode_weights_header(parts[0]), parts[1])
        self._broadcast.send(parts)
        if header.candidate:
            self._offered(header, self._given.parts_for())


def current(version: int) -> bytes:
    """What shards are told before members can have this version."""
    return frames.encode(m.Current(weights_version=version))
