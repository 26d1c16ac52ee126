"""Advertises a host from a thread of its own: mDNS takes a second and more to register, and no loop may wait for it."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.errors import P2prlError
from p2prl.net.cards import HostCard
from p2prl.net.discovery import Advertiser

log = logging.getLogger("p2prl")


@dataclass(frozen=True)
class Announced:
    """How a host is on the LAN's list now.

    Attributes:
        name: the name in use, with a suffix if another host had it first.
        addresses: where others are told to connect; none while there is a problem.
        problem: one line, or empty while the host is advertised.
    """

    name: str
    addresses: tuple[str, ...]
    problem: str


@dataclass(frozen=True)
class _Update:
    card: HostCard
    port: int


class _Follow:
    """Look whether the machine's interfaces changed."""


_Order = _Update | _Follow | None


class Announcer:
    """An Advertiser behind a queue. Orders return at once; `news` says what became of them.

    Args:
        card: what is announced first, at once.
        interfaces: names from `--interface`; empty for the chosen ones.
        port: the host's base port.
    """

    def __init__(self, card: HostCard, interfaces: Sequence[str], port: int) -> None:
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._news: deque[Announced] = deque(maxlen=1)  # only the newest counts
        self._ended = False
        first = (card, tuple(interfaces), port)
        self._thread = threading.Thread(target=self._work, args=first, name="announcer", daemon=True)
        self._thread.start()

    def update(self, card: HostCard, port: int) -> None:
        """Say something new, a new term for example."""
        self._orders.put(_Update(card, port))

    def follow(self) -> None:
        """Follow the machine's interfaces; for the owner's timer. Not asked twice while the first is waiting."""
        if self._orders.empty():
            self._orders.put(_Follow())

    def news(self) -> Announced | None:
        """What changed since the last call, if anything did."""
        try:
            return self._news.popleft()
        except IndexError:
            return None

    def end(self) -> None:
        """Begin to say goodbye; `close` waits for it."""
        if not self._ended:
            self._ended = True
            self._orders.put(None)

    def close(self, timeout_s: float) -> bool:
        """Say goodbye and end the thread; False if that took longer (it ends by itself, or with this process)."""
        self.end()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- on the thread

    def _work(self, card: HostCard, interfaces: Sequence[str], port: int) -> None:
        try:
            advertiser = Advertiser(card, interfaces, port)
            try:
                self._tell(advertiser)
                self._obey(advertiser)
            finally:
                advertiser.close()
        except P2prlError as error:
            self._news.append(Announced(card.name, (), str(error)))
        except Exception as error:
            # A bug in mDNS must not take the run with it, and without this nobody would hear of it.
            log.debug("mDNS failed", exc_info=True)
            text = f"mDNS failed ({type(error).__name__}: {error}); others can still join with `p2prl join ADDRESS`"
            self._news.append(Announced(card.name, (), text))

    def _obey(self, advertiser: Advertiser) -> None:
        while (order := self._orders.get()) is not None:
            before = (advertiser.name, advertiser.addresses, advertiser.problem)
            if isinstance(order, _Update):
                advertiser.update(order.card, order.port)
            else:
                advertiser.follow()
            if before != (advertiser.name, advertiser.addresses, advertiser.problem):
                self._tell(advertiser)

    def _tell(self, advertiser: Advertiser) -> None:
        self._news.append(Announced(advertiser.name, advertiser.addresses, advertiser.problem))
