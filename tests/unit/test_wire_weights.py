"""wire/weights.py: named arrays come back as they were, or rounded as was allowed; nothing larger than was allowed."""

from __future__ import annotations

import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2prl.core.messages import REFUSALS
from p2prl.core.schema import DTYPE_SIZES
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.wire.blocks import Array, pack
from p2prl.wire.keyframes import join_parts, split_parts
from p2prl.wire.weights import (
    Block,
    ChangeIndex,
    Entry,
    Index,
    WeightsDecoder,
    WeightsEncoder,
    decode_weights,
    encode_weights,
)

WEIGHTS: dict[str, Array] = {
    "layer.0.weight": np.random.default_rng(0).random((64, 4), np.float32),
    "layer.0.bias": np.zeros(64, np.float32),
    "steps": np.array(7, np.int64),
}
dtypes = st.sampled_from(sorted(DTYPE_SIZES))
arrays = dtypes.flatmap(
    lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
several = st.dictionaries(st.text(max_size=20), arrays, max_size=5)


def section(index: Index | ChangeIndex, blocks: bytes) -> bytes:
    head = msgspec.msgpack.encode(index)
    return len(head).to_bytes(4, "little") + head + blocks


def forge(entries: list[Entry], blocks: list[tuple[str, bytes]]) -> bytes:
    index = Index(entries, [Block(codec, len(block)) for codec, block in blocks])
    return join_parts(section(index, b"".join(block for _, block in blocks)), b"")


def refused(payload: bytes, max_bytes: int = 1 << 20, decoder: WeightsDecoder | None = None) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        (decoder or WeightsDecoder(max_bytes)).read(payload)
    return caught.value.reason


def rounded(array: Array) -> Array:
    """What float16 makes of a layer, if its values fit."""
    if array.dtype != np.float32 or array.ndim < 2 or not array.size:
        return array
    largest = np.abs(array).max()
    if largest != 0 and not 2.0**-14 <= largest <= 65504:
        return array
    return array.astype(np.float16).astype(np.float32)


def same(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert list(found) == list(wanted)
    for name, array in found.items():
        assert array.dtype.name == wanted[name].dtype.name
        assert array.shape == wanted[name].shape
        assert array.tobytes() == wanted[name].tobytes()
        assert not array.flags.writeable


def layers(rng: np.random.Generator) -> dict[str, Array]:
    """A network of some size, with what else there is in weights."""
    return {
        "first": rng.normal(0, 0.05, (40, 300)).astype(np.float32),
        "first/bias": rng.normal(0, 0.05, 300).astype(np.float32),
        "kernel": rng.normal(0, 0.2, (8, 4, 3, 3)).astype(np.float32),
        "table": rng.normal(0, 1, (30, 4)),
        "norm/scale": rng.uniform(1, 1e6, 40).astype(np.float32),
        "updates": np.array(rng.integers(1 << 40)),
        "flags": rng.random(9) < 0.5,
        "half": rng.normal(0, 1, 11).astype(np.float16),
    }


def trained(weights: dict[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """A step further: all floats have moved a little."""
    moved = {
        name: (values + rng.normal(0, 1e-4, values.shape) * (1 + np.abs(values))).astype(values.dtype)
        for name, values in weights.items()
        if values.dtype.kind == "f"
    }
    return {name: moved.get(name, values) for name, values in weights.items()}


# --- keyframes


@given(several)
def test_round_trip(weights: dict[str, Array]) -> None:
    same(decode_weights(encode_weights(weights), 1 << 20), weights)


@given(several)
def test_round_trip_where_layers_may_be_rounded(weights: dict[str, Array]) -> None:
    found = decode_weights(encode_weights(weights, halves=True), 1 << 20)
    same(found, {name: rounded(array) for name, array in weights.items()})


def test_what_float16_cannot_hold_is_not_rounded() -> None:
    plain = np.full((2, 2), 0.1, np.float32)
    rng = np.random.default_rng(1)
    kept = {
        "too large": np.array([[1.0, 65505.0]], np.float32),
        "too small": np.full((3, 3), 2.0**-15, np.float32),
        "infinite": np.array([[1.0, np.inf]], np.float32),
        "no number": np.array([[1.0, np.nan]], np.float32),
        "a vector": rng.random(50, np.float32),
        "a scalar": np.float32(0.1),
        "doubles": rng.random((5, 5)),
    }
    found = decode_weights(encode_weights({**kept, "plain": plain}, halves=True))
    for name, values in kept.items():
        np.testing.assert_array_equal(found[name], values)
    assert not np.array_equal(found["plain"], plain)
    zeros = np.zeros((4, 4), np.float32)
    np.testing.assert_array_equal(decode_weights(encode_weights({"z": zeros}, halves=True))["z"], zeros)


@given(
    hnp.arrays(
        np.float32,
        (3, 5),
        elements=st.floats(-65504, 65504, width=32),
    )
)
def test_rounding_moves_no_value_by_more_than_a_2048th_of_the_largest(layer: Array) -> None:
    found = decode_weights(encode_weights({"w": layer}, halves=True))["w"]
    assert np.abs(found - layer).max() <= np.abs(layer).max() * 2.0**-11


def test_layout_in_memory_does_not_matter() -> None:
    for halves in (False, True):
        turned = WEIGHTS["layer.0.weight"].T
        found = decode_weights(encode_weights({"w": turned}, halves))
        np.testing.assert_array_equal(found["w"], rounded(turned) if halves else turned)


@pytest.mark.parametrize("dtype", sorted(DTYPE_SIZES))
def test_no_keyframe_takes_more_than_lz4_on_each_array(dtype: str) -> None:
    rng = np.random.default_rng(2)
    for values in (np.zeros(5000), rng.integers(0, 3, 5000), rng.normal(0, 0.03, 5000), np.arange(5000) % 7):
        weights = {"a": values.astype(dtype), "b": values[:2500].astype(dtype).reshape(50, 50)}
        plain = sum(len(pack(array)[1]) for array in weights.values())
        assert len(encode_weights(weights)) <= plain + 100


# --- changes


def test_all_but_each_twentieth_publication_is_a_change() -> None:
    encoder, rng = WeightsEncoder(), np.random.default_rng(3)
    weights, whole = layers(rng), []
    for _ in range(60):
        encoded = encoder.encode(weights)
        encoder.sent(encoded)
        whole.append(encoded.whole)
        weights = trained(weights, rng)
    assert [at for at, is_whole in enumerate(whole) if is_whole] == [0, 20, 40]


@pytest.mark.parametrize("halves", [False, True])
def test_any_change_needs_its_keyframe_alone(halves: bool) -> None:
    """Applied in any order, with any lost, and over and over."""
    encoder, rng = WeightsEncoder(halves, keyframe_each=8), np.random.default_rng(4)
    keyframe, changes = b"", []
    weights = layers(rng)
    for number in range(8):
        encoded = encoder.encode(weights)
        assert encoded.whole == (number == 0)
        encoder.sent(encoded)
        wanted = {name: rounded(array) if halves else array for name, array in weights.items()}
        if encoded.whole:
            keyframe = encoded.payload
        else:
            assert len(encoded.payload) < 0.9 * len(keyframe)
            changes.append((encoded.payload, wanted))
        weights = trained(weights, rng)
    decoder = WeightsDecoder()
    decoder.read(keyframe)
    for at in rng.permutation(np.repeat(np.arange(7), 2))[:11]:
        change, wanted = changes[at]
        same(decoder.read(change), wanted)
        whole = join_parts(split_parts(keyframe)[0], split_parts(change)[1])
        same(decode_weights(whole), wanted)


@given(st.data())
def test_changes_of_every_dtype_and_shape(data: st.DataObject) -> None:
    dtype = data.draw(dtypes)
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=6))
    halves = data.draw(st.booleans())
    encoder, decoder = WeightsEncoder(halves), WeightsDecoder()
    for _ in range(3):
        weights = {"a": data.draw(hnp.arrays(dtype, shape)), "b": data.draw(hnp.arrays(dtype, shape))}
        encoded = encoder.encode(weights)
        encoder.sent(encoded)
        wanted = {name: rounded(array) if halves else array for name, array in weights.items()}
        same(decoder.read(encoded.payload), wanted)


def test_the_same_again_costs_next_to_nothing() -> None:
    encoder = WeightsEncoder()
    weights = layers(np.random.default_rng(5))
    encoder.sent(encoder.encode(weights))
    encoded = encoder.encode(weights)
    assert not encoded.whole
    assert len(encoded.payload) < 500


def test_a_keyframe_goes_out_where_a_change_would_hardly_be_smaller_or_not_fit() -> None:
    rng = np.random.default_rng(6)
    weights = layers(rng)
    for other in (
        layers(np.random.default_rng(60)),
        {**weights, "first": weights["first"][:39]},
        {**weights, "another": np.zeros(3)},
        {**weights, "first": weights["first"] * np.float32(1e7)},  # too large for float16 now
    ):
        encoder = WeightsEncoder(halves=True)
        encoder.sent(encoder.encode(weights))
        assert encoder.encode(other).whole
        assert not encoder.encode(weights).whole


def test_what_was_not_sent_is_nothing_to_refer_to() -> None:
    encoder = WeightsEncoder()
    assert encoder.encode(WEIGHTS).whole
    first = encoder.encode(WEIGHTS)
    assert first.whole
    encoder.sent(first)
    change = encoder.encode(WEIGHTS)
    assert encoder.still_fits(change)
    encoder.restart()
    assert not encoder.still_fits(change)
    assert encoder.encode(WEIGHTS).whole


# --- lies


def test_a_change_without_its_keyframe_is_refused_and_costs_nothing() -> None:
    encoder, rng = WeightsEncoder(), np.random.default_rng(7)
    first, second = layers(rng), layers(rng)
    keyframes = []
    for weights in (first, second):
        encoder.restart()
        encoded = encoder.encode(weights)
        encoder.sent(encoded)
        keyframes.append(encoded.payload)
    change = encoder.encode(trained(second, rng)).payload
    assert refused(change) == "malformed"
    decoder = WeightsDecoder()
    decoder.read(keyframes[0])
    assert refused(change, decoder=decoder) == "malformed"
    assert refused(keyframes[1][:-1], decoder=decoder) == "malformed"
    encoder.restart()
    same(decoder.read(keyframes[0]), first)
    decoder.read(keyframes[1])
    decoder.read(change)


def test_every_truncation_is_refused() -> None:
    encoder = WeightsEncoder()
    keyframe = encoder.encode(WEIGHTS)
    encoder.sent(keyframe)
    change = encoder.encode(WEIGHTS)
    assert not change.whole
    whole = join_parts(split_parts(keyframe.payload)[0], split_parts(change.payload)[1])
    decoder = WeightsDecoder()
    decoder.read(keyframe.payload)
    for payload in (keyframe.payload, change.payload, whole):
        for end in range(len(payload)):
            assert refused(payload[:end], decoder=decoder) in REFUSALS


@given(st.data())
def test_mutations_never_crash(data: st.DataObject) -> None:
    encoder, decoder = WeightsEncoder(halves=True), WeightsDecoder(1 << 20)
    encoded = encoder.encode(WEIGHTS)
    if data.draw(st.booleans()):
        decoder.read(encoded.payload)
        encoder.sent(encoded)
        encoded = encoder.encode({**WEIGHTS, "steps": np.array(9, np.int64)})
    payload = bytearray(encoded.payload)
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, min(150, len(payload) - 1)))] = data.draw(st.integers(0, 255))
    reason = "malformed"
    try:
        decoder.read(bytes(payload))
    except RemoteProtocolError as error:
        reason = error.reason
    assert reason in REFUSALS


