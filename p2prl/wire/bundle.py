"""Bundles <-> bytes: a player's sessions, one block a column, sized by the run's schema alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from p2prl.core.messages import BundleHeader
from p2prl.core.schema import Column, SessionSchema
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.wire.blocks import Array, Buffer, dtype_name
from p2prl.wire.columns import pack_column, unpack_column

#: Slots of one bundle.
MAX_SLOTS = 1024
#: Bytes of one payload, compressed. Also what the shard's MAXMSGSIZE is set from.
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
#: Bytes of one bundle, decoded.
MAX_DECODED_BYTES = 256 * 1024 * 1024


def encode_bundle(
    schema: SessionSchema,
    arrays: Mapping[str, Array],
    *,
    slots: int,
    version: int,
    rank: int,
    serial: int,
    steps: int,
    episodes: Sequence[tuple[float, int, float]],
) -> tuple[BundleHeader, bytes]:
    """The header and payload of `slots` sessions that were played together.

    Args:
        arrays: one per column of `schema`, `[rows, slots, *shape]` of exactly its dtype.
        version, rank, serial, steps, episodes: as in BundleHeader.

    Raises:
        LocalProtocolError: an array is missing or is not what the schema says, or the bundle is too large to
            send.
    """
    _check_size(schema, slots)
    blocks = [pack_column(_column(schema, column, arrays, slots)) for column in schema.columns]
    payload = b"".join(block for _, block in blocks)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise LocalProtocolError(_too_large(len(payload), MAX_PAYLOAD_BYTES))
    header = BundleHeader(
        schema=schema.digest(),
        slots=slots,
        version=version,
        rank=rank,
        serial=serial,
        steps=steps,
        episodes=list(episodes),
        codecs=[codec for codec, _ in blocks],
        sizes=[len(block) for _, block in blocks],
    )
    return header, payload


def _check_size(schema: SessionSchema, slots: int) -> None:
    if not 1 <= slots <= MAX_SLOTS:
        raise LocalProtocolError(f"{slots} slots in one bundle; between 1 and {MAX_SLOTS} are possible")
    size = schema.session_bytes() * slots
    if size > MAX_DECODED_BYTES:
        raise LocalProtocolError(_too_large(size, MAX_DECODED_BYTES))


def _too_large(size: int, bound: int) -> str:
    return f"a bundle of {size} bytes where {bound} are possible: use fewer --envs or a smaller replay.ticks"


def _column(schema: SessionSchema, column: Column, arrays: Mapping[str, Array], slots: int) -> Array:
    array = arrays.get(column.name)
    if array is None:
        raise LocalProtocolError(f"the bundle lacks the column {column.name!r}")
    shape = (schema.rows(column), slots, *column.shape)
    if array.shape != shape or dtype_name(array.dtype) != column.dtype:
        raise LocalProtocolError(
            f"column {column.name!r} is {array.dtype}{list(array.shape)}, not {column.dtype}{list(shape)}"
        )
    return array


def decode_bundle(schema: SessionSchema, header: BundleHeader, payload: Buffer) -> dict[str, Array]:
    """The arrays of a bundle, by column in the schema's order, `[rows, slots, *shape]`; read-only.

    No byte is decompressed before all sizes are known to fit the schema, and no decoded byte is looked at
    here: see replay/validate.py.

    Raises:
        RemoteProtocolError: `wrong_schema`, `oversize`, `malformed` or `bad_codec`.
    """
    check_header(schema, header, len(payload))
    view = memoryview(payload)
    arrays: dict[str, Array] = {}
    start = 0
    for column, codec, size in zip(schema.columns, header.codecs, header.sizes, strict=True):
        shape = (schema.rows(column), header.slots, *column.shape)
        arrays[column.name] = unpack_column(codec, view[start : start + size], column.dtype, shape)
        start += size
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
