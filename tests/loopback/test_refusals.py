"""What no honest node sends: refused, counted by reason, and no process dies of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from p2prl.core import messages as m
from p2prl.core.bounds import MAX_COUNT
from p2prl.net.keys import fingerprint
from p2prl.wire import frames
from p2prl.wire.bundle import encode_bundle
from p2prl.wire.columns import CODECS
from tests import kit
from tests.conftest import wait_until
from tests.hostile import PICKLE

Frames = list[bytes]
_PUSH, _SAMPLE = 10, 11


@dataclass
class Host:
    """One host with one honest joiner, for all tests of this file."""

    base: int
    program: kit.Program
    joiner: kit.Program
    pids: set[int]

    def peer(self, offset: int = 0, **more: object) -> kit.Peer:
        return kit.Peer(self.base, offset, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder, base = tmp_path_factory.mktemp("refusals"), kit.free_base()
    flags = ("--env", "chain", "--agent", str(kit.SAMPLES / "idle.py:Idle"), "--players", "0", "--envs", "1")
    with kit.host(folder, *flags, name=f"r{base}", port=base) as program:
        program.wait_for("started")
        with kit.join(folder, name="honest", agent=kit.IDLE, target=f"127.0.0.1:{base}") as joiner:
            joiner.wait_for("progress", lambda e: e["steps"] > 0)
            # The trainer takes longest to start; all are there once it speaks.
            program.wait_for("progress", lambda e: e["trainer"] == "waiting")
            yield Host(base, program, joiner, {child.pid for child in program.children()})


@pytest.fixture
def unharmed(host: Host) -> Iterator[None]:
    """No process of the host died, and the honest joiner goes on working."""
    yield
    with host.peer() as peer:
        [honest] = [node for node in peer.status().nodes if node.name == "honest"]
        wait_until(
            lambda: any(n.name == "honest" and n.steps > honest.steps for n in peer.status().nodes),
            what="the honest joiner plays on",
        )
        status = peer.status()
    assert {child.pid for child in host.program.children()} == host.pids
    assert [shard.starts for shard in status.shards] == [1, 1]
    assert status.term == 1
    assert host.joiner.code is None
    [honest] = [node for node in status.nodes if node.name == "honest"]
    assert honest.state == "working"
    assert honest.bundles.refused == 0
    assert honest.refused_by_host == {}


def member(peer: kit.Peer, name: str) -> m.Welcome:
    """Make this peer's key a member with one player that never plays."""
    hello = m.Hello(protocol=m.PROTOCOL, version="0", role="member", name=name, boot_id="b", players=1)
    return peer.ask(hello, m.Welcome)


def refused(peer: kit.Peer, key: str) -> Counter[str]:
    """What the host's status says was refused of this key, over all its sockets."""
    return Counter(next(node.refused_by_host for node in peer.status().nodes if node.key == key))


# --- control


def _hello(**more: object) -> bytes:
    given: dict[str, object] = {"version": "0", "role": "member", "name": "x", "boot_id": "b", "players": 1}
    return frames.encode(m.Hello(protocol=m.PROTOCOL, **{**given, **more}))  # type: ignore[arg-type]


def _beat(**more: object) -> bytes:
    given: dict[str, object] = {"boot_id": "b", "state": "working"}
    return frames.encode(m.Heartbeat(**{**given, **more}))  # type: ignore[arg-type]


