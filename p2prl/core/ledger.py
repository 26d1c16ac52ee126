"""A node's books across its own restarts, and the run's totals. The broker keeps one ledger per node key.

A member counts from zero after each start (a new boot id), unless it found its spool: then its books go on where those
of the boot before ended. So books belong to an account, named after the boot that began it; a Hello says in `continues`
which account its boot goes on with. At any time one account is current, one ended last and may go on, and those before
are closed for good: a total counts each once, whatever was lost on the way.

What an account that ended had pending died with its member, and is counted as dropped (`member died`), or waits on its
member's disk, and stays pending until another account begins. Should it go on, its own books say what became of it.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from p2prl.core.books import merged
from p2prl.core.messages import Books

DIED = "member died"
LEFT = "member left"
#: No honest node comes near it; with it, the sum over 65,000 nodes still fits into 64 bits.
_MAX_TOTAL = 1 << 48
#: Of the ledger that many nodes were folded into; with it, all others still fit into 64 bits.
_MAX_FOLDED = 1 << 62
#: Boots of one account whose receipts are known as such; bundles of older ones are settled long since.
_MAX_BOOTS = 16
#: Nodes that are gone but remembered one by one.
MAX_REMEMBERED = 1000


class Ended(msgspec.Struct):
    """The account that ended last, as it was when it ended.

    Attributes:
        name: the boot that began it.
        boots: those that went on with it, the first included.
        books: as last reported.
        receipts: bundles whose `stored` verdict passed through the broker, also afterwards.
        reason: what became of those that were pending.
        kept: so many of them wait on the member's disk.
    """

    name: str
    boots: list[str]
    books: Books
    receipts: int
    steps: int
    episodes: int
    reason: str = DIED
    kept: int = 0

    def final(self) -> Books:
        """Its books without what is pending no more."""
        last, dropped = self.books, dict(self.books.dropped_reasons)
        unheard = max(0, self.receipts - last.stored)
        # What was stored, and the member never heard of it, was pending there; or it thought that it had died.
        open_ = max(0, last.pending - unheard)
        revived = min(max(0, unheard - last.pending), dropped.get(DIED, 0))
        if revived:
            dropped[DIED] -= revived
        kept = max(0, min(self.kept, open_))
        if open_ > kept:
            dropped[self.reason] = dropped.get(self.reason, 0) + open_ - kept
        return msgspec.structs.replace(
            last,
            produced=last.produced + max(0, unheard - last.pending - revived),
            stored=last.stored + unheard,
            pending=kept,
            dropped=last.dropped - revived + open_ - kept,
            dropped_reasons=dropped,
        )


class Ledger(msgspec.Struct):
    """One node's totals.

    Attributes:
        closed: the sum over accounts that ended for good.
        boot_id: the boot that runs now, or ran last; empty after it ended.
        current: the current account's books, as last reported.
        receipts: bundles of the current account whose `stored` verdict passed through the broker.
        closed_steps, closed_episodes, steps, episodes: the same for what was played.
        account: the current account's name; empty for that of its boot.
        boots: the boots of the current account before this one.
        ended: the account that ended last; it may go on.
    """

    closed: Books = Books()
    boot_id: str = ""
    current: Books = Books()
    receipts: int = 0
    closed_steps: int = 0
    closed_episodes: int = 0
    steps: int = 0
    episodes: int = 0
    account: str = ""
    boots: list[str] = []
    ended: Ended | None = None

    def booted(self, boot_id: str, continues: str = "") -> None:
        """A Hello with this boot id arrived.

        Args:
            continues: the account that this boot goes on with; empty if it begins its own.
        """
        if boot_id == self.boot_id and not continues:
            return  # said again; or it is late, and this boot has found its spool since
        account = continues or boot_id
        if self.boot_id and account == (self.account or self.boot_id):
            if boot_id != self.boot_id:
                self.boots = [*self.boots, self.boot_id][-_MAX_BOOTS:]
                self.boot_id = boot_id
            return
        resumed = self.ended if self.ended is not None and self.ended.name == account else None
        if resumed is not None:
            self.ended = None
        if boot_id == self.boot_id == (self.account or boot_id):
            # It has found its spool since: what it named before is a part of what it goes on with.
            resumed = resumed or Ended(account, [account], Books(), receipts=0, steps=0, episodes=0)
            resumed.receipts += self.receipts
            self.current, self.receipts, self.steps, self.episodes = Books(), 0, 0, 0
        self.close()
        if resumed is None and self.ended is not None:
            self.ended.kept = 0  # its member is here, and found nothing of it
        self.boot_id, self.account = boot_id, account
        if resumed is not None:
            self.current, self.receipts = resumed.books, resumed.receipts
            self.steps, self.episodes = resumed.steps, resumed.episodes
            self.boots = [boot for boot in resumed.boots if boot != boot_id]
        elif continues:
            self.boots = [continues]  # which was never heard of here, and may have named what comes now

    def reported(self, boot_id: str, books: Books, steps: int, episodes: int) -> None:
        """A heartbeat or a goodbye. Books of an older boot, or books that do not balance, are not believed."""
        if boot_id == self.boot_id and books.balanced():
            self.current, self.steps, self.episodes = books, steps, episodes

    def stored(self, boot_id: str, count: int) -> None:
        """`count` first verdicts `stored` passed by for bundles that this boot named."""
        if boot_id == self.boot_id or boot_id in self.boots:
            self.receipts += count
        elif self.ended is not None and boot_id in self.ended.boots:
            self.ended.receipts += count

    def total(self) -> Books:
        """All accounts together."""
        ended = (self.ended.final(),) if self.ended is not None else ()
        return merged((self.closed, *ended, self.current))

    @property
    def gave(self) -> bool:
        """False if nothing would be lost with it: no bundle, and no step that was reported."""
        return bool(self.total().produced or self.receipts or self.total_steps)

    @property
    def total_steps(self) -> int:
        """Environment steps of all accounts."""
        return self.closed_steps + (self.ended.steps if self.ended is not None else 0) + self.steps

    @property
    def total_episodes(self) -> int:
        """Episodes of all accounts."""
        return self.closed_episodes + (self.ended.episodes if self.ended is not None else 0) + self.episodes

    def close(self, reason: str = DIED, kept: int = 0) -> None:
        """The current account ends: what of it is pending is dropped(`reason`).

        Args:
            kept: so many pending bundles are on the member's disk, and stay pending.
        """
        if self.current.produced or self.receipts or self.steps:
            self._close_for_good()
            self.ended = Ended(
                name=self.account or self.boot_id,
                boots=[*self.boots, self.boot_id][-_MAX_BOOTS:],
                books=self.current,
                receipts=self.receipts,
                steps=self.steps,
                episodes=self.episodes,
                reason=reason,
                kept=kept,
            )
        self.current, self.receipts, self.steps, self.episodes = Books(), 0, 0, 0
        self.boot_id, self.account, self.boots = "", "", []

    def fold(self, other: Ledger) -> None:
        """Take over another node's totals: it will not be told apart any more. `other` is used up."""
        other.close()
        other._close_for_good()
        if self.closed.produced + other.closed.produced <= _MAX_FOLDED:
            self.closed = merged((self.closed, other.closed))
        self.closed_steps = min(_MAX_FOLDED, self.closed_steps + other.closed_steps)
        self.closed_episodes = min(_MAX_FOLDED, self.closed_episodes + other.closed_episodes)

    def _close_for_good(self) -> None:
        """The account that ended last does not go on."""
        ended, self.ended = self.ended, None
        if ended is None:
            return
        ended.kept = 0
        final = ended.final()
        if self.closed.produced + final.produced <= _MAX_TOTAL:  # else they are a liar's, and kept out
            self.closed = merged((self.closed, final))
        self.closed_steps = min(_MAX_TOTAL, self.closed_steps + ended.steps)
        self.closed_episodes = min(_MAX_TOTAL, self.closed_episodes + ended.episodes)


def fold_oldest(
    ledgers: dict[str, Ledger], others: Ledger, live: Container[str], keep: int = MAX_REMEMBERED
) -> list[str]:
    """Fold all but the last `keep` ledgers of nodes that are not `live` into `others`; returns their keys.

    The run's totals stay what they were. Only a node that was cut off all the while, and comes back under the same boot
    id, or with its spool, after `keep` others went, counts twice.

    Args:
        ledgers: by node key, in the order in which the nodes went.
    """
    gone = [key for key in ledgers if key not in live]
    folded = gone[: max(0, len(gone) - keep)]
    for key in folded:
        others.fold(ledgers.pop(key))
    return folded
