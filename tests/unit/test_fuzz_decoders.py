"""Every decoder under hypothesis: a valid value or the one documented error, and no more memory than its bound."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
import tracemalloc
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import p2prl.replay
import p2prl.wire
from p2prl.core import messages as m
from p2prl.core.schema import DTYPE_SIZES, Column, SessionSchema
from p2prl.errors import RemoteProtocolError
from p2prl.replay import records
from p2prl.replay.log import SNAPSHOT, SegmentLog
from p2prl.wire import blocks, bundle, columns, frames, keyframes, stills, weights
from tests import fuzz_kit as kit
from tests.fuzz_kit import attempt, few, folder, many, seeded, some
from tests.hostile import PICKLE
from tests.unit.replay_kit import CARTPOLE, make_bundle, open_shard, push

#: Every decoder of frames, and its bound in bytes.
FRAMES: dict[str, int] = {
    "decode_enrol": frames.MAX_ENROL_BYTES,
    "decode_to_broker": frames.MAX_TO_BROKER_BYTES,
    "decode_from_broker": frames.MAX_FROM_BROKER_BYTES,
    "decode_to_shard": frames.MAX_DELIVERY_BYTES,
    "decode_bundle_header": frames.MAX_BUNDLE_HEADER_BYTES,
    "decode_weights_header": frames.MAX_WEIGHTS_HEADER_BYTES,
    "decode_sample": frames.MAX_SAMPLE_BYTES,
    "decode_from_player": frames.MAX_FROM_PLAYER_BYTES,
    "decode_to_player": frames.MAX_TO_PLAYER_BYTES,
}
DECODERS: dict[str, Callable[[frames.Frame], Any]] = {name: getattr(frames, name) for name in FRAMES}
#: All the others, each with tests of its own below.
OTHERS = {
    "wire.bundle.decode_bundle",
    "wire.weights.decode_weights",
    "wire.stills.decode_stills",
    "replay.records.decode_bundle_record",
    "replay.records.decode_snapshot",
    "replay.records.decode_consumed",
}
KINDS = [(name, kind) for name, decode in DECODERS.items() for kind in kit.taken_by(decode)]

every_decoder = pytest.mark.parametrize("name", DECODERS)
every_kind = pytest.mark.parametrize(
    ("name", "kind"), KINDS, ids=lambda value: getattr(value, "__name__", value)
)


def decoded(name: str, frame: frames.Frame) -> Any:
    """What a decoder makes of a frame; None if it refused it as it should."""
    message, error = attempt(RemoteProtocolError, DECODERS[name], frame)
    assert error is None or error.reason == ("oversize" if len(frame) > FRAMES[name] else "malformed")
    return message


def peak(work: Callable[[], object]) -> int:
    """The most bytes that were held at once, whatever became of it."""
    tracemalloc.start()
    try:
        work()
    finally:
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return size


# --- nothing is left out -------------------------------------------------------------------------------------------


def test_every_decoder_is_fuzzed_here() -> None:
    found = set()
    for package in (p2prl.wire, p2prl.replay):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            loaded = importlib.import_module(module.name)
            for name, thing in inspect.getmembers(loaded, inspect.isfunction):
                if name.startswith("decode_") and thing.__module__ == module.name:
                    found.add(f"{module.name.removeprefix('p2prl.')}.{name}")
    assert found == OTHERS | {f"wire.frames.{name}" for name in FRAMES}


def test_every_message_is_taken_by_a_decoder() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(other) for other in kind.__subclasses__()))

    taken = {kind for _, kind in KINDS}
    assert below(m.Message) - {m.Message} == taken
    unions = [value for value in vars(m).values() if typing.get_args(value) and m.Message in _bases(value)]
    assert len(unions) >= 6
    for union in unions:
        assert set(kit.kinds(union)) in [set(kit.taken_by(decode)) for decode in DECODERS.values()]


def _bases(union: Any) -> set[Any]:
    return {base for kind in typing.get_args(union) if isinstance(kind, type) for base in kind.__mro__}


# --- frames ----------------------------------------------------------------------------------------------------------


@every_kind
@some
@given(st.data())
def test_what_was_encoded_comes_back(name: str, kind: type[m.Message], data: st.DataObject) -> None:
    message = data.draw(kit.messages(kind))
    frame = frames.encode(message)
    again = decoded(name, frame)
    if len(frame) > FRAMES[name]:
        assert again is None
    else:
        assert type(again) is kind
        assert frames.encode(again) == frame  # not ==: a NaN is not itself
        if b"nan" not in repr(message).encode():
            assert again == message


@every_decoder
@many
@given(st.binary(max_size=2000))
@example(b"")
@example(PICKLE)
@example(kit.DEEP_LIST)
@example(kit.DEEP_MAP)
def test_noise_is_malformed(name: str, frame: bytes) -> None:
    assert decoded(name, frame) is None


@every_decoder
@many
@given(seeded)
def test_damaged_frames_are_refused_or_sound(name: str, rng: random.Random) -> None:
    valid = kit.seeds(typing.get_type_hints(DECODERS[name])["return"], rng, each=1)
    for _ in range(20):
        for frame in kit.mutate(rng.choice(valid), rng, valid):
            message = decoded(name, frame)
            if message is not None:
                sound(name, message)


def sound(name: str, message: Any) -> None:
    """Whatever was let in is a whole message: it can be said again, and means the same."""
    assert isinstance(message, kit.taken_by(DECODERS[name]))
    frame = frames.encode(message)
    if len(frame) <= FRAMES[name]:  # larger ones came in a shorter spelling
        assert frames.encode(DECODERS[name](frame)) == frame


#: Decoded, a message takes at most so many times the bytes of its frame: an empty map in a list is one byte.
EXPANSION = 80


@every_kind
def test_a_frame_never_takes_much_more_memory_than_its_length(name: str, kind: type[m.Message]) -> None:
    for frame in inflated(kind, min(FRAMES[name], 512 * 1024)):
        assert peak(lambda frame=frame: decoded(name, frame)) <= EXPANSION * len(frame) + 200_000


def inflated(kind: type[m.Message], bound: int) -> Iterator[bytes]:
    """For each list and map in a message, the message with as many of the smallest items as fit; and plain fill."""
    plain = msgspec.msgpack.decode(frames.encode(kit.make(kind, kit.Least())))
    room = bound - len(msgspec.msgpack.encode(plain)) - 100
    yield msgspec.msgpack.encode({**plain, "from_the_future": b"x" * room})
    yield msgspec.msgpack.encode({**plain, "from_the_future": [[]] * room})
    for path, container in containers(kind):
        tree = msgspec.msgpack.decode(msgspec.msgpack.encode(plain))
        holder = tree
        for name in path[:-1]:
            holder = holder.setdefault(name, {})
        holder[path[-1]] = msgspec.Raw(filled(container, room))
        yield msgspec.msgpack.encode(tree)


def containers(kind: type[msgspec.Struct], depth: int = 0) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Where in a struct there are lists and maps, and of which type."""
    for field in msgspec.structs.fields(kind):
        if typing.get_origin(field.type) in (list, tuple, dict):
            yield (field.encode_name,), field.type
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct) and depth < 3:
            for path, container in containers(field.type, depth + 1):
                yield (field.encode_name, *path), container


