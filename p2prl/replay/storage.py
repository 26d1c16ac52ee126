"""Where sessions live: a ring that is sampled at random, or a queue (queue.py) that is consumed.

Pictures stay as they were sent, and are decoded where they are used (wire/pictures.py); all other columns are arrays.

Sessions are numbered from 0 in the order in which a shard stored them. Both stores hold them in that order
and let the oldest go first, so one number, `first_live`, says which are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from p2prl.core.schema import Column, SessionSchema
from p2prl.errors import LimitsForbid, RemoteProtocolError
from p2prl.replay.films import FILM_BYTES, Films
from p2prl.replay.owners import Owners
from p2prl.replay.samplers import Places, start_counts, uniform_starts
from p2prl.replay.validate import FLAGS
from p2prl.wire.blocks import Array
from p2prl.wire.bundle import Opened
from p2prl.wire.pictures import Slots, is_pictures
from p2prl.wire.stills import Still
from p2prl.words import sized

#: Bytes of one sample, so that a wrong `count` or `window` cannot take the machine's memory.
MAX_SAMPLE_BYTES = 1024 * 1024 * 1024
#: A ring has places for sessions whose pictures take this part of their bytes; Breakout at random takes twice that.
_FEWEST_BYTES = 512
#: Numbers of a row that are copied one by one if they lie apart: with more it takes as long as row by row.
_FEW_NUMBERS = 6
#: Sessions in which the places where windows may begin are counted together, at most.
_COUNTED_TOGETHER = 512


@dataclass(frozen=True)
class Drawn:
    """How samples came to be drawn by priority.

    Attributes:
        ids: int64 `[count, 2]`, the session's number and the place in the ring: what a new priority is said for.
        priorities: float32 `[count]`, those that they were drawn with.
        total: all priorities together at that moment, so that each was drawn with `priority / total`.
    """

    ids: Array
    priorities: Array
    total: float


@dataclass(frozen=True)
class Sample:
    """What a shard gives the trainer.

    Attributes:
        columns: in the schema's order, `[count, rows, *shape]`; rows are window (+1), or the whole session's. Of
            pictures what they can be developed from, one for each sample.
        versions: int64 `[count]`, the weights versions that played them.
        stale: sessions that were dropped from the queue because they had grown older than max_lag, or because
            the node that gave them is quarantined.
        drawn: None if they were not drawn by priority.
        where: int64 `[count, 3]`, place in the ring, stamp and first tick: then the trainer gathers them itself, and
            there are no columns (shared.py).
    """

    columns: list[Array | list[Still]]
    versions: Array
    stale: int = 0
    drawn: Drawn | None = None
    where: Array | None = None

    @property
    def count(self) -> int:
        """How many samples these are."""
        return len(self.versions)


class Store(Protocol):
    """Sessions, oldest first."""

    def full(self) -> bool:
        """True if no bundle can be taken now."""

    def add(self, first: int, arrays: Opened, version: int, node: str = "") -> int:
        """Take a bundle of `node`, as `open_bundle` gives it, whose sessions are numbered from `first`.

        Returns how many older sessions went for it.
        """

    def quarantine(self, nodes: frozenset[str]) -> None:
        """Sessions of these nodes, and of no others, are not sampled from now on."""

    def sample(self, count: int, window: int, current_version: int) -> Sample:
        """Up to `count` samples; RemoteProtocolError for a window or count that cannot be."""

    def mass(self) -> int:
        """What could be sampled now."""

    def first_live(self, next_session: int) -> int:
        """The number of the oldest session held; `next_session` if there is none."""

    @property
    def sessions(self) -> int:
        """Sessions held, of a ring without those of quarantined nodes."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all that is held, as it is held."""


def check_ask(schema: SessionSchema, count: int, window: int) -> None:
    """Refuse a sample that cannot be, before memory is taken for it."""
    if count < 0 or not 0 <= window <= schema.ticks:
        raise RemoteProtocolError(
            "malformed", f"{count} windows of {window} ticks, of sessions of {schema.ticks}"
        )
    if window and schema.needs_whole_sessions:
        raise RemoteProtocolError("malformed", "windows of sessions that can only be taken whole")
    size = count * sum(schema.rows(column, window) * column.row_bytes for column in schema.columns)
    if size > MAX_SAMPLE_BYTES:
        raise RemoteProtocolError("oversize", f"a sample of {size} bytes")