_DEEP = b"\x91" * 100_000 + b"\x90"
_CONTROL: list[tuple[str, Frames]] = [
    ("malformed", [b""]),
    ("malformed", [b"garbage"]),
    ("malformed", [PICKLE]),
    ("malformed", [_DEEP]),
    ("malformed", [b"\x81\xa1t\xa5hello"]),
    ("malformed", [frames.encode(m.Delivery(run_id="r", boot_id="b", seq=0))]),
    ("malformed", [frames.encode(m.Stopping(reason="signal"))]),
    ("malformed", [_hello(players=10**9)]),
    ("malformed", [_hello(players=-1)]),
    ("malformed", [_hello(boot_id="b" * 1000)]),
    ("malformed", [_hello(boot_id="")]),
    ("malformed", [_beat(steps=2**63)]),
    ("malformed", [_beat(episodes=-1)]),
    ("malformed", [_beat(books=m.Books(produced=2**64 - 1, stored=2**64 - 1))]),
    ("malformed", [_beat(books=m.Books(produced=0, stored=-1, pending=1))]),
    ("malformed", [_beat(books=m.Books(dropped_reasons={str(i): 1 for i in range(1000)}))]),
    ("malformed", [frames.encode(m.Goodbye(books=m.Books(produced=2**64 - 1, stored=2**64 - 1)))]),
    ("not_finite", [_beat(steps_per_s=float("nan"))]),
    ("oversize", [bytes(300_000)]),
    ("not_permitted", [frames.encode(m.StopAsk(reason="signal"))]),
    ("not_permitted", [frames.encode(m.TrainerReport(state="training"))]),
    ("malformed", [_hello(slots=10**6)]),
]


@pytest.mark.usefixtures("unharmed")
def test_control(host: Host) -> None:
    with host.peer() as peer, host.peer() as liar:
        member(liar, "liar")
        liar.say(_beat())
        for _, parts in _CONTROL:
            liar.say(*parts)
        expected = Counter(reason for reason, _ in _CONTROL)
        wait_until(lambda: refused(peer, liar.keys.public) == expected)
        status = peer.status()
        assert all(status.refused_frames[reason] >= count for reason, count in expected.items())
        # The connection was kept, and the liar may still behave.
        liar.say(_beat(steps=5, reason="all is well"))
        found = wait_until(lambda: [n for n in peer.status().nodes if n.name == "liar" and n.steps == 5])
        assert found
        # What is far too large costs the connection, not the host's memory; the next one is like any other.
        liar.say(bytes(5_000_000))

        def heard_again() -> bool:
            liar.offer(_beat(steps=6))
            return any(n.name == "liar" and n.steps == 6 for n in peer.status().nodes)

        wait_until(heard_again)
        assert refused(peer, liar.keys.public) == expected
        liar.say(m.Goodbye(reason="bye"))


@pytest.mark.usefixtures("unharmed")
def test_claims_at_their_bounds_do_not_break_the_sums(host: Host) -> None:
    books = m.Books(produced=MAX_COUNT, stored=MAX_COUNT, duplicate=MAX_COUNT)
    with host.peer() as peer, host.peer() as liar:
        for boot in range(40):
            liar.ask(msgspec.msgpack.decode(_hello(boot_id=str(boot), name="max"), type=m.Hello), m.Welcome)
            liar.say(_beat(boot_id=str(boot), steps=MAX_COUNT, books=books))
        wait_until(lambda: any(n.name == "max" and n.steps > MAX_COUNT for n in peer.status().nodes))
        status = peer.status()
        assert status.bundles.balanced()
        seats = [m.Seat(rank=2**62, seed=2**64 - 1)]
        odd = msgspec.msgpack.decode(_hello(name="\x1b[2Jodd" * 50, seats=seats), type=m.Hello)
        given = liar.ask(odd, m.Welcome).seats
        assert given != seats
        [node] = [node for node in peer.status().nodes if node.key == liar.keys.public]
        assert node.name.isprintable()
        assert len(node.name) <= 64
        liar.say(m.Goodbye(reason="bye"))


# --- sessions


