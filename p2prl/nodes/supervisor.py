"""Starts a host's processes, starts them again when they die, and ends them in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
#: One whose agent raised so often in a row, without an update in between, is given up too.
_MAX_FRUITLESS = 5
#: A start that takes this long is said, and again each time that it has taken twice as long.
_SLOW_S = 10.0
#: Longer than any sound start: even a large log is read, and a large network made, by then.
_STARTING_S = 600.0
#: What says that a process came up: a member has no ready of its own, it is welcomed.
_UP = ("ready", "joined")


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
        descriptors: open files that it gets at each start.
        slow_from_s: a start that takes this long is said.
        up: this incarnation came up.
        was_ready: it was ready at least once, in any incarnation.
        fruitless: how often in a row its agent raised before there was an update.
        last_words: why it is dying, by its own word or by ours.
    """

    name: str
    role: str
    make_config: Callable[[], msgspec.Struct]
    env: Mapping[str, str] = field(default_factory=dict)
    descriptors: Sequence[int] = ()
    child: Child | None = None
    starts: int = 0
    started_at: float = 0.0
    due: float = 0.0
    failures: int = 0
    fruitless: int = 0
    slow_from_s: float = _SLOW_S
    up: bool = False
    was_ready: bool = False
    last_words: str = ""
    last_code: int = 1
    hopeless: bool = False
    port_taken: bool = False


