"""Every decoder under hypothesis: a valid value or the one documented error, and no more memory than its bound."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import random
import tempfile
import tracemalloc
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import p2prl.replay
import p2prl.wire
from p2prl.core import messages as m
from p2prl.core.schema import DTYPE_SIZES, Column, SessionSchema
from p2prl.errors import (
    CorruptCheckpoint,
    P2prlError,
    RemoteProtocolError,
    UpgradeNeeded,
    UsageError,
)
from p2prl.net import addresses, cards, keys
from p2prl.net.addresses import KnownHost, KnownHosts
from p2prl.nodes import broker_file, checkpoint, prepare
from p2prl.replay import records
from p2prl.replay.log import SNAPSHOT, SegmentLog
from p2prl.settings import (
    dump_experiment,
    last_host_name,
    parse_experiment,
    parse_value,
    preset_names,
    preset_text,
)
from p2prl.wire import blocks, bundle, frames, weights
from tests import fuzz_kit as kit
from tests.unit.replay_kit import CARTPOLE, make_bundle, open_shard, push

#: P2PRL_FUZZ_TIMES=100 looks a hundred times longer.
TIMES = int(os.environ.get("P2PRL_FUZZ_TIMES", "1"))
many = settings(deadline=None, max_examples=200 * TIMES, suppress_health_check=list(HealthCheck))
some = settings(many, max_examples=60 * TIMES)
few = settings(many, max_examples=25 * TIMES)
seeded = st.integers(0, 2**32).map(random.Random)

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
    try:
        return DECODERS[name](frame)
    except RemoteProtocolError as error:
        assert error.reason == ("oversize" if len(frame) > FRAMES[name] else "malformed")
        return None


@contextmanager
def folder() -> Iterator[Path]:
    """A fresh folder for one example."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


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
@example(kit.PICKLE)
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
    try:
        return frames.decode_bundle_header(frame)
    except RemoteProtocolError:
        return None


@many
@given(seeded)
def test_damaged_bundles_are_refused_or_exactly_of_the_schema(rng: random.Random) -> None:
    header, payload = make_bundle(slots=rng.randint(1, 4), seed=rng.randrange(5))
    for _ in range(20):
        said = damaged_header(header, rng) or header
        held = kit.mutate_bytes(payload, rng) if rng.random() < 0.7 else payload
        if rng.random() < 0.5 and said.sizes:  # sizes that add up, so that lz4 sees it
            said = msgspec.structs.replace(said, sizes=[*said.sizes[:-1], len(held) - sum(said.sizes[:-1])])
        try:
            arrays = bundle.decode_bundle(CARTPOLE, said, held)
        except RemoteProtocolError as error:
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
    payload = (pattern * length)[:length] if pattern else bytes(length)
    first = rng.randint(0, length)
    header = m.BundleHeader(
        schema=IMAGES.digest(), slots=slots, version=0, rank=0, serial=0, steps=0, episodes=[],
        codecs=[rng.choice(("lz4", "raw")), rng.choice(("lz4", "raw"))], sizes=[first, length - first],
    )  # fmt: skip

    def work() -> None:
        try:
            bundle.decode_bundle(IMAGES, header, payload)
        except RemoteProtocolError:
            pass

    # lz4 makes 255 bytes of one at most, and no more than the schema has is ever asked of it.
    claimed = min(IMAGES.session_bytes() * slots, 255 * length)
    assert peak(work) <= claimed + 100_000


def make_weights(rng: random.Random) -> dict[str, blocks.Array]:
    """A small network."""
    shapes = [(), (0,), (3,), (4, 5), (2, 3, 4), (100,)]
    return {
        f"layer{index}.w": (np.ones if rng.random() < 0.5 else np.zeros)(
            rng.choice(shapes), rng.choice([*DTYPE_SIZES])
        )
        for index in range(rng.randint(0, 4))
    }


@many
@given(seeded)
def test_damaged_weights_are_refused_or_sound(rng: random.Random) -> None:
    payload = weights.encode_weights(make_weights(rng))
    end = 4 + int.from_bytes(payload[:4], "little")
    for _ in range(20):
        index = kit.mutate_frame(payload[4:end], rng)
        tail = kit.mutate_bytes(payload[end:], rng) if rng.random() < 0.3 else payload[end:]
        length = len(index) if rng.random() < 0.9 else rng.randrange(2**32)
        damaged = length.to_bytes(4, "little") + index + tail
        if rng.random() < 0.3:
            damaged = kit.mutate_bytes(payload, rng)
        try:
            found = weights.decode_weights(damaged, max_bytes=100_000)
        except RemoteProtocolError as error:
            assert error.reason in ("malformed", "oversize", "bad_codec")
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


