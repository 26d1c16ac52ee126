"""Finding a host and its key: by name on the LAN, by address, or where it was last time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.access import is_key
from p2prl.core.bounds import line
from p2prl.errors import NoHostFound, P2prlError, RemoteProtocolError, UpgradeNeeded, UsageError
from p2prl.net.addresses import KnownHost, KnownHosts, endpoint, looks_like_address, parse_address
from p2prl.net.cards import FoundHost
from p2prl.net.keys import state_folder
from p2prl.net.sockets import Limits, Network
from p2prl.nodes.options import DEFAULT_BASE_PORT
from p2prl.nodes.wiring import MemberConfig
from p2prl.places import refuse_path
from p2prl.wire import frames

if TYPE_CHECKING:
    from p2prl.net.discovery import Browser

ENROL_LIMITS = Limits(message_bytes=4_000, send_messages=10, receive_messages=10, linger_ms=0)
_ASK_S = 1.0
_PAUSE_S = 1.0
_SAY_S = 5.0
#: mDNS answers within a second on a calm LAN; a memory of last time is only tried after that.
_MDNS_S = 1.0


@dataclass(frozen=True)
class Located:
    """A host that answered on its enrol socket."""

    card: m.EnrolCard
    address: str
    base_port: int


@dataclass
class Candidate:
    """Where a host may be."""

    name: str
    addresses: tuple[str, ...]
    base_port: int
    run_id: str = ""
    fingerprint: str = ""
    env: str = ""
    agent: str = ""


@dataclass
class Search:
    """One search for a host.

    Attributes:
        say: gets (level, text).
        choose: asks a person which of several; None where there is none.
        command: what the person typed, up to where a host's name or address stands; for advice.
        stop: says whether to give up (a signal came).
    """

    target: str | None
    wait_s: float | None
    interfaces: Sequence[str] = ()
    say: Callable[[str, str], None] = lambda level, text: None
    choose: Callable[[Sequence[str]], int] | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    version: str = __version__
    protocol: int = m.PROTOCOL
    node_key: str = ""
    command: str = "p2prl join"

    def __post_init__(self) -> None:
        self._deadline = None if self.wait_s is None else time.monotonic() + self.wait_s
        self._said = -1e9
        #: Why the last candidate could not be reached.
        self._trouble = ""

    def locate(self) -> Located | None:
        """The host, or None if `stop` was set.

        Raises:
            NoHostFound: nobody answered within `wait_s`.
            UsageError: several hosts, and nobody to choose; or the target is a path.
            UpgradeNeeded: the host speaks another protocol number.
        """
        refuse_path(self.target)
        if self.target is not None and looks_like_address(self.target):
            address = parse_address(self.target, DEFAULT_BASE_PORT)
            return self._dial(Candidate(self.target, (address.host,), address.base), forever=True)
        return self._look()

    # --- by address

    def _dial(self, candidate: Candidate, forever: bool) -> Located | None:
        """Ask each address in turn; again and again with `forever`."""
        while not self.stop.is_set():
            troubles = []
            for address in candidate.addresses:
                card, trouble = ask_card(address, candidate.base_port, self)
                if card is not None:
                    return Located(card, address, candidate.base_port)
                troubles.append(trouble)
            if not forever:
                self._trouble = "; ".join(troubles)
                return None
            self.pause("; ".join(troubles))
        return None

    def pause(self, trouble: str) -> None:
        """Say what is waited for, and when it is tried again; or give up."""
        now = time.monotonic()
        if self._deadline is not None and now + _PAUSE_S > self._deadline:
            raise NoHostFound(
                f"{trouble} (gave up after --wait {self.wait_s:g}); is `p2prl host` running there?"
            )
        if now - self._said >= _SAY_S:
            self._said = now
            self.say("info", f"{trouble}; trying again each {_PAUSE_S:g} s")
        self.stop.wait(_PAUSE_S)

    # --- on the LAN

    def _look(self) -> Located | None:
        from p2prl.net.discovery import Browser  # with it come zeroconf and asyncio, for a search alone

        browser = Browser(self.interfaces)
        began = time.monotonic()
        try:
            while not self.stop.is_set():
                settled = time.monotonic() - began >= _MDNS_S
                candidates = self._candidates(browser, with_memory=settled)
                located = self._try(candidates, settled)
                if located is not None:
                    return located
                if settled:
                    self.pause(self._what_is_missing(browser))
                    browser.follow()
                else:
                    self.stop.wait(0.1)
        finally:
            browser.close()
        return None

    def _candidates(self, browser: Browser, with_memory: bool) -> list[Candidate]:
        found = [_from_found(host) for host in browser.hosts()]
        if self.target is not None:
            found = [c for c in found if c.name == self.target] or [
                c for c in found if c.run_id == self.target
            ]
        if not found and with_memory:
            # Newest first, and only one: a host is remembered once for each of its runs.
            known = KnownHosts(state_folder(), lambda text: self.say("warning", text)).hosts()
            fitting = [host for host in known if self.target in (None, host.name, host.run_id)]
            found = [_from_known(host) for host in fitting[:1]]
        return found

    def _try(self, candidates: list[Candidate], settled: bool) -> Located | None:
        if len(candidates) == 1 and (settled or self.target is not None):
            return self._dial(candidates[0], forever=False)
        if len(candidates) > 1 and settled:
            rows = [f"{c.name}  {c.addresses[0]}:{c.base_port}  {c.env}  {c.agent}" for c in candidates]
            if self.choose is None:
                listed = "; ".join(" ".join(row.split()) for row in rows)
                raise UsageError(f"several hosts here, name one (`{self.command} NAME`): {listed}")
            return self._dial(candidates[self.choose(rows)], forever=True)
        return None

    def _what_is_missing(self, browser: Browser) -> str:
        if browser.problem:
            return browser.problem
        who = f"no host called {self.target}" if self.target else "no host"
        others = sorted({host.name for host in browser.hosts()})
        seen = f" (there are: {', '.join(others)})" if others and self.target else ""
        if self._trouble:
            return f"{who} announces itself on this network (mDNS){seen}, and where one was before: {self._trouble}"
        return f"{who} announces itself on this network (mDNS){seen}; `{self.command} ADDRESS` works without mDNS"


def ask_card(address: str, base_port: int, search: Search) -> tuple[m.EnrolCard | None, str]:
    """Ask who listens at `address`. Returns the card, or None and what is wrong in words.

    Raises:
        UpgradeNeeded: it speaks another protocol number.
    """
    where = f"{address} port {base_port + 1}"
    network = Network()
    try:
        client = network.client("dealer", endpoint(address, base_port + 1), None, None, ENROL_LIMITS)
        ask = m.EnrolAsk(protocol=search.protocol, version=search.version, node_key=search.node_key)
        client.send([frames.encode(ask)])
        if not client.wait(_ASK_S):
            return None, _silence(address, base_port + 1)
        received = client.receive()
        if received is None or len(received.frames) != 1:
            return None, f"what listens at {where} is not a p2prl host"
        answer = frames.decode_enrol(received.frames[0])
    except RemoteProtocolError:
        return None, f"what listens at {where} is not a p2prl host"
    finally:
        network.close()
    if isinstance(answer, m.Refusal):
        if answer.reason == "protocol":
            raise UpgradeNeeded(line(answer.text))
        raise P2prlError(f"the host at {where} refused: {line(answer.text)}")
    if not isinstance(answer, m.EnrolCard):
        return None, f"what listens at {where} is not a p2prl host"
    if answer.protocol != search.protocol:
        raise UpgradeNeeded(other_protocol(where, answer, search))
    if not is_key(answer.server_key):
        return None, f"what listens at {where} is not a p2prl host"
    return answer, ""


def other_protocol(where: str, card: m.EnrolCard, search: Search) -> str:
    """The line for a host that did not refuse us, although we could not understand each other."""
    theirs = f"the host at {where} speaks protocol {card.protocol} (p2prl {line(card.version, 20)})"
    side = "p2prl on this machine" if card.protocol > search.protocol else "p2prl on the host"
    return f"{theirs}, this machine {search.protocol} (p2prl {search.version}): upgrade {side}"


def _silence(address: str, port: int) -> str:
    """Why nobody answers: a plain connection tells silence, refusal and something else apart."""
    try:
        with socket.create_connection((address, port), timeout=_ASK_S):
            return f"something listens at {address} port {port}, but it does not answer as a p2prl host"
    except socket.gaierror:
        return f"{address} is not a name that this machine can resolve"
    except OSError as error:
        return f"{address} port {port} cannot be reached ({error.strerror or 'no answer'})"


def remember_proved(memory: KnownHosts, located: Located) -> None:
    """Keep the key that a host proved as its own, and until its Welcome the name and address, which are not proved."""
    memory.remember(
        KnownHost(
            name=line(located.card.host_name, 60),
            run_id="",
            server_key=located.card.server_key,
            addresses=(located.address,),
            base_port=located.base_port,
            seen_at=time.time(),
        )
    )


def remember(config: MemberConfig, welcome: m.Welcome) -> None:
    """Keep the host's key, name and addresses, as they are known once it welcomed this node."""
    memory = KnownHosts(state_folder())
    known = memory.find_key(config.server_key)
    older = tuple(a for a in known.addresses if a != config.host) if known else ()
    memory.remember(
        KnownHost(
            name=line(welcome.host_name, 60),
            run_id=welcome.run.run_id,
            server_key=config.server_key,
            addresses=(config.host, *older),
            base_port=config.base_port,
            seen_at=time.time(),
        )
    )


def _from_found(host: FoundHost) -> Candidate:
    return Candidate(
        host.name, host.addresses, host.base_port, host.run_id, host.fingerprint, host.env, host.agent
    )


def _from_known(host: KnownHost) -> Candidate:
    return Candidate(host.name, host.addresses, host.base_port, host.run_id)
