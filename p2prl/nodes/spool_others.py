"""Spools of other runs in the same state folder: they wait for their hosts, for a month or until their room is
needed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from p2prl.core.spool import KEEP_S, Other, first_to_go, too_old
from p2prl.nodes.spool_books import SnapshotFile
from p2prl.words import many, sized

_DAY_S = 24 * 3600.0


class Others:
    """Empty until `look`.

    Args:
        root: the folder of all spools; None for none.
        own: the name of the folder that is no other's.
        say: gets (level, text) for people.
    """

    def __init__(self, root: Path | None, own: str, say: Callable[[str, str], None]) -> None:
        self._root, self._own, self._say = root, own, say
        self._others: list[Other] = []

    def look(self) -> None:
        """Find them, and delete those that are too old. Raises OSError."""
        self._others = _look(self._root, self._own) if self._root is not None else []
        for other in too_old(self._others):
            self._delete(other, f"its run did not come back in {KEEP_S / _DAY_S:.0f} days")
        waiting = sum(other.pending for other in self._others)
        if waiting:
            text = f"the spool also holds {many(waiting, 'bundle')} of other runs ({sized(self.size_bytes)})"
            when = f"they go when such a run's host is joined, or after {KEEP_S / _DAY_S:.0f} days"
            self._say("info", f"{text}; {when}")

    @property
    def size_bytes(self) -> int:
        """What they take."""
        return sum(other.size_bytes for other in self._others)

    def give_way(self) -> int:
        """Delete the oldest; returns the bytes that this freed."""
        other = first_to_go(self._others)
        return self._delete(other, "its room is needed") if other is not None else 0

    def _delete(self, other: Other, why: str) -> int:
        assert self._root is not None
        self._others.remove(other)
        # What cannot be deleted counts no more, and is found again at the next start.
        shutil.rmtree(self._root / other.folder, ignore_errors=True)
        days = many(round(other.age_s / _DAY_S), "day")
        text = f"the spool of another run ({many(other.pending, 'bundle')}, {days} old) was deleted: {why}"
        self._say("warning", text)
        return other.size_bytes


def _look(root: Path, own: str) -> list[Other]:
    folders = [folder for folder in root.iterdir() if folder.is_dir()] if root.is_dir() else []
    found = []
    for folder in folders:
        if folder.name == own:
            continue
        try:
            stats = [path.stat() for path in folder.iterdir()]
            snapshot = SnapshotFile(folder / "books").read()
        except OSError:
            continue  # not ours to look at
        written = max((stat.st_mtime for stat in stats), default=folder.stat().st_mtime)
        pending = snapshot.books.pending if snapshot is not None else 0
        size = sum(stat.st_size for stat in stats)
        found.append(Other(folder.name, size, max(0.0, time.time() - written), pending))
    return found