class Forger:
    """Bundles of the run's schema, right or with one thing wrong."""

    def __init__(self, welcome: m.Welcome) -> None:
        self.run, self.schema = welcome.run, welcome.run.schema
        self.seq = 0

    def delivery(self, **more: object) -> bytes:
        given: dict[str, object] = {"run_id": self.run.run_id, "boot_id": "b", "seq": self.seq}
        self.seq += 1
        return frames.encode(m.Delivery(**{**given, **more}))  # type: ignore[arg-type]

    def bundle(self, column: str = "", value: float = 0, **more: object) -> tuple[m.BundleHeader, bytes]:
        arrays = {
            c.name: np.full((self.schema.rows(c), 1, *c.shape), value if c.name == column else 0, c.dtype)
            for c in self.schema.columns
        }
        header, payload = encode_bundle(
            self.schema, arrays, slots=1, version=0, rank=0, serial=1, steps=self.schema.ticks, episodes=[]
        )
        return msgspec.structs.replace(header, **more), payload

    def parts(self, column: str = "", value: float = 0, **more: object) -> Frames:
        header, payload = self.bundle(column, value, **more)
        return [self.delivery(), frames.encode(header), payload]

    def bad(self) -> list[tuple[str, Frames]]:
        """One of each kind, with the reason under which it is to be counted."""
        header, payload = self.bundle()
        good = frames.encode(header)
        bomb = msgspec.structs.replace(header, codecs=["lz4"] * len(header.codecs))
        mark = bytes([CODECS.index("lz4")])  # without it no byte would reach lz4
        blocks = b"".join(b"\xff" * (size - 1) + mark for size in header.sizes)
        return [
            ("malformed", [b""]),
            ("malformed", [PICKLE, good, payload]),
            ("malformed", [self.delivery(), good]),
            ("malformed", [self.delivery(), good, payload, b""]),
            ("malformed", [self.delivery(), PICKLE, payload]),
            ("malformed", [self.delivery(seq=-1), good, payload]),
            ("malformed", [self.delivery(), good, payload + b"x"]),
            ("malformed", self.parts("flags", 128)),
            ("malformed", self.parts(steps=1)),
            ("malformed", self.parts(slots=0)),
            ("malformed", self.parts(episodes=[(1.0, 1, 0.0)])),
            ("oversize", [bytes(2000), good, payload]),
            ("oversize", [self.delivery(), bytes(1_100_000), payload]),
            ("wrong_run", [self.delivery(run_id="other"), good, payload]),
            ("wrong_schema", self.parts(schema=b"12345678")),
            ("wrong_schema", self.parts(codecs=[], sizes=[])),
            ("bad_codec", [self.delivery(), frames.encode(bomb), blocks]),
            ("not_finite", self.parts("reward", float("nan"))),
            ("out_of_space", self.parts("action", 7)),
            ("future_version", self.parts(version=10**6)),
        ]


@pytest.mark.usefixtures("unharmed")
def test_sessions(host: Host) -> None:
    with host.peer() as peer, host.peer() as liar, host.peer(_PUSH, kind="push", keys=liar.keys) as push:
        forger = Forger(member(liar, "forger"))
        bad = forger.bad()
        for _, parts in bad:
            push.say(*parts)
        expected = Counter(reason for reason, _ in bad)
        wait_until(lambda: refused(peer, liar.keys.public) == expected)
        assert expected.keys() >= {
            "malformed",
            "oversize",
            "wrong_run",
            "wrong_schema",
            "bad_codec",
            "not_finite",
            "out_of_space",
            "future_version",
        }
        shown = Counter(peer.status().shards[0].refused_reasons)
        assert all(shown[reason] >= count for reason, count in expected.items())
        # The connection was kept: the same bundle a hundred times is stored once.
        again = [forger.delivery(), *forger.parts()[1:]]
        for _ in range(100):
            push.say(*again)
        verdicts: Counter[str] = Counter()

        def told() -> bool:
            while (received := liar.hear(0.0)) is not None:
                message = frames.decode_from_broker(received.frames[0])
                if isinstance(message, m.Receipts):
                    verdicts.update(verdict.status for verdict in message.verdicts)
            return verdicts["duplicate"] == 99

        wait_until(told)
        assert verdicts["stored"] == 1
        assert verdicts["refused"] == sum(expected.values()) - 5  # five had no sequence number to answer for
        liar.say(m.Goodbye(reason="bye"))


