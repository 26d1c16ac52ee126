"""Which weights a member holds, which each of its players has, and when to pull because a broadcast was missed."""

from __future__ import annotations

from dataclasses import dataclass, field

#: A link that takes longer for as much is not waited for.
_SLOW_BYTES_PER_S = 250_000
_MOST_S = 60.0
#: Sets of weights that wait for a player while it plays a bundle. With one alone, a set that came a moment late would
#: hold back the next until after it is wanted; more would only wait to be taken.
_MOST_SETS = 2


@dataclass
class _Player:
    #: The version it was last sent, and those that it was sent and may not have taken yet.
    sent: int = -1
    under_way: list[int] = field(default_factory=list)


class WeightSync:
    """Pure bookkeeping; the weights themselves stay with the shell.

    Invariant: within a run, `version` never goes back, for the member and for each player.

    What a slow link still carries must not be asked for as well: it would then carry twice as much. So the member waits
    as long as the weights need on such a link, longer after each time that it asked in vain, and anew after each that
    came, be they the current ones or not.

    Args:
        pull_after_s: how long the broker may be ahead before the member asks for what it missed; longer if the weights
            are large.
    """

    def __init__(self, pull_after_s: float = 1.0) -> None:
        self._pull_after_s = self._wait_s = pull_after_s
        self.version = -1
        #: The newest version that the broker spoke of.
        self.current = -1
        self._behind_since: float | None = None
        self._asked_at = -1e9
        self._players: dict[int, _Player] = {}

    def arrived(self, version: int, size_bytes: int = 0) -> bool:
        """Weights came, by broadcast or by pull. True if they are new: keep them."""
        self.current = max(self.current, version)
        if version <= self.version:
            return False
        self.version = version
        self._behind_since = None  # if there are newer ones, they may be on their way
        self._wait_s = max(self._pull_after_s, size_bytes / _SLOW_BYTES_PER_S)
        return True

    def useless(self, version: int, now: float) -> None:
        """What changed since weights that are not here: those were missed, and are to be asked for at once."""
        self.current = max(self.current, version)
        self._behind_since = now - self._wait_s

    def reset(self) -> None:
        """Another run began: versions start anew."""
        self.version = self.current = -1
        self._behind_since = None
        self._wait_s, self._asked_at = self._pull_after_s, -1e9
        self._players.clear()

    def heard(self, current: int, now: float) -> None:
        """The broker named its current version."""
        self.current = max(self.current, current)
        if self.current > self.version and self._behind_since is None:
            self._behind_since = now

    def wants_pull(self, now: float) -> bool:
        """True if a broadcast was missed for so long that it should be asked for; then not again for a while."""
        if self.version >= self.current:
            self._behind_since = None
        if self._behind_since is None or now - max(self._behind_since, self._asked_at) < self._wait_s:
            return False
        self._asked_at = now
        self._wait_s = min(2 * self._wait_s, max(_MOST_S, self._wait_s))
        return True

    def player_joined(self, player: int) -> None:
        """A player (re)started: it has nothing."""
        self._players[player] = _Player()

    def player_left(self, player: int) -> None:
        """A player ended."""
        self._players.pop(player, None)

    def player_between_bundles(self, player: int) -> None:
        """A player's bundle ended, or it is told to play the next: before that it takes what it was sent."""
        if player in self._players:
            self._players[player].under_way.clear()

    def player_took(self, player: int, version: int) -> None:
        """A player plays with this version: it has taken it, and those before."""
        if player in self._players:
            state = self._players[player]
            state.under_way = [sent for sent in state.under_way if sent > version]

    def to_send(self) -> list[int]:
        """Players to send the member's weights to now: few sets for each bundle that it plays."""
        chosen = []
        for player, state in self._players.items():
            if state.sent < self.version and len(state.under_way) < _MOST_SETS:
                state.sent = self.version
                state.under_way.append(self.version)
                chosen.append(player)
        return chosen
