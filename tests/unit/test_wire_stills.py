"""Batches out of undecoded sessions: wire/stills.py and wire/reels.py give what was played, whatever came before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.errors import RemoteProtocolError
from p2prl.wire import reels
from p2prl.wire.blocks import LZ4, Array
from p2prl.wire.columns import open_pictures, pack_column
from p2prl.wire.pictures import AXES, unpack_block
from p2prl.wire.stills import Darkroom, Still, decode_stills, encode_stills
from tests.unit.pictures_kit import film, stacked


def sessions_of(array: Array) -> list[Still]:
    """Each slot of a column `[rows, slots, *shape]`, as a shard keeps it."""
    codec, block = pack_column(array)
    slots = open_pictures(codec, block, "uint8", array.shape)
    return [Still(slots.codec, kept, 0) for kept in slots.blocks]


def noise(rows: int, slots: int, shape: tuple[int, ...]) -> Array:
    """Nothing that is worth a codec of pictures."""
    return np.random.default_rng(rows).integers(0, 256, (rows, slots, *shape)).astype(np.uint8)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_batch_is_what_was_played_whatever_was_developed_before(data: st.DataObject) -> None:
    """Whole sessions and windows, in any stack, with rows that break the sequence, some of them drawn twice."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows, slots = data.draw(st.integers(1, 19)), data.draw(st.integers(1, 4))
    picture = data.draw(st.sampled_from([(24, 24), (23, 25), (30, 20, 3), (144, 144)]))
    stack, last = data.draw(st.integers(1, 4)), data.draw(st.booleans())
    window = data.draw(st.integers(1, rows))
    room = None
    for _ in range(3):
        begins = rng.random((rows, slots)) < data.draw(st.sampled_from([0.0, 0.1, 0.3, 1.0]))
        played = stacked(film(rng, rows, slots, picture), stack, begins, last)
        if data.draw(st.booleans()):
            played = noise(rows, slots, played.shape[2:])
        room = room or Darkroom(rows, window, played.shape[2:])
        kept = sessions_of(played)
        drawn = rng.integers(slots, size=6)
        firsts = rng.integers(rows - window + 1, size=6)
        stills = [kept[slot]._replace(row=int(first)) for slot, first in zip(drawn, firsts, strict=True)]
        batch = room.develop(decode_stills(encode_stills(stills), 6))
        wanted = [played[first : first + window, slot] for slot, first in zip(drawn, firsts, strict=True)]
        np.testing.assert_array_equal(batch, np.stack(wanted))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_reel_shows_each_session_as_it_is_by_itself(data: st.DataObject) -> None:
    """Sessions that need more pictures and sessions that need fewer take turns in the same memory."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows, last = data.draw(st.integers(2, 17)), data.draw(st.booleans())
    begins = rng.random((rows, 5)) < data.draw(st.sampled_from([0.1, 0.5]))
    played = stacked(film(rng, rows, 5, (24, 24)), data.draw(st.integers(2, 4)), begins, last)
    kept, shape = sessions_of(played), played.shape[2:]
    reel = reels.Reel(kept[0].codec, rows, shape)
    for slot in data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=8)):
        reel.load(kept[slot].block)
        shown, alone = np.empty((2, rows, *shape), np.uint8)
        reel.write(shown)
        unpack_block(kept[slot].codec, kept[slot].block, rows, shape).write(0, alone)
        np.testing.assert_array_equal(shown, played[:, slot])
        np.testing.assert_array_equal(alone, shown)


def test_each_batch_has_memory_of_its_own() -> None:
    played = stacked(film(np.random.default_rng(1), 9, 3, (24, 24)), 4, np.zeros((9, 3), bool))
    room = Darkroom(9, 9, (4, 24, 24))
    first, second, third = sessions_of(played)
    batch = room.develop([first, second])
    again = room.develop([third, third])
    np.testing.assert_array_equal(batch, played[:, :2].swapaxes(0, 1))
    np.testing.assert_array_equal(again, played[:, [2, 2]].swapaxes(0, 1))


def test_reels_are_for_small_pictures_alone() -> None:
    assert reels.may_reel("pictures-first", (4, 84, 84))
    assert reels.may_reel("pictures-last", (84, 84, 4))
    assert not reels.may_reel("pictures", (210, 160, 3))
    assert not reels.may_reel(LZ4, (4, 84, 84))


@pytest.mark.parametrize("side", [24, 144])
@pytest.mark.parametrize("window", [2, 9])
def test_a_broken_session_is_an_error(side: int, window: int) -> None:
    played = stacked(film(np.random.default_rng(1), 9, 1, (side, side)), 4, np.zeros((9, 1), bool))
    [whole] = sessions_of(played)
    assert whole.codec in AXES
    room = Darkroom(9, window, (4, side, side))
    for broken in (b"", whole.block[:2], whole.block[:-1], b"\xff" + bytes(whole.block[1:])):
        with pytest.raises(RemoteProtocolError):
            room.develop([whole._replace(block=broken)])
    np.testing.assert_array_equal(room.develop([whole])[0], played[:window, 0])