def filled(container: Any, room: int) -> bytes:
    """A list or map of this type that takes `room` bytes, of items as small as can be."""
    kinds = typing.get_args(container)
    if kinds[-1] is Any:  # one value of any type: nothing grows like empty maps
        return b"\x81\xa1a\xdd" + (room - 8).to_bytes(4, "big") + b"\x80" * (room - 8)
    is_map = typing.get_origin(container) is dict
    item = msgspec.msgpack.encode(kit.make(kinds[is_map], kit.Least()))
    count = room // (len(item) + (6 if is_map else 0))
    head = bytes([0xDF if is_map else 0xDD]) + count.to_bytes(4, "big")
    if not is_map:
        return head + item * count
    names = (f"{index:x}" if kinds[0] is str else index for index in range(count))
    return head + b"".join(msgspec.msgpack.encode(name) + item for name in names)


# --- bundles, weights, blocks ----------------------------------------------------------------------------------------

IMAGES = SessionSchema(
    ticks=4, columns=(Column("obs", "uint8", (64, 64), extra_row=True), Column("flags", "uint8", ()))
)


def damaged_header(header: m.BundleHeader, rng: random.Random) -> m.BundleHeader | None:
    """A header as it may come out of a damaged frame; None if nothing comes out."""
    frame = kit.mutate_frame(frames.encode(header), rng)
    return attempt(RemoteProtocolError, frames.decode_bundle_header, frame)[0]


