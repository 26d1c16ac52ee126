"""An in-memory LAN on a fake clock: seeded loss, duplication, delay (so reordering), partitions."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

Deliver = Callable[[str, object], None]


@dataclass
class Weather:
    """How bad the network is; probabilities per message, delays in seconds."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_s: float = 0.01
    jitter_s: float = 0.05


@dataclass
class FakeLan:
    """Nodes are names; each has a handler (sender, message). Time only moves in `run_until`."""

    rng: random.Random
    weather: Weather
    now: float = 0.0
    handlers: dict[str, Deliver] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    after_event: Callable[[], None] = lambda: None
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    def send(self, sender: str, receiver: str, message: object) -> None:
        """Maybe deliver `message`, maybe twice, some time from now."""
        copies = 2 if self.rng.random() < self.weather.duplication else 1
        for _ in range(copies):
            if self.rng.random() < self.weather.loss:
                continue
            delay_s = self.weather.delay_s + self.rng.random() * self.weather.jitter_s
            self.after(delay_s, lambda: self._deliver(sender, receiver, message))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call something later."""
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), call))

    def every(self, interval_s: float, call: Callable[[], None]) -> None:
        """Call something again and again."""

        def again() -> None:
            call()
            self.after(interval_s, again)

        self.after(self.rng.random() * interval_s, again)

    def run_until(self, end: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Let time pass; `after_event` runs after each event."""
        while self._queue and self._queue[0][0] <= end and not enough():
            self.now, _, call = heapq.heappop(self._queue)
            call()
            self.after_event()

    def _deliver(self, sender: str, receiver: str, message: object) -> None:
        # Looked at when it arrives: a message under way dies with the link, or with a process that crashed.
        if sender in self.cut or receiver in self.cut or receiver not in self.handlers:
            return
        self.handlers[receiver](sender, message)