class Supervisor:
    """Watches over charges on a loop.

    Args:
        say: gets (level, source, text).
        ready: called each time a process came up, with its event.
        given_up: called once if a process cannot be kept alive.
        port_taken: called with the cause when a process died because somebody else listens on its port; True if
            that is dealt with, and it is not to be started again on the same one.
        asked_to_end: True once a signal came: what it took of our processes is not started again.
        starting_s: a process that has not come up by then hangs, and is ended by force.
    """

    def __init__(
        self,
        loop: Loop,
        say: Callable[[str, str, str], None],
        ready: Callable[[Charge, ChildEvent], None],
        given_up: Callable[[GivenUp], None],
        port_taken: Callable[[str], bool],
        asked_to_end: Callable[[], bool],
        starting_s: float = _STARTING_S,
    ) -> None:
        self._loop = loop
        self._say, self._ready, self._given_up, self._port_taken = say, ready, given_up, port_taken
        self.charges: dict[str, Charge] = {}
        self._asked_to_end = asked_to_end
        self._starting_s = starting_s
        self._ending = False
        loop.every(_WATCH_S, self.watch)

    # --- orders

    def start(self, charge: Charge) -> None:
        """Start a process and keep it alive from now on."""
        self.charges[charge.name] = charge
        self._spawn(charge)

    def restart(self, name: str, why: str) -> None:
        """End a process by force; it is started again, as when it had died by itself."""
        charge = self.charges[name]
        charge.last_words = why
        if charge.child is not None:
            charge.child.kill()

    def begin_again(self) -> None:
        """End all by force, and start all anew with new configs."""
        for charge in self.charges.values():
            if charge.child is not None:
                charge.child.kill()
            charge.child, charge.up, charge.was_ready, charge.failures, charge.starts = (
                None,
                False,
                False,
                0,
                0,
            )
            charge.last_words, charge.port_taken, charge.due = "", False, self._loop.now()

    def keep_no_longer(self) -> None:
        """From now on nothing is started again, and an end is nothing to be told."""
        self._ending = True

    def end(self, names: list[str]) -> None:
        """Ask these processes to end; `ended` says when they have."""
        for name in names:
            charge = self.charges.get(name)
            if charge is not None and charge.child is not None:
                charge.child.ask_to_end()

    def ended(self, names: list[str]) -> bool:
        """True if none of these is alive."""
        return not self._alive(names)

    def kill_unborn(self, names: list[str]) -> None:
        """End those by force that did not come up yet: there is nothing in them to be saved."""
        for charge in self._alive(names):
            if not charge.up and charge.child is not None:
                charge.child.kill()

    def close(self, names: list[str], timeout_s: float) -> None:
        """End what is left of these, by force after `timeout_s`."""
        charges = self._alive(names)
        forced = end_all([charge.child for charge in charges if charge.child is not None], timeout_s)
        for charge in charges:
            if charge.child in forced and charge.up:
                self._say("warning", charge.name, "did not end in time and was ended by force")
        self.watch()

    # --- watching

    def watch(self) -> None:
        """Pass on what children said, and start again what died."""
        for charge in self.charges.values():
            if charge.child is None:
                if not self._ending and self._loop.now() >= charge.due:
                    self._spawn(charge)
                continue
            for news in charge.child.news():
                self._take(charge, news)
            if charge.child is not None and not charge.up and not self._ending:
                self._watch_start(charge)

    def _watch_start(self, charge: Charge) -> None:
        took_s = self._loop.now() - charge.started_at
        if took_s >= self._starting_s:
            self.restart(charge.name, f"it did not come up in {took_s:.0f} s, so it was killed")
        elif took_s >= charge.slow_from_s:
            charge.slow_from_s *= 2
            self._say("warning", charge.name, f"is still starting after {took_s:.0f} s")

    def _alive(self, names: list[str]) -> list[Charge]:
        charges = [charge for name in names if (charge := self.charges.get(name)) is not None]
        return [charge for charge in charges if charge.child is not None and charge.child.alive]

    def _spawn(self, charge: Charge) -> None:
        charge.starts += 1
        charge.started_at = self._loop.now()
        charge.slow_from_s = _SLOW_S
        charge.up = False
        charge.child = Child(charge.role, charge.make_config(), charge.env, charge.descriptors)

    def _take(self, charge: Charge, news: LogLine | ChildEvent | Exited) -> None:
        if isinstance(news, LogLine):
            self._say(news.level.lower(), charge.name, news.text)
        elif isinstance(news, Exited):
            self._died(charge, news)
        elif news.kind in _UP:
            self._came_up(charge, news)
        elif news.kind == "failed":
            charge.last_words, charge.last_code = news.text, news.exit_code
            charge.hopeless = bool(news.data.get("hopeless"))
            charge.fruitless = charge.fruitless + 1 if news.data.get("fruitless") else 0
            if charge.fruitless >= _MAX_FRUITLESS:
                charge.hopeless = True
                charge.last_words += f"; so it went {charge.fruitless} times in a row, without an update"
            charge.port_taken = bool(news.data.get("port_taken"))

    def _came_up(self, charge: Charge, event: ChildEvent) -> None:
        if event.kind == "ready":
            charge.was_ready = True
        if not charge.up:  # a member is welcomed again by each new broker
            charge.up = True
            self._ready(charge, event)

    def _died(self, charge: Charge, exited: Exited) -> None:
        assert charge.child is not None
        charge.child.wait(0.0)
        charge.child = None
        if self._ending or self._asked_to_end():
            return
        if charge.port_taken and self._port_taken(charge.last_words):
            return
        why = charge.last_words or str(exited)
        if self._loop.now() - charge.started_at >= _SOUND_S:
            charge.failures = 0
        charge.failures += 1
        # What was up and was killed is sound; what says itself why it cannot go on may not be.
        sound = charge.was_ready or (charge.up and not charge.last_words)
        charge.up = False
        if charge.hopeless or (not sound and charge.failures >= _MAX_STILLBIRTHS):
            text = why if charge.last_words else f"the {charge.name} does not start: {why}"
            self._given_up(GivenUp(text, charge.last_code))
            return
        delay_s = min(_BACKOFF_S * 2 ** (charge.failures - 1), _BACKOFF_MAX_S)
        charge.due = self._loop.now() + delay_s
        self._say("warning", charge.name, f"died ({why}); starting it again in {delay_s:.1f} s")
        charge.last_words, charge.last_code, charge.port_taken = "", 1, False
