"""One run's spool: the bundles that a member keeps on its disk while the host is away, oldest first.

Either it is not in use, and there is no file of it; or it is, and then every bundle without a verdict is in it, but for
those that the disk would not take.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from p2prl.core.messages import PlayerBundle
from p2prl.core.outbox import Name
from p2prl.core.spool import FULL, UNREADABLE, Account, Record, Recovery, Rules, Snapshot
from p2prl.nodes.spool_books import SnapshotFile
from p2prl.nodes.spool_file import Entry, Frame, Segments, body_crc, size_on_disk
from p2prl.nodes.spool_others import Others
from p2prl.nodes.spool_queue import TRIES, Queue
from p2prl.words import many, sized

_RUN_ID = re.compile(r"[a-z0-9-]{1,64}")


def folder_name(run_id: str, host_key: str) -> str:
    """Of a run's spool: what a host calls its run must not choose a path, nor get what was played for another host."""
    digest = hashlib.sha256(f"{host_key} {run_id}".encode()).hexdigest()
    return f"{run_id}.{digest[:12]}" if _RUN_ID.fullmatch(run_id) else digest[:32]


class Spool:
    """Never raises OSError: what the disk does not do is said, and the spool is `full`, or as it was.

    Args:
        root: the folder of all spools of this state folder; None for no spool at all.
        account: gives the member's books as they are now.
        dropped: told why, for each bundle that is given up in here.
        say: gets (level, text) for people.

    Attributes:
        active: in use.
        count: bundles in it that have no verdict yet.
        size_bytes: that it takes.
        full: the last bundle found no room.
        recovered: the books that an earlier boot left; None if there were none.
    """

    def __init__(
        self,
        root: Path | None,
        host_key: str,
        run_id: str,
        rules: Rules,
        account: Callable[[], Account],
        dropped: Callable[[str], None],
        say: Callable[[str, str], None],
    ) -> None:
        self.rules = rules
        self._root = root
        self._ids = (run_id, host_key)
        self._account, self._dropped, self._say = account, dropped, say
        self.active = self.full = False
        self.count = self.size_bytes = 0
        self.recovered: Account | None = None
        self._folder = (root or Path()) / folder_name(run_id, host_key)
        self._others = Others(root, self._folder.name, say)
        self._segments = Segments(self._folder, rules.segment_bytes)
        self._queue = Queue(self._segments, self._lost)
        self._books = SnapshotFile(self._folder / "books")
        self._noted: Snapshot | None = None
        self._next_id = self._settlements = 0
        #: Bundles without a verdict, by segment; segments without any.
        self._live: Counter[int] = Counter()
        self._dead: set[int] = set()
        self._tries: Counter[int] = Counter()
        self._free_bytes = 0
        #: Bytes that were given back because the disk had no room; as many may be taken again.
        self._given_back = 0
        #: What the bundle that was added last takes.
        self._last_bytes = 0
        self._said: set[str] = set()
        self._open()

    # --- what can be seen

    @property
    def enabled(self) -> bool:
        """It may take bundles."""
        return self._root is not None and self.rules.bound_bytes > 0

    @property
    def waiting(self) -> int:
        """Bundles that were not handed out."""
        return self._queue.waiting

    # --- in use, and no more

    def begin(self) -> bool:
        """Be in use from now on; False if the disk does not let us."""
        if self.active or not self.enabled:
            return self.active
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            return self._failed(error)
        self.active = self.note()
        self.look()
        return self.active

    def note(self) -> bool:
        """Write the books as they are now: all that befell the bundles in here must be in them."""
        now = self._account()
        snapshot = Snapshot(
            *self._ids, now.name, now.books, now.steps, now.episodes, self._next_id, self._settlements
        )
        if snapshot == self._noted:
            return True
        try:
            self._books.write(snapshot)
        except OSError as error:
            return self._failed(error)
        self._noted = snapshot
        return True

    def tidy(self) -> None:
        """Delete the files in which nothing waits; the books remember what was in them."""
        if not self._dead or not self.note():
            return
        for number in list(self._dead):
            size = self._segments.sizes[number]
            try:
                self._segments.remove(number)
            except OSError as error:
                self._failed(error)
                continue
            self._dead.discard(number)
            del self._live[number]
            self.size_bytes -= size
            self._free_bytes += size

    def clear(self) -> None:
        """If nothing waits, be no longer in use. What cannot be deleted now is tried again with the next call."""
        if not self.active or self.count:
            return
        self.tidy()
        if self._dead:
            return
        self._segments.forget()
        try:
            self._books.remove()
            shutil.rmtree(self._folder)
        except OSError as error:
            self._failed(error)
            return
        self.active = self.full = False
        self._noted = None
        self._said.clear()

    def close(self) -> None:
        """Let go of the files."""
        self._segments.close()

    def look(self) -> None:
        """Now and then: how much room the disk has. What could not be read is tried again."""
        if not self.active or self._root is None:
            return
        try:
            self._free_bytes = shutil.disk_usage(self._root).free
        except OSError as error:
            self._failed(error)
        self.full = self.full and bool(self._lacks(self._last_bytes))
        self._queue.retry()

    # --- bundles

    def add(
        self,
        bundle: PlayerBundle,
        header: Frame,
        payload: Frame,
        current: int,
        *,
        name: Name | None = None,
        counted: bool = False,
        held: bool = False,
    ) -> Entry | None:
        """Keep a bundle; None if there is no room.

        Args:
            current: the newest weights version that is known.
            name: under which it was sent.
            counted: it is in the books already.
            held: it is not to be handed out, because it was never given away.
        """
        self._last_bytes = size_on_disk(header, payload)
        if not self.active or not self._make_room(self._last_bytes, current):
            self.full = self.active
            return None
        record = Record(
            id=self._next_id,
            ticks=bundle.ticks,
            steps=bundle.steps,
            episodes=bundle.episodes,
            version=bundle.version,
            header_bytes=memoryview(header).nbytes,
            payload_bytes=memoryview(payload).nbytes,
            body_crc=body_crc(header, payload),
            counted=counted,
            name=name,
        )
        try:
            entry = self._segments.append(record, header, payload)
        except OSError as error:
            self.full = True
            self._failed(error)
            return None
        self._next_id += 1
        self.count += 1
        self._live[entry.segment] += 1
        self._dead.discard(entry.segment)
        self.size_bytes += entry.size_bytes
        self._free_bytes -= entry.size_bytes
        self._queue.added(entry, held)
        return entry

    def next(self) -> Entry | None:
        """Hand out the oldest that waits."""
        return self._queue.next()

    def load(self, entry: Entry) -> tuple[bytes, bytes] | None:
        """The frames of a bundle that was handed out; None if they cannot be read, and it was taken back.

        What cannot be read is tried three times, a moment apart, and then dropped: it does not hold up the others.
        """
        try:
            frames = self._segments.read(entry)
        except OSError as error:
            self._failed(error)
            frames = None
        if frames is not None:
            return frames
        self._tries[entry.record.id] += 1
        if self._tries[entry.record.id] < TRIES:
            self._queue.take_back(entry)
            return None
        del self._tries[entry.record.id]
        self._once(UNREADABLE, "a spooled bundle cannot be read: it is dropped, the others go on")
        self.settle(entry, "dropped", UNREADABLE)
        self._dropped(UNREADABLE)
        return None

    def assign(self, entry: Entry, name: Name) -> bool:
        """It is about to be sent under this name. False if that could not be written: then it must not be sent."""
        entry.record.name = name
        try:
            self._segments.change(entry)
        except OSError as error:
            entry.record.name = None
            return self._failed(error)
        return True

    def settle(self, entry: Entry, status: str, reason: str = "") -> None:
        """A bundle has its verdict, or was dropped. When the books know it: `tidy`."""
        record = entry.record
        self._settlements += 1
        record.status, record.reason, record.settlement = status, reason, self._settlements
        try:
            self._segments.change(entry)
        except OSError as error:
            self._failed(error)  # after a restart it would be sent again, and its shard knows it
        self.count -= 1
        self._queue.settled(entry)
        if entry.segment in self._live:
            self._live[entry.segment] -= 1
            if not self._live[entry.segment]:
                self._dead.add(entry.segment)

    # --- room

    def _lacks(self, size_bytes: int) -> str:
        """What there is not enough of. Other runs' spools go first, but not for what does not fit anyway."""
        bound = self.rules.bound_bytes
        wanted = self.size_bytes + size_bytes
        while wanted <= bound < wanted + self._others.size_bytes:
            self._free_bytes += self._others.give_way()
        used = self.size_bytes + self._others.size_bytes
        return self.rules.lacks(size_bytes, used, self._free_bytes, self.count)

    def _make_room(self, size_bytes: int, current: int) -> bool:
        while lack := self._lacks(size_bytes):
            if lack == "disk" and self._given_back >= size_bytes:
                self._given_back -= size_bytes
                return True
            head = self._queue.peek()
            if head is None or not self.rules.gives_way(head.record.version, current):
                self._once(FULL, self._why_full(lack))
                return False
            before = self.size_bytes
            self.settle(head, "dropped", FULL)
            self._dropped(FULL)
            self.tidy()
            self._given_back += before - self.size_bytes
        self._given_back = 0
        return True

    def _why_full(self, lack: str) -> str:
        have = f"{many(self.count, 'bundle')}, {sized(self.size_bytes)}"
        if lack == "bound":
            return f"the spool is full ({have}): --spool allows {sized(self.rules.bound_bytes)}"
        free = sized(self.rules.keep_free_bytes)
        return f"the spool takes no more ({have}): {free} of the disk stay free"

    # --- what does not work

    def _failed(self, error: OSError) -> bool:
        what = error.strerror or str(error)
        self._once(what, f"the spool in {self._folder}: {what}; what is in memory is kept there")
        return False

    def _once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._say("warning", text)

    def _lost(self, segment: int, waiting: int) -> None:
        """A segment cannot be read any more: what waited in it is dropped; what was handed out has its frames."""
        text = f"a part of the spool cannot be read: dropped {many(waiting, 'bundle')}, the others go on"
        self._say("warning", text)
        self._set_aside(segment)
        self._live.pop(segment, None)
        self._dead.discard(segment)
        self.count -= waiting
        for _ in range(waiting):
            self._dropped(UNREADABLE)
        self.note()

    def _set_aside(self, segment: int) -> None:
        self.size_bytes -= self._segments.sizes[segment]
        try:
            self._segments.set_aside(segment)
        except OSError as error:
            self._failed(error)

    # --- after a restart

    def _open(self) -> None:
        """Find what an earlier boot left."""
        if self._root is None:
            return
        try:
            self._others.look()
            if not self._folder.is_dir():
                return
            self._segments.look()
            self.size_bytes = sum(self._segments.sizes.values())
            snapshot = self._books.read()
            recovery = Recovery(snapshot)
            for number in list(self._segments.sizes):
                self._recover(number, recovery)
        except OSError as error:
            self._failed(error)
            self._root = None
            return
        self.active = True
        self._next_id, self._settlements = recovery.next_id, recovery.settlements
        books = recovery.books(damaged=self._segments.broken > 0)
        lost = books.dropped_reasons.get(UNREADABLE, 0)
        lost -= snapshot.books.dropped_reasons.get(UNREADABLE, 0) if snapshot is not None else 0
        if lost > 0:
            self._once(UNREADABLE, f"a part of the spool cannot be read: dropped {many(lost, 'bundle')}")
        name = snapshot.account if snapshot is not None else ""
        self.recovered = Account(name, books, recovery.steps, recovery.episodes)
        self.look()

    def _recover(self, number: int, recovery: Recovery) -> None:
        entries = self._entries(number)
        if entries is None:
            self._set_aside(number)
            return
        self._live[number] = 0
        for entry in entries:
            recovery.found(entry.record)
            if not entry.record.status:
                self._live[number] += 1
                self._queue.found(entry)
        self.count += self._live[number]
        if not self._live[number]:
            self._dead.add(number)

    def _entries(self, number: int) -> list[Entry] | None:
        """All of a segment, or None if it cannot be read."""
        for _ in range(TRIES):
            try:
                return list(self._segments.entries(number))
            except OSError as error:
                self._failed(error)
        return None