@many
@given(seeded)
def test_damaged_bundles_are_refused_or_exactly_of_the_schema(rng: random.Random) -> None:
    header, payload = make_bundle(slots=rng.randint(1, 4), seed=rng.randrange(5))
    for _ in range(20):
        said = damaged_header(header, rng) or header
        held = kit.mutate_bytes(payload, rng) if rng.random() < 0.7 else payload
        if rng.random() < 0.5 and said.sizes:  # sizes that add up, so that lz4 sees it
            said = msgspec.structs.replace(said, sizes=[*said.sizes[:-1], len(held) - sum(said.sizes[:-1])])
        arrays, error = attempt(RemoteProtocolError, bundle.decode_bundle, CARTPOLE, said, held)
        if arrays is None:
            assert error.reason in ("wrong_schema", "oversize", "malformed", "bad_codec")
            continue
        for column in CARTPOLE.columns:
            array = arrays[column.name]
            assert array.shape == (CARTPOLE.rows(column), said.slots, *column.shape)
            assert array.dtype == column.dtype
            assert not array.flags.writeable


@some
@given(seeded, st.integers(0, 1024), st.integers(0, 40_000), st.binary(max_size=64))
def test_a_bundle_takes_no_more_memory_than_the_schema_says(
    rng: random.Random, slots: int, length: int, pattern: bytes
) -> None:
    held = bytearray((pattern * length)[:length] if pattern else bytes(length))
    first, codecs = rng.randint(0, length), rng.choices(columns.CODECS, k=2)
    # What ends a block says its codec: without it nothing is decoded.
    for start, end, codec in ((0, first, codecs[0]), (first, length, codecs[1])):
        if start < end:
            held[end - 1] = columns.CODECS.index(codec)
    payload = bytes(held)
    header = m.BundleHeader(
        schema=IMAGES.digest(), slots=slots, version=0, rank=0, serial=0, steps=0, episodes=[],
        codecs=codecs, sizes=[first, length - first],
    )  # fmt: skip

    # lz4 makes 255 bytes of one at most, and no more than the schema has is ever asked of it. Twice: pictures that came
    # in another codec are compressed again.
    claimed = 2 * min(IMAGES.session_bytes() * slots, 255 * length)
    taken = peak(lambda: attempt(RemoteProtocolError, bundle.decode_bundle, IMAGES, header, payload))
    assert taken <= claimed + 100_000


@many
@given(seeded, st.integers(0, 6))
def test_damaged_stills_are_an_error_or_so_many(rng: random.Random, count: int) -> None:
    """They come from the host's own shard, but a bug there must not be a riddle here."""
    kept = [bytes([number]) * rng.randint(0, 40) for number in range(3)]
    sent = [stills.Still("lz4", rng.choice(kept), rng.randrange(9)) for _ in range(count)]
    frame = stills.encode_stills(sent)
    assert [(one.codec, bytes(one.block), one.row) for one in stills.decode_stills(frame, count)] == [
        (one.codec, one.block, one.row) for one in sent
    ]
    for _ in range(20):
        found, _ = attempt(ValueError, stills.decode_stills, kit.mutate_bytes(frame, rng), count)
        assert found is None or len(found) == count


def make_weights(rng: random.Random) -> dict[str, blocks.Array]:
    """A small network."""
    shapes = [(), (0,), (3,), (4, 5), (2, 3, 4), (100,)]
    return {
        f"layer{index}.w": (np.ones if rng.random() < 0.5 else np.zeros)(
            rng.choice(shapes), rng.choice([*DTYPE_SIZES])
        )
        for index in range(rng.randint(0, 4))
    }


def damaged_weights(payload: bytes, rng: random.Random) -> bytes:
    """Something in it is wrong: anything, or its index."""
    if rng.random() < 0.3:
        return kit.mutate_bytes(payload, rng)
    parts = [bytes(part) for part in keyframes.split_parts(payload)]
    at = 0 if parts[0] else 1
    end = 4 + int.from_bytes(parts[at][:4], "little")
    index = kit.mutate_frame(parts[at][4:end], rng)
    tail = kit.mutate_bytes(parts[at][end:], rng) if rng.random() < 0.3 else parts[at][end:]
    length = len(index) if rng.random() < 0.9 else rng.randrange(2**32)
    parts[at] = length.to_bytes(4, "little") + index + tail
    return keyframes.join_parts(*parts)


