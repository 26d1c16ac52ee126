"""Bundles <-> bytes: a player's sessions, one block a column, sized by the run's schema alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from p2prl.core.messages import BundleHeader
from p2prl.core.schema import SessionSchema
from p2prl.errors import LocalProtocolError, RemoteProtocolError, UsageError
from p2prl.wire.blocks import Array, Buffer, dtype_name
from p2prl.wire.columns import CODECS, ColumnPacker, developed, open_pictures, unpack_column
from p2prl.wire.pictures import Slots, Stacks, check_blocks, is_pictures
from p2prl.words import sized

#: A bundle's columns by name, as `open_bundle` gives them.
Opened = Mapping[str, Array | Slots]

#: What ends a block of each codec.
_NUMBERS = {codec: number for number, codec in enumerate(CODECS)}
_MARKS = {codec: bytes([number]) for codec, number in _NUMBERS.items()}
#: Slots of one bundle.
MAX_SLOTS = 1024
#: Bytes of one payload, compressed. Also what the shard's MAXMSGSIZE is set from.
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
#: Bytes of one bundle, decoded.
MAX_DECODED_BYTES = 256 * 1024 * 1024


class BundleEncoder:
    """Encodes the bundles of one player: sessions of so many slots that were played together."""

    def __init__(self, schema: SessionSchema, slots: int, codecs: Collection[str] = CODECS) -> None:
        """
        Args:
            codecs: as in RunSpec.

        Raises:
            LocalProtocolError: bundles of so many slots are too large to send.
        """
        _check_size(schema, slots)
        self._schema, self._slots = schema, slots
        self._columns = [
            (
                column.name,
                (schema.rows(column), slots, *column.shape),
                column.dtype,
                ColumnPacker(column.dtype, column.shape, codecs),
            )
            for column in schema.columns
        ]

    def encode(
        self,
        arrays: Mapping[str, Array | Stacks],
        *,
        version: int,
        rank: int,
        serial: int,
        steps: int,
        episodes: Sequence[tuple[float, int, float]],
    ) -> tuple[BundleHeader, bytes]:
        """The header and payload of a bundle.

        Args:
            arrays: one per column of the schema, `[rows, slots, *shape]` of exactly its dtype; or its pictures.
            version, rank, serial, steps, episodes: as in BundleHeader.

        Raises:
            LocalProtocolError: an array is missing or is not what the schema says, or the bundle is too large to
                send.
        """
        codecs: list[str] = []
        sizes: list[int] = []
        parts: list[Buffer] = []
        for name, shape, dtype, packer in self._columns:
            codec, block = packer.pack(_checked(name, arrays.get(name), shape, dtype))
            codecs.append(codec)
            sizes.append(len(block) + 1)
            parts += (block, _MARKS[codec])
        payload = b"".join(parts)
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise LocalProtocolError(_too_large(len(payload), MAX_PAYLOAD_BYTES))
        header = BundleHeader(
            schema=self._schema.digest(),
            slots=self._slots,
            version=version,
            rank=rank,
            serial=serial,
            steps=steps,
            episodes=list(episodes),
            codecs=codecs,
            sizes=sizes,
        )
        return header, payload


def encode_bundle(
    schema: SessionSchema,
    arrays: Mapping[str, Array | Stacks],
    *,
    slots: int,
    version: int,
    rank: int,
    serial: int,
    steps: int,
    episodes: Sequence[tuple[float, int, float]],
    codecs: Collection[str] = CODECS,
) -> tuple[BundleHeader, bytes]:
    """One bundle by itself, as a `BundleEncoder` encodes its first; arguments and errors are as there."""
    return BundleEncoder(schema, slots, codecs).encode(
        arrays, version=version, rank=rank, serial=serial, steps=steps, episodes=episodes
    )


def _check_size(schema: SessionSchema, slots: int) -> None:
    if not 1 <= slots <= MAX_SLOTS:
        raise LocalProtocolError(f"{slots} slots in one bundle; between 1 and {MAX_SLOTS} are possible")
    size = schema.session_bytes() * slots
    if size > MAX_DECODED_BYTES:
        raise LocalProtocolError(_too_large(size, MAX_DECODED_BYTES))


def _too_large(size: int, bound: int) -> str:
    return f"a bundle of {size} bytes where {bound} are possible: use fewer --envs or a smaller replay.ticks"


def _checked(name: str, array: Array | Stacks | None, shape: tuple[int, ...], dtype: str) -> Array | Stacks:
    if array is None:
        raise LocalProtocolError(f"the bundle lacks the column {name!r}")
    given = "uint8" if isinstance(array, Stacks) else dtype_name(array.dtype)
    if array.shape != shape or given != dtype:
        raise LocalProtocolError(f"column {name!r} is {given}{list(array.shape)}, not {dtype}{list(shape)}")
    return array


class BundleReader:
    """Opens the bundles of one run."""

    def __init__(self, schema: SessionSchema) -> None:
        self._schema = schema
        self._columns = [
            (
                column.name,
                column.dtype,
                schema.rows(column),
                column.shape,
                is_pictures(column.dtype, column.shape),
            )
            for column in schema.columns
        ]

    def open(self, header: BundleHeader, payload: Buffer) -> dict[str, Array | Slots]:
        """A bundle by column, in the schema's order: arrays `[rows, slots, *shape]`, read-only, and pictures undecoded.

        No byte is decompressed before all sizes are known to fit the schema, and no decoded byte is looked at here: see
        replay/validate.py. Each block of pictures can be decoded: that was tried.

        Raises:
            RemoteProtocolError: `wrong_schema`, `oversize`, `malformed` or `bad_codec`.
        """
        check_header(self._schema, header, len(payload))
        return self.open_checked(header, payload)

    def open_checked(self, header: BundleHeader, payload: Buffer) -> dict[str, Array | Slots]:
        """As `open`, of a bundle that `check_header` had nothing against."""
        view = memoryview(payload)
        opened: dict[str, Array | Slots] = {}
        start = 0
        for column, codec, size in zip(self._columns, header.codecs, header.sizes, strict=True):
            name, dtype, rows, row, pictured = column
            block = _unmarked(codec, view, start, start + size)
            start += size
            shape = (rows, header.slots, *row)
            if pictured:
                opened[name] = slots = open_pictures(codec, block, dtype, shape)
                check_blocks(slots, rows, row)
            else:
                opened[name] = unpack_column(codec, block, dtype, shape)
        return opened


def open_bundle(schema: SessionSchema, header: BundleHeader, payload: Buffer) -> dict[str, Array | Slots]:
    """One bundle by itself, as `BundleReader.open` does it."""
    return BundleReader(schema).open(header, payload)


def _unmarked(codec: str, payload: memoryview, start: int, end: int) -> memoryview:
    """A block without the byte at its end that says what it is: the header must say the same."""
    if start == end or payload[end - 1] != _NUMBERS.get(codec, payload[end - 1]):
        raise RemoteProtocolError("bad_codec", f"a block that is not {codec}, as its header says")
    return payload[start : end - 1]


def decode_bundle(schema: SessionSchema, header: BundleHeader, payload: Buffer) -> dict[str, Array]:
    """As `open_bundle`, with pictures as arrays too."""
    found = open_bundle(schema, header, payload)
    arrays: dict[str, Array] = {}
    for column in schema.columns:
        values = found[column.name]
        shape = (schema.rows(column), header.slots, *column.shape)
        arrays[column.name] = developed(values, shape) if isinstance(values, Slots) else values
    return arrays


def check_header(schema: SessionSchema, header: BundleHeader, payload_bytes: int) -> None:
    """Everything about a bundle that can be checked without its payload; raises as `decode_bundle` does."""
    if header.schema != schema.digest():
        raise RemoteProtocolError("wrong_schema", "the bundle is of another schema than the run's")
    if not 1 <= header.slots <= MAX_SLOTS:
        raise RemoteProtocolError("malformed", f"{header.slots} slots in one bundle")
    if payload_bytes > MAX_PAYLOAD_BYTES or schema.session_bytes() * header.slots > MAX_DECODED_BYTES:
        raise RemoteProtocolError("oversize", f"{header.slots} sessions in {payload_bytes} bytes")
    if not len(header.codecs) == len(header.sizes) == len(schema.columns):
        raise RemoteProtocolError(
            "wrong_schema", f"{len(header.sizes)} columns where {len(schema.columns)} are due"
        )
    if min(header.sizes) < 0 or sum(header.sizes) != payload_bytes:
        raise RemoteProtocolError("malformed", "the columns' sizes do not add up to the payload")


def check_slots(schema: SessionSchema, slots: int) -> None:
    """Before anything is played: raises UsageError if bundles of so many sessions could never be sent."""
    each = schema.session_bytes()
    if each * slots > MAX_DECODED_BYTES:
        most = MAX_DECODED_BYTES // each
        fewer = f"--envs {most} or less, or " if most else ""
        raise UsageError(
            f"--envs {slots} makes bundles of {sized(each * slots)} where {sized(MAX_DECODED_BYTES)} "
            f"are possible: use {fewer}a smaller replay.ticks"
        )
