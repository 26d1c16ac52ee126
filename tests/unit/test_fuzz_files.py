"""Every file that is read back, every text from a person or from mDNS: a sound value, or the documented error."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2prl.core import messages as m
from p2prl.core.access import Access, Entry, is_key
from p2prl.core.codes import parse_code
from p2prl.core.enrolment import Attempt, CodeChanged, Gate, Reply, TokenEntry
from p2prl.core.pake import Claim, Party
from p2prl.core.spool import Rules
from p2prl.errors import CorruptCheckpoint, P2prlError, UsageError
from p2prl.net import addresses, cards, keys
from p2prl.net.addresses import KnownHost, KnownHosts
from p2prl.net.tokens import Token, format_token, parse_token, read_token
from p2prl.nodes import broker_file, checkpoint, prepare
from p2prl.nodes.access_file import AccessFile
from p2prl.settings import (
    dump_experiment,
    last_host_name,
    parse_experiment,
    parse_value,
    preset_names,
    preset_text,
)
from tests import fuzz_kit as kit
from tests.fuzz_kit import attempt, folder, many, seeded, some
from tests.hostile import PICKLE
from tests.unit import spool_kit

CODE = "17-acorn-ladder"

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
            for address in host.addresses:  # ZeroMQ raises for what is none
                typed = f"[{address}]:1" if ":" in address else address
                assert addresses.parse_address(typed, 1).host == address
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
        loaded, error = attempt(P2prlError, keys.load_or_create, path)
        assert loaded == made if error is None else "damaged" in str(error)
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


@pytest.mark.parametrize("content", [b"", b"9\n", b"-000000000000009\n", b"9" * 40, b"00000000000000\xb29\n"])
def test_a_damaged_version_of_the_weights_is_as_none(tmp_path: Path, content: bytes) -> None:
    broker_file.save(tmp_path, broker_file.Saved(weights_version=4))
    broker_file.note_version(tmp_path, 9)
    assert broker_file.load(tmp_path).weights_version == 9
    (tmp_path / broker_file.VERSION_NAME).write_bytes(content)
    assert broker_file.load(tmp_path).weights_version == 4


def test_a_version_of_the_weights_that_is_written_in_part_was_not_noted(tmp_path: Path) -> None:
    """Not injected: the kernel itself takes a part of it. These weights must not be given out then."""
    resource = pytest.importorskip("resource", reason="Windows has no file size limits")
    broker_file.note_version(tmp_path, 8)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            broker_file.note_version(tmp_path, 9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert broker_file.load(tmp_path).weights_version == 8
    broker_file.note_version(tmp_path, 9)
    assert broker_file.load(tmp_path).weights_version == 9


def test_a_version_of_the_weights_that_cannot_be_read_is_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker_file.save(tmp_path, broker_file.Saved(weights_version=4))
    (tmp_path / broker_file.VERSION_NAME).mkdir()
    assert broker_file.load(tmp_path).weights_version == 4
    assert "weights-version cannot be read" in caplog.text


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
        opened, error = attempt(UsageError, prepare.open_folder, experiment, place, True)
        assert error is not None or isinstance(opened[1], prepare.RunFile)


@many
@given(seeded)
def test_a_damaged_list_of_keys_is_set_aside(rng: random.Random) -> None:
    entry = Entry(key="k" * 40, name="n", standing="removed", how="code", since=1.5)
    token = TokenEntry(id="t", secret="s" * 20, uses=1, expires_at=2.5, ttl_s=1.0)
    with folder() as place:
        path = place / "hosting" / "access.json"
        path.parent.mkdir()
        path.write_bytes(mutate_json(msgspec.json.encode({"entries": [entry], "tokens": [token]}), rng))
        stored = AccessFile(place).read()
        access = Access()
        access.load(stored.entries)
        assert all(is_key(found.key) for found in access.entries())
        assert stored.entries == [] or path.exists()


def _read_broker_file(place: Path) -> object:
    return broker_file.load(place).term > 0


def _read_run_file(place: Path) -> object:
    with pytest.raises(UsageError):
        prepare.open_folder(parse_experiment("", "test"), place, resume=True)
    return last_host_name(place) is None


def _read_key(place: Path) -> object:
    with pytest.raises(P2prlError, match="damaged"):
        keys.load_or_create(place / "node.key")
    return True


def _read_meta(place: Path) -> object:
    path = checkpoint.save(place, META, ARRAYS, ARRAYS)
    (path / "meta.json").write_bytes((place / "meta.json").read_bytes())
    done = {file.name: checkpoint._hash(file) for file in path.iterdir() if file.name != "DONE"}
    (path / "DONE").write_bytes(msgspec.json.encode(done))
    with pytest.raises(CorruptCheckpoint):
        checkpoint.load(path)
    return True


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("known_hosts.json", lambda place: KnownHosts(place).hosts() == []),
        ("broker.json", _read_broker_file),
        ("run.json", _read_run_file),
        ("node.key", _read_key),
        ("meta.json", _read_meta),
        ("hosting/access.json", lambda place: AccessFile(place).read().entries == []),
    ],
)
@pytest.mark.parametrize("deep", [b"[" * 5000, b'{"a":' * 5000, b"[" * 5000 + b"]" * 5000])
def test_a_file_that_nests_without_end(name: str, read: Callable[[Path], object], deep: bytes) -> None:
    with folder() as place:
        (place / name).parent.mkdir(exist_ok=True)
        for data in (deep, b'{"from_the_future":' + deep + b"}"):
            (place / name).write_bytes(data)
            assert read(place)


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
        found, error = attempt(CorruptCheckpoint, checkpoint.load, path)
        assert error is not None or isinstance(found.meta, checkpoint.Meta)


@some
@given(seeded)
def test_a_damaged_spool_gives_what_is_whole_and_nothing_else(rng: random.Random) -> None:
    written = [spool_kit.frames_of(number, rng.randrange(1, 300)) for number in range(rng.randint(1, 12))]
    rules = Rules(bound_bytes=16 * 600, keep_free_bytes=0)  # segments of two or three bundles
    with folder() as place:
        spool = spool_kit.open_spool(place, spool_kit.Books(), rules)
        assert spool.begin()
        for header, payload in written:
            spool.add(spool_kit.bundle(), header, payload, 0)
        spool.close()
        files = [path for path in place.rglob("*") if path.is_file()]
        for path in rng.sample(files, k=rng.randint(1, min(2, len(files)))):
            data = path.read_bytes()
            path.write_bytes(kit.mutate_bytes(data, rng, [data]))
        again = spool_kit.open_spool(place, spool_kit.Books("boot2"), rules)
        given_back = [again.load(entry) for entry in iter(again.next, None)]
        assert all(found is None or found in written for found in given_back)
        again.close()


# --- what people write -----------------------------------------------------------------------------------------------

_TOML = (
    "\n".join(preset_text(name) for name in preset_names()[:1])
    + '\n[stop]\nsteps = 5\n[env.args]\nx = [1, {a = "b"}]\n'
)
_TOML_VALUES = (
    "1e999", "nan", "-inf", "9" * 400, "9" * 5000, "1979-05-27T07:32:00Z", "07:32:00", "[" * 3000, "{a=" * 3000,
    "[" * 3000 + "]" * 3000, '"' + "9" * 400 + 'GB"', '"1e9GB"', '"\\u0000"', "true", "[[1], {}]", "0x" + "f" * 40,
    "-1", "''",
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
    experiment, error = attempt(UsageError, parse_experiment, text, "test")
    if experiment is None:
        assert "\n" not in str(error)
        return
    assert parse_experiment(dump_experiment(experiment), "again").name == experiment.name


@pytest.mark.parametrize("value", _TOML_VALUES, ids=lambda value: value[:20])
@pytest.mark.parametrize(
    "key", ["seed", "env.args.x", "replay.capacity_bytes", "agent.lr", "stop.return_", "name"]
)
def test_every_odd_value_at_every_kind_of_key(key: str, value: str) -> None:
    experiment, _ = attempt(UsageError, parse_experiment, f"{key} = {value}", "test")
    if experiment is not None:
        dump_experiment(experiment)
    assert parse_value(value) is not None


@many
@given(st.text(max_size=60))
@example("9" * 5000)
@example("[" * 20_000)
def test_any_assignment_has_a_value(text: str) -> None:
    parse_value(text)


@many
@given(st.one_of(st.text(max_size=40), st.from_regex(r"[\[\]0-9a-f:.%]{1,30}", fullmatch=True)))
@example("::%]")
def test_any_address_is_one_or_a_usage_error(text: str) -> None:
    addresses.looks_like_address(text)
    address, error = attempt(UsageError, addresses.parse_address, text, 47800)
    if address is None:
        assert "\n" not in str(error)
        return
    assert address.host
    assert 1 <= address.base <= addresses.MAX_BASE
    assert addresses.parse_address(str(address), 1) == address


TOKEN = Token(("192.0.2.7", "fe80::1%eth0", "lab.local"), 47800, "k" * 40, "id-1", "s" * 30)


@many
@given(seeded, st.text(max_size=100))
def test_any_token_is_one_or_a_usage_error_that_keeps_the_secret(rng: random.Random, noise: str) -> None:
    text = format_token(TOKEN)
    assert parse_token(text) == TOKEN
    damaged = kit.mutate_bytes(text.encode(), rng, [text.encode()])
    for said in (damaged.decode("utf-8", "replace"), noise, "p2prl://" + noise, text + noise):
        token, error = attempt(UsageError, parse_token, said)
        if token is None:
            assert TOKEN.secret[:8] not in str(error)
            continue
        assert parse_token(format_token(token)) == token
        assert is_key(token.server_key)
    with folder() as place:
        (place / "token").write_bytes(damaged)
        _, error = attempt(UsageError, read_token, str(place / "token"))
        assert error is None or TOKEN.secret[:8] not in str(error)


@many
@given(
    st.one_of(
        st.text(max_size=120), st.from_regex(r"[0-9]{1,12}[ .-][a-z]{3,7}[ -]+[a-z]{3,7}", fullmatch=True)
    )
)
@example("\u0661\u0667-acorn-ladder")
@example("\ufb01-" * 30)
def test_any_join_code_is_one_or_a_usage_error(text: str) -> None:
    code, error = attempt(UsageError, parse_code, text)
    assert parse_code(code) == code if code is not None else "\n" not in str(error)


def test_any_enrolment_is_answered_and_none_is_proved() -> None:
    """The gate never raises, and never proves a key that did not prove itself."""
    rng = random.Random(9)
    gate = Gate(
        "h" * 40, entropy=rng.randbytes, below=rng.randrange, code=CODE, uses=None, ttl_s=None, now=0.0
    )
    honest = Party("newcomer", CODE, Claim(m.PROTOCOL, "", "n" * 40, "", "h" * 40, ""), rng.randbytes).share
    for turn in range(60):
        begin = m.EnrolBegin(
            protocol=m.PROTOCOL, version="", node_key="n" * 40, name=rng.choice(("", "x" * 500, "\x1b[2J")),
            share=rng.choice(
                (honest, b"", b"S" + bytes(32), kit.mutate_bytes(honest, rng), rng.randbytes(33), PICKLE)
            ),
            token=rng.choice(("", "", "t")),
        )  # fmt: skip
        proof = m.EnrolProof(proof=rng.choice((b"", rng.randbytes(32), PICKLE, bytes(32))))
        for message in rng.choice(([begin, proof], [proof], [begin, begin], [begin])):
            now = 1000.0 * turn
            for effect in gate.handle(rng.randbytes(1), "192.0.2.7", message, now):
                assert isinstance(effect, (Reply, CodeChanged, Attempt))
                if isinstance(effect, Reply) and isinstance(effect.message, m.Refusal):
                    assert effect.message.reason in m.REFUSALS