ONE_ENTRY = msgspec.msgpack.encode(weights.Entry("", "bool", (), "raw", 0))


@pytest.mark.parametrize(
    "index",
    [
        b"\xdd" + (600_000).to_bytes(4, "big") + ONE_ENTRY * 600_000,
        msgspec.msgpack.encode([weights.Entry("", "bool", (1,) * 4_000_000, "raw", 0)]),
        msgspec.msgpack.encode([weights.Entry("", "float64", (2**63,) * 400_000, "raw", 0)]),
        msgspec.msgpack.encode([weights.Entry("n", "float64", (0, *(2**63,) * 15), "raw", 0)]),
        msgspec.msgpack.encode([weights.Entry("n", "float64", (2**17,), "lz4", 0)]),
        msgspec.msgpack.encode([weights.Entry("x" * 4_000_000, "bool", (), "raw", 0)]),
    ],
    ids=["entries", "sides", "large sides", "hidden sides", "bomb", "name"],
)
def test_an_index_takes_memory_by_its_own_length_alone(index: bytes) -> None:
    payload = len(index).to_bytes(4, "little") + index

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
    try:
        array = blocks.unpack(codec, block, dtype, shape)
    except RemoteProtocolError as error:
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
        try:
            record = decode(damaged)
        except msgspec.MsgspecError:
            continue
        assert isinstance(record, kind)


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
        try:
            found, _ = read(place)
        except UpgradeNeeded:
            raise AssertionError("a damaged header was taken for a newer format") from None
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


# --- what hosts say with mDNS ----------------------------------------------------------------------------------------

HONEST_TXT = {
    b"txtvers": b"1", b"run": b"ab12", b"name": b"lab", b"boot": b"cd34", b"term": b"3", b"proto": b"1",
    b"base": b"47800", b"key": b"abcd-efgh", b"env": b"CartPole-v1", b"agent": b"dqn",
}  # fmt: skip
_LOCAL = [
    "192.0.2.7",
    "::1",
    "127.0.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "224.0.0.1",
    "0.0.0.0",
    "",
    "lab",
    "1.2.3",
    "%",
    "::%",
]


@many
@given(
    seeded,
    st.text(max_size=300),
    st.integers(-1, 70_000),
    st.lists(
        st.one_of(st.sampled_from(_LOCAL), st.text(max_size=30), st.ip_addresses().map(str)), max_size=40
    ),
)
def test_any_txt_record_is_a_bounded_host_or_none(
    rng: random.Random, name: str, port: int, where: list[str]
) -> None:
    txt: dict[bytes, bytes | None] = dict(HONEST_TXT)
    for key in rng.sample([*HONEST_TXT], k=rng.randint(0, 4)):
        txt[key] = rng.choice(
            (
                None,
                b"",
                b"-1",
                b"9" * 200,
                "\u0663".encode(),
                rng.randbytes(255),
                b"\x1b[2J",
                kit.mutate_bytes(b"47800", rng),
            )
        )
    found = cards.found_from(f"{name}.{cards.SERVICE_TYPE}", txt, port, where)
    if found is None:
        return
    texts = (found.run_id, found.name, found.boot_id, found.fingerprint, found.env, found.agent)
    assert all(len(text) <= cards.MAX_TEXT and (not text or text.isprintable()) for text in texts)
    assert 1 <= found.base_port <= 65535
    assert 1 <= len(found.addresses) <= cards.MAX_ADDRESSES
    assert cards.merge_hosts([found, found]) == [found]


@many
@given(st.text(max_size=200))
def test_any_name_becomes_a_label(name: str) -> None:
    label = cards.instance_name(name)
    assert 1 <= len(label.encode()) <= 58
    assert "." not in label


