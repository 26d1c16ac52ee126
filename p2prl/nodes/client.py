"""What `ls`, `status` and `eval` ask of hosts."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.errors import NoHostFound, P2prlError, RemoteProtocolError, UpgradeNeeded
from p2prl.net.addresses import endpoint
from p2prl.net.cards import FoundHost
from p2prl.net.discovery import browse
from p2prl.net.keys import load_or_create, state_folder
from p2prl.net.sockets import Frame, Limits, Network
from p2prl.nodes.locate import Located, Search
from p2prl.wire import frames

_LIMITS = Limits(message_bytes=512_000_000, send_messages=10, receive_messages=10, linger_ms=0)
_ANSWER_S = 5.0
_WATCH_S = 1.0
_FIRST_WEIGHTS_TRIES = 20


def find_hosts(timeout_s: float, interfaces: Sequence[str] = ()) -> list[FoundHost]:
    """Hosts that answer on this LAN within `timeout_s`, one row each."""
    return browse(timeout_s, interfaces)


class Client:
    """A short conversation with one host's broker."""

    def __init__(self, located: Located) -> None:
        self.located = located
        self._network = Network()
        self._socket = self._network.client(
            "dealer",
            endpoint(located.address, located.base_port),
            load_or_create(state_folder() / "node.key"),
            located.card.server_key,
            _LIMITS,
        )

    def status(self) -> m.StatusReply:
        """The run as it is now.

        Raises:
            NoHostFound: the broker does not answer.
        """
        self._send(m.StatusAsk())
        return self._expect(m.StatusReply)[0]

    def welcome(self) -> m.Welcome:
        """What a member would be told."""
        self._send(
            m.Hello(
                protocol=m.PROTOCOL,
                version=__version__,
                role="client",
                name="client",
                boot_id=secrets.token_hex(8),
            )
        )
        return self._expect(m.Welcome)[0]

    def weights(self) -> tuple[m.WeightsHeader, Frame]:
        """The current weights; waits a while for the first ones.

        Raises:
            P2prlError: there are none yet.
            NoHostFound: the broker does not answer.
        """
        pause = threading.Event()
        for _ in range(_FIRST_WEIGHTS_TRIES):
            if self.welcome().weights_version >= 0:
                break
            pause.wait(1.0)
        else:
            raise P2prlError(
                f"{self.located.card.host_name} has no weights yet: its trainer is still starting"
            )
        self._send(m.WeightsAsk())
        header, bulk = self._expect(m.WeightsHeader)
        return header, bulk[0]

    def close(self) -> None:
        """End the conversation."""
        self._network.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, message: m.Message) -> None:
        self._socket.send([frames.encode(message)])

    def _expect(self, kind: type[m.MessageT]) -> tuple[m.MessageT, list[Frame]]:
        where = f"{self.located.address} port {self.located.base_port}"
        while self._socket.wait(_ANSWER_S):
            received = self._socket.receive()
            if received is None or not received.frames:
                continue
            try:
                message = frames.decode_from_broker(received.frames[0])
            except RemoteProtocolError:
                continue
            if isinstance(message, m.Refusal) and message.reason == "protocol":
                raise UpgradeNeeded(message.text)
            if isinstance(message, kind):
                return message, received.frames[1:]
        raise NoHostFound(f"the host at {where} did not answer within {_ANSWER_S:g} s")


def open_client(target: str | None, wait_s: float) -> Client:
    """Find a host and speak with its broker.

    Raises:
        NoHostFound: none within `wait_s`.
    """
    search = Search(target=target, wait_s=wait_s)
    located = search.locate()
    if located is None:
        raise NoHostFound("stopped before a host was found")
    return Client(located)


def fetch_status(target: str | None, wait_s: float) -> m.StatusReply:
    """One status. `target` as for `p2prl join`."""
    with open_client(target, wait_s) as client:
        return client.status()


def watch_status(target: str | None, wait_s: float) -> Iterator[m.StatusReply]:
    """A status about each second, until the host does not answer any more."""
    pause = threading.Event()
    with open_client(target, wait_s) as client:
        while True:
            yield client.status()
            pause.wait(_WATCH_S)
