"""mDNS: a host says where it is, a joiner looks. The only file that imports zeroconf.

What mDNS says is a hint (net/cards.py): who a host really is comes from its key when it is dialled. Nor is
mDNS liveness: a killed host stays listed.

The calls that announce (`Advertiser()`, `update`, `follow` after a change, `close`) take up to two seconds,
because mDNS asks three times whether a name is free. zeroconf keeps one thread while one of these is open.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import ipaddress
import threading
import time
from collections.abc import Callable, Sequence

from zeroconf import (
    DNSQuestionType,
    IPVersion,
    ServiceBrowser,
    ServiceInfo,
    ServiceStateChange,
    Zeroconf,
    current_time_millis,
)
from zeroconf import Error as ZeroconfError

from p2prl.errors import P2prlError, UsageError
from p2prl.net.cards import (
    MAX_ADDRESSES,
    SERVICE_TYPE,
    FoundHost,
    HostCard,
    found_from,
    instance_name,
    merge_hosts,
    txt_of,
)
from p2prl.net.interfaces import Interface, chosen_interfaces

#: Names that one browser keeps, at most: a stranger can make up any number.
MAX_HOSTS = 256
#: How often a host gives way to another of its name before it stays, so that a liar cannot chase it for ever.
_MAX_RENAMES = 20
_ASK_AGAIN_S = 1.0
_ASK_TIMEOUT_MS = 1000
_POLL_S = 0.05

_WORKAROUND = "others can still join with `p2prl join ADDRESS`"


class Advertiser:
    """Keeps one host on the LAN's list, from now until `close`.

    Trouble with the network raises nothing, for it may pass: `problem` says what it is, and `follow` tries
    again.

    Attributes:
        name: the name in use, with a suffix if another host had it first.
        addresses: where others are told to connect.
        problem: one line, or empty while the host is advertised.
    """

    def __init__(self, card: HostCard, interfaces: Sequence[str], port: int) -> None:
        """Announce `card`.

        Args:
            interfaces: names from `--interface`; empty for the chosen ones.
            port: the host's base port.

        Raises:
            UsageError: there is no such interface.
        """
        self._card = card
        self._names = tuple(interfaces)
        self._port = port
        self._label = (
            "p2prl-"
            + hashlib.blake2b(f"{card.run_id} {card.fingerprint}".encode(), digest_size=6).hexdigest()
        )
        self._zeroconf: Zeroconf | None = None
        self._info: ServiceInfo | None = None
        self._chosen: list[Interface] = []
        self._renames = 0
        self.name = instance_name(card.name)
        self.addresses: tuple[str, ...] = ()
        self.problem = ""
        self._chosen = _choose_or_none(self._names)
        self._open()

    def update(self, card: HostCard, port: int | None = None) -> None:
        """Say something new, a new term for example. The name in use stays."""
        self._card = card
        self._port = self._port if port is None else port
        if self._zeroconf is None:
            return
        info = self._make_info(self.name)
        try:
            self._zeroconf.update_service(info)
            self._info = info
        except (ZeroconfError, OSError, TimeoutError) as error:
            self.problem = f"the new term could not be announced by mDNS ({_why(error)}); {_WORKAROUND}"

    def follow(self) -> bool:
        """Follow the machine's interfaces, and settle a name that two hosts took at the same time.

        For the owner's timer, each few seconds. Costs about a millisecond if nothing changed.

        Returns:
            True if `name`, `addresses` or `problem` changed.
        """
        before = (self.name, self.addresses, self.problem)
        now_chosen = _choose_or_none(self._names)
        if self._zeroconf is None or now_chosen != self._chosen:
            self._shut()
            self._chosen = now_chosen
            self._open()
        else:
            self._settle()
        return before != (self.name, self.addresses, self.problem)

    def close(self) -> None:
        """Say goodbye and leave no thread; a second call does nothing."""
        self._shut()

    def _open(self) -> None:
        try:
            self._zeroconf = _open_zeroconf(self._chosen)
            self.addresses = _advertised(self._chosen)
            self._register(self.name)
            self.problem = ""
        except P2prlError as error:
            self._shut()
            self.problem = f"{error}; {_WORKAROUND}"
            return
        self._settle()

    def _register(self, name: str) -> None:
        assert self._zeroconf is not None
        info = self._make_info(name)
        # zeroconf probes for unicast answers, which another mDNS program on this machine may get instead of us.
        # Asking for multicast ones beside it brings the names in use into the cache, where zeroconf looks.
        everyone = _look(self._zeroconf, lambda **_: None, DNSQuestionType.QM)
        try:
            self._zeroconf.register_service(info, allow_name_change=True)  # it writes the free name into info
        except (ZeroconfError, OSError, TimeoutError) as error:
            raise P2prlError(f"mDNS could not announce this host ({_why(error)})") from error
        finally:
            everyone.cancel()
        self._info = info
        self.name = info.name[: -len(SERVICE_TYPE) - 1]

    def _settle(self) -> None:
        """Two hosts that probed in the same instant both got the name: the one with the greater label takes
        another, the other says its own again, so that every cache drops the wrong one."""
        if self._zeroconf is None or self._info is None or self._renames >= _MAX_RENAMES:
            return
        rivals = _rivals(self._zeroconf, self._info)
        if not rivals:
            return
        self._renames += 1
        try:
            if min(rivals) > self._label:
                self._zeroconf.update_service(self._info)
            else:
                # No goodbye: it would name the very record that the other host keeps.
                self._drop_silently(self._zeroconf, self._info)
                self._register(self._free_name(self._zeroconf))
        except (P2prlError, ZeroconfError, OSError, TimeoutError) as error:
            self.problem = f"the name {self.name!r} is used twice and no other could be taken ({_why(error)})"

    def _free_name(self, zeroconf: Zeroconf) -> str:
        """The first suffix that nobody was heard to use."""
        base = instance_name(self._card.name)
        names = (f"{base}-{number}" for number in range(2, MAX_HOSTS + 3))
        known = {
            str(getattr(record, "alias", "")) for record in zeroconf.cache.entries_with_name(SERVICE_TYPE)
        }
        return next(
            (name for name in names if f"{name}.{SERVICE_TYPE}" not in known), f"{base}-{self._label}"
        )

    def _drop_silently(self, zeroconf: Zeroconf, info: ServiceInfo) -> None:
        async def remove() -> None:
            zeroconf.registry.async_remove(info)

        assert zeroconf.loop is not None
        asyncio.run_coroutine_threadsafe(remove(), zeroconf.loop).result(timeout=5)

    def _make_info(self, name: str) -> ServiceInfo:
        return ServiceInfo(
            SERVICE_TYPE,
            f"{name}.{SERVICE_TYPE}",
            port=self._port,
            properties=txt_of(self._card, self._port),
            server=f"{self._label}.local.",
            parsed_addresses=list(self.addresses),
        )

    def _shut(self) -> None:
        zeroconf, self._zeroconf, self._info = self._zeroconf, None, None
        self.addresses = ()
        _close_zeroconf(zeroconf)


class Browser:
    """Looks for hosts until it is closed. Poll `hosts`.

    Attributes:
        problem: one line, or empty while it can look.
    """

    def __init__(self, interfaces: Sequence[str] = ()) -> None:
        """Start to look.

        Args:
            interfaces: names from `--interface`; empty for the chosen ones.

        Raises:
            UsageError: there is no such interface.
        """
        self._interface_names = tuple(interfaces)
        self._guard = threading.Lock()
        self._seen: dict[str, FoundHost | None] = {}
        self._asks: dict[str, tuple[float, concurrent.futures.Future[bool]]] = {}
        self._zeroconf: Zeroconf | None = None
        self._browsers: list[ServiceBrowser] = []
        self.problem = ""
        self._chosen = _choose_or_none(self._interface_names)
        self._open()

    def hosts(self) -> list[FoundHost]:
        """One row per host, however many interfaces and families it answered on; sorted by name."""
        with self._guard:
            names = list(self._seen)
        rows = []
        for name in names:
            row = self._look_up(name)
            with self._guard:
                if name in self._seen:
                    self._seen[name] = row = row or self._seen[name]
            if row is not None:
                rows.append(row)
        return merge_hosts(rows)

    def follow(self) -> bool:
        """Follow the interfaces; for the owner's timer. True if they changed, and the list begins anew."""
        now_chosen = _choose_or_none(self._interface_names)
        if self._zeroconf is not None and now_chosen == self._chosen:
            return False
        self.close()
        self._chosen = now_chosen
        self._open()
        return True

    def close(self) -> None:
        """Stop looking and leave no thread; a second call does nothing."""
        for _, ask in self._asks.values():
            ask.cancel()
        self._asks.clear()
        for browser in self._browsers:
            browser.cancel()
        self._browsers.clear()
        zeroconf, self._zeroconf = self._zeroconf, None
        _close_zeroconf(zeroconf)
        with self._guard:
            self._seen.clear()

    def _open(self) -> None:
        try:
            self._zeroconf = _open_zeroconf(self._chosen)
        except P2prlError as error:
            self.problem = f"{error}; try `p2prl join ADDRESS`"
            return
        self.problem = ""
        # Unicast answers (QU) come at once, but another mDNS program on this machine may get them instead of us;
        # multicast ones (QM) reach all, but a responder sends none within a second of its last. So: both.
        kinds = (DNSQuestionType.QU, DNSQuestionType.QM)
        self._browsers = [_look(self._zeroconf, self._changed, kind) for kind in kinds]

    def _changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        """On zeroconf's thread."""
        with self._guard:
            if state_change is ServiceStateChange.Removed:
                self._seen.pop(name, None)
            elif len(self._seen) < MAX_HOSTS:
                self._seen.setdefault(name, None)

    def _look_up(self, name: str) -> FoundHost | None:
        """What the cache knows; if it is incomplete, the host is asked in the background."""
        if self._zeroconf is None:
            return None
        try:
            info = ServiceInfo(SERVICE_TYPE, name)
        except ZeroconfError:  # a name that no honest responder has
            return None
        if not info.load_from_cache(self._zeroconf):
            self._ask(self._zeroconf, info)
            return None
        self._asks.pop(name, None)
        addresses = info.parsed_scoped_addresses()
        return found_from(name, info.properties, info.port or 0, addresses, self._chosen)

    def _ask(self, zeroconf: Zeroconf, info: ServiceInfo) -> None:
        now = time.monotonic()
        asked = self._asks.get(info.name)
        if (
            asked is not None and (now - asked[0] < _ASK_AGAIN_S or not asked[1].done())
        ) or zeroconf.loop is None:
            return
        question = info.async_request(zeroconf, _ASK_TIMEOUT_MS, DNSQuestionType.QM)
        request = asyncio.run_coroutine_threadsafe(question, zeroconf.loop)
        self._asks[info.name] = (now, request)


