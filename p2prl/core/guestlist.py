"""Who may give sessions, as far as a shard knows: the broker's list, which comes with its Welcome and at each change."""

from __future__ import annotations

from p2prl.core.messages import Access


class GuestList:
    """The list. Before it was told for the first time nothing is known of anybody.

    Attributes:
        known: it was told.
        quarantined: keys whose sessions are not to be sampled.
    """

    def __init__(self) -> None:
        self.known = False
        self.quarantined: frozenset[str] = frozenset()
        self._open = False
        self._admitted: frozenset[str] = frozenset()
        self._barred: frozenset[str] = frozenset()

    def told(self, access: Access) -> bool:
        """A new list. True if somebody is out now who may have been in: live connections are to be cut."""
        before = (self._open, self._admitted, self._barred)
        first = not self.known
        self.known, self._open = True, access.open
        self._admitted, self._barred = frozenset(access.admitted), frozenset(access.barred)
        self.quarantined = frozenset(access.quarantined)
        if first:
            return False
        was_open, admitted, barred = before
        closed = was_open and not self._open
        out = self._barred - barred if was_open else admitted - (self._admitted - self._barred)
        return closed or bool(out)

    def admits(self, key: str) -> bool | None:
        """Whether a peer with this key may connect; None if that is not known, or not known yet.

        A closed host may have admitted a key a moment ago, and the word about it is still on its way here.
        """
        if not self.known:
            return None
        if key in self._barred:
            return False
        return True if self._open or key in self._admitted else None

    def may_give(self, key: str) -> bool:
        """Whether a message from this key is taken: asked for each, because a connection outlives a right."""
        return self.admits(key) is True

    def names(self, key: str) -> bool:
        """True if the list says anything of this very key."""
        return key in self._admitted or key in self._barred
