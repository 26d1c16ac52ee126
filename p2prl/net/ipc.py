"""Private folders for Unix sockets: one for each member, in the temporary folder, and nothing left of those killed."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from pathlib import Path

_PREFIX, _SOCKET = "p2prl-", "m"
#: Longest path of a Unix socket that all platforms take.
_MAX_PATH = 100
#: A folder without a socket may have been made just now.
_YOUNG_S = 60.0


def new_folder() -> Path | None:
    """A folder that only this user can enter (0700), for a socket called `m`; None where its path would be too long."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if len(str(socket_in(folder))) <= _MAX_PATH:
        return folder
    folder.rmdir()
    return None


def socket_in(folder: Path) -> Path:
    """The socket of such a folder."""
    return folder / _SOCKET


def sweep() -> None:
    """Remove such folders of processes that were killed, and so could not do it themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Another process may be faster, and what is not ours, or holds anything else, stays.
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _is_dead(folder):
                remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder and its socket, and nothing else. Raises OSError."""
    socket_in(folder).unlink(missing_ok=True)
    folder.rmdir()


def _is_dead(folder: Path) -> bool:
    path = socket_in(folder)
    if not path.is_socket():
        return time.time() - folder.stat().st_mtime > _YOUNG_S
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(0.2)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False
