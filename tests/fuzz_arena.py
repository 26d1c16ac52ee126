"""A live host under fire: damaged messages at each of its sockets, from keys that were let in and keys that were not.

Used by tests/loopback/test_fuzz_sockets.py and scripts/fuzz. Nothing here reads an answer as a decoder of ours would
not: what counts is that the host goes on, and that it counted what it refused.
"""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
import psutil
import zmq
from zmq.utils.monitor import recv_monitor_message

from p2prl.core import messages as m
from p2prl.errors import RemoteProtocolError
from p2prl.net.keys import KeyPair, load_or_create, new_key_pair
from p2prl.wire import frames
from p2prl.wire.bundle import encode_bundle
from tests import fuzz_kit, kit
from tests.conftest import wait_until
from tests.fuzz_kit import Frames
from tests.hostile import PICKLE

#: Messages of one key. Fewer than a key may have refused before it is put out, so that each of them is looked at.
BURST = 50
#: Bytes that a host's broker and shards together may grow by meanwhile.
MAX_GROWTH = 96 * 1024 * 1024
#: Of weights that nobody but an attacker would publish.
FAKE_VERSION = 10**6
_PATIENCE_S = 30.0
#: As members do (nodes/control.py), but for a loaded machine.
_HELLO_AGAIN_S = 5.0

Who = Literal["admitted", "stranger"]


@dataclass(frozen=True)
class Target:
    """One socket of a host.

    Attributes:
        offset: of its port, from the base port.
        kind: of the ZeroMQ socket that dials it.
        max_bytes: a larger frame ends the connection.
        decode: what reads the first frame of a message there; None if nothing is read, from whoever is not a trainer.
        shard: whose it is; -1 for the broker's.
    """

    name: str
    offset: int
    kind: int
    max_bytes: int
    decode: Callable[[frames.Frame], object] | None = None
    shard: int = -1

    @property
    def curve(self) -> bool:
        """All sockets but enrol have it."""
        return self.name != "enrol"

    def surely_refused(self, parts: Frames) -> bool:
        """True if a host that hears this message must refuse it."""
        if self.name.startswith("sample"):
            return True  # it is not the trainer that says it
        if self.decode is None:
            return False
        return fuzz_kit.attempt(RemoteProtocolError, self.decode, parts[0])[1] is not None


TARGETS = (
    Target("control", 0, zmq.DEALER, 300_000, frames.decode_to_broker),
    Target("enrol", 1, zmq.DEALER, 2_000, frames.decode_enrol),
    Target("weights", 2, zmq.XSUB, 900),
    Target("publish", 3, zmq.PUSH, 1_000_000),
    Target("push 0", 10, zmq.PUSH, 1_000_000, frames.decode_to_shard, 0),
    Target("sample 0", 11, zmq.DEALER, 1_900, None, 0),
    Target("push 1", 12, zmq.PUSH, 1_000_000, frames.decode_to_shard, 1),
    Target("sample 1", 13, zmq.DEALER, 1_900, None, 1),
)
CONTROL, WEIGHTS = TARGETS[0], TARGETS[2]


@dataclass
class Burst:
    """What one key throws at one socket.

    Attributes:
        keys: None without CURVE.
        control: where it hears what became of bundles; None if it never introduced itself.
        heavy: messages that are too large for the socket, and are thrown last.
        sure: of those thrown, how many had to be refused if they were heard.
    """

    keys: KeyPair | None
    thrower: Thrower
    control: Thrower | None
    thrown: int = 0
    sure: int = 0
    heavy: list[Frames] = field(default_factory=list)


