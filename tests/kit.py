"""Real `p2prl` commands for tests: started as a person would, listened to by their JSON lines, and surely ended."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import psutil
import zmq

from p2prl.core import messages as m
from p2prl.net.keys import KeyPair, new_key_pair
from p2prl.net.ports import free_block
from p2prl.net.sockets import Limits, Network, Received
from p2prl.nodes.locate import Search, ask_card
from p2prl.wire import frames
from tests.conftest import wait_until

Event = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
#: Test agents and environments; see tests/samples.
SAMPLES = ROOT / "tests" / "samples"
#: An agent that learns nothing and acts at random. A joiner names its own copy: a host cannot make it run a file.
IDLE = f"{SAMPLES / 'idle.py'}:Idle"
#: Far from the default block, so that a host that a developer runs by hand is not in the way.
BASE_PORT = int(os.environ.get("P2PRL_TEST_BASE_PORT", "21000"))
#: Blocks of ports for hosts that are to be found by nobody else; runs of the tests side by side begin apart.
_FIRST_BLOCK = int(os.environ.get("P2PRL_TEST_FIRST_BLOCK", "21100"))
_LAST_BLOCK = _FIRST_BLOCK + 2_800
_blocks = itertools.count(os.getpid())


def free_base(shards: int = 2) -> int:
    """A base port whose block is free, another one at each call."""
    span = (_LAST_BLOCK - _FIRST_BLOCK) // 100
    return free_block(_FIRST_BLOCK + 100 * (next(_blocks) % span), shards)


class Program:
    """One `p2prl` command. Use it as a context manager: whatever happens, nothing of it stays.

    Args:
        arguments: after `p2prl`.
        home: its P2PRL_HOME.
        python: the interpreter of another venv.
        prefix: put before the command, such as `ip netns exec NAME`.
        module: what runs in its place, with the same arguments.
    """

    def __init__(
        self,
        *arguments: str,
        home: Path,
        prefix: Sequence[str] = (),
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        python: str = sys.executable,
        module: str = "p2prl.cli",
    ) -> None:
        self.events: list[Event] = []
        self.errors: list[str] = []
        self.arguments = arguments
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [*prefix, python, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "P2PRL_HOME": str(home), **(env or {})},
            cwd=cwd,
            text=True,
        )
        self._threads = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- what can be seen

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    @property
    def stderr(self) -> str:
        return "\n".join(self.errors)

    def of(self, kind: str) -> list[Event]:
        """The events of one kind so far."""
        return [event for event in list(self.events) if event.get("event") == kind]

    def last(self, kind: str = "progress") -> Event | None:
        """The newest event of one kind."""
        found = self.of(kind)
        return found[-1] if found else None

    def wait_for(
        self, kind: str, condition: Callable[[Event], bool] = lambda event: True, timeout: float = 30.0
    ) -> Event:
        """Wait for an event; fails at once, with what was printed, if the program ends before."""

        def look() -> Event | None:
            for event in self.of(kind):
                if condition(event):
                    return event
            if self.code is not None:
                self._join()
                if not any(condition(event) for event in self.of(kind)):
                    raise AssertionError(
                        f"p2prl {' '.join(self.arguments)} ended with {self.code} before {kind}:\n{self.stderr}"
                    )
            return None

        found = wait_until(
            look, timeout, f"{kind} of p2prl {self.arguments[0]}; stderr:\n{self.stderr[-2000:]}"
        )
        assert isinstance(found, dict)
        return found

    def wait_for_line(self, pattern: str, timeout: float = 30.0) -> str:
        """Wait for a line on standard error that matches."""

        def look() -> str | None:
            return next((line for line in list(self.errors) if re.search(pattern, line)), None)

        found = wait_until(look, timeout, f"{pattern!r} on stderr; there was:\n{self.stderr[-2000:]}")
        assert isinstance(found, str)
        return found

    def children(self, role: str = "") -> list[psutil.Process]:
        """Its processes, or those of one role (`broker`, `shard`, `trainer`, `member`, `player`)."""
        found = []
        for child in psutil.Process(self.pid).children(recursive=True):
            try:
                words = child.cmdline()
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            if "p2prl.nodes" in words and role in ("", words[-1]):
                found.append(child)
        return found

    # --- what can be done

    def tell(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def end(self, timeout: float = 40.0, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit code. What must fail is a command that hangs."""
        self.tell(number)
        return self.wait(timeout)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for the end; returns the exit code."""
        code = self._process.wait(timeout)
        self._join()
        return code

    def kill(self) -> None:
        """kill -9 the command's own process; its children must notice by themselves."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        family = [psutil.Process(self.pid), *self.children()] if self.code is None else []
        if self.code is None:
            self.tell()
        try:
            self._process.wait(8.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for process in family[1:]:
            if process.is_running():
                process.kill()
        self._join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        if value is not None and self.errors:
            value.add_note(f"p2prl {' '.join(self.arguments)} said:\n{self.stderr[-3000:]}") if hasattr(
                value, "add_note"
            ) else None

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(5.0)

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.errors.append(line.rstrip("\n"))


def host(
    tmp_path: Path,
    *arguments: str,
    name: str = "host",
    port: int | None = BASE_PORT,
    open_: bool = True,
    **more: Any,
) -> Program:
    """`p2prl host --json` on loopback, with its own state folder and results below `tmp_path`.

    Args:
        open_: admit any key (`--open`); most tests are not about who may come in.
    """
    return Program(
        "host",
        *arguments,
        *(("--open",) if open_ else ()),
        *(("--name", name) if name else ()),
        *("--interface", "lo", "--json"),
        *(("--port", str(port)) if port is not None else ()),
        *(() if "--results" in arguments else ("--results", str(tmp_path / "results"))),
        home=tmp_path / f"home-{name or 'host'}",
        **more,
    )


def join(
    tmp_path: Path,
    *arguments: str,
    name: str = "joiner",
    target: str | None = None,
    agent: str = "",
    **more: Any,
) -> Program:
    """`p2prl join --json`, by default to the host on BASE_PORT.

    Args:
        target: the host; an empty one to name none.
        agent: this node's copy of the host's `file.py:Class`, IDLE for example.
    """
    return Program(
        "join",
        *([f"127.0.0.1:{BASE_PORT}"] if target is None else [target] if target else []),
        *arguments,
        *("--name", name, "--json"),
        *(("--agent", agent) if agent else ()),
        *(() if "--players" in arguments else ("--players", "1")),
        home=tmp_path / f"home-{name}",
        **more,
    )


def run(
    tmp_path: Path, *arguments: str, name: str = "client", timeout: float = 60.0, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """One short command, to its end."""
    home = tmp_path / f"home-{name}"
    home.mkdir(mode=0o700, exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "p2prl.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "P2PRL_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        check=False,
        cwd=cwd,
    )


class Peer:
    """A hand-made peer of a host, which says what no honest node would. Use it as a context manager.

    Args:
        base: the host's base port.
        offset: of the port to dial, from there.
        keys: its CURVE keys; a fresh pair by default, which an open host admits.
        curve: False to speak without CURVE.
    """

    def __init__(
        self,
        base: int,
        offset: int = 0,
        kind: Literal["dealer", "push", "sub"] = "dealer",
        keys: KeyPair | None = None,
        curve: bool = True,
    ) -> None:
        card, trouble = ask_card("127.0.0.1", base, Search(target=None, wait_s=None))
        assert card is not None, trouble
        self.card = card
        self.keys = keys or new_key_pair()
        self._network = Network()
        limits = Limits(message_bytes=64_000_000, send_messages=10_000, linger_ms=2_000 if curve else 0)
        pair, server = (self.keys, card.server_key) if curve else (None, None)
        self.socket = self._network.client(kind, f"tcp://127.0.0.1:{base + offset}", pair, server, limits)

    def say(self, *parts: m.Message | bytes) -> None:
        """Send one message of these frames."""
        assert self.offer(*parts), "the socket takes nothing"

    def offer(self, *parts: m.Message | bytes) -> bool:
        """Send, if the socket takes it."""
        raw = [part if isinstance(part, bytes) else frames.encode(part) for part in parts]
        try:
            # Copied: for large frames pyzmq would start a thread that never ends.
            self.socket.raw.send_multipart(raw, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def hear(self, timeout: float = 10.0) -> Received | None:
        """The next message, or None if none came in time."""
        return self.socket.receive() if self.socket.wait(timeout) else None

    def ask(self, message: m.Message, kind: type[m.MessageT], timeout: float = 10.0) -> m.MessageT:
        """Send a message and wait for an answer of this kind; what else comes is left out."""
        self.say(message)
        while (received := self.hear(timeout)) is not None:
            answer = frames.decode_from_broker(received.frames[0])
            if isinstance(answer, kind):
                return answer
        raise AssertionError(f"no {kind.__name__} within {timeout} s")

    def status(self) -> m.StatusReply:
        """The run as it is now; asks again if the broker is being restarted."""
        for _ in range(15):
            self.say(m.StatusAsk())
            while (received := self.hear(1.0)) is not None:
                answer = frames.decode_from_broker(received.frames[0])
                if isinstance(answer, m.StatusReply):
                    return answer
        raise AssertionError("no status within 15 s")

    def close(self) -> None:
        """End the conversation."""
        self._network.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def status(tmp_path: Path, target: str = f"127.0.0.1:{BASE_PORT}") -> Event:
    """`p2prl status --json`."""
    done = run(tmp_path, "status", target, "--json")
    assert done.returncode == 0, done.stderr
    found: Event = json.loads(done.stdout)
    return found


def balanced(books: Event) -> bool:
    """The accounting identity of design section 4."""
    out = books["stored"] + books["pending"] + books["refused"] + books["stale"] + books["dropped"]
    return bool(books["produced"] == out)
