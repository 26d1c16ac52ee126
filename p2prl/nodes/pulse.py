"""Whether the broker still answers, and what is to be done if it does not. Time is an argument."""

from __future__ import annotations

from typing import Literal

#: It is asked each half second: a silence this long is worth a word, and another one after each so many seconds.
_FIRST_WORD_S, _NEXT_WORD_S = 5.0, 10.0
#: A broker that came up and is silent for so long hangs; one that is still starting may only be on a slow machine.
_HUNG_S, _STARTING_S = 15.0, 60.0
#: We look each few hundredths of a second. If it was longer, it was we who stood still, and nothing was asked.
_ASLEEP_S = 2.0

Finding = Literal["well", "silent", "hung"]


class Pulse:
    """Fed with each answer and looked at often."""

    def __init__(self, now: float) -> None:
        self._heard_at = now
        self._looked_at = now
        self._said_at: float | None = None

    def heard(self, now: float) -> None:
        """The broker answered, or was started anew."""
        self._heard_at = now
        self._said_at = None

    def silent_s(self, now: float) -> float:
        """Seconds without an answer."""
        return now - self._heard_at

    def look(self, now: float, up: bool) -> Finding:
        """`silent`: say so, it is time. `hung`: start it anew; the silence then begins to count again.

        Args:
            up: the broker said that it is ready.
        """
        if now - self._looked_at > _ASLEEP_S:
            self.heard(now)
        self._looked_at = now
        silent_s = self.silent_s(now)
        if silent_s >= (_HUNG_S if up else _STARTING_S):
            self.heard(now)
            return "hung"
        due = self._said_at is None or now - self._said_at >= _NEXT_WORD_S
        if silent_s < _FIRST_WORD_S or not due:
            return "well"
        self._said_at = now
        return "silent"
