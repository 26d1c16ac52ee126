"""Small files that must never be half-written, and what is said when a disk takes none."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("p2prl")


class DiskTrouble:
    """Says when something can no longer be written, and when it can again: once each, however often it is tried.

    Args:
        what: the file, for people.
    """

    def __init__(self, what: str | Path) -> None:
        self._what = what
        self._lasts = False

    def tried(self, write: Callable[[], object]) -> bool:
        """Call `write`, which writes it; False if it could not be written."""
        try:
            write()
        except OSError as error:
            self.failed(error)
            return False
        self.passed()
        return True

    def failed(self, error: OSError) -> None:
        """It could not be written this time."""
        if not self._lasts:
            log.error(
                "cannot write %s: %s; trying again until it can be", self._what, error.strerror or error
            )
        self._lasts = True

    def passed(self) -> None:
        """It was written."""
        if self._lasts:
            log.info("%s is written again", self._what)
        self._lasts = False


def write_atomically(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replace `path` with `data`, so that a reader sees the old file or the new one.

    Args:
        durable: also survive a power cut (fsync), not only the death of this process.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_where_named(path: Path, data: bytes, replace: Callable[[Path, bytes], None]) -> None:
    """Write to what a person named: a device or a FIFO is written into and stays, as does a link to a file.

    Args:
        replace: writes a file, whole or not at all.

    Raises:
        OSError: as the file system says.
    """
    real = Path(
        os.path.realpath(path)
    )  # of a link to nothing what it names; of a pipe's it is no path at all
    if path.is_file() or not (path.exists() or os.path.lexists(real)):
        replace(real, data)
        return
    with os.fdopen(os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0)), "wb") as file:
        file.write(data)


def fsync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut, where the platform can (Windows cannot open folders)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