@dataclass
class Volley:
    """What was thrown at one socket, and what became of it.

    Attributes:
        thrown: messages.
        raw: plain TCP connections with bytes that no ZeroMQ peer sends.
        refused: what the host counted meanwhile, by reason.
        sure: messages that had to be refused, on connections that lasted.
        turned_away: connections that the host did not let in.
        cut: connections that it let in, and ended.
        growth: bytes that the host's broker and shards grew by.
        crashes: processes of the host that were started again.
        lost: bundles of the honest joiner that were refused, stale or dropped meanwhile.
    """

    thrown: int = 0
    raw: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    sure: int = 0
    turned_away: int = 0
    cut: int = 0
    growth: int = 0
    crashes: int = 0
    lost: int = 0

    def __add__(self, other: Volley) -> Volley:
        return Volley(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


class Thrower:
    """One connection to one socket of a host, which says anything.

    Args:
        keys: its CURVE keys; None to speak without.
        queue: messages that may wait to be sent; 0 for as many as there are.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        port: int,
        kind: int,
        keys: KeyPair | None,
        server_key: str,
        queue: int = 0,
    ) -> None:
        self.socket = context.socket(kind)
        self.socket.linger = 0
        self.socket.sndhwm = queue
        if keys is not None:
            self.socket.curve_publickey, self.socket.curve_secretkey = (
                keys.public.encode(),
                keys.secret.encode(),
            )
            self.socket.curve_serverkey = server_key.encode()
        self._monitor = self.socket.get_monitor_socket()
        self._door = ""
        #: The host let it in, and the connection ended all the same; or it never let it in.
        self.ended = False
        self.socket.connect(f"tcp://127.0.0.1:{port}")

    def door(self) -> str:
        """`in` or `out`: what the host made of the handshake."""
        wait_until(lambda: self.look() and self._door, _PATIENCE_S, "the handshake came to an end")
        return self._door

    def look(self) -> bool:
        """Take what the monitor says of this connection."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._door = self._door or "in"
            elif event in _TURNED_AWAY:
                self._door = self._door or "out"
                self.ended = True
        return True

    def say(self, parts: Frames) -> None:
        """Send, unless there is nobody any more."""
        while not self.socket.poll(20, zmq.POLLOUT):
            if self.look() and self.ended:
                return
        with suppress(zmq.Again):  # it was turned away just now
            self.socket.send_multipart(parts, zmq.NOBLOCK)

    def hear(self, timeout_s: float = 0.0) -> Frames | None:
        """The next message; None if there is none."""
        if self.socket.type != zmq.DEALER or not self.socket.poll(int(1000 * timeout_s), zmq.POLLIN):
            return None
        return self.socket.recv_multipart()

    def close(self) -> None:
        """End it."""
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close()

    def __enter__(self) -> Thrower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_TURNED_AWAY = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_DISCONNECTED,
)


