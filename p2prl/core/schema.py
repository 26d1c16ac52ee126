"""The shape of a session: which arrays it holds, so that its exact size is known before a byte is decoded.

A session is T consecutive ticks of one slot. Columns with `extra_row` (the observations) have T+1 rows: row t is what
the actor saw at tick t, and row t+1 is what the environment answered. An episode's end inside a session costs one more
tick: after the tick flagged TERMINATED or TRUNCATED, row t+1 is the episode's *final* observation, and tick t+1 is
flagged RESET: its action was not used, its reward is 0 and its next row is the first observation of the next episode.
(Gymnasium calls this NEXT_STEP autoreset.) So for every tick without RESET, rows t and t+1 are a true transition.
An environment that failed gives RESET ticks too, also several in a row, and after a tick that has no flag: its episode
breaks off there, as if it had been truncated, but has no return. A session's first tick may be a RESET.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

import msgspec

TERMINATED = 1
TRUNCATED = 2
RESET = 4

#: Every dtype that may cross the wire, with its size in bytes. Nothing else is ever given to numpy.
DTYPE_SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
}

#: Most elements that one row of one column may have (64 M), so that sizes never overflow.
MAX_ROW_ELEMENTS = 1 << 26


class Column(msgspec.Struct, frozen=True):
    """One array of a session.

    Attributes:
        name: `obs...`, `action...`, `reward`, `flags`, or the name of an agent's field.
        dtype: a key of DTYPE_SIZES.
        shape: the shape of one row, without time and slot axes.
        extra_row: True if the column has T+1 rows.
        once: True if it has one row: what was given at the session's first tick.
        low, high: inclusive bounds; one number, one per element of a row, or empty for none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    extra_row: bool = False
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    once: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of one slot."""
        count = DTYPE_SIZES[self.dtype]
        for side in self.shape:
            count *= side
        return count


class SessionSchema(msgspec.Struct, frozen=True, dict=True):
    """The columns of every session of a run.

    Attributes:
        ticks: T, the length of every session.
        columns: in the order in which a bundle carries them.
    """

    ticks: int
    columns: tuple[Column, ...]

    def rows(self, column: Column, window: int = 0) -> int:
        """Rows of `column` in a window of so many ticks (0: the whole session): one a tick, one more, or just one."""
        if column.once:
            return 1
        return (window or self.ticks) + (1 if column.extra_row else 0)

    def column_bytes(self, column: Column, slots: int) -> int:
        """Bytes of one column of a bundle, decoded."""
        return self.rows(column) * slots * column.row_bytes

    def session_bytes(self) -> int:
        """Bytes of one session, decoded."""
        return self._session_bytes

    @property
    def needs_whole_sessions(self) -> bool:
        """True if windows cannot be cut from it: what holds for a session's first tick says nothing about others."""
        return any(column.once for column in self.columns)

    def digest(self) -> bytes:
        """Eight bytes that name this schema; a bundle of another schema is refused by them."""
        return self._digest

    # Each bundle asks for both.

    @cached_property
    def _session_bytes(self) -> int:
        return sum(self.column_bytes(column, 1) for column in self.columns)

    @cached_property
    def _digest(self) -> bytes:
        plain = msgspec.to_builtins(self)
        for column in plain["columns"]:
            if not column["once"]:
                del column[
                    "once"
                ]  # as it was before there were such columns, or older nodes would be refused
        return hashlib.blake2b(msgspec.msgpack.encode(plain), digest_size=8).digest()


def check_schema(schema: SessionSchema) -> str:
    """Why a schema that came from outside cannot be used, or an empty string."""
    if schema.ticks < 1 or not schema.columns:
        return "a session needs at least one tick and one column"
    names = [column.name for column in schema.columns]
    if len(set(names)) != len(names):
        return "two columns have the same name"
    for column in schema.columns:
        if column.dtype not in DTYPE_SIZES:
            return f"column {column.name!r} has the unknown dtype {column.dtype!r}"
        if column.once and column.extra_row:
            return f"column {column.name!r} cannot have one row and one more than ticks"
        elements = 1
        for side in column.shape:
            if side < 0:
                return f"column {column.name!r} has a negative side"
            elements *= side
            if elements > MAX_ROW_ELEMENTS:  # at once: the product of a stranger's sides may have no end
                return f"column {column.name!r} has more than {MAX_ROW_ELEMENTS} elements a row"
        for bounds in (column.low, column.high):
            if len(bounds) not in (0, 1, elements):
                return f"column {column.name!r} has {len(bounds)} bounds for {elements} elements"
    return ""