def verdict(peer: kit.Peer, seq: int = -1) -> str:
    """The next verdict that this peer is given; with `seq`, the one on that bundle."""
    while (received := peer.hear()) is not None:
        message = frames.decode_from_broker(received.frames[0])
        for found in message.verdicts if isinstance(message, m.Receipts) else ():
            if seq in (-1, found.seq):
                return found.status
    raise AssertionError("no verdict came")


# --- sampling, enrol, and speaking without CURVE


@pytest.mark.usefixtures("unharmed")
def test_sampling(host: Host) -> None:
    with host.peer() as peer, host.peer() as liar, host.peer(_SAMPLE, keys=liar.keys) as sampler:
        member(liar, "sampler")
        for ask in [b"", PICKLE, bytes(1900), frames.encode(m.SampleAsk(ask=1, count=2**40))]:
            sampler.offer(ask)
        # Only the trainer gets through to this socket: the connection is refused, and no ask is read.
        wait_until(lambda: refused(peer, liar.keys.public) == Counter(not_permitted=1))
        assert sampler.hear(0.0) is None
        liar.say(m.Goodbye(reason="bye"))


@pytest.mark.usefixtures("unharmed")
def test_enrol(host: Host) -> None:
    ask = m.EnrolAsk(protocol=m.PROTOCOL, version="0", node_key="")
    with host.peer() as peer, host.peer(1, curve=False) as stranger, host.peer(1, curve=False) as huge:
        before = Counter(peer.status().refused_frames)
        for parts in ([b""], [PICKLE], [b"a", b"b"], [frames.encode(ask), b""], [_hello()]):
            stranger.say(*parts)
        stranger.say(bytes(1900))
        huge.say(bytes(100_000))  # past MAXMSGSIZE: ZeroMQ closes the connection itself
        wait_until(lambda: Counter(peer.status().refused_frames) - before >= Counter(malformed=5, oversize=1))
        stranger.say(ask)
        received = stranger.hear()
        assert received is not None
        assert isinstance(frames.decode_enrol(received.frames[0]), m.EnrolCard)
        assert huge.hear(0.0) is None


@pytest.mark.usefixtures("unharmed")
def test_nobody_is_heard_without_curve(host: Host) -> None:
    with host.peer() as peer, host.peer() as liar:
        forger = Forger(member(liar, "plain"))
        good = forger.parts()
        with (
            host.peer(curve=False) as control,
            host.peer(_PUSH, kind="push", curve=False) as push,
            host.peer(_SAMPLE, curve=False) as sample,
            host.peer(2, kind="sub", curve=False) as weights,
            host.peer(3, kind="push", curve=False) as publish,
        ):
            publish.offer(frames.encode(_WEIGHTS), b"abc")
            control.offer(m.StatusAsk())
            push.offer(*good)  # ZeroMQ may have given the connection up already
            sample.offer(m.SampleAsk(ask=1, count=0))
            with host.peer(_PUSH, kind="push", keys=liar.keys) as with_keys:
                with_keys.say(*good)
                assert verdict(liar) == "stored"  # not a duplicate
            peer.status()
            assert [one.hear(0.0) for one in (control, sample, weights)] == [None, None, None]
        liar.say(m.Goodbye(reason="bye"))


_WEIGHTS = m.WeightsHeader(run_id="r", version=10**6, codec=m.WEIGHTS_CODEC, size_bytes=3)


@pytest.mark.usefixtures("unharmed")
def test_only_the_trainer_gets_through_to_the_publish_socket(host: Host) -> None:
    with host.peer() as peer, host.peer(3, kind="push") as liar:
        before = peer.status()
        wait_until(
            lambda: (
                liar.offer(frames.encode(_WEIGHTS), b"abc"),
                peer.status().refused_frames.get("not_permitted", 0)
                > before.refused_frames.get("not_permitted", 0),
            )[1]
        )
        assert peer.status().weights_version < _WEIGHTS.version, "its own trainer goes on"


# --- random damage


