"""The order in which a spool's bundles go out: as they came, but those that an earlier boot had sent go first.

Of a bundle that waits nothing is kept in memory: the queue is read from the segments' heads as it is needed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from p2prl.nodes.spool_file import Entry, Segments

#: How often what cannot be read is tried.
TRIES = 3


class Queue:
    """Bundles without a verdict: each waits, or was handed out.

    Args:
        lost: called with a segment that cannot be read any more, and how many bundles waited in it.

    Attributes:
        waiting: how many wait.
    """

    def __init__(self, segments: Segments, lost: Callable[[int, int], None]) -> None:
        self._segments = segments
        self._lost = lost
        self.waiting = 0
        self._waiting_in: Counter[int] = Counter()
        #: Ids of those handed out.
        self._out: set[int] = set()
        #: Where to read on: before it nothing waits but what is in the lists below.
        self._cursor = (0, 0)
        self._head: Entry | None = None
        self._first: deque[Entry] = deque()
        #: Those that could not be read a moment ago.
        self._doubtful: list[Entry] = []

    def found(self, entry: Entry) -> None:
        """One that an earlier boot left, in the order of the segments."""
        if entry.record.name is not None:
            self._first.append(entry)
        self._count(entry.segment, 1)

    def added(self, entry: Entry, held: bool) -> None:
        """A new one. `held`: it counts as handed out."""
        if not held:
            self._count(entry.segment, 1)
            return
        if not self.waiting:
            self._cursor = (entry.segment, entry.offset + entry.size_bytes)
        self._out.add(entry.record.id)

    def peek(self) -> Entry | None:
        """The oldest that was never sent, and waits."""
        if self._head is None and self.waiting > len(self._first) + len(self._doubtful):
            self._head = self._walk()
        return self._head

    def next(self) -> Entry | None:
        """Hand out the oldest."""
        entry = self._first.popleft() if self._first else self.peek()
        if entry is None:
            return None
        if entry is self._head:
            self._head = None
        self._count(entry.segment, -1)
        self._out.add(entry.record.id)
        return entry

    def take_back(self, entry: Entry) -> None:
        """It could not be read; it waits until `retry`."""
        self._out.discard(entry.record.id)
        self._count(entry.segment, 1)
        self._doubtful.append(entry)

    def retry(self) -> None:
        """What could not be read may be tried again."""
        self._first.extend(self._doubtful)
        self._doubtful.clear()

    def settled(self, entry: Entry) -> None:
        """It has a verdict; or it was dropped, and then it may be the head."""
        if entry.record.id in self._out:
            self._out.discard(entry.record.id)
            return
        self._count(entry.segment, -1)
        if entry is self._head:
            self._head = None

    def reset(self) -> None:
        """All segments are gone."""
        self._head = None

    def _walk(self) -> Entry | None:
        number, offset = self._cursor
        for segment in [one for one in self._segments.sizes if one >= number]:
            if segment != number:
                offset = 0
            while (entry := self._entry_at(segment, offset)) is not None:
                offset = entry.offset + entry.size_bytes
                self._cursor = (segment, offset)
                record = entry.record
                if not record.status and record.name is None and record.id not in self._out:
                    return entry
        return None

    def _entry_at(self, segment: int, offset: int) -> Entry | None:
        for attempt in range(TRIES):
            try:
                return self._segments.entry_at(segment, offset)
            except OSError:
                if attempt == TRIES - 1:
                    self._lose(segment)
        return None

    def _lose(self, segment: int) -> None:
        for entries in (self._first, self._doubtful):
            for entry in [one for one in entries if one.segment == segment]:
                entries.remove(entry)
        count = self._waiting_in.pop(segment, 0)
        self.waiting -= count
        self._lost(segment, count)

    def _count(self, segment: int, one: int) -> None:
        self.waiting += one
        self._waiting_in[segment] += one
        if not self._waiting_in[segment]:
            del self._waiting_in[segment]
