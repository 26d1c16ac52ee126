"""A spool's snapshot of the books: one small file, written over the older of two places.

    place: 8 KiB: magic, crc32 of the rest, serial number, length, msgpack of a core/spool.py Snapshot

The newer readable place counts, so that a write that breaks off leaves the one before.
"""

from __future__ import annotations

import struct
import zlib
from io import FileIO
from pathlib import Path

import msgspec

from p2prl.core.spool import Snapshot
from p2prl.nodes.spool_file import write_all

_MAGIC = b"P2B1"
_PLACE = 8192
_HEAD = struct.Struct("<4sIQI")


class SnapshotFile:
    """The newest snapshot, written over the older of two places."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._serial = 0

    def read(self) -> Snapshot | None:
        """The newest readable one."""
        found: tuple[int, Snapshot] | None = None
        data = self._path.read_bytes() if self._path.exists() else b""
        for at in (0, _PLACE):
            read = _read_place(data[at : at + _PLACE])
            if read is not None and (found is None or read[0] > found[0]):
                found = read
        if found is None:
            return None
        self._serial = found[0]
        return found[1]

    def write(self, snapshot: Snapshot) -> None:
        """Raises OSError; then the one before still counts."""
        body = msgspec.msgpack.encode(snapshot)
        if len(body) > _PLACE - _HEAD.size:
            body = msgspec.msgpack.encode(_shortened(snapshot))
        head = _HEAD.pack(_MAGIC, 0, self._serial + 1, len(body))
        place = head[8:] + body
        place = _MAGIC + zlib.crc32(place).to_bytes(4, "little") + place
        if not self._path.exists():
            self._path.write_bytes(bytes(2 * _PLACE))
        with FileIO(self._path, "r+") as file:
            file.seek((self._serial + 1) % 2 * _PLACE)
            write_all(file, place)
        self._serial += 1

    def remove(self) -> None:
        """Forget it."""
        self._path.unlink(missing_ok=True)


def _read_place(data: bytes) -> tuple[int, Snapshot] | None:
    if len(data) < _HEAD.size:
        return None
    magic, crc, serial, length = _HEAD.unpack_from(data)
    whole = data[8 : _HEAD.size + length]
    if magic != _MAGIC or zlib.crc32(whole) != crc:
        return None
    try:
        return serial, msgspec.msgpack.decode(data[_HEAD.size :][:length], type=Snapshot)
    except msgspec.MsgspecError:
        return None


def _shortened(snapshot: Snapshot) -> Snapshot:
    """With no reasons apart: a host may make up any."""
    books = snapshot.books
    books = msgspec.structs.replace(
        books, refused_reasons={"other": books.refused}, dropped_reasons={"other": books.dropped}
    )
    return msgspec.structs.replace(snapshot, books=books)
