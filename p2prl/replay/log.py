"""A shard's segment log: records appended to numbered files, so that what was acknowledged survives a kill.

    segment: header | record | record ...
    header:  magic "P2RL", u16 format version, u16 zero, u32 crc32 of those eight bytes
    record:  u32 length of the body, u32 crc32 of kind and body, u8 kind, body      (all little-endian)

`append` hands the bytes to the operating system before it returns: they survive a kill of the process. `sync`
brings them to the disk, for power cuts. Each segment begins with a SNAPSHOT record that the owner gives,
which says what all earlier segments amount to; so an earlier one may go as soon as nothing in it is live. A
process never appends to another's segment: after a start the first append begins a new one, and a torn tail
stays harmless.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path

from p2prl.errors import P2prlError, UpgradeNeeded
from p2prl.wire.blocks import Buffer

#: Of a record, in one piece or in several.
Body = bytes | Sequence[Buffer]

MAGIC = b"P2RL"
FORMAT = 1
SNAPSHOT = 0

#: No space, over the quota (Windows has no such number), or over the largest file that is allowed.
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)

_HEADER = struct.Struct("<4sHHI")
_RECORD = struct.Struct("<IIB")


class LogError(P2prlError):
    """The log could not be written, and is as it was before. `full` if it is for lack of space."""

    def __init__(self, folder: Path, cause: OSError) -> None:
        what = cause.strerror or str(cause)
        super().__init__(
            f"cannot write sessions to {folder}: {what}; make room there, nothing is lost meanwhile"
        )
        self.full = cause.errno in _FULL


def _segment_header() -> bytes:
    front = _HEADER.pack(MAGIC, FORMAT, 0, 0)[:8]
    return front + zlib.crc32(front).to_bytes(4, "little")


def _framed(kind: int, body: Body) -> list[Buffer]:
    """A record in parts: nothing large is copied for it."""
    parts = [body] if isinstance(body, bytes) else body
    crc = zlib.crc32(bytes([kind]))
    for part in parts:
        crc = zlib.crc32(part, crc)
    return [_RECORD.pack(sum(map(len, parts)), crc, kind), *parts]


class SegmentLog:
    """One folder of segments. Read all records first, then append.

    Args:
        folder: made if missing; one process at a time.
        segment_bytes: a new segment begins once the last one has this many bytes.
        snapshot: gives the body of the SNAPSHOT record that a new segment begins with.
    """

    def __init__(self, folder: Path, segment_bytes: int, snapshot: Callable[[], bytes]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._snapshot = snapshot
        #: Closed segments, oldest first, with the first mark that none of their records reaches.
        self._closed: deque[tuple[Path, int]] = deque()
        #: The segment that is written, its length up to the last whole record, and its mark.
        self._file: FileIO | None = None
        self._length = 0
        self._mark = 0
        self._next_number = 0
        #: A snapshot on the disk says what all segments below this number amount to.
        self._summed_up = 0
        #: Files that were written since the last sync; closed ones among them are still open for it.
        self._dirty: list[FileIO] = []
        #: What reading found wrong, one line each.
        self.damage: list[str] = []

    # --- reading --------------------------------------------------------------------------------------------

    def records(self) -> Iterator[tuple[int, bytes]]:
        """All readable records, oldest first, as (kind, body). To be read to the end before the first append.

        The reader calls `hold` for each record that later snapshots do not replace.
        """
        paths = [path for path in self.folder.glob("*.seg") if path.stem.isdecimal()]
        for path in sorted(paths, key=_number):
            self._next_number = _number(path) + 1
            self._mark = 0
            yield from self._segment(path)
            self._closed.append((path, self._mark))
        self._mark = 0

    def hold(self, mark: int) -> None:
        """The record that was just read or appended is needed until `release(mark)`."""
        self._mark = max(self._mark, mark)

    def _segment(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """The records of one segment up to the first that is broken."""
        data = path.read_bytes()
        if not self._check_header(path, data):
            return
        start = _HEADER.size
        while start < len(data):
            body_at = start + _RECORD.size
            if body_at > len(data):
                return self._cut(path, start, len(data))
            length, crc, kind = _RECORD.unpack_from(data, start)
            end = body_at + length
            if end > len(data):
                return self._cut(path, start, len(data))
            body = data[body_at:end]
            if zlib.crc32(body, zlib.crc32(bytes([kind]))) != crc:
                self.damage.append(
                    f"{path.name}: a broken record at byte {start}; {len(data) - start} bytes skipped"
                )
                return None
            yield kind, body
            start = end
        return None

    def _check_header(self, path: Path, data: bytes) -> bool:
        """True if the records of this segment can be read."""
        if len(data) < _HEADER.size:
            self._cut(path, 0, len(data))
            return False
        _, version, _, crc = _HEADER.unpack_from(data)
        if data[:4] != MAGIC or zlib.crc32(data[:8]) != crc:
            self.damage.append(f"{path.name}: not a segment; {len(data)} bytes skipped")
            return False
        if version > FORMAT:
            raise UpgradeNeeded(
                f"{path} was written by a newer p2prl (log format {version}); upgrade p2prl here"
            )
        return True

    def _cut(self, path: Path, start: int, end: int) -> None:
        """A record that was being written when the process or machine died: take it away."""
        self.damage.append(f"{path.name}: torn at byte {start}; {end - start} bytes dropped")
        try:
            os.truncate(path, start)
        except OSError as error:
            raise LogError(self.folder, error) from error

    # --- writing --------------------------------------------------------------------------------------------

    def append(self, kind: int, body: Body, mark: int = 0) -> None:
        """Write one record, whole or not at all; when this returns it survives a kill of this process.

        Args:
            mark: `release(m)` with m >= mark lets this record go.

        Raises:
            LogError: no space, or the disk fails.
        """
        self.append_all([(kind, body, mark)])

    def append_all(self, records: Sequence[tuple[int, Body, int]]) -> None:
        """Write records, kind, body and mark of each, all or none; else as `append`. One write costs less than many.

        A process that is killed meanwhile may leave the first of them.
        """
        try:
            if self._file is None or self._length >= self._segment_bytes:
                self._begin_segment()
            self._write(b"".join([part for kind, body, _ in records for part in _framed(kind, body)]))
        except OSError as error:
            raise LogError(self.folder, error) from error
        self.hold(max(mark for _, _, mark in records))

    def _begin_segment(self) -> None:
        """A new file with its header and snapshot; the old one stays current if that fails."""
        path = self.folder / f"{self._next_number:012d}.seg"
        start = b"".join([_segment_header(), *_framed(SNAPSHOT, self._snapshot())])
        file = FileIO(path, "wb")
        try:
            _write_all(file, start)
        except OSError:
            file.close()
            path.unlink()
            raise
        self._close_segment()
        self._next_number += 1
        self._file, self._length, self._mark = file, len(start), 0
        self._dirty.append(file)

    def _write(self, record: bytes) -> None:
        if self._file is None:
            raise ValueError("no segment")
        try:
            _write_all(self._file, record)
        except OSError:
            self._undo(self._file)
            raise
        self._length += len(record)
        if self._file not in self._dirty:
            self._dirty.append(self._file)

    def _undo(self, file: FileIO) -> None:
        """Take back a half-written record. Where even that fails the segment ends here."""
        try:
            file.truncate(self._length)
            file.seek(self._length)
        except OSError:
            self._close_segment()

    def _close_segment(self) -> None:
        """No more appends to the current segment; its bytes are still to be synced."""
        if self._file is None:
            return
        if self._file not in self._dirty:
            self._file.close()
        self._closed.append((Path(str(self._file.name)), self._mark))
        self._file = None

    def sync(self) -> None:
        """Bring everything written so far to the disk. Raises LogError; it may be called again."""
        while self._dirty:
            file = self._dirty[0]
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise LogError(self.folder, error) from error
            self._dirty.pop(0)
            if file is not self._file:
                file.close()
        if self._file is not None:
            self._summed_up = self._next_number - 1

    def release(self, mark: int) -> None:
        """Delete the oldest segments whose records are all below `mark`.

        A snapshot that replaces them is on the disk by then, or is brought there first. Without an open segment
        nothing is deleted: it is the newest snapshot that remembers them.
        """
        while self._file is not None and self._closed and self._closed[0][1] <= mark:
            if _number(self._closed[0][0]) >= self._summed_up:
                self.sync()
            path, _ = self._closed.popleft()
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise LogError(self.folder, error) from error

    def close(self) -> None:
        """Bring everything to the disk and let go of the files."""
        self._close_segment()
        try:
            self.sync()
        finally:
            for file in self._dirty:
                file.close()
            self._dirty.clear()


def _write_all(file: FileIO, data: bytes) -> None:
    """A raw write may take fewer bytes than it was given, on a disk that is nearly full."""
    view = memoryview(data)
    while view:
        taken = file.write(view)
        view = view[taken or 0 :]


def _number(path: Path) -> int:
    return int(path.stem)
