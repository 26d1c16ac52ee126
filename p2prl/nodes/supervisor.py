"""Starts a host's processes, starts them again when they die, and ends them in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from p2prl.errors import P2prlError
from p2prl.net.loop import Loop
from p2prl.nodes.child import Child, Exited, LogLine, end_all
from p2prl.nodes.process import ChildEvent

_WATCH_S = 0.05
_BACKOFF_S, _BACKOFF_MAX_S = 0.1, 10.0
#: A process that lived this long is forgiven its earlier deaths.
_SOUND_S = 30.0
#: A process that never became ready is given up after so many starts.
_MAX_STILLBIRTHS = 3


class GivenUp(P2prlError):
    """A process of the host does not come up; `exit_code` is its own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class Charge:
    """One process that is kept alive.

    Attributes:
        name: for people.
        make_config: called at each start.
        was_ready: it came up at least once, in any incarnation.
    """

    name: str
    role: str
    make_config: Callable[[], msgspec.Struct]
    env: Mapping[str, str] = field(default_factory=dict)
    child: Child | None = None
    starts: int = 0
    started_at: float = 0.0
    due: float = 0.0
    failures: int = 0
    was_ready: bool = False
    last_words: str = ""
    last_code: int = 1
    hopeless: bool = False


class Supervisor:
    """Watches over charges on a loop.

    Args:
        say: gets (level, source, text).
        ready: called each time a process became ready, with its event.
        given_up: called once if a process cannot be kept alive.
    """

    def __init__(
        self,
        loop: Loop,
        say: Callable[[str, str, str], None],
        ready: Callable[[Charge, ChildEvent], None],
        given_up: Callable[[GivenUp], None],
    ) -> None:
        self._loop = loop
        self._say, self._ready, self._given_up = say, ready, given_up
        self.charges: dict[str, Charge] = {}
        self._stopping: set[str] = set()
        loop.every(_WATCH_S, self.watch)

    def start(self, charge: Charge) -> None:
        """Start a process and keep it alive from now on."""
        self.charges[charge.name] = charge
        self._spawn(charge)

    def pids(self) -> dict[str, int]:
        """The live processes' ids, by name."""
        return {c.name: c.child.pid for c in self.charges.values() if c.child is not None and c.child.alive}

    def end(self, names: list[str]) -> None:
        """Ask these processes to end, and do not start them again; `ended` says when they have."""
        for name in names:
            charge = self.charges.get(name)
            if charge is not None:
                self._stopping.add(name)
                if charge.child is not None:
                    charge.child.ask_to_end()

    def ended(self, names: list[str]) -> bool:
        """True if none of these is alive."""
        return not any(
            (charge := self.charges.get(name)) and charge.child and charge.child.alive for name in names
        )

    def close(self, timeout_s: float) -> None:
        """End everything that is left, by force after `timeout_s`."""
        self._stopping |= self.charges.keys()
        forced = end_all([c.child for c in self.charges.values() if c.child is not None], timeout_s)
        for charge in self.charges.values():
            if charge.child in forced:
                self._say("warning", charge.name, "did not end in time and was ended by force")
        self.watch()

    def watch(self) -> None:
        """Pass on what children said, and start again what died."""
        for charge in self.charges.values():
            if charge.child is None:
                if charge.name not in self._stopping and self._loop.now() >= charge.due:
                    self._spawn(charge)
                continue
            for news in charge.child.news():
                self._take(charge, news)

    def _spawn(self, charge: Charge) -> None:
        charge.starts += 1
        charge.started_at = self._loop.now()
        charge.child = Child(charge.role, charge.make_config(), charge.env)

    def _take(self, charge: Charge, news: LogLine | ChildEvent | Exited) -> None:
        if isinstance(news, LogLine):
            self._say(news.level.lower(), charge.name, news.text)
        elif isinstance(news, Exited):
            self._died(charge, news)
        elif news.kind == "ready":
            charge.was_ready = True
            self._ready(charge, news)
        elif news.kind == "failed":
            charge.last_words, charge.last_code = news.text, news.exit_code
            charge.hopeless = bool(news.data.get("hopeless"))

    def _died(self, charge: Charge, exited: Exited) -> None:
        assert charge.child is not None
        charge.child.wait(0.0)
        charge.child = None
        if charge.name in self._stopping:
            return
        why = charge.last_words or str(exited)
        if self._loop.now() - charge.started_at >= _SOUND_S:
            charge.failures = 0
        charge.failures += 1
        if charge.hopeless or (not charge.was_ready and charge.failures >= _MAX_STILLBIRTHS):
            self._stopping.add(charge.name)
            text = why if charge.last_words else f"the {charge.name} does not start: {why}"
            self._given_up(GivenUp(text, charge.last_code))
            return
        delay_s = min(_BACKOFF_S * 2 ** (charge.failures - 1), _BACKOFF_MAX_S)
        charge.due = self._loop.now() + delay_s
        self._say("warning", charge.name, f"died ({why}); starting it again in {delay_s:.1f} s")
        charge.last_words, charge.last_code = "", 1
