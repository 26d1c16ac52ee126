"""A member's weights: its one subscription, whatever its players; and what was missed is asked for."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.core import messages as m
from p2prl.errors import P2prlError, RemoteProtocolError, UpgradeNeeded
from p2prl.net.addresses import endpoint
from p2prl.net.loop import Loop
from p2prl.net.sockets import Frame, Limits, Network, Socket
from p2prl.nodes.players import Players
from p2prl.nodes.upgrade import check_codec
from p2prl.nodes.wiring import MemberConfig
from p2prl.wire import frames

#: Only the newest is used, so few would do. But libzmq (4.3.5, issues 3937, 4364, 4767) aborts the process if a
#: connection ends while its queue is full and a heartbeat is due: as of a machine that slept. So they must not fill.
_LIMITS = Limits(message_bytes=512_000_000, send_messages=1, receive_messages=2_000)


class WeightsFeed:
    """Hands weights to the players, as they came: nothing is opened here.

    Args:
        ask: sends a word to the broker.
        say: gets (level, source, text) for people.
        fail: ends this member, because its p2prl cannot read the host's weights.

    Attributes:
        welcome: the last one of this run; None before.
    """

    def __init__(
        self,
        loop: Loop,
        network: Network,
        players: Players,
        ask: Callable[[m.Message], object],
        say: Callable[[str, str, str], None],
        fail: Callable[[P2prlError], None],
    ) -> None:
        self.welcome: m.Welcome | None = None
        self._loop, self._network, self._players = loop, network, players
        self._ask, self._say, self._fail = ask, say, fail
        self._subscription: tuple[int, Socket] | None = None

    def subscribe(self, config: MemberConfig) -> None:
        """To the host of the last welcome."""
        assert self.welcome is not None
        port = self.welcome.weights_port
        if self._subscription is not None:
            if self._subscription[0] == port:
                return
            self.hang_up()
        socket = self._network.client(
            "sub", endpoint(config.host, port), config.keys, config.server_key, _LIMITS
        )
        self._subscription = (port, socket)
        self._loop.on_readable(socket, self.take)

    def hang_up(self) -> None:
        """The host is elsewhere now, or the connection is of no use any more."""
        if self._subscription is not None:
            self._loop.forget(self._subscription[1])
            self._subscription[1].close()
            self._subscription = None

    def frames_came(self, parts: list[Frame]) -> None:
        """Header and payload."""
        try:
            header = frames.decode_weights_header(parts[0])
        except RemoteProtocolError as error:
            # Of a newer host, perhaps: what is missed shows as a lag, and the pull asks again.
            self._say("warning", "host", f"sent weights that cannot be read: {error.reason}")
            return
        self.came(header, parts[1:])

    def came(self, header: m.WeightsHeader, bulk: list[Frame]) -> None:
        """Weights came, by broadcast or because they were asked for."""
        if self.welcome is None or header.run_id != self.welcome.run.run_id or len(bulk) != 1:
            return
        try:
            check_codec(header, self.welcome.version)
            self._players.weights(header, bulk[0])
        except UpgradeNeeded as error:
            self._fail(error)
        except RemoteProtocolError as error:
            self._say("warning", "host", f"sent weights that cannot be read: {error}")
        self.look(self._loop.now())

    def look(self, now: float) -> None:
        """Ask for what was missed, if it is time to."""
        sync = self._players.sync
        if sync.wants_pull(now):
            self._ask(m.WeightsAsk(have=sync.version, keyframe=self._players.stock.keyframe))

    def take(self) -> None:
        """Broadcasts that came. Before a word that lets players go on, so that they do so with the newest weights."""
        # What one of them leads to may hang up.
        while self._subscription is not None and (received := self._subscription[1].receive()) is not None:
            self.frames_came(received.frames)
