"""wire/frames.py: what was encoded comes back, and anything else is refused with a word, never a crash."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2prl.core import messages as m
from p2prl.errors import RemoteProtocolError
from p2prl.wire import frames
from tests.hostile import PICKLES

Decoder = Callable[[frames.Frame], m.Message]

KEY = "k" * 40
CARD = m.EnrolCard(
    protocol=1, version="0.1", server_key=KEY, run_id="r", host_name="h", boot_id="b", term=1, base_port=1,
    env="e", agent="a"
)  # fmt: skip
HEARTBEAT = m.Heartbeat(boot_id="b", state="working", players=[m.PlayerReport(rank=0, state="working")])
RECEIPTS = m.Receipts(shard=0, boot_id="b", verdicts=[m.Verdict(seq=3, status="stored")], grant_ticks=7)
HEADER = m.BundleHeader(
    schema=b"12345678", slots=2, version=0, rank=0, serial=0, steps=1, episodes=[(1.0, 2, 0.0)],
    codecs=["raw"], sizes=[0]
)  # fmt: skip
WEIGHTS = m.WeightsHeader(run_id="r", version=1, codec="c", size_bytes=2)
BUNDLE = m.PlayerBundle(rank=0, serial=1, ticks=2, steps=2, episodes=0, version=0)

#: Each decoder, its bound, and messages that it takes.
DECODERS: list[tuple[Decoder, int, list[m.Message]]] = [
    (frames.decode_enrol, frames.MAX_ENROL_BYTES, [CARD, m.Refusal(reason="protocol", text="t")]),
    (frames.decode_to_broker, frames.MAX_TO_BROKER_BYTES, [HEARTBEAT, m.StatusAsk(), m.WeightsAsk(have=1)]),
    (frames.decode_from_broker, frames.MAX_FROM_BROKER_BYTES, [RECEIPTS, WEIGHTS, m.Stopping(reason="time")]),
    (frames.decode_to_shard, frames.MAX_DELIVERY_BYTES, [m.Delivery(run_id="r", boot_id="b", seq=1)]),
    (frames.decode_bundle_header, frames.MAX_BUNDLE_HEADER_BYTES, [HEADER]),
    (frames.decode_weights_header, frames.MAX_WEIGHTS_HEADER_BYTES, [WEIGHTS]),
    (frames.decode_sample, frames.MAX_SAMPLE_BYTES, [m.SampleAsk(ask=1, count=2)]),
    (frames.decode_from_player, frames.MAX_FROM_PLAYER_BYTES, [BUNDLE, m.PlayerHello(rank=0)]),
    (frames.decode_to_player, frames.MAX_TO_PLAYER_BYTES, [m.PlayerCredit(serial=1, credit=2), WEIGHTS]),
]
CASES = [(decode, message) for decode, _, accepted in DECODERS for message in accepted]
every_decoder = pytest.mark.parametrize("decode", [decode for decode, _, _ in DECODERS])


def refused(decode: Decoder, frame: frames.Frame) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(frame)
    return caught.value.reason


@pytest.mark.parametrize(("decode", "message"), CASES)
def test_round_trip(decode: Decoder, message: m.Message) -> None:
    frame = frames.encode(message)
    assert decode(frame) == message
    assert decode(memoryview(frame)) == message


@pytest.mark.parametrize(("decode", "message"), CASES)
def test_unknown_fields_are_skipped(decode: Decoder, message: m.Message) -> None:
    plain = msgspec.msgpack.decode(frames.encode(message))
    frame = msgspec.msgpack.encode({**plain, "from_the_future": [1, {"a": None}]})
    assert decode(frame) == message


@pytest.mark.parametrize(("decode", "message"), CASES)
def test_every_truncation_is_malformed(decode: Decoder, message: m.Message) -> None:
    frame = frames.encode(message)
    for end in range(len(frame)):
        assert refused(decode, frame[:end]) == "malformed"
    assert refused(decode, frame + b"\x00") == "malformed"


@pytest.mark.parametrize(("decode", "bound", "accepted"), DECODERS)
def test_bounds_are_by_length(decode: Decoder, bound: int, accepted: list[m.Message]) -> None:
    plain = msgspec.msgpack.decode(frames.encode(accepted[0]))
    room = bound - len(msgspec.msgpack.encode({**plain, "fill": b""}))
    # A longer binary takes up to four more bytes for its length.
    fits = msgspec.msgpack.encode({**plain, "fill": b"x" * (room - 4)})
    assert len(fits) > bound - 8
    assert decode(fits) == accepted[0]
    assert refused(decode, b"\x00" * (bound + 1)) == "oversize"


@every_decoder
@given(st.binary(max_size=300))
@example(b"")
def test_any_bytes(decode: Decoder, frame: bytes) -> None:
    assert refused(decode, frame) == "malformed"


@pytest.mark.parametrize(("decode", "message"), CASES)
@given(st.data())
def test_mutated_frames(decode: Decoder, message: m.Message, data: st.DataObject) -> None:
    frame = bytearray(frames.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    again: object = None
    try:
        again = decode(frame)
    except RemoteProtocolError as error:
        again = error.reason
    assert again == "malformed" or isinstance(again, m.Message)


@every_decoder
@pytest.mark.parametrize("inner", [b"\x91", b"\x81\xa1a"])
def test_nesting_without_end(decode: Decoder, inner: bytes) -> None:
    frame = b"\x82\xa1t\xa9heartbeat\xa1z" + inner * (900 // len(inner))
    assert refused(decode, frame) == "malformed"
    assert refused(frames.decode_to_broker, b"\x82\xa1t\xa9heartbeat\xa1z" + inner * 60_000) == "malformed"
    assert refused(frames.decode_from_broker, b"\x82\xa1t\xa7welcome\xa3run" + inner * 60_000) == "malformed"


@every_decoder
def test_huge_claims_take_no_memory(decode: Decoder) -> None:
    for claim in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ):
        assert refused(decode, claim) == "malformed"
        assert refused(decode, b"\x82\xa1t\xa9heartbeat\xa7players" + claim) == "malformed"


@every_decoder
def test_pickles_are_only_bytes(decode: Decoder) -> None:
    for pickled in PICKLES:
        assert refused(decode, pickled) == "malformed"


@every_decoder
def test_a_message_of_another_socket(decode: Decoder) -> None:
    stranger = m.SampleReply(ask=1, count=0, mass=0, inserted_ticks=0, boot_id="b")
    if decode is frames.decode_sample:
        assert decode(frames.encode(stranger)) == stranger
    else:
        assert refused(decode, frames.encode(stranger)) == "malformed"


def test_wrong_types_and_values() -> None:
    for fields in (
        {"t": "delivery", "run_id": "r", "boot_id": "b", "seq": "1"},
        {"t": "delivery", "run_id": b"r", "boot_id": "b", "seq": 1},
        {"t": "delivery", "run_id": "r", "boot_id": None, "seq": 1},
        {"t": "delivery", "run_id": "r", "seq": 1},
        {"t": 7, "run_id": "r", "boot_id": "b", "seq": 1},
        {"t": "delivery", "run_id": "r", "boot_id": "b", "seq": 1.5},
    ):
        assert refused(frames.decode_to_shard, msgspec.msgpack.encode(fields)) == "malformed"
    state = {"t": "heartbeat", "boot_id": "b", "state": "dancing"}
    assert refused(frames.decode_to_broker, msgspec.msgpack.encode(state)) == "malformed"
    not_text = b"\x83\xa1t\xa5fault\xa4kind\xa7warning\xa4text\xa2\xff\xfe"
    assert refused(frames.decode_to_broker, not_text) == "malformed"
