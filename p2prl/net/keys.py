"""A node's identity on disk, and the locks that keep a folder to one process.

The key pair is CURVE's, in Z85 (40 characters), made once per state folder and then kept: the public half
is the node's identity on every host it joins.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from types import TracebackType

import msgspec
import platformdirs
import zmq
from filelock import FileLock, Timeout

from p2prl.errors import AlreadyRunning, P2prlError
from p2prl.net.key_pair import KeyPair as KeyPair
from p2prl.net.key_pair import new_key_pair as new_key_pair

#: Crockford's base 32: no letter that can be mistaken for a digit when read aloud.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_Z85_LENGTH = 40
#: A key file is about 120 bytes; nothing larger is read.
_MAX_KEY_FILE_BYTES = 4096
_CREATE_TIMEOUT_S = 10.0


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    public: str
    secret: str


def fingerprint(public: str) -> str:
    """A short name for a public key, for people and hints: 40 bits as `xxxx-xxxx`. Never compare keys by it.

    >>> fingerprint("x" * 40) == fingerprint("x" * 40)
    True
    """
    value = int.from_bytes(hashlib.blake2b(public.encode(), digest_size=5).digest(), "big")
    letters = "".join(_ALPHABET[(value >> shift) & 31] for shift in range(35, -1, -5))
    return f"{letters[:4]}-{letters[4:]}"


def state_folder() -> Path:
    """This user's p2prl folder, created for its owner alone (0700): `P2PRL_HOME`, else the platform's place.

    Raises:
        P2prlError: it cannot be created.
    """
    home = os.environ.get("P2PRL_HOME")
    folder = (
        Path(home).expanduser().absolute() if home else platformdirs.user_state_path("p2prl", appauthor=False)
    )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise P2prlError(
            f"the state folder {folder} cannot be created ({error.strerror}); set P2PRL_HOME to one that can"
        ) from error
    return folder


def load_or_create(path: Path) -> KeyPair:
    """The key pair in `path`; made on first use, readable by its owner alone where the platform knows owners.

    Two processes that race for the first use get the same key.

    Raises:
        P2prlError: the file is unreadable or damaged. It is never replaced: hosts know this node by it.
    """
    if not path.exists():
        _create(path)
    return _load(path)


def _create(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(path.with_name(path.name + ".lock"), timeout=_CREATE_TIMEOUT_S):
            if not path.exists():
                keys = new_key_pair()
                write_private(path, msgspec.json.encode(_KeyFile(keys.public, keys.secret)) + b"\n")
    except (OSError, Timeout) as error:
        raise P2prlError(
            f"the key file {path} cannot be written ({error}); check the folder's owner"
        ) from error


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all.

    Raises:
        OSError: as the file system says.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _load(path: Path) -> KeyPair:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_KEY_FILE_BYTES)
        _close_to_others(path)
    except OSError as error:
        raise P2prlError(f"the key file {path} cannot be read ({error.strerror}); check its owner") from error
    try:
        stored = msgspec.json.decode(raw, type=_KeyFile)
        derived = zmq.curve_public(stored.secret.encode("ascii")).decode("ascii")
    except (msgspec.MsgspecError, UnicodeError, ValueError, zmq.ZMQError, AssertionError) as error:
        raise _damaged(path) from error
    if len(stored.secret) != _Z85_LENGTH or derived != stored.public:
        raise _damaged(path)
    return KeyPair(stored.public, stored.secret)


def _damaged(path: Path) -> P2prlError:
    return P2prlError(
        f"the key file {path} is damaged; bring it back from a backup, or delete it to become a new node"
    )


def _close_to_others(path: Path) -> None:
    """A key file from a backup may be open to all. (On Windows the folder's rights keep it.)"""
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)


class FolderLock:
    """Holds a folder for this process until `release`, or until the process ends, kill -9 included.

    Keep the object: the lock goes when it is collected.
    """

    def __init__(self, path: Path, in_use: str) -> None:
        """Take the lock at once.

        Args:
            path: the lock file; the holder's process id is noted beside it.
            in_use: the one line of the error; `{holder}` in it becomes the other process.

        Raises:
            AlreadyRunning: another process holds it.
            P2prlError: the lock file cannot be made.
        """
        self._note = path.with_suffix(".pid")
        self._lock = FileLock(path, thread_local=False)
        try:
            self._lock.acquire(timeout=0)
            self._note.write_text(f"{os.getpid()}\n", encoding="ascii")
        except Timeout as error:
            raise AlreadyRunning(in_use.format(holder=_holder(self._note))) from error
        except OSError as error:
            self._lock.release()
            raise P2prlError(
                f"{path} cannot be locked ({error.strerror}); check the folder's owner"
            ) from error

    def release(self) -> None:
        """Let the folder go; a second call does nothing."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # the note is only for people; the lock is what counts
                self._note.unlink()
            self._lock.release()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def member_lock(folder: Path) -> FolderLock:
    """One state folder joins one host once.

    Raises:
        AlreadyRunning: another member uses `folder`.
    """
    return FolderLock(
        folder / "member.lock",
        f"this machine already joins a host from {folder} ({{holder}}); "
        "stop that one, or set P2PRL_HOME to another folder",
    )


def run_lock(folder: Path) -> FolderLock:
    """One run's folder has one host.

    Raises:
        AlreadyRunning: another host uses `folder`.
    """
    return FolderLock(
        folder / "run.lock",
        f"the run in {folder} is already hosted ({{holder}}); stop that host first, start another run, "
        "or name the folder of one to go on with: --resume --results FOLDER",
    )


def _holder(note: Path) -> str:
    try:
        pid = note.read_text(encoding="ascii", errors="replace").strip()[:20]
    except OSError:
        pid = ""
    return f"process {pid}" if pid.isdigit() else "by another process"
