"""When training stands still, and when that is said. Alive without progress is `stalled`, and is shown."""

from __future__ import annotations

from typing import Literal

#: An update this long ago is still "now".
_TRAINING_S = 1.0
#: Without an update for so long, training is stalled: sooner if no sessions arrive either, but not before a member that
#: stands still is known to (membership.py), since that is then the cause.
NO_UPDATE_S, NO_SESSION_S = 30.0, 12.0
#: What comes and goes is not said more often than this.
_SAY_AGAIN_S = 60.0

State = Literal["waiting", "training", "stalled"]
#: States that somebody should hear of.
LOUD = ("stalled", "failed")


class Standstill:
    """The trainer's own view: it knows of updates and of what arrived at the shards.

    Args:
        now: when it became ready; as if the last update and the last session were of then.
    """

    def __init__(self, now: float) -> None:
        self._updated = self._arrived = now
        self._training = False
        #: Ticks inserted, as last heard.
        self._inserted = 0

    def updated(self, now: float) -> None:
        """There was an update, even if it changed nothing."""
        self._updated, self._training = now, True

    def inserted(self, total: int, now: float) -> None:
        """So many ticks were inserted since the run began, as far as is known."""
        if total != self._inserted:
            self._inserted, self._arrived = total, now

    def look(self, why: str, now: float, short: bool = False) -> tuple[State, str]:
        """The state now and, unless it is `training`, its cause.

        Args:
            why: what is waited for.
            short: that is sessions. As long as they come, however slowly they fill what an update needs, nothing stands
                still.
        """
        idle_s, dry_s = now - self._updated, now - self._arrived
        if self._training and idle_s < _TRAINING_S:
            return "training", ""
        cause = f"{why}; no session for {dry_s:.0f} s" if dry_s >= NO_SESSION_S else why
        if (idle_s >= NO_UPDATE_S and not short) or min(idle_s, dry_s) >= NO_SESSION_S:
            return "stalled", f"no update for {idle_s:.0f} s: {cause}"
        return "waiting", cause


class Alarm:
    """Says a loud state once, and once that it is over."""

    def __init__(self) -> None:
        self._said_at = -1e9
        self._open = False

    def look(self, state: str, reason: str, now: float) -> str:
        """A line for the log when it is time for one, else an empty string."""
        if state in LOUD:
            if self._open or now - self._said_at < _SAY_AGAIN_S:
                return ""
            self._open, self._said_at = True, now
            how = "has failed" if state == "failed" else f"is {state}"
            return f"the trainer {how}: {reason}"
        if self._open and state == "training":
            self._open = False
            return "the trainer goes on"
        return ""
