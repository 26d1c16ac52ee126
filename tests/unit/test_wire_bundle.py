"""wire/bundle.py and wire/blocks.py: exact round trips, and sizes that are known before bytes are decoded."""

from __future__ import annotations

import tracemalloc

import lz4.block
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2prl.core.messages import REFUSALS, BundleHeader
from p2prl.core.schema import DTYPE_SIZES, Column, SessionSchema, check_schema
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.wire.blocks import Array, pack, unpack
from p2prl.wire.bundle import MAX_SLOTS, decode_bundle, encode_bundle
from p2prl.wire.columns import CODECS
from tests.unit.replay_kit import CARTPOLE, make_bundle, play

ZEROS = SessionSchema(
    ticks=4, columns=(Column("obs", "float32", (64, 64), extra_row=True), Column("flags", "uint8", ()))
)


def refused(schema: SessionSchema, header: BundleHeader, payload: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_bundle(schema, header, payload)
    return caught.value.reason


def change(header: BundleHeader, **fields: object) -> BundleHeader:
    return msgspec.structs.replace(header, **fields)


dtypes = st.sampled_from(sorted(DTYPE_SIZES))
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def bundles(draw: st.DrawFn) -> tuple[SessionSchema, int, dict[str, Array]]:
    """Any schema, and arrays of any bits for it."""
    kinds = st.sampled_from([{}, {"extra_row": True}, {"once": True}])
    columns = tuple(
        Column(f"c{index}", draw(dtypes), draw(shapes), **draw(kinds))
        for index in range(draw(st.integers(1, 4)))
    )
    schema = SessionSchema(ticks=draw(st.integers(1, 5)), columns=columns)
    slots = draw(st.integers(1, 4))
    arrays = {c.name: draw(hnp.arrays(c.dtype, (schema.rows(c), slots, *c.shape))) for c in columns}
    return schema, slots, arrays


def pack_up(schema: SessionSchema, slots: int, arrays: dict[str, Array]) -> tuple[BundleHeader, bytes]:
    return encode_bundle(
        schema, arrays, slots=slots, version=1, rank=2, serial=3, steps=4, episodes=[(1.0, 2, 0.5)]
    )


@given(bundles())
def test_round_trip_of_any_dtype_and_shape(made: tuple[SessionSchema, int, dict[str, Array]]) -> None:
    schema, slots, arrays = made
    header, payload = pack_up(schema, slots, arrays)
    again = decode_bundle(schema, header, payload)
    assert list(again) == [column.name for column in schema.columns]
    for name, array in again.items():
        assert array.shape == arrays[name].shape
        assert array.dtype.name == arrays[name].dtype.name
        assert array.tobytes() == arrays[name].tobytes()
        assert not array.flags.writeable
    assert (header.version, header.rank, header.serial, header.steps) == (1, 2, 3, 4)


def test_layout_in_memory_does_not_matter() -> None:
    arrays, _, _ = play(4)
    strided = {name: np.asfortranarray(array) for name, array in arrays.items()}
    assert not strided["obs"].flags.c_contiguous
    header, payload = pack_up(CARTPOLE, 4, strided)
    assert (header.sizes, payload) == (lambda h, p: (h.sizes, p))(*pack_up(CARTPOLE, 4, arrays))
    np.testing.assert_array_equal(decode_bundle(CARTPOLE, header, memoryview(payload))["obs"], arrays["obs"])


def test_what_lz4_cannot_shrink_travels_raw_and_the_rest_small() -> None:
    rng = np.random.default_rng(0)
    noise, same = rng.random(1000).astype(np.float32), np.zeros(1000, np.float32)
    assert pack(noise)[0] == "raw"
    assert len(pack(noise)[1]) == noise.nbytes
    assert pack(same)[0] == "lz4"
    assert len(pack(same)[1]) < 100


@settings(max_examples=300)
@given(st.data())
def test_mutated_bundles_are_refused_or_exact(data: st.DataObject) -> None:
    header, payload = make_bundle()
    broken = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 5))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    size = data.draw(st.integers(-3, 3))
    header = change(
        header,
        slots=header.slots + data.draw(st.integers(-5, 5)),
        sizes=[header.sizes[0] + size, *header.sizes[1:]],
        codecs=[data.draw(st.sampled_from(["lz4", "raw", "zip", codec])) for codec in header.codecs],
    )
    arrays, reason = None, ""
    try:
        arrays = decode_bundle(CARTPOLE, header, bytes(broken))
    except RemoteProtocolError as error:
        reason = error.reason
    if arrays is None:
        assert reason in REFUSALS
    else:
        for column in CARTPOLE.columns:
            assert arrays[column.name].shape == (CARTPOLE.rows(column), header.slots, *column.shape)