class Arena:
    """A host that plays on with an honest joiner, and is watched by its owner."""

    def __init__(self, base: int, program: kit.Program, honest: kit.Program | None, owner: KeyPair) -> None:
        self.base, self.program, self.honest = base, program, honest
        self.pids = {
            child.pid for child in program.children() if child.cmdline()[-1] not in ("member", "player")
        }
        self.watcher = kit.Peer(base, keys=owner)
        self.server_key = self.watcher.card.server_key
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._numbers = itertools.count()
        with self.thrower(CONTROL, owner) as peer:
            hello = m.Hello(protocol=m.PROTOCOL, version="0", role="client", name="w", boot_id="w")
            self.run = self._welcome(peer, hello).run

    # --- what can be seen

    def status(self) -> m.StatusReply:
        """The run as the broker sees it."""
        return self.watcher.status()

    def honest_node(self) -> m.NodeStatus:
        """The honest joiner's row."""
        return next(node for node in self.status().nodes if node.own or node.name == "honest")

    def refused(self, target: Target) -> Counter[str]:
        """What was refused so far by the process that has this socket."""
        status = self.status()
        found = status.refused_frames if target.shard < 0 else status.shards[target.shard].refused_reasons
        return Counter(found)

    def process(self, role: str) -> psutil.Process:
        """The host's process of this role."""
        return next(child for child in self.program.children(role) if child.pid in self.pids)

    def memory(self) -> int:
        """Bytes of the host's processes that listen: its broker and shards."""
        listening = self.program.children("broker") + self.program.children("shard")
        return sum(process.memory_info().rss for process in listening)

    def restarted(self) -> int:
        """Processes of the host that are not those of its start."""
        now = {
            child.pid for child in self.program.children() if child.cmdline()[-1] not in ("member", "player")
        }
        return len(self.pids - now)

    def lost(self) -> int:
        """Of the honest joiner's bundles."""
        books = self.honest_node().bundles
        return books.refused + books.dropped + books.stale

    def unharmed(self) -> None:
        """No process died, and the honest joiner goes on giving bundles and lost none."""
        assert self.restarted() == 0, self.program.stderr[-3000:]
        before = self.honest_node()

        def plays_on() -> bool:
            now = self.honest_node()
            return now.bundles.stored > before.bundles.stored and now.steps > before.steps

        wait_until(plays_on, _PATIENCE_S, "the honest joiner plays on")
        status, node = self.status(), self.honest_node()
        assert [shard.starts for shard in status.shards] == [1, 1]
        assert status.term == 1
        assert status.stopping == ""
        assert status.weights_version < FAKE_VERSION
        assert (node.bundles.refused, node.bundles.dropped, node.bundles.stale) == (0, 0, 0), node
        assert node.bundles.balanced()
        assert node.refused_by_host == {}
        assert self.honest is None or self.honest.code is None

    # --- throwing

    def fire(self, target: Target, count: int, rng: random.Random, who: tuple[Who, ...]) -> Volley:
        """Throw `count` damaged messages at one socket, in bursts by each kind of peer in turn, and wait until the host
        has dealt with them."""
        volley = Volley()
        before, memory, lost, died = self.refused(target), self.memory(), self.lost(), self.restarted()
        with ExitStack() as stack:
            bursts = [
                self.burst(stack, target, kind, min(BURST, count - first), rng)
                for first, kind in zip(range(0, count, BURST), itertools.cycle(who), strict=False)
            ]
            volley.thrown = sum(burst.thrown for burst in bursts)
            self._settle(target, bursts, before, volley)
            for burst in bursts:
                burst.thrower.look()
                volley.turned_away += burst.thrower.door() == "out"
                volley.cut += burst.thrower.ended and burst.thrower.door() == "in"
        self._throw_heavy(target, bursts, volley)
        volley.raw = self.throw_raw(target, max(10, count // 20), rng)
        wait_until(lambda: self._quiet(target), _PATIENCE_S, f"{target.name}: all was dealt with")
        volley.refused = self.refused(target) - before
        volley.growth = self.memory() - memory
        volley.crashes, volley.lost = self.restarted() - died, self.lost() - lost
        return volley

    def thrower(self, target: Target, keys: KeyPair | None, queue: int = 0) -> Thrower:
        """One more connection."""
        return Thrower(self.context, self.base + target.offset, target.kind, keys, self.server_key, queue)

    def introduce(self, control: Thrower) -> None:
        """Become a member with one player that never plays."""
        hello = m.Hello(
            protocol=m.PROTOCOL,
            version="0",
            role="member",
            name=f"fuzz{next(self._numbers)}",
            boot_id="b",
            players=1,
        )
        self._welcome(control, hello)

    def _welcome(self, control: Thrower, hello: m.Hello) -> m.Welcome:
        """Says hello until it is answered, as members do: what was on a connection that broke is lost."""
        heard: list[m.Message] = []
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            control.say([frames.encode(hello)])
            while (parts := control.hear(_HELLO_AGAIN_S)) is not None:
                heard.append(frames.decode_from_broker(parts[0]))
                if isinstance(heard[-1], m.Welcome):
                    return heard[-1]
        raise AssertionError(f"no welcome; heard {heard}")

    def burst(self, stack: ExitStack, target: Target, who: Who, count: int, rng: random.Random) -> Burst:
        """One key's messages, queued to be sent."""
        keys = new_key_pair() if target.curve else None
        control: Thrower | None = None
        if who == "admitted" and keys is not None:
            control = stack.enter_context(self.thrower(CONTROL, keys))
            self.introduce(control)
        thrower = control if control is not None and target is CONTROL else None
        if thrower is None:
            thrower = stack.enter_context(self.thrower(target, keys))
        burst = Burst(keys, thrower, control)
        seeds = self._seeds(target, rng)
        for _ in range(count):
            parts = fuzz_kit.mutate(rng.choice(seeds), rng, seeds)
            if max(map(len, parts)) > target.max_bytes:
                burst.heavy.append(parts)
                continue
            thrower.say(parts)
            burst.thrown += 1
            burst.sure += target.surely_refused(parts)
            while thrower.hear() is not None:
                pass
        return burst

    def _settle(self, target: Target, bursts: list[Burst], before: Counter[str], volley: Volley) -> None:
        """Wait until the host has dealt with all: it counted what it had to refuse, and what came last is answered."""
        for burst in bursts:
            burst.thrower.door()

        def counted() -> bool:
            for burst in bursts:
                burst.thrower.look()
            volley.sure = sum(burst.sure for burst in bursts if not burst.thrower.ended)
            return (self.refused(target) - before).total() >= volley.sure

        wait_until(counted, _PATIENCE_S, f"{target.name}: what had to be refused is counted")
        for burst in bursts:
            if target is CONTROL:
                burst.thrower.say([frames.encode(m.StatusAsk())])
                self._answered(burst.thrower, m.StatusReply)
            elif target.name.startswith("push") and burst.control is not None and not burst.thrower.ended:
                burst.thrower.say(self.bundle(seq=10**6))
                self._answered(burst.control, m.Receipts)

    def _throw_heavy(self, target: Target, bursts: list[Burst], volley: Volley) -> None:
        """Messages that are too large for this socket: the host ends the connection."""
        heavy = [(burst.keys, parts) for burst in bursts for parts in burst.heavy]
        volley.thrown += len(heavy)
        for keys, parts in heavy:
            with self.thrower(target, keys) as thrower:
                thrower.say(parts)
                if thrower.door() == "in":
                    wait_until(lambda: thrower.look() and thrower.ended, _PATIENCE_S, "the connection ends")

    def _quiet(self, target: Target) -> bool:
        """Nothing more is refused, although the host goes on: it answers, and its shards report."""
        before, stored = self.refused(target), [shard.stored for shard in self.status().shards]
        if target.name == "enrol":
            with self.thrower(target, None) as thrower:
                self._enrol_answers(thrower)

        def reported() -> bool:
            return all(shard.stored > old for shard, old in zip(self.status().shards, stored, strict=True))

        wait_until(reported, _PATIENCE_S, "the shards report what the honest joiner gave")
        return self.refused(target) == before

    def _answered(self, thrower: Thrower, kind: type[m.Message]) -> None:
        """An answer of this kind came, or the connection ended."""

        def heard() -> bool:
            thrower.look()
            while (parts := thrower.hear()) is not None:
                message, _ = fuzz_kit.attempt(RemoteProtocolError, frames.decode_from_broker, parts[0])
                if isinstance(message, (kind, m.Refusal)):
                    return True
            return thrower.ended

        wait_until(heard, _PATIENCE_S, f"a {kind.__name__}")

    def _enrol_answers(self, thrower: Thrower) -> None:
        """The enrol socket is within its budget again."""
        ask = frames.encode(m.EnrolAsk(protocol=m.PROTOCOL, version="0", node_key=""))

        def card() -> bool:
            thrower.say([ask])
            while (parts := thrower.hear(0.3)) is not None:
                message, _ = fuzz_kit.attempt(RemoteProtocolError, frames.decode_enrol, parts[0])
                if isinstance(message, m.EnrolCard):
                    return True
            return False

        wait_until(card, _PATIENCE_S, "the enrol socket answers")

    # --- what is thrown

    def bundle(self, seq: int, run_id: str = "") -> Frames:
        """A sound bundle of this run."""
        schema = self.run.schema
        arrays = {c.name: np.zeros((schema.rows(c), 1, *c.shape), c.dtype) for c in schema.columns}
        header, payload = encode_bundle(
            schema, arrays, slots=1, version=0, rank=0, serial=1, steps=schema.ticks, episodes=[]
        )
        delivery = m.Delivery(run_id=run_id or self.run.run_id, boot_id="b", seq=seq)
        return [frames.encode(delivery), frames.encode(header), payload]

    def _seeds(self, target: Target, rng: random.Random) -> list[Frames]:
        """Sound messages of this socket, that are then damaged."""
        if target is CONTROL:
            return [
                *fuzz_kit.seeds(m.ToBroker, rng, each=2),
                *([frames.encode(known)] for known in _CONTROL_SEEDS),
            ]
        if target.name == "enrol":
            return [
                *fuzz_kit.seeds(m.EnrolMessage, rng, each=2),
                *([frames.encode(known)] for known in _ENROL_SEEDS),
            ]
        if target.name.startswith("push"):
            return [self.bundle(rng.randrange(1000)) for _ in range(8)]
        if target.name.startswith("sample"):
            return [*fuzz_kit.seeds(m.SampleMessage, rng), [frames.encode(m.SampleAsk(ask=1, count=2**40))]]
        weights = frames.encode(
            m.WeightsHeader(run_id=self.run.run_id, version=FAKE_VERSION, codec=m.WEIGHTS_CODEC, size_bytes=3)
        )
        if target.name == "publish":
            return [[weights, b"abc"], [weights], [weights, bytes(10_000)]]
        topics = (b"", b"\x82", weights, rng.randbytes(8), rng.randbytes(200))
        return [[first + topic] for topic in topics for first in (b"\x01", b"\x00", b"")]

    # --- plain TCP

    def throw_raw(self, target: Target, count: int, rng: random.Random) -> int:
        """Connections that no ZeroMQ library makes; returns how many. The host must end each of them."""
        left = count
        while left > 0:
            batch = [self.dial(target) for _ in range(min(left, 50))]
            for connection in batch:
                _write(connection, raw_bytes(rng, target.kind))
            for connection in batch:
                _until_ended(connection)
            left -= len(batch)
        return count

    def dial(self, target: Target) -> socket.socket:
        """A plain TCP connection."""
        return dial(self.base + target.offset)

    def close(self) -> None:
        """Let go of the host."""
        self.watcher.close()
        self.context.destroy(linger=0)


_CONTROL_SEEDS: tuple[m.Message, ...] = (
    m.Hello(
        protocol=m.PROTOCOL, version="0", role="member", name="x", boot_id="b", players=1,
        seats=[m.Seat(rank=0, seed=1)],
    ),
    m.Hello(protocol=m.PROTOCOL, version="0", role="client", name="x", boot_id="b"),
    m.Heartbeat(
        boot_id="b", state="working", steps=5, books=m.Books(produced=3, stored=2, pending=1),
        players=[m.PlayerReport(rank=0, state="working", steps=5)],
    ),
    m.Goodbye(reason="r", books=m.Books(produced=1, pending=1)),
    m.StopAsk(reason="signal"),
)  # fmt: skip
_ENROL_SEEDS: tuple[m.Message, ...] = (
    m.EnrolAsk(protocol=m.PROTOCOL, version="0", node_key="k" * 40),
    m.EnrolBegin(protocol=m.PROTOCOL, version="0", node_key="k" * 40, name="n", share=b"S" + bytes(32)),
    m.EnrolProof(proof=bytes(32)),
)


# --- bytes below ZeroMQ --------------------------------------------------------------------------------------------


def raw_bytes(rng: random.Random, kind: int) -> bytes:
    """What may come from a TCP connection: noise, half a greeting, a broken handshake, other protocols."""
    choice = rng.randrange(10)
    start = greeting(rng.choice((b"NULL", b"CURVE", b"PLAIN", b"GSSAPI", b"X" * 20, b"")), rng)
    if choice == 0:
        return rng.randbytes(rng.randrange(1, 2000))
    if choice == 1:
        return start[: rng.randrange(len(start))]
    if choice == 2:
        return rng.choice(
            (
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                b"\x16\x03\x01" + bytes(200),
                b"SSH-2.0-x\r\n",
                b"\r\n" * 50,
            )
        )
    if choice == 3:
        return b"\x01\x00" + _frame(b"hello", 0) * 3  # ZMTP 1.0
    if choice == 4:
        return fuzz_kit.mutate_bytes(start, rng)
    if choice == 5:
        return greeting(b"CURVE", rng) + _command(
            b"HELLO", bytes([1, 0]) + rng.randbytes(rng.choice((192, 0, 10, 3000)))
        )
    if choice == 6:  # a length of 2^63 and more
        return (
            greeting(b"NULL", rng) + rng.choice((b"\x02", b"\x06", b"\x03")) + b"\xff" * 8 + rng.randbytes(50)
        )
    ready = _command(b"READY", _metadata(rng, kind))
    messages = b"".join(
        _frame(rng.choice((b"", PICKLE, rng.randbytes(30), b"\x01junk")), rng.randrange(8))
        for _ in range(rng.randrange(9))
    )
    sound = greeting(b"NULL", rng) + ready + messages
    return sound if choice < 9 else fuzz_kit.mutate_bytes(sound, rng)


def greeting(mechanism: bytes, rng: random.Random) -> bytes:
    """ZMTP 3: signature, version, mechanism, as-server, filler (rfc.zeromq.org/spec/23)."""
    version = rng.choice((b"\x03\x00", b"\x03\x01", b"\x02\x00", b"\xff\xff"))
    return (
        b"\xff"
        + bytes(8)
        + b"\x7f"
        + version
        + mechanism[:20].ljust(20, b"\0")
        + rng.choice((b"\0", b"\1"))
        + bytes(31)
    )


def _frame(body: bytes, flags: int) -> bytes:
    return (
        bytes([flags & ~2, len(body)]) + body
        if len(body) < 256
        else bytes([flags | 2]) + len(body).to_bytes(8, "big") + body
    )


def _command(name: bytes, body: bytes) -> bytes:
    return _frame(bytes([len(name)]) + name + body, 4)


def _metadata(rng: random.Random, kind: int) -> bytes:
    names = {zmq.DEALER: b"DEALER", zmq.PUSH: b"PUSH", zmq.XSUB: b"SUB"}
    values = [
        (b"Socket-Type", rng.choice((names[kind], names[kind], b"ROUTER", b"REQ", b"", b"X" * 300))),
        (b"Identity", rng.choice((b"", b"\0\0\0\0\1", b"a" * 255, b"a" * 300))),
        (
            rng.choice((b"User-Id", b"Peer-Address", b"X-" + rng.randbytes(3))),
            rng.choice((b"k" * 40, b"10.0.0.1")),
        ),
    ]
    return b"".join(
        bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
        for name, value in values[: rng.randint(0, 3)]
    )


def dial(port: int) -> socket.socket:
    """A plain TCP connection, dialled until somebody listens: where a key was put out the host cuts all connections,
    and for that it lets go of the port for a moment (`Network.reopen`). ZeroMQ's peers dial again by themselves."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        except (ConnectionRefusedError, ConnectionResetError):  # reset: it was about to be accepted
            if time.monotonic() >= deadline:
                raise


def _write(connection: socket.socket, data: bytes) -> None:
    """Say all of it, and that nothing follows."""
    try:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the host hung up already, which is its right


def _until_ended(connection: socket.socket) -> None:
    """The host read it to the end, and hung up."""
    with connection:
        try:
            while connection.recv(4096):
                pass
        except TimeoutError as error:
            raise AssertionError("the host keeps a connection whose other side is gone") from error
        except OSError:
            pass  # reset: it hung up with bytes unread


# --- hosts ---------------------------------------------------------------------------------------------------------


@contextmanager
def arena(folder: Path, *, open_: bool = True) -> Iterator[Arena]:
    """A host with two shards that never trains, and an honest joiner; a closed host's is its own member."""
    base = kit.free_base()
    name = f"fuzz{base}"
    players = "0" if open_ else "1"
    flags = ("--env", "chain", "--agent", kit.IDLE, "--players", players, "--envs", "1")
    with ExitStack() as stack:
        program = stack.enter_context(
            kit.host(folder, *flags, name=name, port=base, open_=open_, cwd=kit.ROOT)
        )
        program.wait_for("started")
        honest = None
        if open_:
            where = f"127.0.0.1:{base}"
            honest = stack.enter_context(kit.join(folder, name="honest", target=where, agent=kit.IDLE))
            honest.wait_for("progress", lambda e: e["steps"] > 0)
        # The trainer takes longest to start; all are there once it speaks.
        program.wait_for("progress", lambda e: e["trainer"] == "waiting" and e["steps"] > 0)
        made = Arena(base, program, honest, load_or_create(folder / f"home-{name}" / "owner.key"))
        try:
            yield made
        finally:
            made.close()
