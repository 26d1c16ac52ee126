"""One seat under a member, and whoever sits in it: what players.py knows of a player."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2prl.core import messages as m
from p2prl.core.credit import Credit
from p2prl.nodes.child import Child
from p2prl.words import many

#: Why a player that is ready does not play yet.
WAITS = "waiting for the first weights"

#: Who has environments of which one step of all takes longer is told what that means.
SLOW_TICK_S = 5.0

#: What a player is at while it starts.
LOADING = "loading the environment and the agent"


@dataclass
class Slot:
    """One seat and whoever sits in it."""

    seat: m.Seat
    #: Of its player: environments, and ticks of a bundle.
    envs: int = 1
    ticks: int = 1
    child: Child | None = None
    route: bytes = b""
    ready: bool = False
    starts: int = 0
    started_at: float = 0.0
    due: float = 0.0
    #: Of its bundles, and so far of the one that it plays, if that takes long.
    steps: int = 0
    under_way: int = 0
    version: int = -1
    serial: int = 0
    credit: Credit = field(default_factory=Credit)
    reason: str = LOADING
    #: The version of the keyframe that its player has; -1 for none.
    keyframe: int = -1
    #: How often its player ended by itself since it last was sound.
    deaths: int = 0
    #: The evaluation job that it has; None for none.
    job: int | None = None
    #: When this player said that it begins to play; None before.
    begun_at: float | None = None
    #: When this player's first step was told; None before.
    played_from: float | None = None
    #: Failures of environments: of all players that sat here, and of this one.
    failures: int = 0
    own_failures: int = 0
    #: The player's own word on why it ends, and the last line that it or its environment printed.
    failed: str = ""
    printed: str = ""

    def moved(self, now: float) -> None:
        """Its player made steps."""
        self.reason = ""
        if self.played_from is None:
            self.played_from = now

    def began(self, now: float) -> None:
        """Its player has weights, and is in its first step."""
        if self.begun_at is None:
            self.begun_at = now
            if self.reason == WAITS:
                self.reason = ""

    def first_step_s(self, now: float) -> float:
        """How long its player's first step has taken so far; 0 before and after, and if something worse is told."""
        if self.begun_at is None or self.played_from is not None or self.reason:
            return 0.0
        return now - self.begun_at

    def loading_s(self, now: float) -> float:
        """How long the seat's first player has loaded so far; 0 later, and if something worse is told."""
        loads = self.starts == 1 and not self.ready and self.reason == LOADING
        return now - self.started_at if loads else 0.0

    def report(self, now: float) -> m.PlayerReport:
        """For the heartbeat."""
        steps = self.steps + self.under_way
        first_s = self.first_step_s(now)
        return m.PlayerReport(
            rank=self.seat.rank,
            state="working" if self.ready and steps else "starting",
            steps=steps,
            weights_version=self.version,
            restarts=max(0, self.starts - 1),
            reason=f"in its first step for {first_s:.0f} s" if first_s >= 1.0 else self.reason,
            failures=self.failures,
            under_way=self.under_way,
            first_step_s=first_s,
            loading_s=self.loading_s(now),
        )


def slow_advice(tick_s: float, envs: int, ticks: int) -> str:
    """What somebody can do whose environments are so slow that little comes of them."""
    took = f"a step of {many(envs, 'environment')} took {tick_s:.0f} s"
    bundle = f"a bundle of {many(ticks, 'step')} each will take about {many(round(tick_s * ticks / 60) or 1, 'minute')}"
    fewer = "fewer environments (--envs 1) or " if envs > 1 else ""
    return f"{took}, so {bundle}; what helps: {fewer}shorter sessions (at the host: --set replay.ticks=N)"
