"""Simulated machines and their processes: each with clocks of its own; stopped, put to sleep, killed at any moment."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.simulation.lan import HALF_OPEN_S, FakeLan, Frames, Link

#: Timers fire at most so often: nothing in the machines depends on more, and a busy machine's do not either.
_SLACK_S = 0.2


class Killed(BaseException):
    """kill -9, in the middle of whatever it was."""


@dataclass
class Machine:
    """A computer on the LAN.

    Attributes:
        monotonic: what its monotonic clock is ahead of the LAN's time; stands still while the machine sleeps.
        wall: the same for the clock that people set.
        cuts: it is off the LAN, for so many reasons.
    """

    lan: FakeLan
    name: str
    monotonic: float
    wall: float = 0.0
    processes: list[Process] = field(default_factory=list)
    asleep: bool = False
    cut_since: float = 0.0
    _cuts: int = 0

    @property
    def cuts(self) -> int:
        return self._cuts

    @cuts.setter
    def cuts(self, count: int) -> None:
        if not self._cuts:
            self.cut_since = self.lan.now
        self._cuts = count

    def wall_time(self) -> float:
        """Seconds since the epoch, as this machine believes."""
        return self.lan.now + self.wall

    def sleep(self, duration_s: float) -> None:
        """Its lid is closed: nothing runs, nothing is received, and the monotonic clock stands still."""
        if self.asleep:
            return
        self.asleep = True
        for process in self.processes:
            process.halts += 1
        self.lan.cut(self, duration_s)

        def wake() -> None:
            self.asleep = False
            self.monotonic -= duration_s
            for process in list(self.processes):
                process.go_on()

        self.lan.after(duration_s, wake)


class Timer:
    """As net/loop.py's."""

    def __init__(self, interval_s: float, handler: Callable[[], None]) -> None:
        self.interval_s, self.handler, self.cancelled = interval_s, handler, False

    def cancel(self) -> None:
        """No more calls after this."""
        self.cancelled = True


