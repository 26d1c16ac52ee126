"""A spool's segments: files of bundles, each with a head of its own that is changed in place.

    segment: head | header frame | payload | head ...
    head:    128 bytes, little-endian (_HEAD): magic, crc32 of the rest, and a core/spool.py Record

In place, because that takes no room: on a full disk what is there can still be sent, and marked as sent. Nothing is
synced. A kill of the process loses nothing that was written; a power cut may cost what the operating system had not
brought to the disk yet (Linux: the last half minute), and what is half-written is seen as such.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from p2prl.core.outbox import Name
from p2prl.core.spool import Record

Frame = bytes | memoryview

_MAGIC = b"P2S1"
#: magic, crc, id, ticks, steps, episodes, version, header_bytes, payload_bytes, body_crc, flags, shard, seq,
#: settlement, boot id, status, reason
_HEAD = struct.Struct("<4sIQIIIqIIIHhqQ16s10s34s")
_COUNTED, _NAMED = 1, 2
_OPEN_FILES = 8
_READ_AHEAD = 64 * 1024
_SUFFIX = ".spool"


@dataclass
class Entry:
    """A record and where it is."""

    record: Record
    segment: int
    offset: int

    @property
    def size_bytes(self) -> int:
        """On disk."""
        return _HEAD.size + self.record.header_bytes + self.record.payload_bytes


def size_on_disk(header: Frame, payload: Frame) -> int:
    """What a bundle takes."""
    return _HEAD.size + memoryview(header).nbytes + memoryview(payload).nbytes


def body_crc(header: Frame, payload: Frame) -> int:
    """As a Record keeps it."""
    return zlib.crc32(payload, zlib.crc32(header))


def _pack(record: Record) -> bytes:
    name = record.name or Name(-1, "", -1)
    head = _HEAD.pack(
        _MAGIC,
        0,
        record.id,
        record.ticks,
        record.steps,
        record.episodes,
        record.version,
        record.header_bytes,
        record.payload_bytes,
        record.body_crc,
        record.counted * _COUNTED | (record.name is not None) * _NAMED,
        name.shard,
        name.seq,
        record.settlement,
        name.boot_id.encode(),
        record.status.encode(),
        record.reason.encode()[:34],
    )
    return head[:4] + zlib.crc32(head[8:]).to_bytes(4, "little") + head[8:]


def _unpack(data: bytes, at: int = 0) -> Record | None:
    """The record whose head is there; None if none is."""
    if len(data) - at < _HEAD.size or data[at : at + 4] != _MAGIC:
        return None
    crc = int.from_bytes(data[at + 4 : at + 8], "little")
    if zlib.crc32(data[at + 8 : at + _HEAD.size]) != crc:
        return None
    (
        _,
        _,
        id_,
        ticks,
        steps,
        episodes,
        version,
        header,
        payload,
        body,
        flags,
        shard,
        seq,
        settlement,
        *texts,
    ) = _HEAD.unpack_from(data, at)
    boot_id, status, reason = (text.rstrip(b"\0").decode(errors="replace") for text in texts)
    return Record(
        id=id_,
        ticks=ticks,
        steps=steps,
        episodes=episodes,
        version=version,
        header_bytes=header,
        payload_bytes=payload,
        body_crc=body,
        counted=bool(flags & _COUNTED),
        name=Name(shard, boot_id, seq) if flags & _NAMED else None,
        status=status,
        reason=reason,
        settlement=settlement,
    )


class Segments:
    """The numbered files of one folder. Methods raise OSError as the file system says.

    Attributes:
        sizes: bytes of each, by number, in order.
        broken: places that could not be read so far.
    """

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self.broken = 0
        self._files: OrderedDict[int, FileIO] = OrderedDict()
        #: The one that is appended to; a new process never appends to another's, whose tail may be torn.
        self._current = -1
        self._last = 0
        self.sizes: dict[int, int] = {}

    def look(self) -> None:
        """Find the segments that are there."""
        paths = self._folder.glob(f"*{_SUFFIX}")
        numbers = sorted(int(path.stem) for path in paths if path.stem.isdecimal())
        self.sizes = {number: self._path(number).stat().st_size for number in numbers}
        self._last = max(numbers, default=0)

    def append(self, record: Record, header: Frame, payload: Frame) -> Entry:
        """Write a bundle, whole or not at all."""
        if self._current not in self.sizes or self.sizes[self._current] >= self._segment_bytes:
            self._begin()
        number, offset = self._current, self.sizes[self._current]
        file = self._file(number)
        try:
            file.seek(offset)
            write_all(file, b"".join((_pack(record), header, payload)))
        except OSError:
            # What is behind the last whole record is not looked at again, should even this fail.
            self._current = -1
            file.truncate(offset)
            self._current = number
            raise
        entry = Entry(record, number, offset)
        self.sizes[number] = offset + entry.size_bytes
        return entry

    def change(self, entry: Entry) -> None:
        """Write the entry's record again, in place."""
        file = self._file(entry.segment)
        file.seek(entry.offset)
        write_all(file, _pack(entry.record))

    def read(self, entry: Entry) -> tuple[bytes, bytes] | None:
        """The two frames of a bundle; None if they are not what was written."""
        record = entry.record
        file = self._file(entry.segment)
        file.seek(entry.offset + _HEAD.size)
        body = file.read(record.header_bytes + record.payload_bytes)
        header, payload = body[: record.header_bytes], body[record.header_bytes :]
        if len(payload) != record.payload_bytes or body_crc(header, payload) != record.body_crc:
            return None
        return header, payload

    def entry_at(self, number: int, offset: int) -> Entry | None:
        """The first entry of a segment from there on; None behind the last one."""
        file = self._file(number)
        file.seek(offset)
        return self._next(file, number, offset)

    def entries(self, number: int) -> Iterator[Entry]:
        """All entries of a segment that can be read; counts what cannot."""
        with self._path(number).open("rb", buffering=_READ_AHEAD) as file:
            offset = 0
            while True:
                file.seek(offset)
                entry = self._next(file, number, offset)
                if entry is None:
                    return
                self.broken += entry.offset != offset
                yield entry
                offset = entry.offset + entry.size_bytes

    def _next(self, file: BinaryIO | FileIO, number: int, offset: int) -> Entry | None:
        end = self.sizes[number]
        head = file.read(_HEAD.size)
        record = _unpack(head)
        if record is None:
            return self._search(file, number, offset + 1) if len(head) == _HEAD.size else None
        entry = Entry(record, number, offset)
        if offset + entry.size_bytes > end:
            return None  # torn: it was being written when the process died
        return entry

    def _search(self, file: BinaryIO | FileIO, number: int, offset: int) -> Entry | None:
        """The first entry behind something that is none."""
        file.seek(offset)
        data = file.read(self.sizes[number] - offset)
        at = data.find(_MAGIC)
        while at >= 0:
            record = _unpack(data, at)
            if record is not None:
                entry = Entry(record, number, offset + at)
                if entry.offset + entry.size_bytes <= self.sizes[number]:
                    return entry
            at = data.find(_MAGIC, at + 1)
        self.broken += 1
        return None

    def remove(self, number: int) -> None:
        """Delete a segment."""
        self._let_go(number)
        self._path(number).unlink(missing_ok=True)
        del self.sizes[number]

    def set_aside(self, number: int) -> None:
        """Leave a segment that cannot be read where it is, under a name that is not looked at again."""
        self._let_go(number)
        del self.sizes[number]
        self.broken += 1
        path = self._path(number)
        path.rename(path.with_suffix(".unreadable"))

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def forget(self) -> None:
        """All files are to be deleted. Numbers are not given again."""
        self.close()
        self.sizes.clear()

    def _let_go(self, number: int) -> None:
        file = self._files.pop(number, None)
        if file is not None:
            file.close()

    def _begin(self) -> None:
        number = self._last + 1
        file = FileIO(self._path(number), "x+")
        self._remember(number, file)
        self.sizes[number], self._current, self._last = 0, number, number

    def _file(self, number: int) -> FileIO:
        file = self._files.get(number)
        if file is None:
            file = FileIO(self._path(number), "r+")
            self._remember(number, file)
        self._files.move_to_end(number)
        return file

    def _remember(self, number: int, file: FileIO) -> None:
        self._files[number] = file
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)[1].close()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:09d}{_SUFFIX}"


def write_all(file: FileIO, data: bytes) -> None:
    """A raw write may take fewer bytes than it was given, on a disk that is nearly full."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]
