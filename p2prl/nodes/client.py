"""What `ls`, `status` and `eval` ask of hosts, and which of this machine's keys they ask with.

A host lets in only keys that it knows, and a refused key gets no answer at all (CURVE): so the card, which the enrol
socket gives to anybody, is read first, and what is not to be had is said at once.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.bounds import line
from p2prl.errors import NoHostFound, NotAdmitted, P2prlError, RemoteProtocolError, UpgradeNeeded, UsageError
from p2prl.net.addresses import Address, KnownHost, KnownHosts, endpoint
from p2prl.net.cards import FoundHost
from p2prl.net.discovery import browse
from p2prl.net.keys import KeyPair, fingerprint, load_or_create, state_folder
from p2prl.net.sockets import Frame, Limits, Network
from p2prl.nodes.identity import check_identity, check_standing
from p2prl.nodes.locate import Located, Search, ask_card
from p2prl.nodes.own_host import is_own, own_host
from p2prl.nodes.report import Silence
from p2prl.nodes.upgrade import check_codec
from p2prl.settings import nearest
from p2prl.wire import frames

_LIMITS = Limits(message_bytes=512_000_000, send_messages=10, receive_messages=10, linger_ms=0)
_ANSWER_S = 5.0
_WATCH_S = 1.0
_FIRST_WEIGHTS_TRIES = 20
#: Refusals that mean: this key may not, whatever it asks.
_OUT = ("not_admitted", "removed", "quarantined", "not_permitted")

_C = TypeVar("_C", bound="Client")


def find_hosts(timeout_s: float, interfaces: Sequence[str] = ()) -> list[FoundHost]:
    """Hosts that answer on this LAN within `timeout_s`, one row each."""
    return browse(timeout_s, interfaces)


class Client:
    """A short conversation with one host's broker.

    Raises:
        NotAdmitted: the host would not let this machine's key in; the text says what to do.
    """

    def __init__(self, located: Located) -> None:
        self.located = located
        self._keys = keys_for(located)
        self._network = Network()
        self._socket = self._network.client(
            "dealer",
            endpoint(located.address, located.base_port),
            self._keys,
            located.card.server_key,
            _LIMITS,
        )

    def status(self) -> m.StatusReply:
        """The run as it is now.

        Raises:
            NoHostFound: the broker does not answer.
            NotAdmitted: it has put this machine out.
        """
        return self._ask(m.StatusAsk(), m.StatusReply)

    def welcome(self) -> m.Welcome:
        """What a member would be told."""
        hello = m.Hello(
            protocol=m.PROTOCOL,
            version=__version__,
            role="client",
            name="client",
            boot_id=secrets.token_hex(8),
        )
        return self._ask(hello, m.Welcome)

    def weights(self) -> tuple[m.WeightsHeader, Frame]:
        """The current weights; waits a while for the first ones.

        Raises:
            P2prlError: there are none yet.
            UpgradeNeeded: this p2prl cannot read them.
            NoHostFound: the broker does not answer.
        """
        pause = threading.Event()
        for _ in range(_FIRST_WEIGHTS_TRIES):
            if self.welcome().weights_version >= 0:
                break
            pause.wait(1.0)
        else:
            raise P2prlError(
                f"{line(self.located.card.host_name, 60)} has no weights yet: its trainer is still starting"
            )
        self._send(m.WeightsAsk())
        header, bulk = self._expect(m.WeightsHeader)
        check_codec(header, self.located.card.version)
        return header, bulk[0]

    def close(self) -> None:
        """End the conversation."""
        self._network.close()

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, message: m.Message, kind: type[m.MessageT]) -> m.MessageT:
        self._send(message)
        return self._expect(kind)[0]

    def _send(self, message: m.Message) -> None:
        self._socket.send([frames.encode(message)])

    def _expect(self, kind: type[m.MessageT]) -> tuple[m.MessageT, list[Frame]]:
        while self._socket.wait(_ANSWER_S):
            received = self._socket.receive()
            if received is None or not received.frames:
                continue
            try:
                message = frames.decode_from_broker(received.frames[0])
            except RemoteProtocolError:
                continue
            if isinstance(message, m.Refusal):
                raise _refused(message)
            if isinstance(message, kind):
                return message, received.frames[1:]
        raise self._silence()

    def _silence(self) -> P2prlError:
        """Why nobody answers: a key that was put out meanwhile gets no answer either."""
        address, base_port = self.located.address, self.located.base_port
        card, _ = ask_card(address, base_port, Search(target=None, wait_s=None, node_key=self._keys.public))
        if card is not None and card.server_key == self.located.card.server_key:
            check_admitted(Located(card, address, base_port), self._keys.public)
        return NoHostFound(f"the host at {address} port {base_port} did not answer within {_ANSWER_S:g} s")


def keys_for(located: Located) -> KeyPair:
    """The keys to ask this host with: the owner's for a host of this state folder, else this node's.

    Raises:
        NotAdmitted: the host does not let this node in, or is not the one that was joined under its name.
    """
    home = state_folder()
    node = load_or_create(home / "node.key")
    if is_own(located.card, node.public):
        return load_or_create(home / "owner.key")
    check_identity(KnownHosts(state_folder()), located)
    check_admitted(located, node.public)
    return node


def check_admitted(located: Located, node_key: str) -> None:
    """Raises NotAdmitted if the host that answered says that it would not let this node in."""
    card = located.card
    name, where = line(card.host_name, 60), _where(located)
    check_standing(card, node_key)
    if card.standing == "waiting":
        raise NotAdmitted(
            f"{name}'s owner has not let this node in yet (p2prl admit {fingerprint(node_key)}); try again then"
        )
    if card.standing == "unknown" and not card.open:
        raise NotAdmitted(
            f"{name} does not know this node; join it first with its code: p2prl join {where} --code CODE"
        )


def open_client(target: str | None, wait_s: float, command: str, interfaces: Sequence[str] = ()) -> Client:
    """Find a host and speak with its broker; without a target this machine's own host, if one runs.

    Args:
        command: what the person typed before the target, as in `p2prl status`; for advice.

    Raises:
        NoHostFound: none within `wait_s`.
        NotAdmitted: it does not let this node in.
    """
    return Client(
        (own_host() if target is None else None) or locate_named(target, wait_s, command, interfaces)
    )


def fetch_status(target: str | None, wait_s: float, interfaces: Sequence[str] = ()) -> m.StatusReply:
    """One status. `target` and `interfaces` as for `p2prl join`."""
    with open_client(target, wait_s, "p2prl status", interfaces) as client:
        return client.status()


def watch_status(
    target: str | None, wait_s: float, interfaces: Sequence[str] = ()
) -> Iterator[m.StatusReply | Silence]:
    """A status about each second, without an end; while the host does not answer, that, after each try.

    Raises:
        NoHostFound: it has never answered.
        NotAdmitted: it does not let this node in, or not any more.
    """
    pause, name, heard = threading.Event(), "", 0.0
    client = open_client(target, wait_s, "p2prl status", interfaces)
    while True:
        with client:
            try:
                while True:
                    status = client.status()
                    name, heard = status.host_name, time.time()
                    yield status
                    pause.wait(_WATCH_S)
            except NoHostFound:
                if not heard:
                    raise
                yield Silence(name, heard)
        pause.wait(_WATCH_S)
        client = Client(client.located)  # what was asked in vain is not to be answered late


def forget_host(host: str) -> list[KnownHost]:
    """Forget the hosts that `host` names: a name, an address, a key or its fingerprint.

    Raises:
        UsageError: none is known by it; the text names those that are.
        P2prlError: the memory cannot be written.
    """
    memory = KnownHosts(state_folder())
    gone = memory.forget(host)
    if not gone:
        names = sorted({line(known.name, 60) for known in memory.hosts()})
        told = f"there are: {', '.join(names)}" if names else "none was joined before"
        raise UsageError(f"no host {host[:60]!r} is known here; {nearest(host, names) or told}")
    return gone


def locate_named(target: str | None, wait_s: float, command: str, interfaces: Sequence[str] = ()) -> Located:
    """The host that `target` names, or the one on this LAN; `command` is for advice. Raises NoHostFound."""
    node_key = load_or_create(state_folder() / "node.key").public
    search = Search(
        target=target, wait_s=wait_s, node_key=node_key, command=command, interfaces=tuple(interfaces)
    )
    located = search.locate()
    if located is None:
        raise NoHostFound("stopped before a host was found")
    return located


def _where(located: Located) -> str:
    return str(Address(located.address, located.base_port))


def _refused(refusal: m.Refusal) -> P2prlError:
    text = line(refusal.text) or refusal.reason
    if refusal.reason == "protocol":
        return UpgradeNeeded(text)
    return NotAdmitted(text) if refusal.reason in _OUT else P2prlError(f"the host refused: {text}")
