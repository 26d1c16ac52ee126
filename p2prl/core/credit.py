"""How many bundles a player may have under way to its member, and when it is told so.

Two are enough where bundles take long. Where they are made in a millisecond, each wake-up of the member and each word
to the player would cost as much as the bundle: so there the credit is for what is played within AHEAD_S, the player is
told once for half of it, and bundles may gather meanwhile. While the window is full nothing is told: what is under way
then, at most MOST bundles, waits as long. The bytes are by the bundles before: larger ones are noticed with the next
credit.
"""

from __future__ import annotations

#: Bundles under way, at least and at most; where players wait for verdicts (fresh) it is one or two.
LEAST, MOST = 2, 32
#: How much play may be under way, in seconds and in bytes, where that is more than LEAST bundles.
AHEAD_S, AHEAD_BYTES = 0.02, 2_000_000
#: A credit of so many bundles comes of bundles that may be left to gather for GATHER_S.
_MANY, GATHER_S = 8, AHEAD_S / 4


class Credit:
    """Of one player.

    Invariant: when it has used all that it was told last, it is due the next.

    Args:
        fresh: one at a time, and the next as soon as there is room for both.
    """

    def __init__(self, fresh: bool = False) -> None:
        self._fresh = fresh
        #: What it was told last, and how many of these are to come before it is told again.
        self.bundles = 1 if fresh else LEAST
        self._patience = self.bundles
        #: Of these, with `fresh`, those that it plays or is still to play.
        self.ahead = int(fresh)
        self._taken = self._size_bytes = 0
        self._since, self._quick = 0.0, False

    @property
    def due(self) -> bool:
        """True if it is owed the next."""
        return self.ahead == 0 if self._fresh else self._taken >= self._patience

    @property
    def early(self) -> bool:
        """True if it may be told of one bundle beyond that which it plays, where there is room for both."""
        return self._fresh and self.ahead == 1 and self._quick

    @property
    def gathers(self) -> bool:
        """True if its bundles come so fast that they may wait for each other."""
        return self.bundles >= _MANY

    def took(self, size_bytes: int) -> None:
        """A bundle of it was taken over."""
        self._taken += 1
        self._size_bytes += size_bytes
        self.ahead = max(0, self.ahead - 1)

    def give(self, now: float) -> int:
        """The next credit: how many bundles may be under way. It is due, or comes early."""
        elapsed, self._since = now - self._since, now
        if self._fresh:
            self.ahead = self.bundles = self.ahead + 1
            self._quick = elapsed < AHEAD_S
        else:
            by_time = AHEAD_S * self._taken / max(elapsed, 1e-6)
            by_size = AHEAD_BYTES * self._taken / max(self._size_bytes, 1)
            # No more than twice as many as before: one fast moment says little.
            self.bundles = max(LEAST, min(MOST, 2 * self.bundles, int(by_time), int(by_size)))
            self._patience = max(LEAST, self.bundles // 2)
        self._taken = self._size_bytes = 0
        return self.bundles
