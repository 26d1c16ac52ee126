"""A member's spool, the decisions: when bundles go to its disk, how much fits, what makes room, and what its books are
after the member itself was killed.

What is on disk is a snapshot of the books and one record per bundle. A record tells by itself what became of its bundle
since the snapshot: so books and bundles agree at whatever moment the member was killed, without writing both at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from p2prl.core.messages import Books
from p2prl.core.outbox import Name

#: Why a spooled bundle was dropped.
FULL, UNREADABLE, DIED = "spool full", "unreadable", "member died"
#: A host, or all of its shards, that is silent for this long is away. Twelve seconds sooner than it is said to be gone:
#: a disk that is written once for nothing costs less than players that wait.
AWAY_AFTER_S = 3.0
#: A spool of another run is kept for this long.
KEEP_S = 30 * 24 * 3600.0
#: Bundles of one spool: more would take long to look through at the next start.
MAX_BUNDLES = 1_000_000
_MAX_SEGMENT_BYTES = 8_000_000
_SEGMENTS = 16


@dataclass(frozen=True)
class Rules:
    """What the machine's owner and the run allow.

    Attributes:
        bound_bytes: of all spools of this state folder together; 0 for none.
        keep_free_bytes: of the disk, for everybody else.
        drops_oldest: the run's `when_full` is `drop_oldest`.
        max_lag: as in RunSpec.
    """

    bound_bytes: int
    keep_free_bytes: int
    drops_oldest: bool = False
    max_lag: int = 0

    @property
    def segment_bytes(self) -> int:
        """When a new file begins. A file goes once nothing in it waits: so a bound has room for several."""
        return max(1, min(_MAX_SEGMENT_BYTES, self.bound_bytes // _SEGMENTS))

    def lacks(
        self, size_bytes: int, used_bytes: int, free_bytes: int, bundles: int
    ) -> Literal["", "bound", "disk"]:
        """What there is not enough of for one more bundle; empty if it fits.

        Args:
            used_bytes: that all spools take now.
            free_bytes: of the disk.
        """
        if used_bytes + size_bytes > self.bound_bytes or bundles >= MAX_BUNDLES:
            return "bound"
        return "disk" if free_bytes - size_bytes < self.keep_free_bytes else ""

    def is_stale(self, version: int, current: int) -> bool:
        """True if a bundle of this version would be refused as stale: `current` is the newest that is known."""
        return self.max_lag > 0 and current - version > self.max_lag

    def gives_way(self, version: int, current: int) -> bool:
        """True if the oldest bundle goes for a newer one."""
        return self.drops_oldest or self.is_stale(version, current)


def is_away(silent_s: float, down_s: float) -> bool:
    """True if bundles should go to the disk.

    Args:
        silent_s: since the broker said anything.
        down_s: since a shard was up.
    """
    return max(silent_s, down_s) > AWAY_AFTER_S


class Snapshot(msgspec.Struct, frozen=True):
    """The books at one moment, as they are on disk.

    Attributes:
        run_id, host_key: whose bundles these are.
        account: the boot that began these books.
        steps, episodes: of the account.
        next_id: records from this number on are not counted in the books yet.
        settlements: verdicts up to this number are.
    """

    run_id: str
    host_key: str
    account: str
    books: Books
    steps: int
    episodes: int
    next_id: int
    settlements: int


@dataclass
class Record:
    """One bundle on disk.

    Attributes:
        id: grows by one with each bundle of this spool.
        ticks, steps, episodes, version: as in PlayerBundle.
        header_bytes, payload_bytes, body_crc: of its two frames.
        counted: the books counted it before it came here, whatever `id` says.
        name: under which it was sent; None if it never was.
        status: empty while it waits; then what became of it: a settling verdict, or `dropped`.
        settlement: the number of that event.
    """

    id: int
    ticks: int
    steps: int
    episodes: int
    version: int
    header_bytes: int
    payload_bytes: int
    body_crc: int
    counted: bool = False
    name: Name | None = None
    status: str = ""
    reason: str = ""
    settlement: int = 0


@dataclass
class Recovery:
    """Makes the books of now from a snapshot and all records, in any order.

    Attributes:
        snapshot: None if it could not be read: then the books begin with what waits.
        waiting: records that are not settled.
        next_id, settlements: the first free ones.
    """

    snapshot: Snapshot | None
    steps: int = 0
    episodes: int = 0
    waiting: int = 0
    next_id: int = 0
    settlements: int = 0

    def __post_init__(self) -> None:
        old = self.snapshot
        self._produced = 0
        #: Records that came after the snapshot and could be read.
        self._fresh = 0
        self._ended: dict[tuple[str, str], int] = {}
        if old is not None:
            self.steps, self.episodes = old.steps, old.episodes
            self.next_id, self.settlements = old.next_id, old.settlements

    def found(self, record: Record) -> None:
        """One record that could be read."""
        old = self.snapshot
        self.next_id = max(self.next_id, record.id + 1)
        self.settlements = max(self.settlements, record.settlement)
        if old is None and record.status:
            return  # the books that knew it are lost here; the host's ledger has them
        fresh = old is None or record.id >= old.next_id
        self._fresh += fresh
        if fresh and not record.counted:
            self._produced += 1
            self.steps += record.steps
            self.episodes += record.episodes
        if not record.status:
            self.waiting += 1
        elif old is not None and record.settlement > old.settlements:
            key = (record.status, record.reason)
            self._ended[key] = self._ended.get(key, 0) + 1

    def books(self, damaged: bool) -> Books:
        """The books of now.

        Args:
            damaged: a part of the spool could not be read: what is missing was in there. Else it was in memory alone.
        """
        old = self.snapshot.books if self.snapshot is not None else Books()
        stored, stale = old.stored, old.stale
        refused, dropped = dict(old.refused_reasons), dict(old.dropped_reasons)
        for (status, reason), count in self._ended.items():
            if status == "stale":
                stale += count
            elif status in ("refused", "dropped"):
                counter = refused if status == "refused" else dropped
                counter[reason] = counter.get(reason, 0) + count
            else:
                stored += count
        settled = stored + stale + sum(refused.values()) + sum(dropped.values())
        # Numbers have no gaps: a record that is not there was made, and cannot be read.
        first = self.snapshot.next_id if self.snapshot is not None else self.next_id - self._fresh
        gaps = self.next_id - first - self._fresh
        produced = max(old.produced + self._produced + gaps, settled + self.waiting)
        missing = produced - settled - self.waiting
        if missing:
            reason = UNREADABLE if damaged else DIED
            dropped[reason] = dropped.get(reason, 0) + missing
        return Books(
            produced=produced,
            stored=stored,
            pending=self.waiting,
            refused=sum(refused.values()),
            stale=stale,
            dropped=sum(dropped.values()),
            duplicate=old.duplicate,
            refused_reasons=refused,
            dropped_reasons=dropped,
        )


@dataclass(frozen=True)
class Account:
    """A member's books and what goes with them.

    Attributes:
        name: the boot that began them.
    """

    name: str
    books: Books
    steps: int
    episodes: int


@dataclass(frozen=True)
class Other:
    """A spool of another run, or of another host.

    Attributes:
        folder: its folder's name.
        age_s: since it was last written.
        pending: bundles in it.
    """

    folder: str
    size_bytes: int
    age_s: float
    pending: int


def too_old(others: Sequence[Other]) -> list[Other]:
    """Those whose run did not come back in time."""
    return [other for other in others if other.age_s > KEEP_S]


def first_to_go(others: Sequence[Other]) -> Other | None:
    """The one that makes room for this run's bundles: the oldest."""
    return max(others, key=lambda other: other.age_s, default=None)
