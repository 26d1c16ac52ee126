"""wire/keyframes.py: parts come apart as they were joined, and each receiver gets what it lacks, and can read it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.core.messages import WEIGHTS_CODEC, WeightsHeader
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.wire import frames
from p2prl.wire.blocks import Array
from p2prl.wire.keyframes import Stock, join_parts, needed_for_last, split_parts
from p2prl.wire.weights import WeightsDecoder, WeightsEncoder, decode_weights

part = st.binary(max_size=40)


def malformed(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        split_parts(payload)
    assert caught.value.reason == "malformed"


@given(part, part, st.binary(min_size=1, max_size=9))
def test_parts_come_apart_as_they_were_joined_and_nothing_else_does(
    keyframe: bytes, change: bytes, more: bytes
) -> None:
    payload = join_parts(keyframe, change)
    malformed(payload + more)
    for end in range(len(payload)):
        malformed(payload[:end])
    if keyframe + change:
        assert split_parts(payload) == (keyframe, change)
    else:
        malformed(payload)


@pytest.mark.parametrize("which", [0, 1])
def test_parts_whose_length_cannot_be_written_are_our_mistake(which: int) -> None:
    parts = [memoryview(b""), memoryview(b"")]
    parts[which] = memoryview(np.broadcast_to(np.uint8(0), (1 << 32,)))  # of one byte of memory
    with pytest.raises(LocalProtocolError, match="4 GiB"):
        join_parts(*parts)


def weights_of(version: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "layer": rng.random((40, 30), np.float32) + np.float32(version * 1e-4),
        "version": np.array(version),
    }


def published(count: int, keyframe_each: int) -> list[tuple[WeightsHeader, bytes]]:
    """As the publisher sends them: keyframes, and changes alone."""
    encoder, sent, keyframe = WeightsEncoder(keyframe_each=keyframe_each), [], -1
    for version in range(count):
        encoded = encoder.encode(weights_of(version))
        encoder.sent(encoded)
        keyframe = version if encoded.whole else keyframe
        header = WeightsHeader(
            run_id="r",
            version=version,
            codec=WEIGHTS_CODEC,
            size_bytes=len(encoded.payload),
            updates=7 * version,
            keyframe=keyframe,
            whole=encoded.whole,
        )
        sent.append((header, encoded.payload))
    assert [header.whole for header, _ in sent] == [not version % keyframe_each for version in range(count)]
    return sent


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_each_receiver_gets_what_it_lacks_and_can_read_it(gaps: list[int]) -> None:
    """One who comes now, one who was there from the start, and those who looked in now and then, in any order."""
    keyframe_each = 4
    stock = Stock()
    decoders, keyframes = [WeightsDecoder() for _ in gaps], [-1] * len(gaps)
    for version, (header, payload) in enumerate(published(12, keyframe_each)):
        assert stock.take(header, payload)
        assert stock.keyframe == version - version % keyframe_each
        assert stock.header == header
        for who, gap in enumerate(gaps):
            if version % (gap + 1):
                continue
            for _ in range(2):  # the second has what the first gave
                head, body = stock.parts_for(keyframes[who])
                said = frames.decode_weights_header(head)
                assert (said.version, said.updates, said.size_bytes) == (version, 7 * version, len(body))
                lacks = keyframes[who] != stock.keyframe
                assert said.whole == (lacks or version == stock.keyframe)
                assert [len(p) > 0 for p in split_parts(body)] == [said.whole, version != stock.keyframe]
                found = decoders[who].read(body)
                np.testing.assert_array_equal(found["layer"], weights_of(version)["layer"])
                assert int(found["version"]) == version
                keyframes[who] = stock.keyframe
        head, body = stock.parts_for()
        assert int(decode_weights(body)["version"]) == version
        passed_on = Stock()
        assert passed_on.take(frames.decode_weights_header(head), body)
        for keyframe in (-1, stock.keyframe):
            assert passed_on.parts_for(keyframe) == stock.parts_for(keyframe)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_of_sets_that_came_together_two_at_most_are_read(lengths: list[int]) -> None:
    sent, decoder, at = published(25, 4), WeightsDecoder(), 0
    for length in lengths:
        sets = sent[at : at + length]
        at += length
        payloads = needed_for_last(sets)
        assert len(payloads) <= 2
        *_, found = [decoder.read(payload) for payload in payloads]
        assert int(found["version"]) == sets[-1][0].version
    assert needed_for_last([]) == []
    assert needed_for_last(sent[:5]) == [sent[4][1]], "it has its own keyframe"


def test_a_change_on_a_keyframe_that_is_not_here_changes_nothing() -> None:
    sent = published(8, 4)
    stock = Stock()
    assert stock.header is None
    assert not stock.take(*sent[1])
    assert (stock.header, stock.keyframe) == (None, -1)
    assert stock.take(*sent[0])
    assert stock.take(*sent[2])
    assert not stock.take(*sent[5])
    assert (stock.header, stock.keyframe) == (sent[2][0], 0)
    assert int(decode_weights(stock.parts_for(3)[1])["version"]) == 2
    stock.clear()
    assert (stock.header, stock.keyframe) == (None, -1)
    assert not stock.take(*sent[2])


def test_weights_unlike_their_header_are_refused_and_change_nothing() -> None:
    sent = published(3, 4)
    stock = Stock()
    stock.take(*sent[0])
    for header, payload in (
        (sent[1][0], sent[0][1]),
        (sent[0][0], sent[1][1]),
        (sent[1][0], sent[1][1][:-1]),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            stock.take(header, payload)
        assert caught.value.reason == "malformed"
    assert (stock.header, stock.keyframe) == (sent[0][0], 0)
    assert stock.parts_for()[1] == sent[0][1]
