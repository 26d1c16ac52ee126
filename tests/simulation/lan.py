"""An in-memory LAN on a fake clock, seeded: messages are late, lost, doubled, reordered; links are cut, processes die.

Time only moves in `FakeLan.run_until`. Two kinds of weather:

* `ordered`: connections as TCP makes them. What is sent arrives in order, or the connection breaks, and then all that
  was under way is lost. A client makes its connection again by itself, as libzmq does.
* else each message is by itself: it may be lost, arrive twice, or after one that was sent later. That is more than TCP
  would ever do to a connection; machines that survive it do not lean on what they cannot know.

Processes of one machine talk without trouble, but for their own deaths.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.process import Machine, Process

Frames = list[bytes]
#: What a server does with a message: (route, user, frames).
Take = Callable[[bytes, str, Frames], None]

#: A side that hears nothing for so long ends the connection (net/sockets.py: HEARTBEAT_TIMEOUT).
HALF_OPEN_S = 15.0
_RECONNECT_S = 2.0
_LOCAL_S = 0.001


@dataclass
class Weather:
    """How bad the network is.

    Attributes:
        ordered: see above.
        loss, duplication: per message, if not ordered.
        breaks: per message, the connection breaks with it, if ordered.
        delay_s, jitter_s: how long a message takes, at least, and how much longer at most.
    """

    ordered: bool = True
    loss: float = 0.0
    duplication: float = 0.0
    breaks: float = 0.0
    delay_s: float = 0.005
    jitter_s: float = 0.02

    def improve(self) -> None:
        """The sun comes out."""
        self.loss = self.duplication = self.breaks = 0.0
        self.delay_s, self.jitter_s = 0.005, 0.02


@dataclass
class FakeLan:
    """Everything that happens, in order of time.

    Attributes:
        after_event: called after each event.
        events: how many there were.
        push_limit: messages that one PUSH socket and its peer hold together.
        touched: names of the processes in which the last event happened.
    """

    rng: random.Random
    weather: Weather
    now: float = 0.0
    after_event: Callable[[], None] = lambda: None
    events: int = 0
    push_limit: int = 8
    touched: set[str] = field(default_factory=set)
    servers: dict[str, Server] = field(default_factory=dict)
    #: Connections by the name that the server knows them by.
    routes: dict[bytes, Link] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call something at a time."""
        heapq.heappush(self._queue, (when, next(self._order), call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call something later."""
        self.at(self.now + delay_s, call)

    def run_until(self, end: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Let time pass, up to `end` or until it is `enough`."""
        queue = self._queue
        while queue and queue[0][0] <= end:
            self.now, _, call = heapq.heappop(queue)
            call()
            self.events += 1
            if self.touched:
                self.after_event()
                self.touched.clear()
            if enough():
                return
        self.now = max(self.now, end)

    # --- servers and connections

    def listen(self, process: Process, endpoint: str, take: Take) -> None:
        """A process listens."""
        self.servers[endpoint] = Server(process, take)
        self.retry()

    def dial(
        self, client: Process, endpoint: str, user: str, limit: int, deliver: Callable[[Frames], None]
    ) -> Link:
        """A process dials, now and again whenever the connection breaks."""
        link = Link(self, client, endpoint, user, limit, deliver)
        self.links.append(link)
        link.try_soon(0.1)
        return link

    def reply(self, route: bytes, frames: Frames) -> bool:
        """Something goes to a client; False if there is no such connection any more."""
        link = self.routes.get(route)
        if link is not None:
            link.down(frames)
        return link is not None

    def connected(self, endpoint: str) -> list[bytes]:
        """The routes of all connections to an endpoint."""
        return [link.route for link in self.links if link.endpoint == endpoint and link.route]

    def died(self, process: Process) -> None:
        """A process is gone, with its sockets. What it had sent may still arrive."""
        for endpoint in [name for name, server in self.servers.items() if server.process is process]:
            del self.servers[endpoint]
            for link in self.links:
                if link.endpoint == endpoint:
                    link.break_()
        for link in [link for link in self.links if link.client is process]:
            link.close(lost=self.rng.random() < 0.5)

    def retry(self) -> None:
        """Something may be reached again."""
        for link in self.links:
            if not link.route:
                link.try_soon(_RECONNECT_S)

    def latency(self, link: Link) -> float:
        """How long the next message takes."""
        if link.local:
            return _LOCAL_S
        return self.weather.delay_s + self.rng.random() * self.weather.jitter_s

    # --- cuts

    def cut(self, machine: Machine, duration_s: float) -> None:
        """Take a machine off the LAN for a while."""
        machine.cuts += 1
        cut_at = self.now
        self.after(HALF_OPEN_S * (0.7 + 0.5 * self.rng.random()), lambda: self._half_open(machine, cut_at))
        self.after(duration_s, lambda: self._mend(machine))

    def _half_open(self, machine: Machine, cut_at: float) -> None:
        if machine.cuts and machine.cut_since <= cut_at:
            for link in self.links:
                if not link.local and machine in link.machines:
                    link.break_()

    def _mend(self, machine: Machine) -> None:
        machine.cuts -= 1
        if machine.cuts:
            return
        for link in self.links:
            if machine in link.machines:
                link.release()
        self.retry()


@dataclass
class Server:
    """Who listens, and what it does with what arrives."""

    process: Process
    take: Take


class Link:
    """One client socket's connection to an endpoint: made, broken, made again.

    Attributes:
        route: the server's name for it; empty while there is none.
        unread: messages that the server has not looked at.
        waiting: messages that the client's socket holds because there is no connection, or too much is unread.
    """

    def __init__(
        self,
        lan: FakeLan,
        client: Process,
        endpoint: str,
        user: str,
        limit: int,
        deliver: Callable[[Frames], None],
    ) -> None:
        self.lan, self.client, self.endpoint, self.user = lan, client, endpoint, user
        self.limit, self._deliver = limit, deliver
        self.route = b""
        self.unread = 0
        self.waiting: deque[Frames] = deque()
        self.closed = False
        self._room: Callable[[], None] | None = None
        self._trying = False
        #: Changes when the connection breaks: what was under way then is lost.
        self._epoch = 0
        #: When the last message of each direction arrives.
        self._last = [0.0, 0.0]
        #: What arrives while the machine is cut off: (up, frames, route).
        self._held: list[tuple[bool, Frames, bytes]] = []

    @property
    def machines(self) -> tuple[Machine, ...]:
        """Both ends."""
        server = self.lan.servers.get(self.endpoint)
        return (self.client.machine,) if server is None else (self.client.machine, server.process.machine)

    @property
    def local(self) -> bool:
        """Both ends are on one machine."""
        server = self.lan.servers.get(self.endpoint)
        return server is not None and server.process.machine is self.client.machine

    @property
    def _ordered(self) -> bool:
        return self.lan.weather.ordered or self.local

    # --- the client's side

    def up(self, frames: Frames) -> bool:
        """The client sends; False if its socket is full."""
        if not self._ordered:
            if self.lan.rng.random() < self.lan.weather.loss / 10:
                return False
            self._scatter(True, frames)
            return True
        if len(self.waiting) + self.unread >= self.limit:
            return False
        self.waiting.append(frames)
        self._pump()
        return True

    def when_room(self, call: Callable[[], None] | None) -> None:
        """Call this once, when the client's socket takes messages; None for nothing."""
        self._room = call
        if call is not None and (not self._ordered or len(self.waiting) + self.unread < self.limit):
            self.lan.after(_LOCAL_S, self._has_room)

    def _has_room(self) -> None:
        call, self._room = self._room, None
        if call is not None and not self.closed:
            self.client.run(call)

    def close(self, lost: bool) -> None:
        """The client's socket is gone. `lost`: with what was under way."""
        self.closed = True
        self.waiting.clear()
        self.lan.links.remove(self)
        if self.route:
            del self.lan.routes[self.route]
        self.route = b""
        self._epoch += lost

    # --- the server's side

    def down(self, frames: Frames) -> None:
        """The server sends."""
        if self._ordered:
            self._fly(False, frames, self.route)
        else:
            self._scatter(False, frames)

    # --- the connection

    def try_soon(self, within_s: float) -> None:
        """Dial in a moment."""
        if not self._trying and not self.closed:
            self._trying = True
            self.lan.after(self.lan.rng.random() * within_s, self._try)

    def break_(self) -> None:
        """It breaks: what is under way is lost; what the client had not sent yet waits in its socket."""
        if not self.route:
            return
        del self.lan.routes[self.route]
        self.route = b""
        self._epoch += 1
        self.unread = 0
        self._held.clear()
        self.try_soon(_RECONNECT_S)

    def release(self) -> None:
        """A cut ended: what was held back arrives, if both ends are on the LAN."""
        if any(machine.cuts for machine in self.machines):
            return
        held, self._held = self._held, []
        for up, frames, route in held:
            self._fly(up, frames, route)

    def _try(self) -> None:
        self._trying = False
        server = self.lan.servers.get(self.endpoint)
        if self.closed or self.route or server is None:
            return
        if not (self.client.awake and server.process.awake) or self._is_cut():
            return  # `retry` comes when that is over
        self.route = b"route %d" % next(self.lan._order)
        self.lan.routes[self.route] = self
        self._pump()
        if self._room is not None:
            self._has_room()

    def _is_cut(self) -> bool:
        return not self.local and any(machine.cuts for machine in self.machines)

    def _pump(self) -> None:
        while self.route and self.waiting:
            self.unread += 1
            self._fly(True, self.waiting.popleft(), self.route)

    def _fly(self, up: bool, frames: Frames, route: bytes) -> None:
        lan = self.lan
        if not self.local and lan.weather.breaks and lan.rng.random() < lan.weather.breaks:
            self.break_()
            return
        when = self._last[up] = max(self._last[up], lan.now + lan.latency(self))
        epoch = self._epoch
        lan.at(when, lambda: self._arrive(up, frames, epoch, route))

    def _arrive(self, up: bool, frames: Frames, epoch: int, route: bytes) -> None:
        if epoch != self._epoch:
            return
        if self._held or self._is_cut():
            self._held.append((up, frames, route))
        elif up:
            self._take(frames, epoch, route)
        elif not self.closed:
            self.client.run(lambda: self._deliver(frames))

    def _take(self, frames: Frames, epoch: int, route: bytes) -> None:
        server = self.lan.servers.get(self.endpoint)
        if server is None:
            return

        def look() -> None:
            if epoch == self._epoch:
                self.unread = max(0, self.unread - 1)
                if self._room is not None:
                    self.lan.after(_LOCAL_S, self._has_room)
            server.take(route, self.user, frames)

        server.process.run(look)

    def _scatter(self, up: bool, frames: Frames) -> None:
        lan, route = self.lan, self.route
        if self._is_cut() or not route:
            return
        for _ in range(2 if lan.rng.random() < lan.weather.duplication else 1):
            if lan.rng.random() >= lan.weather.loss:
                lan.after(lan.latency(self), lambda: self._land(up, frames, route))

    def _land(self, up: bool, frames: Frames, route: bytes) -> None:
        if self._is_cut():
            return
        if up:
            self._take(frames, -1, route)
        elif not self.closed:
            self.client.run(lambda: self._deliver(frames))