def test_each_lie_has_its_reason() -> None:
    good, block = Entry("w", "float32", (1,)), ("raw", bytes(4))
    assert decode_weights(forge([good], [block]))["w"] == 0
    assert refused(forge([good, good], [("raw", bytes(8))])) == "malformed"
    assert refused(forge([good], [block]) + b"x") == "malformed"
    assert refused(forge([good], [block, block])) == "malformed"
    assert refused(forge([good], [])) == "malformed"
    assert refused(forge([good], [("raw", bytes(5))])) == "bad_codec"
    for dtype in ("object", "V4"):
        assert refused(forge([Entry("w", dtype, (1,))], [block])) in ("malformed", "bad_codec")
    assert refused(forge([Entry("w", "float64", (1,), half=True)], [("raw", bytes(2))])) == "malformed"
    assert refused(forge([Entry("w", "float32", (-1,))], [block])) == "malformed"
    assert refused(forge([Entry("w", "float32", (1,) * 40)], [block])) == "malformed"
    assert refused(forge([Entry("w" * 999, "float32", (1,))], [block])) == "malformed"
    assert refused(forge([Entry("w", "float32", (2,))], [block])) == "bad_codec"
    assert refused(forge([Entry("w", "bool", (2,))], [("raw", b"\1\2")])) == "malformed"
    for codec in ("pickle", "change", ""):
        assert refused(forge([good], [(codec, bytes(4))])) == "bad_codec"
    for codec in ("lz4", "planes"):
        assert refused(forge([Entry("w", "float32", (1 << 10,))], [(codec, bytes(4))])) == "bad_codec"
    assert refused(forge([Entry("w", "float32", (1 << 40, 1 << 40))], [("lz4", bytes(4))])) == "oversize"
    assert refused(forge([Entry("w", "float32", (0, 1 << 62, 1 << 62))], [])) == "oversize"
    assert refused(encode_weights({"w": np.zeros(1000, np.uint8)}), max_bytes=999) == "oversize"
    assert refused(b"\xff\xff\xff\xff" + bytes(100)) == "malformed"
    assert refused(bytes(8)) == "malformed"


