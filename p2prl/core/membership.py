"""Who takes part, and how each of them fares. The transition table is data; docs/protocol.md draws it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from p2prl.core.ladder import levels_of
from p2prl.core.messages import Seat

State = Literal["starting", "working", "stalled", "paused", "gone"]
Event = Literal["hello", "begin", "progress", "no_progress", "pause", "silent", "goodbye"]

#: (state, event) -> state. A pair that is not here changes nothing.
TRANSITIONS: dict[tuple[State, Event], State] = {
    ("starting", "progress"): "working",
    ("starting", "no_progress"): "stalled",
    ("starting", "pause"): "paused",
    ("starting", "silent"): "gone",
    ("starting", "goodbye"): "gone",
    ("working", "no_progress"): "stalled",
    ("working", "pause"): "paused",
    ("working", "silent"): "gone",
    ("working", "goodbye"): "gone",
    ("stalled", "begin"): "starting",
    ("stalled", "progress"): "working",
    ("stalled", "pause"): "paused",
    ("stalled", "silent"): "gone",
    ("stalled", "goodbye"): "gone",
    ("paused", "progress"): "working",
    ("paused", "no_progress"): "stalled",
    ("paused", "silent"): "gone",
    ("paused", "goodbye"): "gone",
    ("gone", "hello"): "starting",
}

#: Loading, and then a first step, may each take this long: nothing is known of the machine and the environment before.
FIRST_STEP_S = 120.0
#: Without a step for so long a member is stalled, unless its steps are known to take longer.
STALL_AFTER_S = 10.0
#: A member is stalled after so many times the longest of its last waits for progress; so many of them are remembered.
_PACE, _WAITS = 2.0, 32


@dataclass
class Member:
    """One node, as the broker knows it from its own words.

    Attributes:
        key: its CURVE public key; its identity.
        seats: the players' ranks and seeds; empty once it is gone.
        heard: when it last said anything.
        progressed: when its steps last grew, a player began or had loaded, or it changed to a state other than stalled.
        first_step: one of its players is in its first step.
        loading: one of its players loads for the first time.
        waits: how long each of its last steps was waited for while it played.
        reason: why it is not working, for people.
        slots: environments of each of its players.
        levels: its least and its most exploring slot's places on the exploration ladder.
        moved: it was given new seats, and was not seen in them yet.
    """

    key: str
    name: str
    boot_id: str
    players: int
    heard: float
    progressed: float
    state: State = "starting"
    reason: str = ""
    steps: int = 0
    seats: list[Seat] = field(default_factory=list)
    slots: int = 1
    levels: tuple[float, float] = (0.0, 0.0)
    moved: bool = False
    first_step: bool = False
    loading: bool = False
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=_WAITS))

    @property
    def leads(self) -> bool:
        """One of its slots explores least."""
        return bool(self.seats) and self.levels[0] == 0.0

    def advanced(self, now: float) -> bool:
        """It made steps; True if its state changed. How long they took says when it is stalled, if it played on."""
        if self.state != "paused" and (self.steps or self.first_step):
            self.waits.append(now - self.progressed)
        self.progressed = now
        return self.apply("progress", now)

    def patience_s(self, least_s: float) -> float:
        """Without a step for so long, it is stalled: a slow environment is not."""
        least_s = max(least_s, FIRST_STEP_S) if self.first_step or self.loading else least_s
        return max(least_s, _PACE * max(self.waits, default=0.0))

    def apply(self, event: Event, now: float, reason: str = "") -> bool:
        """Move along the table; True if the state changed."""
        after = TRANSITIONS.get((self.state, event))
        if after is None or after == self.state:
            return False
        self.state, self.reason = after, reason
        if event != "no_progress":  # a wait for progress goes on
            self.progressed = now
        return True


class Roster:
    """All members, their states and their seats.

    Invariant: no two members that are not gone hold the same rank; no seed is ever given twice.

    Args:
        silent_after_s: a member not heard for this long is gone.
        stall_after_s: a member without a step for this long is stalled; one whose steps take longer, later.
        next_seed: the first seed to give; a restarted broker goes on from where it was.
        rungs: of the run's exploration ladder.
        reseat_after_s: nobody may have been without the ladder's lowest rung for longer, see `reseated`.
    """

    def __init__(
        self,
        silent_after_s: float = 15.0,
        stall_after_s: float = STALL_AFTER_S,
        next_seed: int = 0,
        rungs: int = 1,
        reseat_after_s: float = 2.0,
    ) -> None:
        self.silent_after_s = silent_after_s
        self.stall_after_s = stall_after_s
        self.next_seed = next_seed
        self.members: dict[str, Member] = {}
        self._rungs = rungs
        self._reseat_after_s = reseat_after_s
        #: Since when no live member has a slot on the lowest rung.
        self._unled_since: float | None = None

    def hello(
        self,
        key: str,
        name: str,
        boot_id: str,
        players: int,
        held: Sequence[Seat],
        now: float,
        slots: int = 1,
    ) -> Member:
        """A member said Hello: a newcomer, one that restarted (new boot id), or one that reconnects.

        Args:
            held: the seats that it already has, from before this broker started.
            slots: environments of each of its players.
        """
        old = self.members.get(key)
        if old is not None and old.boot_id == boot_id and len(old.seats) == players:
            old.heard, old.name = now, name
            if old.apply("hello", now):
                old.reason = ""
            return old
        if old is not None:
            old.seats = []
        member = Member(key, name, boot_id, players, heard=now, progressed=now, slots=slots)
        self.members[key] = member
        self._seat(member, held)
        return member

    def heartbeat(
        self,
        key: str,
        boot_id: str,
        steps: int,
        paused: str,
        now: float,
        first_step: bool = False,
        loading: bool = False,
    ) -> Member | None:
        """A heartbeat. None: not known, it must say Hello.

        Args:
            steps: so far, also of bundles under way.
            paused: the reason if the member paused itself.
            first_step: one of its players is in its first step.
            loading: one of its players loads for the first time.
        """
        member = self.members.get(key)
        if member is None or member.boot_id != boot_id or member.state == "gone":
            return None
        member.heard = now
        grew, begins = steps > member.steps, first_step and not member.first_step
        if paused:
            member.apply("pause", now, paused)
            member.reason = paused
        elif grew:
            member.advanced(now)
        elif begins:
            member.progressed = now
            member.apply("begin", now)
            member.reason = "" if member.state == "starting" else member.reason
        elif member.loading and not loading:
            member.progressed = now  # from here on it waits for weights, and for its first step
        member.steps, member.first_step, member.loading = steps, first_step, loading
        return member

    def played(self, key: str, now: float) -> None:
        """A shard stored something of this member: it works, whatever its last heartbeat said."""
        member = self.members.get(key)
        if member is None or member.state == "gone":
            return
        if member.advanced(now):
            member.reason = ""

    def goodbye(self, key: str, reason: str, now: float) -> Member | None:
        """A member leaves on purpose."""
        return self._leave(key, "goodbye", reason or "it gave no reason", now)

    def ticked(self, now: float) -> list[Member]:
        """Time passed. Returns the members whose state changed."""
        changed = []
        for member in self.members.values():
            if member.state == "gone":
                continue
            silent_s = now - member.heard
            if silent_s >= self.silent_after_s:
                self._leave(member.key, "silent", f"not heard for {silent_s:.0f} s", now)
                changed.append(member)
                continue
            waited_s = now - member.progressed
            if waited_s >= member.patience_s(self.stall_after_s) and member.state != "paused":
                text = f"no step for {waited_s:.0f} s"
                if member.apply("no_progress", now, text):
                    changed.append(member)
        return changed

    def reseated(self, now: float) -> Member | None:
        """Time passed. The member that was given new seats, if it was needed.

        Only slots on the ladder's lowest rung count for the mean return. When those who had one are gone, the live
        member with the highest rank gets the lowest free ranks (and new seeds): rank 0 is free then, or there was no
        need.
        """
        seated = [member for member in self.live() if member.seats]
        if not seated or any(member.leads for member in seated):
            self._unled_since = None
            return None
        if self._unled_since is None:
            self._unled_since = now
        if now - self._unled_since <= self._reseat_after_s:
            return None
        self._unled_since = None
        member = max(seated, key=lambda one: max(seat.rank for seat in one.seats))
        member.seats = []
        self._seat(member, ())
        member.moved = True
        return member

    def forget(self, key: str) -> None:
        """Keep nothing of a member that is gone."""
        member = self.members.get(key)
        if member is not None and member.state == "gone":
            del self.members[key]

    def live(self) -> list[Member]:
        """Members that are not gone."""
        return [member for member in self.members.values() if member.state != "gone"]

    def _leave(self, key: str, event: Event, reason: str, now: float) -> Member | None:
        member = self.members.get(key)
        if member is None or not member.apply(event, now, reason):
            return None
        member.seats = []
        return member

    def _seat(self, member: Member, held: Sequence[Seat]) -> None:
        member.seats = self._seats(member.players, held)
        found = [levels_of(seat.rank, member.slots, self._rungs) for seat in member.seats]
        member.levels = (
            min((low for low, _ in found), default=0.0),
            max((high for _, high in found), default=0.0),
        )

    def _seats(self, players: int, held: Sequence[Seat]) -> list[Seat]:
        taken = {seat.rank for member in self.members.values() for seat in member.seats}
        if len(held) == players and not taken.intersection(seat.rank for seat in held):
            self.next_seed = max([self.next_seed, *(seat.seed + 1 for seat in held)])
            return list(held)
        seats: list[Seat] = []
        rank = 0
        while len(seats) < players:
            if rank not in taken:
                seats.append(Seat(rank=rank, seed=self.next_seed))
                self.next_seed += 1
            rank += 1
        return seats