def test_each_lie_has_its_reason() -> None:
    header, payload = make_bundle(slots=4)
    sizes = header.sizes
    assert refused(CARTPOLE, change(header, schema=b"another!"), payload) == "wrong_schema"
    assert refused(CARTPOLE, change(header, sizes=sizes[:-1]), payload) == "wrong_schema"
    longer = change(header, codecs=[*header.codecs, "raw"], sizes=[*sizes, 0])
    assert refused(CARTPOLE, longer, payload) == "wrong_schema"
    assert refused(CARTPOLE, change(header, slots=0), payload) == "malformed"
    assert refused(CARTPOLE, change(header, slots=-1), payload) == "malformed"
    assert refused(CARTPOLE, change(header, slots=MAX_SLOTS + 1), payload) == "malformed"
    assert refused(CARTPOLE, change(header, slots=1 << 63), payload) == "malformed"
    assert refused(CARTPOLE, header, payload[:-1]) == "malformed"
    negative = [-1, sizes[0] + sizes[1] + 1, *sizes[2:]]
    assert refused(CARTPOLE, change(header, sizes=negative), payload) == "malformed"
    assert refused(CARTPOLE, change(header, codecs=["gzip"] * 4), payload) == "bad_codec"
    assert refused(CARTPOLE, change(header, codecs=["raw"] * 4), payload) == "bad_codec"
    assert refused(CARTPOLE, change(header, slots=5), payload) == "bad_codec"
    assert refused(CARTPOLE, change(header, slots=3), payload) == "bad_codec"


@pytest.mark.parametrize("claimed", CODECS)
def test_a_block_that_is_another_codec_than_its_header_says_is_refused(claimed: str) -> None:
    header, payload = make_bundle(slots=4)
    for index, codec in enumerate(header.codecs):
        if codec != claimed:
            lie = [*header.codecs[:index], claimed, *header.codecs[index + 1 :]]
            assert refused(CARTPOLE, change(header, codecs=lie), payload) == "bad_codec"


def test_bombs_are_refused_before_memory_is_taken() -> None:
    """Report 31: 512 MiB of zeros is a 2 MiB block; a header of 5 bytes claims 1 GiB."""
    mark = bytes([CODECS.index("lz4")])  # without it no byte would reach lz4
    small = lz4.block.compress(b"\0" * 5, store_size=False) + mark
    bomb = lz4.block.compress(bytes(64 << 20), store_size=False) + mark
    flags = lz4.block.compress(bytes(4), store_size=False) + mark
    header = BundleHeader(
        schema=ZEROS.digest(), slots=1, version=0, rank=0, serial=0, steps=0, episodes=[], codecs=["lz4",
        "lz4"], sizes=[]
    )  # fmt: skip
    tracemalloc.start()
    try:
        for slots, first in ((1, bomb), (MAX_SLOTS, small), (1, small), (MAX_SLOTS, bomb[:1000] + mark)):
            lie = change(header, slots=slots, sizes=[len(first), len(flags)])
            with pytest.raises(RemoteProtocolError, match=r"of lz4 cannot hold|broken lz4 block") as caught:
                decode_bundle(ZEROS, lie, first + flags)
            assert caught.value.reason == "bad_codec"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(bomb) + ZEROS.session_bytes() * 4


def test_a_bool_is_zero_or_one() -> None:
    with pytest.raises(RemoteProtocolError, match="neither 0 nor 1"):
        unpack("raw", b"\x00\x02", "bool", (2,))


def test_our_own_mistakes_are_ours() -> None:
    arrays, _, _ = play(4)
    for broken in (
        {**arrays, "obs": arrays["obs"].astype(np.float64)},
        {**arrays, "obs": arrays["obs"][:-1]},
        {name: array for name, array in arrays.items() if name != "flags"},
    ):
        with pytest.raises(LocalProtocolError, match="column"):
            pack_up(CARTPOLE, 4, broken)
    with pytest.raises(LocalProtocolError, match="slots"):
        pack_up(CARTPOLE, MAX_SLOTS + 1, arrays)
    with pytest.raises(LocalProtocolError, match="cannot cross the wire"):
        pack(np.array(["text"]))
    with pytest.raises(LocalProtocolError, match="fewer --envs"):
        pack_up(SessionSchema(1 << 20, CARTPOLE.columns), 1000, arrays)


def test_the_name_of_a_schema_is_what_it_was_before_columns_were_stored_once() -> None:
    """Nodes of both kinds play one run."""
    assert CARTPOLE.digest().hex() == "9852f311bf5d01e2"
    once = msgspec.structs.replace(CARTPOLE.columns[0], extra_row=False, once=True)
    assert SessionSchema(8, (once,)).digest() != SessionSchema(8, CARTPOLE.columns[:1]).digest()


def test_a_column_has_one_row_or_one_more_than_ticks_not_both() -> None:
    both = Column("state", "float32", (), extra_row=True, once=True)
    assert "'state' cannot have one row" in check_schema(SessionSchema(4, (both,)))
