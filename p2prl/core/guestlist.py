"""Who may give sessions, as far as a shard knows: the broker's list. It comes with the Welcome, and at each change."""

from __future__ import annotations

from p2prl.core.messages import Access


class GuestList:
    """The list. Before it was told for the first time nothing is known of anybody.

    Attributes:
        access: as it was told last; None before that.
        quarantined: keys whose sessions are not to be sampled.
    """

    def __init__(self) -> None:
        self.access: Access | None = None
        self.quarantined: frozenset[str] = frozenset()
        self._admitted: frozenset[str] = frozenset()
        self._barred: frozenset[str] = frozenset()

    def told(self, access: Access) -> bool:
        """A new list. True if somebody is out now who may have been in: live connections are to be cut."""
        before, admitted, barred = self.access, self._admitted, self._barred
        self.access = access
        self._admitted, self._barred = frozenset(access.admitted), frozenset(access.barred)
        self.quarantined = frozenset(access.quarantined)
        if before is None:
            return False
        if before.open:
            return not access.open or bool(self._barred - barred)
        return bool(admitted - (self._admitted - self._barred))

    def admits(self, key: str) -> bool | None:
        """Whether a peer with this key may connect; None if that is not known, or not known yet.

        A closed host may have admitted a key a moment ago, and the word about it is still on its way here.
        """
        if self.access is None:
            return None
        if key in self._barred:
            return False
        return True if self.access.open or key in self._admitted else None

    def may_give(self, key: str) -> bool:
        """Whether a message from this key is taken: asked for each, because a connection outlives a right."""
        return self.admits(key) is True

    def names(self, key: str) -> bool:
        """True if the list says anything of this very key."""
        return key in self._admitted or key in self._barred