class Process:
    """One operating system process. Stands where net/loop.py's Loop does.

    Attributes:
        alive: not killed yet.
        halts: for so many reasons it does not run.
        doomed: acts until it is killed in the midst of one; None for no such plan.
        running: the process in which something happens now.
    """

    running: ClassVar[Process | None] = None

    def __init__(self, machine: Machine, name: str, died: Callable[[Process], None]) -> None:
        self.machine, self.name, self._died = machine, name, died
        self.lan = machine.lan
        self.alive = True
        self.halts = int(machine.asleep)
        self.doomed: int | None = None
        self._inbox: list[Callable[[], None]] = []
        self._readable: dict[FakeSocket, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        #: When the LAN is to wake this process next, in LAN time.
        self._alarm = float("inf")
        machine.processes.append(self)

    @property
    def awake(self) -> bool:
        """It runs."""
        return self.alive and not self.halts

    # --- what a Loop does

    def now(self) -> float:
        """Monotonic seconds of this machine."""
        return self.lan.now + self.machine.monotonic

    def every(self, interval_s: float, handler: Callable[[], None], first_s: float | None = None) -> Timer:
        """Call `handler` each `interval_s` seconds."""
        timer = Timer(max(interval_s, _SLACK_S), handler)
        delay_s = timer.interval_s if first_s is None else first_s
        heapq.heappush(self._timers, (self.now() + delay_s, next(self._order), timer))
        self._set_alarm()
        return timer

    def after(self, delay_s: float, handler: Callable[[], None]) -> Timer:
        """Call `handler` once."""

        def once() -> None:
            timer.cancel()
            handler()

        timer = self.every(delay_s, once, first_s=delay_s)
        return timer

    def on_readable(self, socket: FakeSocket, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `socket` has something."""
        self._readable[socket] = handler

    def on_writable(self, socket: FakeSocket, handler: Callable[[], None]) -> None:
        """Call `handler` once, when `socket` takes messages."""
        socket.link.when_room(handler)

    def forget(self, socket: FakeSocket) -> None:
        """Stop watching `socket`."""
        self._readable.pop(socket, None)
        socket.link.when_room(None)

    # --- life and death

    def run(self, call: Callable[[], None]) -> None:
        """Something happens in this process, now or when it is awake again."""
        if not self.alive:
            return
        if not self.awake:
            self._inbox.append(call)
            return
        before, Process.running = Process.running, self
        self.lan.touched.add(self.name)
        try:
            call()
        except Killed:
            self.kill()
        finally:
            Process.running = before

    def act(self) -> None:
        """Before each thing that others can see: perhaps it is the last moment."""
        if self.doomed is None:
            return
        self.doomed -= 1
        if self.doomed < 0:
            raise Killed

    def kill(self) -> None:
        """kill -9."""
        if self.alive:
            self.end()
            self._died(self)

    def end(self) -> None:
        """It ends by itself; what it had sent still goes, or not."""
        self.alive = False
        self._inbox.clear()
        self._timers.clear()
        self.machine.processes.remove(self)
        self.lan.died(self)

    def stop(self, duration_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while: time goes on without it."""
        self.halts += 1
        self.lan.after(HALF_OPEN_S, self._peers_hang_up)
        self.lan.after(duration_s, self.go_on)

    def go_on(self) -> None:
        """It runs again: what waits for it comes in any order with what is due."""
        self.halts -= 1
        if not self.awake:
            return
        inbox, self._inbox = self._inbox, []
        if self.lan.rng.random() < 0.5:
            self._run_timers()
        for call in inbox:
            self.run(call)
        self._set_alarm()
        self.lan.retry()

    def _peers_hang_up(self) -> None:
        if self.awake or not self.alive:
            return
        for link in list(self.lan.links):
            server = self.lan.servers.get(link.endpoint)
            if link.client is self or (server is not None and server.process is self):
                link.break_()

    # --- timers

    def _set_alarm(self) -> None:
        if not self._timers or not self.awake:
            return
        when = self._timers[0][0] - self.machine.monotonic
        if when < self._alarm - 1e-9 or self._alarm < self.lan.now:
            self._alarm = max(when, self.lan.now)
            self.lan.at(self._alarm, self._ring)

    def _ring(self) -> None:
        if self.lan.now < self._alarm - 1e-9:
            return  # an earlier alarm took its place
        self._alarm = float("inf")
        if self.awake:
            self._run_timers()
            self._set_alarm()

    def _run_timers(self) -> None:
        now = self.now()
        while self.awake and self._timers and self._timers[0][0] <= now + 1e-9:
            due, _, timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self.run(timer.handler)
            heapq.heappush(self._timers, (max(due + timer.interval_s, now + 1e-6), next(self._order), timer))


class FakeSocket:
    """A dialling socket. Stands where net/sockets.py's Socket does."""

    def __init__(self, process: Process, endpoint: str, user: str, limit: int) -> None:
        self._process = process
        self._received: list[Frames] = []
        self.link: Link = process.lan.dial(process, endpoint, user, limit, self._arrived)

    def send(self, frames: Any, peer: bytes = b"") -> bool:
        """Queue one message; False if the queue is full."""
        self._process.act()
        return self.link.up([bytes(frame) for frame in frames])

    def receive(self) -> FakeReceived | None:
        """The next message, or None."""
        return FakeReceived(self._received.pop(0)) if self._received else None

    def close(self) -> None:
        """Close it; what it had sent still goes."""
        if not self.link.closed:
            self.link.close(lost=False)

    def _arrived(self, frames: Frames) -> None:
        self._received.append(frames)
        handler = self._process._readable.get(self)
        if handler is not None:
            handler()


@dataclass(frozen=True)
class FakeReceived:
    """As net/sockets.py's Received, as far as a client looks."""

    frames: Frames


class FakeNetwork:
    """Makes a process's dialling sockets. Stands where net/sockets.py's Network does.

    Args:
        user: the key that all of them have.
    """

    def __init__(self, process: Process, user: str) -> None:
        self._process, self._user = process, user

    def client(self, kind: str, endpoint: str, keys: object, server_key: object, limits: Any) -> FakeSocket:
        """A dialling socket."""
        # A push socket's queue and its peer's together: few, so that a shard that hangs is felt.
        limit = self._process.lan.push_limit if kind == "push" else limits.send_messages
        return FakeSocket(self._process, endpoint, self._user, limit)
