"""wire/weights.py: named arrays come back as they were, and nothing larger than was allowed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2prl.core.messages import REFUSALS
from p2prl.core.schema import DTYPE_SIZES
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.wire.blocks import Array
from p2prl.wire.weights import Entry, decode_weights, encode_weights

WEIGHTS: dict[str, Array] = {
    "layer.0.weight": np.random.default_rng(0).random((64, 4), np.float32),
    "layer.0.bias": np.zeros(64, np.float32),
    "steps": np.array(7, np.int64),
}
dtypes = st.sampled_from(sorted(DTYPE_SIZES))
arrays = dtypes.flatmap(
    lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


def forge(entries: list[Entry], blocks: bytes) -> bytes:
    index = msgspec.msgpack.encode(entries)
    return len(index).to_bytes(4, "little") + index + blocks


def refused(payload: bytes, max_bytes: int = 1 << 20) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_weights(payload, max_bytes)
    return caught.value.reason


@given(st.dictionaries(st.text(max_size=20), arrays, max_size=5))
def test_round_trip(weights: dict[str, Array]) -> None:
    again = decode_weights(encode_weights(weights), 1 << 20)
    assert list(again) == list(weights)
    for name, array in again.items():
        assert array.dtype.name == weights[name].dtype.name
        assert array.shape == weights[name].shape
        assert array.tobytes() == weights[name].tobytes()
        assert not array.flags.writeable


def test_layout_in_memory_does_not_matter() -> None:
    again = decode_weights(encode_weights({"w": WEIGHTS["layer.0.weight"].T}))
    np.testing.assert_array_equal(again["w"], WEIGHTS["layer.0.weight"].T)


def test_every_truncation_is_refused() -> None:
    payload = encode_weights(WEIGHTS)
    for end in range(len(payload)):
        assert refused(payload[:end]) in REFUSALS


@given(st.data())
def test_mutations_never_crash(data: st.DataObject) -> None:
    payload = bytearray(encode_weights(WEIGHTS))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, min(150, len(payload) - 1)))] = data.draw(st.integers(0, 255))
    reason = "malformed"
    try:
        decode_weights(bytes(payload), 1 << 20)
    except RemoteProtocolError as error:
        reason = error.reason
    assert reason in REFUSALS


def test_each_lie_has_its_reason() -> None:
    good = Entry("w", "float32", (1,), "raw", 4)
    assert decode_weights(forge([good], bytes(4)))["w"] == 0
    assert refused(forge([good, good], bytes(8))) == "malformed"
    assert refused(forge([good], bytes(5))) == "malformed"
    assert refused(forge([Entry("w", "object", (1,), "raw", 4)], bytes(4))) == "malformed"
    assert refused(forge([Entry("w", "V4", (1,), "raw", 4)], bytes(4))) == "malformed"
    assert refused(forge([Entry("w", "float32", (-1,), "raw", 4)], bytes(4))) == "malformed"
    assert refused(forge([Entry("w", "float32", (1,) * 40, "raw", 4)], bytes(4))) == "malformed"
    assert refused(forge([Entry("w" * 999, "float32", (1,), "raw", 4)], bytes(4))) == "malformed"
    assert refused(forge([Entry("w", "float32", (2,), "raw", 4)], bytes(4))) == "bad_codec"
    assert refused(forge([Entry("w", "float32", (1,), "pickle", 4)], bytes(4))) == "bad_codec"
    assert refused(forge([Entry("w", "float32", (1 << 10,), "lz4", 4)], bytes(4))) == "bad_codec"
    assert refused(forge([Entry("w", "float32", (1 << 40, 1 << 40), "lz4", 4)], bytes(4))) == "oversize"
    assert refused(forge([Entry("w", "float32", (0, 1 << 62, 1 << 62), "raw", 0)], b"")) == "oversize"
    assert refused(encode_weights({"w": np.zeros(1000, np.uint8)}), max_bytes=999) == "oversize"
    assert refused(b"\xff\xff\xff\xff" + bytes(100)) == "malformed"


def test_objects_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError, match="cannot cross the wire"):
        encode_weights({"w": np.array([object()])})
