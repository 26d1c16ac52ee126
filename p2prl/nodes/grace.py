"""How long an ending may take. Each process needs some of a processor to end: with many players it takes longer."""

from __future__ import annotations

import os
from dataclasses import dataclass

#: A process that has not ended this long after it was asked to is ended by force, where there are few players.
CHILD_S = 4.0
#: Players are asked first, and have so long.
PLAYERS_S = 2.0
#: So many players a core end within these times; each one more there may take so long.
_FEW, _EACH_S = 4.0, 0.1


def more_s(players: int, cores: int | None = None) -> float:
    """Seconds that an ending may take beyond the usual, because of so many players on one machine.

    Args:
        cores: of the machine; None to count them.

    >>> more_s(4, 2), round(more_s(64, 2), 1)
    (0.0, 2.8)
    """
    each = players / (cores or os.cpu_count() or 1)
    return _EACH_S * max(0.0, each - _FEW)


@dataclass(frozen=True)
class Timetable:
    """A host's ending, at most 5 s where there are few players: by when each part is over, in seconds after it began.

    Attributes:
        farewell_s: the broker has told everybody.
        unborn_s: what did not even come up by then has nothing to write.
        played_s: its own member has ended; then the shards are asked to.
        others_s: the trainer, which writes its last checkpoint, and all but the broker have ended.
        mute_s: a broker that has not said a word hangs.
        last_status_s: the last figures, which wait for the members' goodbyes, have come.
        over_s: all is over.
        broker_s, close_s: not a time of day: how long the broker's own end, which comes last, may take, in two parts.
    """

    farewell_s: float = 0.4
    unborn_s: float = 1.2
    played_s: float = 3.0
    others_s: float = 3.9
    mute_s: float = 1.5
    last_status_s: float = 3.4
    over_s: float = 4.7
    broker_s: float = 0.4
    close_s: float = 0.3

    @classmethod
    def of(cls, players: int) -> Timetable:
        """For a host with so many players of its own."""
        more, plain = more_s(players), cls()
        return cls(
            played_s=plain.played_s + more,
            others_s=plain.others_s + more,
            last_status_s=plain.last_status_s + more,
            over_s=plain.over_s + more,
        )
