"""A node's books across its own restarts, and the run's totals. The broker keeps one ledger per node key.

A member counts from zero after each start (a new boot id). When a new boot shows up, the old one's books are closed:
what it still had pending and never delivered died with it, and is counted as dropped(`member died`).
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from p2prl.core.messages import Books
from p2prl.core.outbox import merged

DIED = "member died"
LEFT = "member left"
#: No honest node comes near it; with it, the sum over 65,000 nodes still fits into 64 bits.
_MAX_TOTAL = 1 << 48
#: Of the ledger that many nodes were folded into; with it, all others still fit into 64 bits.
_MAX_FOLDED = 1 << 62
#: Nodes that are gone but remembered one by one.
MAX_REMEMBERED = 1000


class Ledger(msgspec.Struct):
    """One node's totals.

    Attributes:
        closed: the sum over boots that ended.
        boot_id: the boot that runs now, or ran last.
        current: its books, as last reported.
        receipts: bundles of this boot whose `stored` verdict passed through the broker.
        closed_steps, closed_episodes, steps, episodes: the same for what was played.
    """

    closed: Books = Books()
    boot_id: str = ""
    current: Books = Books()
    receipts: int = 0
    closed_steps: int = 0
    closed_episodes: int = 0
    steps: int = 0
    episodes: int = 0

    def booted(self, boot_id: str) -> None:
        """A Hello with this boot id arrived."""
        if boot_id == self.boot_id:
            return
        self.close()
        self.boot_id = boot_id

    def reported(self, boot_id: str, books: Books, steps: int, episodes: int) -> None:
        """A heartbeat or a goodbye. Books of an older boot, or books that do not balance, are not believed."""
        if boot_id == self.boot_id and books.balanced():
            self.current, self.steps, self.episodes = books, steps, episodes

    def stored(self, boot_id: str, count: int) -> None:
        """`count` first verdicts `stored` passed by for this boot."""
        if boot_id == self.boot_id:
            self.receipts += count

    def total(self) -> Books:
        """All boots together."""
        return merged((self.closed, self.current))

    @property
    def gave(self) -> bool:
        """False if nothing would be lost with it: no bundle, and no step that was reported."""
        return bool(self.total().produced or self.receipts or self.total_steps)

    @property
    def total_steps(self) -> int:
        """Environment steps of all boots."""
        return self.closed_steps + self.steps

    @property
    def total_episodes(self) -> int:
        """Episodes of all boots."""
        return self.closed_episodes + self.episodes

    def close(self, reason: str = DIED) -> None:
        """End the current boot: nothing of it is pending any more; what was is dropped(`reason`)."""
        last = self.current
        stored = max(last.stored, self.receipts)
        settled = stored + last.refused + last.stale + last.dropped
        lost = max(0, last.produced - settled)
        dropped = dict(last.dropped_reasons)
        if lost:
            dropped[reason] = dropped.get(reason, 0) + lost
        final = msgspec.structs.replace(
            last,
            produced=settled + lost,
            stored=stored,
            pending=0,
            dropped=last.dropped + lost,
            dropped_reasons=dropped,
        )
        if self.closed.produced + final.produced <= _MAX_TOTAL:  # else they are a liar's, and kept out
            self.closed = merged((self.closed, final))
        self.closed_steps = min(_MAX_TOTAL, self.closed_steps + self.steps)
        self.closed_episodes = min(_MAX_TOTAL, self.closed_episodes + self.episodes)
        self.current, self.receipts, self.steps, self.episodes, self.boot_id = Books(), 0, 0, 0, ""

    def fold(self, other: Ledger) -> None:
        """Take over another node's totals: it will not be told apart any more. `other` is used up."""
        other.close()
        if self.closed.produced + other.closed.produced <= _MAX_FOLDED:
            self.closed = merged((self.closed, other.closed))
        self.closed_steps = min(_MAX_FOLDED, self.closed_steps + other.closed_steps)
        self.closed_episodes = min(_MAX_FOLDED, self.closed_episodes + other.closed_episodes)


def fold_oldest(
    ledgers: dict[str, Ledger], others: Ledger, live: Container[str], keep: int = MAX_REMEMBERED
) -> list[str]:
    """Fold all but the last `keep` ledgers of nodes that are not `live` into `others`; returns their keys.

    The run's totals stay what they were. Only a node that was cut off all the while, and comes back under the same boot
    id after `keep` others went, counts twice.

    Args:
        ledgers: by node key, in the order in which the nodes went.
    """
    gone = [key for key in ledgers if key not in live]
    folded = gone[: max(0, len(gone) - keep)]
    for key in folded:
        others.fold(ledgers.pop(key))
    return folded