def _mutants(seeds: list[Frames], count: int, rng: random.Random) -> Iterator[Frames]:
    """Messages with a few bytes changed, cut, doubled or added, in one of their frames."""
    for _ in range(count):
        parts = list(rng.choice(seeds))
        index = rng.randrange(len(parts))
        frame = bytearray(parts[index])
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(frame) + 1)
            kind = rng.randrange(4)
            if kind == 0:
                frame[place : place + 1] = rng.randbytes(1)
            elif kind == 1:
                del frame[place : place + rng.randint(1, 8)]
            elif kind == 2:
                frame[place:place] = frame[: rng.randint(1, 16)]
            else:
                frame[place:place] = rng.randbytes(rng.randint(1, 8))
        parts[index] = bytes(frame)
        yield parts


@pytest.mark.usefixtures("unharmed")
def test_thousands_of_damaged_control_messages(host: Host) -> None:
    report = m.PlayerReport(rank=0, state="working", steps=5)
    books = m.Books(produced=3, stored=3, refused_reasons={"x": 1})
    seeds = [
        [_hello(seats=[m.Seat(rank=7, seed=9)], system="Linux")],
        [_beat(steps=5, books=books, players=[report])],
        [frames.encode(m.Fault(kind="warning", text="text"))],
        [frames.encode(m.Goodbye(reason="r", books=m.Books(produced=1, pending=1)))],
        [frames.encode(m.WeightsAsk(have=-1))],
        [frames.encode(m.StopAsk(reason="signal"))],
        [frames.encode(m.TrainerReport(state="training", updates=9))],
    ]
    total = 0
    with host.peer() as peer:
        for batch in _batches(list(_mutants(seeds, 2000, random.Random(20)))):
            with host.peer() as liar:
                member(liar, "fuzzer")
                for parts in batch:
                    liar.say(*parts)
                # Most were refused, the others were harmless truths; and what was sent after them is heard.
                member(liar, "fuzzed")
                total += sum(refused(peer, liar.keys.public).values())
                liar.say(m.Goodbye(reason="bye"))
        assert total > 1000
        assert peer.status().stopping == ""


def _batches(messages: list[Frames]) -> Iterator[list[Frames]]:
    """So few that a key that says them all is not yet put into quarantine."""
    for first in range(0, len(messages), 80):
        yield messages[first : first + 80]


@pytest.mark.usefixtures("unharmed")
def test_who_goes_on_with_it_is_quarantined_and_told_why(host: Host) -> None:
    with host.peer() as peer, host.peer() as liar:
        member(liar, "nuisance")
        for _ in range(120):
            liar.say(b"junk")
        refusal = liar.ask(m.StatusAsk(), m.Refusal)
        assert refusal.reason == "quarantined"
        assert "100 malformed" in refusal.text
        assert f"p2prl quarantine {fingerprint(liar.keys.public)} --undo" in refusal.text
        liar.offer(m.StatusAsk())

        def turned_away() -> bool:
            """By what it says over the old connection, or at the door when it dials again."""
            refused = Counter(peer.status().refused_frames)
            return refused["quarantined"] + refused["not_admitted"] > 0

        wait_until(turned_away)


@pytest.mark.usefixtures("unharmed")
def test_thousands_of_damaged_sessions(host: Host) -> None:
    total, rng = 0, random.Random(21)
    with host.peer() as peer:
        for _ in range(3000 // 80):
            with host.peer() as liar, host.peer(_PUSH, kind="push", keys=liar.keys) as push:
                forger = Forger(member(liar, "smuggler"))
                for parts in _mutants([forger.parts() for _ in range(10)], 80, rng):
                    push.say(*parts)
                forger.seq = 10**6
                push.say(*forger.parts())
                assert verdict(liar, seq=10**6) == "stored"
                # The shard's report with the refusals comes within half a second, before the goodbye or after it.
                liar.say(m.Goodbye(reason="bye"))
        wait_until(lambda: sum(peer.status().shards[0].refused_reasons.values()) > 1500)
        total = sum(peer.status().shards[0].refused_reasons.values())
        assert total > 1500
