"""One loop per process: a poller, timers, and work to do when nothing else is waiting."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

import zmq

from p2prl.net.sockets import Socket

#: `stop` may come from a signal handler or from the thread that watches the parent: poll never waits longer than this.
_MAX_WAIT_S = 0.2
#: Plain numbers: an enum's `&` in each turn costs as much as the poll.
_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)


class Timer:
    """A timer that repeats, or goes off once; `cancel` ends it."""

    def __init__(self, interval_s: float, handler: Callable[[], None], once: bool = False) -> None:
        self.interval_s = interval_s
        self.handler = handler
        self.once = once
        self.cancelled = False

    def cancel(self) -> None:
        """No more calls after this."""
        self.cancelled = True


class Loop:
    """Turns readiness and time into calls.

    Handlers run one at a time on the caller's thread and must not block. `clock` gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        #: Monotonic seconds.
        self.now = clock
        self._poller = zmq.Poller()
        self._handlers: dict[object, Callable[[], None]] = {}
        self._writers: dict[object, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._idle: Callable[[], bool] | None = None
        self._result: int | None = None

    def on_readable(self, socket: Socket, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `socket` has something; it should drain the socket, within reason."""
        self._handlers[socket.raw] = handler
        self._watch(socket.raw)

    def on_writable(self, socket: Socket, handler: Callable[[], None]) -> None:
        """Call `handler` once, when `socket` takes a message."""
        self._writers[socket.raw] = handler
        self._watch(socket.raw)

    def forget(self, socket: Socket) -> None:
        """Stop watching `socket` (before closing it)."""
        self._handlers.pop(socket.raw, None)
        self._writers.pop(socket.raw, None)
        self._watch(socket.raw)

    def _watch(self, raw: zmq.Socket[bytes]) -> None:
        flags = (_IN if raw in self._handlers else 0) | (_OUT if raw in self._writers else 0)
        if flags:
            self._poller.register(raw, flags)
        elif raw in self._poller:
            self._poller.unregister(raw)

    def every(self, interval_s: float, handler: Callable[[], None], first_s: float | None = None) -> Timer:
        """Call `handler` each `interval_s` seconds, first after `first_s` (default: one interval)."""
        return self._set(Timer(interval_s, handler), interval_s if first_s is None else first_s)

    def after(self, delay_s: float, handler: Callable[[], None]) -> Timer:
        """Call `handler` once, in `delay_s` seconds."""
        return self._set(Timer(delay_s, handler, once=True), delay_s)

    def _set(self, timer: Timer, delay_s: float) -> Timer:
        heapq.heappush(self._timers, (self.now() + delay_s, next(self._order), timer))
        return timer

    def rest(self, socket: Socket, rest_s: float) -> None:
        """Do not look at `socket` for a moment: what comes meanwhile is there all at once then."""
        handler = self._handlers[socket.raw]
        self.forget(socket)

        def look() -> None:
            if not socket.closed:
                self.on_readable(socket, handler)

        self.after(rest_s, look)

    def when_idle(self, work: Callable[[], bool]) -> None:
        """Call `work` between polls. While it returns True the loop does not wait in the poll."""
        self._idle = work

    def stop(self, result: int = 0) -> None:
        """Make `run` return `result` after the current handler; the first call wins."""
        if self._result is None:
            self._result = result

    def stopping(self) -> bool:
        """True once `stop` was called."""
        return self._result is not None

    def run(self) -> int:
        """Loop until `stop`; returns its result."""
        busy = False
        while not self.stopping():
            self._turn(busy)
            busy = self._idle is not None and not self.stopping() and self._idle()
        return self._result or 0

    def run_on(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """After `stop`: go on until `condition` is true, for last words. False if it was not within `timeout_s`."""
        result, self._result = self._result, None
        deadline = self.now() + timeout_s
        while not condition() and self.now() < deadline:
            self._turn(False)
        self._result = result if result is not None else self._result
        return condition()

    def _turn(self, busy: bool) -> None:
        """Wait for sockets, then call what is ready and due."""
        for raw, events in self._poller.poll(0 if busy else self._wait_ms()):
            handler = self._handlers.get(raw) if events & _IN else None
            if handler is not None:
                handler()
            if events & _OUT and raw in self._writers:
                write = self._writers.pop(raw)
                self._watch(raw)
                write()
            if self.stopping():
                break
        self._run_timers()

    def _wait_ms(self) -> int:
        wait_s = _MAX_WAIT_S
        if self._timers:
            wait_s = min(wait_s, max(0.0, self._timers[0][0] - self.now()))
        # Rounded up, so that a timer due in 0.4 ms does not make the poll spin.
        return int(wait_s * 1000) + 1

    def _run_timers(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now and not self.stopping():
            due, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.cancelled = timer.once
                timer.handler()
                self._ring_again(timer, due, now)

    def _ring_again(self, timer: Timer, due: float, now: float) -> None:
        if not timer.cancelled:
            # A loop that was suspended skips the calls it missed instead of making them all at once.
            heapq.heappush(self._timers, (max(due + timer.interval_s, now), next(self._order), timer))