# --- files of this machine's own -------------------------------------------------------------------------------------


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """A JSON file with damaged bytes, or with other values in it."""
    if rng.random() < 0.4:
        return kit.mutate_bytes(data, rng)
    if rng.random() < 0.1:
        return rng.choice((b"", b"null", b"[]", b"\xff\xfe", b"[" * 20_000, b'{"x":' * 20_000, b"\0" * 300))

    def value(rng: random.Random) -> Any:
        raw = (b"[" * 5000 + b"]" * 5000, b'{"a":' * 3000 + b"0" + b"}" * 3000, b"1e999", b"-1", b"9" * 400)
        found = kit.hostile(rng, raw)
        return "bytes" if isinstance(found, bytes) else found

    try:
        tree = msgspec.json.decode(data)
        for _ in range(rng.randint(1, 3)):
            tree = kit.mutate_tree(tree, rng, value)
        return msgspec.json.encode(tree)
    except (msgspec.MsgspecError, OverflowError):  # a large integer, or spliced twice
        return kit.mutate_bytes(data, rng)


def known_host(number: int) -> KnownHost:
    return KnownHost(
        name=f"host{number}", run_id="r", server_key="k" * 40, addresses=("192.0.2.7", "fe80::1%eth0"),
        base_port=47800, seen_at=float(number),
    )  # fmt: skip


@many
@given(seeded)
def test_a_damaged_memory_of_hosts_costs_the_memory_alone(rng: random.Random) -> None:
    with folder() as place:
        path, warnings = place / "known_hosts.json", []
        path.write_bytes(mutate_json(msgspec.json.encode({"hosts": [known_host(n) for n in range(3)]}), rng))
        memory = KnownHosts(place, warnings.append)
        found = memory.hosts()
        assert bool(warnings) == path.with_suffix(".damaged").exists()
        assert found == [] or not warnings
        for host in found:
            assert 1 <= host.base_port <= addresses.MAX_BASE
            assert host.addresses
        memory.remember(known_host(9))
        assert known_host(9) in memory.hosts()


@many
@given(seeded)
def test_a_damaged_key_file_is_told_and_never_used(rng: random.Random) -> None:
    with folder() as place:
        path = place / "key.json"
        made = keys.load_or_create(path)
        before = path.read_bytes()
        path.write_bytes(mutate_json(before, rng))
        damaged = path.read_bytes()
        try:
            loaded = keys.load_or_create(path)
        except P2prlError as error:
            assert "damaged" in str(error)
        else:
            assert loaded == made
        assert path.read_bytes() == damaged  # hosts know this node by it: it is never replaced


@many
@given(seeded)
def test_a_damaged_broker_file_makes_the_books_begin_anew(rng: random.Random) -> None:
    saved = broker_file.Saved(
        term=3, next_seed=9, shard_steps={0: 5}, weights_version=2, names={"k" * 40: "node"},
        ledgers={"k" * 40: broker_file.Ledger()}, episodes={"count": [1.0], "best": [2.0], "all": [2.0]},
    )  # fmt: skip
    with folder() as place:
        broker_file.save(place, saved)
        assert broker_file.load(place) == saved
        path = place / "broker.json"
        path.write_bytes(mutate_json(path.read_bytes(), rng))
        assert isinstance(broker_file.load(place), broker_file.Saved)


@many
@given(seeded)
def test_a_damaged_run_file_cannot_be_resumed(rng: random.Random) -> None:
    experiment = parse_experiment("", "test")
    made = prepare.RunFile(run_id="r", name="n", created=1.5, base_port=47800, host_name="h")
    with folder() as place:
        prepare.save_run_file(place, made)
        path = place / "run.json"
        path.write_bytes(mutate_json(path.read_bytes(), rng))
        assert isinstance(last_host_name(place), (str, type(None)))
        try:
            _, file = prepare.open_folder(experiment, place, resume=True)
        except UsageError:
            return
        assert isinstance(file, prepare.RunFile)


META = checkpoint.Meta(
    version=3, updates=40, sampled=100, steps=7, episodes=2, return_mean=1.5, return_episodes=2
)
ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array(4)}


@some
@given(seeded)
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(rng: random.Random) -> None:
    with folder() as place:
        good = checkpoint.save(place, META, ARRAYS, ARRAYS)
        bad = checkpoint.save(place, msgspec.structs.replace(META, updates=41), ARRAYS, ARRAYS)
        victim = bad / rng.choice(("DONE", "meta.json", "learner.safetensors", "weights.safetensors"))
        before = victim.read_bytes()
        damaged = (
            mutate_json(before, rng) if victim.suffix != ".safetensors" else kit.mutate_bytes(before, rng)
        )
        victim.write_bytes(damaged)
        found = checkpoint.load_last(place)
        assert found is not None
        if damaged == before or (victim.name == "DONE" and found.path == bad):
            return
        assert found.path == good
        assert found.meta == META
        assert {name: array.tolist() for name, array in found.weights.items()} == {
            name: array.tolist() for name, array in ARRAYS.items()
        }


