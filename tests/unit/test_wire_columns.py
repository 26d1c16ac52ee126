"""wire/columns.py and wire/pictures.py: exact round trips whatever is in them, and never more than lz4 alone takes."""

from __future__ import annotations

import math
import tracemalloc

import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2prl.core.messages import REFUSALS
from p2prl.core.schema import DTYPE_SIZES
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.wire import pictures
from p2prl.wire.blocks import Array, pack
from p2prl.wire.columns import CODECS, PLANES, ColumnPacker, pack_column, unpack_column
from p2prl.wire.reels import Reel
from tests.unit.pictures_kit import film, stacked


def again(array: Array) -> tuple[str, Array]:
    codec, block = pack_column(array)
    return codec, unpack_column(codec, bytes(block), array.dtype.name, array.shape)


def same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_round_trip_of_any_dtype_and_shape(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(DTYPE_SIZES)))
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=5, min_side=0, max_side=4))
    array = data.draw(hnp.arrays(dtype, shape))
    codec, block = pack_column(array)
    assert len(block) <= len(pack(array)[1]), "never larger than plain lz4, or than the array itself"
    assert same(unpack_column(codec, bytes(block), dtype, shape), array)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_round_trip_of_pictures_in_any_stack(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows, slots = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    picture = data.draw(st.sampled_from([(24, 24), (23, 25), (30, 20, 3)]))
    stack, last = data.draw(st.integers(1, 4)), data.draw(st.booleans())
    films = film(rng, rows, slots, picture)
    begins = rng.random((rows, slots)) < data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    array = stacked(films, stack, begins, last)
    _, found = again(array)
    assert same(found, array)


@pytest.mark.parametrize("last", [False, True])
def test_a_picture_of_a_stack_travels_once(last: bool) -> None:
    rng = np.random.default_rng(1)
    films = rng.integers(0, 256, (33, 4, 32, 32)).astype(np.uint8)  # noise, that nothing makes smaller
    begins = np.zeros((33, 4), bool)
    begins[[5, 6, 20], [0, 0, 3]] = True
    array = stacked(films, 4, begins, last)
    codec, block = pack_column(array)
    assert codec == ("pictures-last" if last else "pictures-first")
    kept = 4 * (33 + 3) + 3 * 3
    assert len(block) < kept * 1024 * 1.02
    assert same(unpack_column(codec, block, "uint8", array.shape), array)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_byte_that_differs_anywhere_is_not_lost(data: st.DataObject) -> None:
    """Stacks that are all but in sequence, in slots that are packed together and in those that are not."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows, slots, last = data.draw(st.integers(2, 10)), data.draw(st.integers(1, 9)), data.draw(st.booleans())
    side = data.draw(st.sampled_from([24, 130]))  # of 130 three to seven slots are packed at once
    picture = (side, side) if data.draw(st.booleans()) else (side * side,)
    films = rng.integers(0, 3, (rows, slots, *picture)).astype(np.uint8)
    begins = rng.random((rows, slots)) < data.draw(st.sampled_from([0.0, 0.2]))
    array = stacked(films, data.draw(st.integers(2, 4)), begins, last)
    for _ in range(data.draw(st.integers(0, 4))):
        # Often the first byte of a picture, or its last one.
        array[tuple(data.draw(st.sampled_from([0, most - 1, most // 2])) for most in array.shape)] ^= 1
    codec = "pictures-last" if last else "pictures-first"
    block = pictures.pack_pictures(array, codec)
    assert same(unpack_column(codec, block, "uint8", array.shape), array)
    together = pictures.blocks_of(block, slots, "uint8", rows, array.shape[2:])
    for slot, found in enumerate(together):
        alone = pictures.pack_pictures(array[:, slot : slot + 1], codec)
        assert pictures.blocks_of(alone, 1, "uint8", rows, array.shape[2:]) == [found]


def test_what_moves_little_takes_little() -> None:
    films = film(np.random.default_rng(1), 65, 4, (84, 84))
    array = stacked(films, 4, np.zeros((65, 4), bool))
    assert len(pack_column(array)[1]) < len(pack(array)[1]) / 4
    plain = pack_column(films)
    assert plain[0] == "pictures"
    assert len(plain[1]) < len(pack(films)[1]) / 2


def test_noise_that_is_no_stack_is_left_as_it_is() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (9, 2, 32, 32)).astype(np.uint8)
    assert pack_column(noise)[0] == "raw"


def test_what_the_receiver_does_not_read_is_not_used() -> None:
    films = film(np.random.default_rng(1), 20, 3, (24, 24))
    rows = stacked(films, 4, np.zeros((20, 3), bool))
    smooth = np.linspace(0, 1, 65 * 16, dtype=np.float32).reshape(65, 16)
    for array, best in ((rows, "pictures-first"), (smooth, PLANES)):
        assert pack_column(array)[0] == best
        codec, block = pack_column(array, ("raw", "lz4"))
        assert codec in ("raw", "lz4")
        assert same(unpack_column(codec, bytes(block), array.dtype.name, array.shape), array)


def test_numbers_that_change_slowly_are_smaller_in_planes() -> None:
    time = np.linspace(0, 1, 65)[:, None, None]
    smooth = (np.sin(time + np.arange(16)[:, None]) * [1, 2, 3, 4]).astype(np.float32)
    codec, block = pack_column(smooth)
    assert codec == PLANES
    assert len(block) < 0.8 * len(pack(smooth)[1])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_one_packer_for_bundle_after_bundle(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(DTYPE_SIZES)))
    rows, slots, row = data.draw(
        st.tuples(st.integers(1, 20), st.integers(1, 4), hnp.array_shapes(max_dims=2))
    )
    packer = ColumnPacker(dtype, row)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for _ in range(20):
        step = rng.choice([0, 0.01, 1e3])  # all alike, smooth, noise
        with np.errstate(over="ignore"):
            array = np.cumsum(rng.random((rows, slots, *row)) * step, axis=0).astype(dtype)
        codec, block = packer.pack(array)
        assert len(block) <= len(pack(array)[1]), "never larger than plain lz4, or than the array itself"
        assert same(unpack_column(codec, bytes(block), dtype, array.shape), array)


def test_what_was_of_no_use_is_tried_again_later() -> None:
    smooth = np.linspace(0, 1, 65 * 16, dtype=np.float32).reshape(65, 16)
    packer = ColumnPacker("float32", ())
    assert packer.pack(smooth)[0] == PLANES
    assert packer.pack(np.zeros_like(smooth))[0] == "lz4"
    assert [packer.pack(smooth)[0] for _ in range(17)] == ["raw"] * 15 + [PLANES] * 2


def test_a_dtype_that_cannot_cross_the_wire_is_said() -> None:
    with pytest.raises(LocalProtocolError, match="complex64 cannot cross the wire"):
        pack_column(np.zeros((2, 2), np.complex64))


def test_a_slot_can_be_read_by_itself_and_any_rows_of_it() -> None:
    films = film(np.random.default_rng(1), 20, 3, (24, 24))
    begins = np.zeros((20, 3), bool)
    begins[7, 1] = True
    array = stacked(films, 4, begins)
    codec, block = pack_column(array)
    kept = [bytes(one) for one in pictures.blocks_of(block, 3, "uint8", 20, (4, 24, 24))]
    found = pictures.unpack_block(codec, kept[1], 20, (4, 24, 24))
    assert len(found.kept) == 4 + 19 + 3
    out = np.empty((5, 4, 24, 24), np.uint8)
    found.write(6, out)
    assert same(out, array[6:11, 1])


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_mutated_blocks_are_refused_or_exact(data: st.DataObject) -> None:
    films = film(np.random.default_rng(1), 6, 2, (24, 24))
    array = stacked(films, 4, np.zeros((6, 2), bool))
    codec, block = pack_column(array)
    broken = bytearray(block)
    for _ in range(data.draw(st.integers(1, 5))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    broken = broken[: data.draw(st.sampled_from([len(broken), 0, 3, 8, len(broken) - 1]))]
    codec = data.draw(st.sampled_from([codec, *CODECS, "zip"]))
    shape = data.draw(st.sampled_from([array.shape, (5, 2, 4, 24, 24), (6, 3, 4, 24, 24), (6, 2, 3, 24, 24)]))
    found, reason = None, ""
    try:
        found = unpack_column(codec, bytes(broken), "uint8", shape)
    except RemoteProtocolError as error:
        reason = error.reason
    if found is None:
        assert reason in REFUSALS
    else:
        assert found.shape == shape
        assert found.dtype == np.uint8


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_what_a_shard_keeps_undecoded_can_be_decoded(data: st.DataObject) -> None:
    """Any bytes as the block of a slot: `check_blocks` takes what is decoded, and nothing else."""
    rows, stack = data.draw(st.integers(1, 11)), data.draw(st.integers(2, 4))
    shape = (stack, 24, 24)
    begins = data.draw(hnp.arrays(bool, (rows, 1)))
    array = stacked(film(np.random.default_rng(1), rows, 1, (24, 24)), stack, begins)
    (block,) = pictures.blocks_of(pictures.pack_pictures(array, "pictures-first"), 1, "uint8", rows, shape)
    broken = bytearray(block)
    for _ in range(data.draw(st.integers(0, 2))):
        # Mostly among the bits that say which rows break the sequence.
        broken[data.draw(st.integers(0, 2) | st.integers(0, len(broken) - 1)) % len(broken)] = data.draw(
            st.integers(0, 255)
        )
    held = bytes(broken[: data.draw(st.sampled_from([len(broken), 0, 1, len(broken) - 1]))])
    codec = data.draw(st.sampled_from(["pictures-first", "pictures", "lz4"]))
    outcomes = []
    for call in (
        lambda: pictures.check_blocks(pictures.Slots(codec, [held]), rows, shape),
        lambda: pictures.unpack_block(codec, held, rows, shape),
        lambda: Reel(codec, rows, shape).load(held) if codec in pictures.AXES else None,
    ):
        try:
            call()
            outcomes.append("")
        except RemoteProtocolError as error:
            outcomes.append(error.reason)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] == outcomes[2] or codec == "lz4"
    if held == block and codec == "pictures-first":
        assert outcomes[0] == ""


def test_bombs_in_pictures_are_refused_before_memory_is_taken() -> None:
    """Two lz4, one inside the other: what the inner one would come to is bounded by the schema, and so is the outer."""
    shape = (6, 1, 4, 24, 24)
    most = math.prod(shape)
    for inner_bytes, outer in (
        (1 << 30, lz4.block.compress(bytes(64 << 20), store_size=False)),
        (64 << 20, lz4.block.compress(bytes(64 << 20), store_size=False)),
        (1 << 20, lz4.block.compress(bytes(1 << 20), store_size=False)),
    ):
        block = inner_bytes.to_bytes(4, "little") + outer
        tracemalloc.start()
        try:
            with pytest.raises(RemoteProtocolError) as caught:
                unpack_column("pictures-first", block, "uint8", shape)
            assert caught.value.reason == "bad_codec"
            assert tracemalloc.get_traced_memory()[1] < 10 * most
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_pictures_are_only_bytes(dtype: str) -> None:
    with pytest.raises(RemoteProtocolError, match="no column of pictures"):
        unpack_column("pictures", b"x" * 100, dtype, (3, 2, 24, 24))
