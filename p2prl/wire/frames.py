"""Messages <-> frames: one msgpack map a frame, and for each socket one bounded decoder.

Bounds come before bytes: a frame past its bound is refused by its length, before a byte of it is read.
Everything else that can be wrong (truncation, another type, a missing field, nesting without end) is one
error, `malformed`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from p2prl.core.messages import (
    BundleHeader,
    Delivery,
    EnrolMessage,
    FromBroker,
    FromPlayer,
    Message,
    SampleMessage,
    ToBroker,
    ToPlayer,
    WeightsHeader,
)
from p2prl.errors import LocalProtocolError, RemoteProtocolError

Frame = bytes | bytearray | memoryview
M = TypeVar("M")

#: The most bytes that one frame of each kind may have. Also what MAXMSGSIZE is set from.
MAX_ENROL_BYTES = 1024
MAX_TO_BROKER_BYTES = 256 * 1024
MAX_FROM_BROKER_BYTES = 4 * 1024 * 1024  # a StatusReply of a thousand nodes
MAX_DELIVERY_BYTES = 1024
MAX_BUNDLE_HEADER_BYTES = 1024 * 1024  # an episode in each second tick of 32,000
MAX_WEIGHTS_HEADER_BYTES = 1024
MAX_SAMPLE_BYTES = 1024
MAX_FROM_PLAYER_BYTES = 64 * 1024
MAX_TO_PLAYER_BYTES = 1024


def _no_extensions(code: int, data: memoryview) -> object:
    """Extension types are not plain values, and no message has one."""
    raise ValueError(f"msgpack extension {code} of {len(data)} bytes")


_encoder = msgspec.msgpack.Encoder()
_enrol: msgspec.msgpack.Decoder[EnrolMessage] = msgspec.msgpack.Decoder(EnrolMessage)
_to_broker: msgspec.msgpack.Decoder[ToBroker] = msgspec.msgpack.Decoder(ToBroker)
# RunSpec carries plain values of any type (env_args, agent_settings): only there an extension would fit.
_from_broker: msgspec.msgpack.Decoder[FromBroker] = msgspec.msgpack.Decoder(
    FromBroker, ext_hook=_no_extensions
)
_delivery = msgspec.msgpack.Decoder(Delivery)
_bundle_header = msgspec.msgpack.Decoder(BundleHeader)
_weights_header = msgspec.msgpack.Decoder(WeightsHeader)
_sample: msgspec.msgpack.Decoder[SampleMessage] = msgspec.msgpack.Decoder(SampleMessage)
_from_player: msgspec.msgpack.Decoder[FromPlayer] = msgspec.msgpack.Decoder(FromPlayer)
_to_player: msgspec.msgpack.Decoder[ToPlayer] = msgspec.msgpack.Decoder(ToPlayer)


def encode(message: Message) -> bytes:
    """The frame of `message`. Whether it fits the receiver's bound is the receiver's to say."""
    return _encoder.encode(message)


def encode_to_broker(message: Message) -> bytes:
    """The frame of a message for control.

    Raises:
        LocalProtocolError: it is larger than the broker takes, and would cost the connection.
    """
    frame = _encoder.encode(message)
    if len(frame) > MAX_TO_BROKER_BYTES:
        kind = type(message).__name__
        raise LocalProtocolError(f"a {kind} of {len(frame)} bytes where at most {MAX_TO_BROKER_BYTES} may go")
    return frame


def _decode(decoder: msgspec.msgpack.Decoder[M], frame: Frame, max_bytes: int) -> M:
    """`frame` as a message; RemoteProtocolError `oversize` or `malformed` if it is not one."""
    size = memoryview(frame).nbytes
    if size > max_bytes:
        raise RemoteProtocolError("oversize", f"a frame of {size} bytes where at most {max_bytes} may come")
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RemoteProtocolError("malformed", f"not a message that this socket takes: {error}") from error


def decode_enrol(frame: Frame) -> EnrolMessage:
    """A frame of the enrol socket, either way."""
    return _decode(_enrol, frame, MAX_ENROL_BYTES)


def decode_to_broker(frame: Frame) -> ToBroker:
    """A frame that reached the broker's control socket."""
    return _decode(_to_broker, frame, MAX_TO_BROKER_BYTES)


def decode_from_broker(frame: Frame) -> FromBroker:
    """A frame that the broker sent on control or weights."""
    return _decode(_from_broker, frame, MAX_FROM_BROKER_BYTES)


def decode_to_shard(frame: Frame) -> Delivery:
    """The first frame of a pushed bundle."""
    return _decode(_delivery, frame, MAX_DELIVERY_BYTES)


def decode_bundle_header(frame: Frame) -> BundleHeader:
    """The second frame of a pushed bundle."""
    return _decode(_bundle_header, frame, MAX_BUNDLE_HEADER_BYTES)


def decode_weights_header(frame: Frame) -> WeightsHeader:
    """The frame before a weights payload."""
    return _decode(_weights_header, frame, MAX_WEIGHTS_HEADER_BYTES)


def decode_sample(frame: Frame) -> SampleMessage:
    """The first frame on the sampling socket, either way."""
    return _decode(_sample, frame, MAX_SAMPLE_BYTES)


def decode_from_player(frame: Frame) -> FromPlayer:
    """The first frame that a player sent to its member."""
    return _decode(_from_player, frame, MAX_FROM_PLAYER_BYTES)


def decode_to_player(frame: Frame) -> ToPlayer:
    """The first frame that a member sent to its player."""
    return _decode(_to_player, frame, MAX_TO_PLAYER_BYTES)