@many
@given(seeded)
def test_damaged_weights_are_refused_or_sound(rng: random.Random) -> None:
    encoder, decoder = weights.WeightsEncoder(halves=rng.random() < 0.5), weights.WeightsDecoder(100_000)
    made = make_weights(rng)
    first = encoder.encode(made)
    decoder.read(first.payload)
    encoder.sent(first)
    change = encoder.encode(made)
    for _ in range(20):
        payload = rng.choice([first, change]).payload
        damaged = damaged_weights(payload, rng)
        found, error = attempt(RemoteProtocolError, decoder.read, damaged)
        if found is None:
            assert error.reason in ("malformed", "oversize", "bad_codec")
            if not change.whole:
                decoder.read(first.payload)
            continue
        assert sum(array.nbytes for array in found.values()) <= 100_000
        again = weights.decode_weights(weights.encode_weights(found))
        assert {name: array.tobytes() for name, array in again.items()} == {
            name: array.tobytes() for name, array in found.items()
        }


@many
@given(st.binary(max_size=600))
def test_noise_is_no_weights(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        weights.decode_weights(payload)
    assert caught.value.reason in ("malformed", "oversize", "bad_codec")


def one_index(*entries: weights.Entry) -> bytes:
    return msgspec.msgpack.encode(weights.Index(list(entries), [weights.Block("lz4", 0)]))


ONE_ENTRY = msgspec.msgpack.encode(weights.Entry("", "bool", ()))


@pytest.mark.parametrize(
    "index",
    [
        b"\x92\xdd" + (600_000).to_bytes(4, "big") + ONE_ENTRY * 600_000 + b"\x90",
        one_index(weights.Entry("", "bool", (1,) * 4_000_000)),
        one_index(weights.Entry("", "float64", (2**63,) * 400_000)),
        one_index(weights.Entry("n", "float64", (0, *(2**63,) * 15))),
        one_index(weights.Entry("n", "float64", (2**17,))),
        one_index(weights.Entry("n", "float32", (2**17,), half=True)),
        one_index(weights.Entry("x" * 4_000_000, "bool", ())),
    ],
    ids=["entries", "sides", "large sides", "hidden sides", "bomb", "half a bomb", "name"],
)
def test_an_index_takes_memory_by_its_own_length_alone(index: bytes) -> None:
    payload = keyframes.join_parts(len(index).to_bytes(4, "little") + index, b"")

    def work() -> None:
        with pytest.raises(RemoteProtocolError):
            weights.decode_weights(payload, max_bytes=10**9)

    assert peak(work) <= EXPANSION * len(payload) + 500_000


@many
@given(
    st.sampled_from(["raw", "lz4", "", "zip", "x" * 1000]),
    st.binary(max_size=300),
    st.sampled_from([*DTYPE_SIZES, "object", "O", "V8", "<f4", "complex64", "datetime64", ""]),
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
)
def test_any_block(codec: str, block: bytes, dtype: str, shape: tuple[int, ...]) -> None:
    array, error = attempt(RemoteProtocolError, blocks.unpack, codec, block, dtype, shape)
    if array is None:
        assert error.reason in ("bad_codec", "malformed")
        return
    assert (array.shape, array.dtype.name) == (shape, dtype)


@many
@given(st.data())
def test_any_array_comes_back(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
    array = data.draw(hnp.arrays(data.draw(st.sampled_from([*DTYPE_SIZES])), shape))
    codec, block = blocks.pack(array)
    again = blocks.unpack(codec, block, array.dtype.name, array.shape)
    assert again.tobytes() == array.tobytes()


# --- replay: records and segments ------------------------------------------------------------------------------------

RECORDS: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "bundle": (records.decode_bundle_record, records.StoredBundle),
    "snapshot": (records.decode_snapshot, records.Snapshot),
    "consumed": (records.decode_consumed, int),
}
every_record = pytest.mark.parametrize("name", RECORDS)


@every_record
@some
@given(st.data())
def test_records_come_back(name: str, data: st.DataObject) -> None:
    decode, kind = RECORDS[name]
    record = data.draw(kit.messages(kind))
    assert decode(records.encode_record(record)) == record


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65535, 65536])
def test_a_bundle_is_logged_in_parts_as_it_would_be_whole(size: int) -> None:
    bundle = records.StoredBundle(7, 4, 30, "node", "boot", 3, b"header", b"")
    payload = random.Random(size).randbytes(size)
    parts = records.encode_bundle_record(bundle, memoryview(payload))
    whole = msgspec.structs.replace(bundle, payload=payload)
    assert b"".join(parts) == records.encode_record(whole)


