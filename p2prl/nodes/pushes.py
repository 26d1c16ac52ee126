"""A member's sockets to the shards: one PUSH for each, so that a dead shard never holds work for a live one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from p2prl.core.messages import ShardAddress
from p2prl.net.addresses import endpoint
from p2prl.net.loop import Loop
from p2prl.net.sockets import Frame, Limits, Network, Socket
from p2prl.nodes.wiring import MemberConfig

#: No more than come in a turn: what waits in a socket cannot go to another shard, and is sent twice when the shard
#: restarts.
_LIMITS = Limits(message_bytes=1_000, send_messages=16, receive_messages=1)


class Pushes:
    """By shard index."""

    def __init__(self, config: MemberConfig, loop: Loop, network: Network) -> None:
        self._config = config
        self._loop = loop
        self._host = config.host
        self._network = network
        self._sockets: dict[int, tuple[int, Socket]] = {}

    def listed(self, shards: Sequence[ShardAddress]) -> None:
        """Dial those that are new, or on another port."""
        for shard in shards:
            known = self._sockets.get(shard.index)
            if known is not None and known[0] == shard.push_port:
                continue
            if known is not None:
                self._close(known[1])
            self._sockets[shard.index] = (shard.push_port, self._dial(shard.push_port))

    def send(self, shard: int, parts: Sequence[Frame]) -> bool:
        """False if the socket takes nothing now."""
        known = self._sockets.get(shard)
        return known is not None and known[1].send(parts)

    def when_writable(self, shard: int, call: Callable[[int], None]) -> None:
        """Call `call(shard)` once, when its socket takes messages again."""
        known = self._sockets.get(shard)
        if known is not None:
            self._loop.on_writable(known[1], partial(call, shard))

    def redial(self, host: str) -> None:
        """The host is at another address: shards are dialled there once they are listed again."""
        self._host = host
        for _, socket in self._sockets.values():
            self._close(socket)
        self._sockets.clear()

    def _close(self, socket: Socket) -> None:
        self._loop.forget(socket)
        socket.close()

    def _dial(self, port: int) -> Socket:
        config = self._config
        return self._network.client(
            "push", endpoint(self._host, port), config.keys, config.server_key, _LIMITS
        )