def test_each_lie_of_a_change_has_its_reason() -> None:
    keyframe = forge([Entry("w", "float32", (1 << 10,))], [("raw", bytes(1 << 12))])
    check = zlib.crc32(split_parts(keyframe)[0])
    decoder = WeightsDecoder(1 << 12)
    decoder.read(keyframe)

    def change(check: int, *blocks: Block, data: bytes = bytes(4)) -> bytes:
        return join_parts(b"", section(ChangeIndex(check, list(blocks)), data))

    assert refused(change(check ^ 1, Block("change", 4)), decoder=decoder) == "malformed"
    assert refused(change(check), decoder=decoder) == "malformed"
    assert refused(change(check, Block("change", 5)), decoder=decoder) == "malformed"
    assert refused(change(check, Block("change", -4), Block("change", 8)), decoder=decoder) == "malformed"
    assert refused(change(check, Block("change", 4)), decoder=decoder) == "bad_codec"
    assert refused(change(check, Block("pickle", 4)), decoder=decoder) == "bad_codec"
    assert refused(change(check, Block("raw", 4)), decoder=decoder) == "bad_codec"
    found = decoder.read(change(check, Block("raw", 1 << 12), data=bytes(1 << 12)))
    np.testing.assert_array_equal(found["w"], 0)


def test_objects_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError, match="cannot cross the wire"):
        encode_weights({"w": np.array([object()])})
