"""Finding one certain host again, by its key: where it was, where it was before, and where mDNS says that it is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from p2prl.errors import P2prlError
from p2prl.net.addresses import KnownHosts
from p2prl.net.keys import fingerprint, state_folder
from p2prl.nodes.locate import Located, Search, ask_card

if TYPE_CHECKING:
    from p2prl.net.discovery import Browser

Place = tuple[str, int]
_PAUSE_S = 1.0


def look(
    search: Search, server_key: str, places: Iterable[Place], browser: Browser, run_id: str = ""
) -> tuple[Located | None, str]:
    """Ask once everywhere; the host with this key, or None and why nobody answered.

    A machine may host several runs under one key: the one that hosts this run, if any does, else the first.

    What a card says is not proved, and neither is a refusal: anybody can send one. The connection that is made next is
    to this key or to nobody.

    Args:
        places: addresses with base ports, the likeliest first.
    """
    name = fingerprint(server_key)
    announced = [
        (address, host.base_port)
        for host in browser.hosts()
        if host.fingerprint == name
        for address in host.addresses
    ]
    troubles, other = [], None
    for address, base_port in dict.fromkeys([*announced, *places]):
        if search.stop.is_set():
            break
        try:
            card, trouble = ask_card(address, base_port, search)
        except P2prlError as error:
            card, trouble = None, str(error)
        if card is not None and card.server_key == server_key:
            located = Located(card, address, base_port)
            if run_id in ("", card.run_id):
                return located, ""
            other = other or located
            continue
        troubles.append(trouble or f"{address} port {base_port} is another host")
    if other is not None:
        return other, ""
    return None, "; ".join(troubles) or browser.problem or "nobody announces this host (mDNS)"


def places_of(server_key: str) -> list[Place]:
    """Where this host was before, newest first."""
    hosts = [host for host in KnownHosts(state_folder()).hosts() if host.server_key == server_key]
    return [(address, host.base_port) for host in hosts for address in host.addresses]


class Relocator:
    """Looks for a host that fell silent, on a thread of its own: neither mDNS nor dialling may hold up a member.

    Args:
        places: where to look first.
        run_id: which run it hosts; empty if that is not known.
    """

    def __init__(
        self,
        server_key: str,
        node_key: str,
        places: Sequence[Place],
        interfaces: Sequence[str],
        run_id: str = "",
    ) -> None:
        self._stop = threading.Event()
        self._found: deque[Located] = deque(maxlen=1)  # only the newest counts
        search = Search(target=None, wait_s=None, node_key=node_key, stop=self._stop)
        work = (search, server_key, tuple(places), tuple(interfaces), run_id)
        self._thread = threading.Thread(target=self._work, args=work, name="relocator", daemon=True)
        self._thread.start()

    def found(self) -> Located | None:
        """Where it is; each answer once."""
        try:
            return self._found.popleft()
        except IndexError:
            return None

    def close(self) -> None:
        """Stop looking; the thread ends within a second or two."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout_s)

    def _work(
        self,
        search: Search,
        server_key: str,
        places: Sequence[Place],
        interfaces: Sequence[str],
        run_id: str,
    ) -> None:
        from p2prl.net.discovery import Browser  # with it come zeroconf and asyncio, for a search alone

        browser = Browser(interfaces)
        try:
            while not self._stop.is_set():
                everywhere = [*places, *places_of(server_key)]
                located, _trouble = look(search, server_key, everywhere, browser, run_id)
                if located is not None:
                    self._found.append(located)
                self._stop.wait(_PAUSE_S)
                browser.follow()
        finally:
            browser.close()