@every_record
@many
@given(seeded)
@example(random.Random(0))
def test_damaged_records_are_told_by_one_error(name: str, rng: random.Random) -> None:
    decode, kind = RECORDS[name]
    body = records.encode_record(kit.make(kind, kit.Seeded(rng)))
    for _ in range(20):
        damaged = rng.choice(
            (kit.mutate_frame(body, rng), rng.randbytes(rng.randrange(60)), body + kit.DEEP_LIST)
        )
        record, error = attempt(msgspec.MsgspecError, decode, damaged)
        assert error is not None or isinstance(record, kind)


@every_record
def test_a_record_that_nests_without_end(name: str) -> None:
    decode, kind = RECORDS[name]
    body = msgspec.msgpack.decode(records.encode_record(kit.make(kind, kit.Least())))
    fields = body if isinstance(body, list) else []
    deep = msgspec.msgpack.encode([*fields, msgspec.Raw(kit.DEEP_LIST)])
    for damaged in (deep, kit.DEEP_LIST, kit.DEEP_MAP):
        with pytest.raises(msgspec.MsgspecError):
            decode(damaged)


def open_log(place: Path) -> SegmentLog:
    return SegmentLog(place, 400, lambda: b"snap")


def read(place: Path) -> tuple[list[bytes], list[str]]:
    log = open_log(place)
    return [body for kind, body in log.records() if kind != SNAPSHOT], log.damage


def segments(place: Path) -> list[Path]:
    return sorted(place.glob("*.seg"))


def fill(place: Path, bodies: list[bytes]) -> None:
    log = open_log(place)
    list(log.records())
    for body in bodies:
        log.append(1, body)
    log.close()


@many
@given(st.lists(st.binary(max_size=200), max_size=3))
def test_segments_of_noise_hold_nothing_and_are_in_nobodys_way(noise: list[bytes]) -> None:
    with folder() as place:
        for number, data in enumerate(noise):
            (place / f"{number:012d}.seg").write_bytes(data)
        assert read(place)[0] == []
        fill(place, [b"after"])
        assert read(place)[0] == [b"after"]


@many
@given(seeded)
def test_a_damaged_segment_costs_only_what_follows_the_damage(rng: random.Random) -> None:
    bodies = [bytes([index]) * rng.randrange(1, 120) for index in range(rng.randrange(1, 12))]
    with folder() as place:
        fill(place, bodies)
        whole = {path: {body[:1] for body in _bodies(path)} for path in segments(place)}
        victim = rng.choice(segments(place))
        before = victim.read_bytes()
        victim.write_bytes(kit.mutate_bytes(before, rng, [before]))
        found, _ = read(place)
        assert set(found) <= set(bodies)
        kept = {body[:1] for body in found}
        assert kept >= set().union(*(names for path, names in whole.items() if path != victim))
        fill(place, [b"after"])  # and the log goes on
        assert read(place)[0][-1] == b"after"


def _bodies(path: Path) -> list[bytes]:
    """The bodies of one segment alone."""
    with folder() as place:
        (place / path.name).write_bytes(path.read_bytes())
        return read(place)[0]


@few
@given(seeded)
def test_a_shard_opens_whatever_its_log_holds(rng: random.Random) -> None:
    with folder() as place:
        shard = open_shard(place, segment_bytes=1500)
        for seq in range(6):
            assert push(shard, seq).verdict.status == "stored"
        shard.close()
        for path in rng.sample(segments(place), k=rng.randint(1, 2)):
            path.write_bytes(kit.mutate_bytes(path.read_bytes(), rng))
        (place / "000000000099.seg").write_bytes(rng.randbytes(100))
        again = open_shard(place, segment_bytes=1500)
        assert again.sessions <= 24
        assert push(again, 1000).verdict.status == "stored"
        again.close()