def browse(timeout_s: float, interfaces: Sequence[str] = ()) -> list[FoundHost]:
    """Every host that answers within `timeout_s`; it waits for all of that time.

    Raises:
        UsageError: there is no such interface.
        P2prlError: mDNS does not work here.
    """
    browser = Browser(interfaces)
    try:
        if browser.problem:
            raise P2prlError(browser.problem)
        deadline, tick = time.monotonic() + timeout_s, threading.Event()
        while time.monotonic() < deadline:
            browser.hosts()  # asks those whose answer was incomplete
            tick.wait(max(0.0, min(_POLL_S, deadline - time.monotonic())))
        return browser.hosts()
    finally:
        browser.close()


def _choose_or_none(names: Sequence[str]) -> list[Interface]:
    """The interfaces now; none while the machine is offline. A wrong name is still a UsageError."""
    try:
        return chosen_interfaces(names)
    except UsageError:
        raise
    except P2prlError:
        return []


def _advertised(chosen: Sequence[Interface]) -> tuple[str, ...]:
    """Link-local IPv6 means nothing elsewhere without its scope: it goes out only if it is all there is."""
    addresses = [address for interface in chosen for address in interface.addresses]
    routable = [a for a in addresses if ":" not in a or not ipaddress.ip_address(a).is_link_local]
    return tuple(routable or addresses)[:MAX_ADDRESSES]


