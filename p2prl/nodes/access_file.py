"""Whom this host lets in, on disk: `hosting/access.json` in the host's state folder, readable by its owner alone.

It belongs to the host's key, not to one run: who was let in once needs no code for the next run. Several hosts of one
state folder share it, so each change is read, made and written under a lock, and others' changes are looked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from p2prl.core.access import Access, Entry
from p2prl.core.invitations import TokenEntry
from p2prl.net.keys import write_private

log = logging.getLogger("p2prl")

_LOCK_S = 5.0
#: 4096 entries of 300 bytes and more; what is larger was not written by us.
_MAX_BYTES = 8_000_000


class Stored(msgspec.Struct):
    """The file.

    Attributes:
        entries: keys by standing; quarantine is not among them, it belongs to a run.
        tokens: those that may still admit somebody.
    """

    entries: list[Entry] = []
    tokens: list[TokenEntry] = []


class AccessFile:
    """The file, and whether it changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "hosting" / "access.json"
        self._stamp: tuple[int, int] | None = None

    def read(self) -> Stored:
        """What it holds now; nothing if there is none, or if it is damaged, which is said."""
        self._stamp = self._now()
        try:
            with self._path.open("rb") as file:
                raw = file.read(_MAX_BYTES + 1)
            if len(raw) > _MAX_BYTES:
                raise ValueError("it is too large")
            return msgspec.json.decode(raw, type=Stored)
        except FileNotFoundError:
            return Stored()
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            self._set_aside(error)
            return Stored()

    def changed(self) -> bool:
        """True if somebody else wrote it since it was read or written here."""
        return self._now() != self._stamp

    def change(self, edit: Callable[[Stored], Stored]) -> Stored:
        """Read, edit and write it as one step; what cannot be written is said, and holds until the next start.

        Args:
            edit: gets what is stored, gives what is to be stored.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(self._path.with_suffix(".lock"), timeout=_LOCK_S):
                stored = edit(self.read())
                write_private(self._path, msgspec.json.encode(stored))
                self._stamp = self._now()
                return stored
        except (OSError, Timeout) as error:
            log.error(
                "%s cannot be written (%s): what was decided holds until this host ends", self._path, error
            )
            return edit(self.read())

    def _now(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def _set_aside(self, error: Exception) -> None:
        aside = self._path.with_suffix(".damaged")
        log.error(
            "%s is unreadable (%s): nodes need the join code again; kept as %s", self._path, error, aside.name
        )
        try:
            self._path.replace(aside)
        except OSError as problem:
            log.error("%s cannot be set aside: %s", self._path, problem.strerror)


def entries_of(access: Access) -> list[Entry]:
    """What is to be stored of a list: a quarantined key is an admitted one, in other runs."""
    return [
        msgspec.structs.replace(entry, standing="admitted", reason="")
        if entry.standing == "quarantined"
        else entry
        for entry in access.entries()
    ]
