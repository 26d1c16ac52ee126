"""Which weights a member holds, which each of its players has, and when to pull because a broadcast was missed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Player:
    #: The version it was last sent; it has at most one set of weights in flight.
    sent: int = -1
    #: The version it last said it plays with.
    has: int = -1


class WeightSync:
    """Pure bookkeeping; the weights themselves stay with the shell.

    Invariant: within a run, `version` never goes back, for the member and for each player.

    Args:
        pull_after_s: how long the broker may be ahead before the member asks for what it missed.
    """

    def __init__(self, pull_after_s: float = 1.0) -> None:
        self._pull_after_s = pull_after_s
        self.version = -1
        #: The newest version that the broker spoke of.
        self.current = -1
        self._behind_since: float | None = None
        self._players: dict[int, _Player] = {}

    def arrived(self, version: int) -> bool:
        """Weights came, by broadcast or by pull. True if they are new: keep them."""
        self.current = max(self.current, version)
        if version <= self.version:
            return False
        self.version = version
        if version >= self.current:
            self._behind_since = None
        return True

    def reset(self) -> None:
        """Another run began: versions start anew."""
        self.version = self.current = -1
        self._behind_since = None
        self._players.clear()

    def heard(self, current: int, now: float) -> None:
        """The broker named its current version."""
        self.current = max(self.current, current)
        if self.current > self.version and self._behind_since is None:
            self._behind_since = now

    def wants_pull(self, now: float) -> bool:
        """True if a broadcast was missed for so long that it should be asked for; then not again for a while."""
        if self._behind_since is None or now - self._behind_since < self._pull_after_s:
            return False
        if self.version >= self.current:
            self._behind_since = None
            return False
        self._behind_since = now
        return True

    def player_joined(self, player: int) -> None:
        """A player (re)started: it has nothing."""
        self._players[player] = _Player()

    def player_left(self, player: int) -> None:
        """A player ended."""
        self._players.pop(player, None)

    def player_has(self, player: int, version: int) -> None:
        """A player said which weights it plays with."""
        if player in self._players:
            self._players[player].has = version

    def to_send(self) -> list[int]:
        """Players to send the member's weights to now; each has at most one set under way."""
        chosen = []
        for player, state in self._players.items():
            if state.sent < self.version and state.has >= state.sent:
                state.sent = self.version
                chosen.append(player)
        return chosen