def _open_zeroconf(chosen: Sequence[Interface]) -> Zeroconf:
    """mDNS over IPv4 where there is any, else IPv6. Not both: a dual-stack socket cannot join the IPv4 group
    on every system, and IPv6 addresses travel in IPv4 packets as well."""
    if not chosen:
        raise P2prlError("no network interface of this machine is up, so mDNS cannot work")
    v4: list[str | int | tuple[tuple[str, int, int], int]] = [a for i in chosen for a in i.v4]
    v6: list[str | int | tuple[tuple[str, int, int], int]] = [i.index or i.v6[0] for i in chosen if i.v6]
    try:
        return Zeroconf(interfaces=v4 or v6, ip_version=IPVersion.V4Only if v4 else IPVersion.V6Only)
    except (ZeroconfError, OSError, RuntimeError) as error:
        names = ", ".join(interface.name for interface in chosen)
        raise P2prlError(f"mDNS does not work on {names} ({_why(error)})") from error


def _look(zeroconf: Zeroconf, handler: Callable[..., None], kind: DNSQuestionType) -> ServiceBrowser:
    return ServiceBrowser(zeroconf, SERVICE_TYPE, handlers=[handler], question_type=kind)


def _close_zeroconf(zeroconf: Zeroconf | None) -> None:
    if zeroconf is None:
        return
    try:
        zeroconf.close()
    except (ZeroconfError, OSError, TimeoutError):
        # The goodbye could not be said: the link is gone. The sockets and the thread still have to go.
        zeroconf.engine.close()


def _rivals(zeroconf: Zeroconf, info: ServiceInfo) -> set[str]:
    """Labels of other hosts that claim this very name now, from what arrived so far."""
    now = current_time_millis()
    labels = set()
    for record in zeroconf.cache.entries_with_name(info.name):
        server = getattr(record, "server", None)  # only SRV records have one
        if server is not None and server != info.server and not record.is_expired(now):
            labels.add(str(server).removesuffix(".local."))
    return labels


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