@some
@given(seeded)
def test_a_checkpoint_whose_hashes_fit_but_not_its_files(rng: random.Random) -> None:
    """Whoever wrote DONE wrote nonsense: still one error."""
    with folder() as place:
        path = checkpoint.save(place, META, ARRAYS, ARRAYS)
        victim = path / rng.choice(("meta.json", "learner.safetensors", "weights.safetensors"))
        data = victim.read_bytes()
        if victim.suffix == ".safetensors" and rng.random() < 0.7:  # its index is JSON
            end = 8 + int.from_bytes(data[:8], "little")
            index = mutate_json(data[8:end], rng)
            data = len(index).to_bytes(8, "little") + index + data[end:]
        else:
            data = mutate_json(data, rng) if victim.suffix == ".json" else kit.mutate_bytes(data, rng)
        victim.write_bytes(data)
        done = {file.name: checkpoint._hash(file) for file in path.iterdir() if file.name != "DONE"}
        (path / "DONE").write_bytes(msgspec.json.encode(done))
        try:
            found = checkpoint.load(path)
        except CorruptCheckpoint:
            return
        assert isinstance(found.meta, checkpoint.Meta)


# --- what people write -----------------------------------------------------------------------------------------------

_TOML = (
    "\n".join(preset_text(name) for name in preset_names()[:1])
    + '\n[stop]\nsteps = 5\n[env.args]\nx = [1, {a = "b"}]\n'
)
_TOML_VALUES = (
    "1e999", "nan", "-inf", "9" * 400, "9" * 5000, "1979-05-27T07:32:00Z", "07:32:00", "[" * 3000, "{a=" * 3000,
    "[" * 3000 + "]" * 3000, '"' + "9" * 400 + 'GB"', '"1e9GB"', '"\\u0000"', "true", "[[1], {}]", "0x" + "f" * 40, "-1", "''",
)  # fmt: skip


def mutate_toml(text: str, rng: random.Random) -> str:
    """Lines with another value, doubled, or with damaged letters."""
    lines = text.splitlines()
    for _ in range(rng.randint(1, 3)):
        index = rng.randrange(len(lines))
        name, equals, _ = lines[index].partition("=")
        change = rng.randrange(5)
        if change < 3 and equals:
            lines[index] = f"{name}= {rng.choice(_TOML_VALUES)}"
        elif change == 3:
            lines.insert(index, rng.choice(lines))
        else:
            lines[index] = kit.mutate_bytes(lines[index].encode(), rng).decode("utf-8", "replace")
    return "\n".join(lines)


@many
@given(seeded)
def test_any_experiment_is_one_or_a_usage_error(rng: random.Random) -> None:
    text = mutate_toml(_TOML, rng)
    try:
        experiment = parse_experiment(text, "test")
    except UsageError as error:
        assert "\n" not in str(error)
        return
    assert parse_experiment(dump_experiment(experiment), "again").name == experiment.name


@pytest.mark.parametrize("value", _TOML_VALUES, ids=lambda value: value[:20])
@pytest.mark.parametrize(
    "key", ["seed", "env.args.x", "replay.capacity_bytes", "agent.lr", "stop.return_", "name"]
)
def test_every_odd_value_at_every_kind_of_key(key: str, value: str) -> None:
    try:
        experiment = parse_experiment(f"{key} = {value}", "test")
        dump_experiment(experiment)
    except UsageError:
        pass
    assert parse_value(value) is not None


@many
@given(st.text(max_size=60))
@example("9" * 5000)
@example("[" * 20_000)
def test_any_assignment_has_a_value(text: str) -> None:
    parse_value(text)


@many
@given(st.one_of(st.text(max_size=40), st.from_regex(r"[\[\]0-9a-f:.%]{1,30}", fullmatch=True)))
def test_any_address_is_one_or_a_usage_error(text: str) -> None:
    addresses.looks_like_address(text)
    try:
        address = addresses.parse_address(text, 47800)
    except UsageError:
        return
    assert address.host
    assert 1 <= address.base <= addresses.MAX_BASE
    assert addresses.parse_address(str(address), 1) == address