def kept_bytes(schema: SessionSchema) -> tuple[int, int]:
    """Bytes of one session in a ring: of its arrays, and what its pictures are expected to take at most.

    Pictures that are kept as they were sent take a hundredth of their bytes where little moves, and a quarter if
    nothing but a stack of four can be undone.
    """
    pictures = sum(schema.column_bytes(column, 1) for column in schema.columns if in_pictures(column))
    return schema.session_bytes() - pictures, pictures // 4


def ring_capacity(schema: SessionSchema, capacity_bytes: int) -> int:
    """Sessions that a ring of so many bytes has places for: pictures of a game may well take a hundredth of theirs."""
    columns = [column for column in schema.columns if in_pictures(column)]
    pictures = sum(schema.column_bytes(column, 1) // _FEWEST_BYTES + FILM_BYTES for column in columns)
    return max(1, capacity_bytes // max(1, kept_bytes(schema)[0] + pictures))


def in_pictures(column: Column) -> bool:
    """Whether a column is kept undecoded."""
    return is_pictures(column.dtype, column.shape)


def slots_in(arrays: Opened) -> int:
    """Sessions of a bundle."""
    first = next(iter(arrays.values()))
    return len(first.blocks) if isinstance(first, Slots) else first.shape[1]


def _copy(values: Array, to: Array) -> None:
    """Of the same shape. Rows of a few numbers that lie apart, as planes leave them, are copied number by number.

    numpy copies along the last axis, which costs more for each of these rows than for its numbers.
    """
    if values.ndim == 3 and 1 < values.shape[2] <= _FEW_NUMBERS and values.strides[2] > values.strides[1]:
        for place in range(values.shape[2]):
            to[..., place] = values[..., place]
    else:
        to[...] = values


class RingStore:
    """Sessions sampled at random, again and again; a new one overwrites the oldest.

    Where there are pictures, it is mostly full of bytes before all of its places are taken; then, too, the oldest go.

    Args:
        capacity_bytes: of all that is held; at least one session is.
        window: ticks per sample that `mass` is counted for; 0 for whole sessions.

    Raises:
        LimitsForbid: there is no memory for it.
    """

    def __init__(
        self, schema: SessionSchema, capacity_bytes: int, window: int, rng: np.random.Generator
    ) -> None:
        self._schema = schema
        self._window = window
        self._rng = rng
        self._capacity_bytes = capacity_bytes
        self._array_bytes, _ = kept_bytes(schema)
        self.capacity = ring_capacity(schema, capacity_bytes)
        try:
            self._make_columns()
            self._films = [store for store in self._columns if isinstance(store, Films)]
            self._versions = np.empty(self.capacity, np.int64)
            self._numbers = np.empty(self.capacity, np.int64)
            self._starts = np.zeros(self.capacity, np.int64)
            self._owners = Owners(self.capacity)
        except (MemoryError, ValueError) as error:
            size = self.capacity * sum(kept_bytes(schema))
            raise LimitsForbid(
                f"no memory for a replay of {sized(size)} a shard; set replay.capacity_bytes lower"
            ) from error
        names = [column.name for column in schema.columns]
        flags = self._columns[names.index(FLAGS)] if FLAGS in names else None
        self._flags = None if isinstance(flags, Films) else flags
        self._named = [
            (column.name, store) for column, store in zip(schema.columns, self._columns, strict=True)
        ]
        #: Places in use, and the place that is written next.
        self._held = 0
        self._head = 0
        #: The valid first ticks of all windows together. The last places that were written are not counted yet: they
        #: are once somebody asks, or when they are many.
        self._mass = 0
        self._uncounted = 0

    def _make_columns(self) -> None:
        # Not filled: the system gives memory as sessions come, but refuses here what it could never give.
        self._columns: list[Array | Films] = [
            Films(self.capacity)
            if in_pictures(column)
            else np.empty((self.capacity, self._schema.rows(column), *column.shape), column.dtype)
            for column in self._schema.columns
        ]

    def full(self) -> bool:
        """Never: the oldest make room."""
        return False

    def add(self, first: int, arrays: Opened, version: int, node: str = "") -> int:
        """As in Store. Of a bundle larger than the ring its last sessions stay."""
        slots = slots_in(arrays)
        skip = max(0, slots - self.capacity)
        done = skip
        while done < slots:
            count = min(slots - done, self.capacity - self._head)
            self._write(self._head, done, count, arrays, node)
            block = slice(self._head, self._head + count)
            self._versions[block] = version
            self._numbers[block] = np.arange(first + done, first + done + count)
            self._head = (self._head + count) % self.capacity
            self._uncounted = min(self.capacity, self._uncounted + count)
            done += count
        if self._uncounted >= _COUNTED_TOGETHER:
            self._count_starts()
        overwritten = max(0, self._held + slots - skip - self.capacity)
        self._held = min(self.capacity, self._held + slots - skip)
        return skip + overwritten + self._make_room()

    def _write(self, at: int, start: int, count: int, arrays: Opened, node: str) -> None:
        """Copy `count` slots of a bundle, `[rows, slots]`, from slot `start` to `[slots, rows]` from `at`."""
        block = slice(at, at + count)
        self._owners.put(block, node)
        for name, store in self._named:
            values = arrays[name]
            if isinstance(store, Films):
                assert isinstance(values, Slots)
                store.put(at, start, count, values)
            else:
                assert not isinstance(values, Slots)
                _copy(values[:, start : start + count].swapaxes(0, 1), store[block])

    def _count_starts(self) -> None:
        count, self._uncounted = self._uncounted, 0
        if not count:
            return
        first = (self._head - count) % self.capacity
        to_end = min(count, self.capacity - first)
        for block in (slice(first, first + to_end), slice(0, count - to_end)):
            starts = self._starts[block]
            self._mass -= int(starts.sum())
            starts[:] = start_counts(self._flags, block, self._schema.ticks, self._window)
            self._mass += int(starts.sum())

    def _make_room(self) -> int:
        """Let the oldest go while all together is too large; how many went."""
        if not self._films:
            return 0
        went = 0
        while self.size_bytes > self._capacity_bytes and self._held > 1:
            self._clear(self._oldest())
            self._held -= 1
            went += 1
        return went

    def _clear(self, place: int) -> None:
        """A place holds nothing any more."""
        for films in self._films:
            films.clear(place)
        self._count_starts()
        self._mass -= int(self._starts[place])
        self._starts[place] = 0

    def _oldest(self) -> int:
        return (self._head - self._held) % self.capacity

    def quarantine(self, nodes: frozenset[str]) -> None:
        """As in Store. What is still held comes back when its node is no longer named."""
        self._owners.bar(nodes)

    def sample(self, count: int, window: int, current_version: int) -> Sample:
        """`count` windows at random sessions and offsets, with replacement, or none if no window can begin.

        A window never crosses its session's end, and its first tick is never RESET. With window 0 whole
        sessions.
        """
        check_ask(self._schema, count, window)
        session, offset = self._draw(count, window)
        return Sample(self._gather(session, offset, window), self._versions[session])

    def _draw(self, count: int, window: int) -> tuple[Array, Array]:
        """Places and first ticks, int64 `[count]`."""
        places = self._drawable()
        if window:
            return uniform_starts(self._rng, self._flags, places, self._schema.ticks, window, count)
        drawn = self._rng.integers(max(1, places.count), size=count if places.count else 0)
        return places.at(drawn), np.zeros_like(drawn)

    def _drawable(self) -> Places:
        """Those that may be drawn."""
        return self._in_use(self._oldest(), self._held)

    def _in_use(self, first: int, count: int) -> Places:
        """So many places from `first` on, without those of quarantined nodes."""
        places = Places(count, None, first if count < self.capacity else 0, self.capacity)
        return self._owners.allowed(places)

    def _gather(self, session: Array, offset: Array, window: int) -> list[Array | list[Still]]:
        """One gather per column over its rows laid end to end; with window 0 whole sessions."""
        rows_at: dict[bool, Array] = {}
        columns: list[Array | list[Still]] = []
        for column, store in zip(self._schema.columns, self._columns, strict=True):
            if isinstance(store, Films):
                columns.append(store.take(session, offset))
                continue
            if window == 0:
                columns.append(store.take(session, axis=0))
                continue
            rows = rows_at.get(column.extra_row)
            if rows is None:
                start = session * self._schema.rows(column) + offset
                rows = start[:, None] + np.arange(window + column.extra_row)
                rows_at[column.extra_row] = rows
            flat = store.reshape(self.capacity * self._schema.rows(column), *column.shape)
            columns.append(flat.take(rows, axis=0))
        return columns

    def mass(self) -> int:
        """Ticks at which a window may begin."""
        self._count_starts()
        listed = self._drawable().listed
        return self._mass if listed is None else int(self._starts[listed].sum())

    def first_live(self, next_session: int) -> int:
        """As in Store."""
        return int(self._numbers[self._oldest()]) if self._held else next_session

    @property
    def sessions(self) -> int:
        """As in Store."""
        return self._in_use(self._oldest(), self._held).count

    @property
    def size_bytes(self) -> int:
        """As in Store."""
        return self._held * self._array_bytes + sum(films.size_bytes for films in self._films)
