"""What the tests of trust share: a host with a join code, its owner's commands, and a machine in the middle."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import zmq

from p2prl.core import messages as m
from p2prl.core.enrolment import Newcomer
from p2prl.net.keys import KeyPair, load_or_create, new_key_pair
from p2prl.net.sockets import Limits, Network
from p2prl.wire import frames
from tests import kit

CODE = "17-acorn-ladder"
_IDLE = ("--env", "chain", "--agent", kit.IDLE, "--players", "0", "--envs", "1")
_LIMITS = Limits(message_bytes=4_000, linger_ms=0)
#: Changes a message on its way, or keeps it as it is.
Tamper = Callable[[m.Message], m.Message]


@dataclass
class House:
    """A host that wants a code, with its folders."""

    folder: Path
    name: str
    base: int
    program: kit.Program

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.base}"

    @property
    def results(self) -> Path:
        return Path(self.program.wait_for("started")["results"])

    @property
    def home(self) -> Path:
        return self.folder / f"home-{self.name}"

    def owner(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One of the owner's commands, in the host's own state folder."""
        done = kit.run(self.folder, *arguments, name=self.name)
        assert done.returncode == 0, done.stderr
        return done

    def status(self) -> kit.Event:
        found: kit.Event = json.loads(self.owner("status", self.target, "--json").stdout)
        return found

    def nodes(self) -> dict[str, kit.Event]:
        """What `p2prl nodes` lists, by name."""
        found = json.loads(self.owner("nodes", self.target, "--json").stdout)
        return {node["name"]: node for node in found["nodes"]}

    def code(self) -> str:
        return str(self.program.wait_for("code")["code"])

    def join(self, *arguments: str, name: str = "joiner", **more: object) -> kit.Program:
        return kit.join(
            self.folder,
            *arguments,
            name=name,
            target=self.target,
            agent=kit.IDLE,
            **more,  # type: ignore[arg-type]
        )

    def keys(self, name: str) -> KeyPair:
        """The keys of a joiner of this test."""
        return load_or_create(self.folder / f"home-{name}" / "node.key")

    def peer(
        self, offset: int = 0, kind: str = "dealer", keys: KeyPair | None = None, **more: object
    ) -> kit.Peer:
        return kit.Peer(self.base, offset, kind, keys, **more)  # type: ignore[arg-type]

    def admitted(self, name: str) -> KeyPair:
        """Keys that proved the code by hand, without a member behind them."""
        keys = new_key_pair()
        with Enrolling(self.base) as enrolling:
            answer = enrolling.prove(self.code(), keys.public, name)
            assert isinstance(answer, m.EnrolProved), answer
            assert answer.standing == "admitted"
        return keys


@contextmanager
def house(folder: Path, *flags: str, settings: tuple[str, ...] = _IDLE, name: str = "") -> Iterator[House]:
    """A host with a join code."""
    base = kit.free_base()
    name = name or f"t{base}"
    with kit.host(folder, *settings, *flags, name=name, port=base, open_=False, cwd=kit.ROOT) as program:
        program.wait_for("started")
        yield House(folder, name, base, program)


class Enrolling:
    """One connection to an enrol socket.

    Args:
        source: the address to come from; all of 127.0.0.0/8 is this machine on Linux.
    """

    def __init__(self, base: int, source: str = "") -> None:
        self._network = Network()
        where = f"tcp://{source}:0;127.0.0.1:{base + 1}" if source else f"tcp://127.0.0.1:{base + 1}"
        self.socket = self._network.client("dealer", where, None, None, _LIMITS)

    def ask(self, message: m.Message | bytes) -> m.EnrolMessage:
        self.socket.send([message if isinstance(message, bytes) else frames.encode(message)])
        assert self.socket.wait(15.0), "no answer on the enrol socket"
        received = self.socket.receive()
        assert received is not None
        return frames.decode_enrol(received.frames[0])

    def card(self, node_key: str = "") -> m.EnrolCard:
        """The host's card; asked for again where the host is over its budget of answers."""
        ask = frames.encode(m.EnrolAsk(protocol=m.PROTOCOL, version="0", node_key=node_key))
        for _ in range(15):
            self.socket.send([ask])
            if self.socket.wait(1.0):
                received = self.socket.receive()
                assert received is not None
                card = frames.decode_enrol(received.frames[0])
                assert isinstance(card, m.EnrolCard)
                return card
        raise AssertionError("no card within 15 s")

    def prove(self, secret: str, node_key: str, name: str = "by-hand", token: str = "") -> m.EnrolMessage:
        """The whole dialogue; the last answer."""
        newcomer = Newcomer(
            secret,
            node_key=node_key,
            name=name,
            server_key=self.card().server_key,
            entropy=os.urandom,
            token=token,
        )
        share = self.ask(newcomer.begin())
        if not isinstance(share, m.EnrolShare):
            return share
        answer = self.ask(newcomer.answer(share))
        if isinstance(answer, m.EnrolProved):
            newcomer.finish(answer)
        return answer

    def close(self) -> None:
        self._network.close()

    def __enter__(self) -> Enrolling:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _FalseDoor(ABC):
    """An enrol socket that is no host's, served on a thread of its own. Use it as a context manager.

    Attributes:
        base: the base port that a misled joiner dials.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self._front.linger = 0
        self._front.bind(f"tcp://127.0.0.1:{base + 1}")

    def __enter__(self: Door) -> Door:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(10.0)
        self._context.destroy(linger=0)

    @abstractmethod
    def _work(self) -> None:
        """What is done with what comes in at `_front`, until `_ended`."""


Door = TypeVar("Door", bound=_FalseDoor)


class Middle(_FalseDoor):
    """A machine in the middle of an enrol socket: hands on what both sides say, and may change it.

    Attributes:
        heard: every message that passed, with the side that it came from.
    """

    def __init__(self, host_base: int, tamper: Tamper) -> None:
        super().__init__(kit.free_base())
        self.heard: list[tuple[str, m.Message]] = []
        self._tamper, self._host_base = tamper, host_base
        self._backs: dict[bytes, zmq.Socket[bytes]] = {}

    def _work(self) -> None:
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        while not self._ended.is_set():
            for ready, _ in poller.poll(50):
                if ready is self._front:
                    peer, frame = self._front.recv_multipart()
                    if peer not in self._backs:
                        back = self._context.socket(zmq.DEALER)
                        back.linger = 0
                        back.connect(f"tcp://127.0.0.1:{self._host_base + 1}")
                        self._backs[peer] = back
                        poller.register(back, zmq.POLLIN)
                    self._backs[peer].send(self._pass("joiner", frame))
                else:
                    peer = next(key for key, back in self._backs.items() if back is ready)
                    self._front.send_multipart([peer, self._pass("host", ready.recv())])

    def _pass(self, side: str, frame: bytes) -> bytes:
        message = self._tamper(frames.decode_enrol(frame))
        self.heard.append((side, message))
        return frames.encode(message)


class Impostor(_FalseDoor):
    """Answers on a dead host's enrol port, in turn with each of these.

    Attributes:
        answered: how often.
    """

    def __init__(self, base: int, answers: Sequence[m.Message]) -> None:
        super().__init__(base)
        self.answered = 0
        self._answers = itertools.cycle(answers)

    def _work(self) -> None:
        while not self._ended.is_set():
            if self._front.poll(50):
                peer, _ = self._front.recv_multipart()
                self._front.send_multipart([peer, frames.encode(next(self._answers))])
                self.answered += 1
