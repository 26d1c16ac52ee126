"""What a shard writes to its segment log, beside the framing. Read back only from this machine's disk."""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from p2prl.core.dedup import Seen
from p2prl.wire.blocks import Buffer

Record = TypeVar("Record")

#: How msgpack writes bytes: no more than so many, the mark, and their number (spec.md, "bin format family").
_BINARY = (
    (0xFF, b"\xc4", struct.Struct(">B")),
    (0xFFFF, b"\xc5", struct.Struct(">H")),
    (0xFFFFFFFF, b"\xc6", struct.Struct(">I")),
)
_EMPTY = b"\xc4\x00"

#: Kinds of record; log.SNAPSHOT is 0.
BUNDLE = 1
CONSUMED = 2


class StoredBundle(msgspec.Struct, frozen=True, array_like=True):
    """A bundle as it came, header and payload still encoded. Its sessions are numbered from `first`."""

    first: int
    slots: int
    steps: int
    node: str
    boot_id: str
    seq: int
    header: bytes
    payload: bytes


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """What all earlier segments amount to.

    Attributes:
        next_session: the number that the next session gets.
        consumed: sessions below this left the queue.
        inserted_ticks, steps, stored: the run's totals in this shard.
        seen: the names of stored bundles.
    """

    next_session: int
    consumed: int
    inserted_ticks: int
    steps: int
    stored: int
    seen: list[Seen]


_encoder = msgspec.msgpack.Encoder()
_bundles = msgspec.msgpack.Decoder(StoredBundle)
_snapshots = msgspec.msgpack.Decoder(Snapshot)
_numbers = msgspec.msgpack.Decoder(int)


def encode_record(record: StoredBundle | Snapshot | int) -> bytes:
    """The body of a record; a CONSUMED record is one number."""
    return _encoder.encode(record)


def encode_bundle_record(bundle: StoredBundle, payload: Buffer) -> tuple[bytes, Buffer]:
    """The body of a BUNDLE record in two parts: what is before the payload, and the payload, which is not copied.

    Args:
        bundle: without its payload.
    """
    size = len(payload)
    for most, mark, number in _BINARY:
        if size <= most:
            return _encoder.encode(bundle).removesuffix(_EMPTY) + mark + number.pack(size), payload
    raise ValueError(f"a payload of {size} bytes")


def decode_bundle_record(body: bytes) -> StoredBundle:
    """A BUNDLE record; msgspec.MsgspecError if it is not one, as for the other two."""
    return _decode(_bundles, body)


def decode_snapshot(body: bytes) -> Snapshot:
    """A SNAPSHOT record."""
    return _decode(_snapshots, body)


def decode_consumed(body: bytes) -> int:
    """A CONSUMED record: sessions below this left the queue."""
    return _decode(_numbers, body)


def _decode(decoder: msgspec.msgpack.Decoder[Record], body: bytes) -> Record:
    try:
        return decoder.decode(body)
    except RecursionError as error:
        raise msgspec.ValidationError("nested without end") from error
