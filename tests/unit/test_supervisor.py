"""A host's processes are started again when they die, and also when they never come up."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
import pytest

from p2prl.net.loop import Loop
from p2prl.nodes import child as child_module
from p2prl.nodes import supervisor as module
from p2prl.nodes.supervisor import Charge, GivenUp, Supervisor
from tests.conftest import wait_until

#: Comes up in its second start, and hangs in the others: what it reads is on a disk that does not answer, perhaps.
HANGS = """
import sys, threading
if sys.argv[1] == "2":
    print('{"kind": "ready"}', flush=True)
threading.Event().wait()
"""

#: Comes up, and its agent raises.
RAISES = """
print('{"kind": "ready"}')
print('{"kind": "failed", "text": "it raised", "exit_code": 1, "data": {"fruitless": true}}', flush=True)
"""


class Nothing(msgspec.Struct):
    """A config."""


class Watched:
    """A Supervisor with one charge, and what it said of it."""

    def __init__(self, starting_s: float) -> None:
        self.said: list[str] = []
        self.given_up: list[GivenUp] = []
        self.loop = Loop()
        self.supervisor = Supervisor(
            self.loop,
            lambda level, source, text: self.said.append(text),
            lambda charge, event: None,
            self.given_up.append,
            lambda text: False,
            lambda: False,
            starting_s,
        )
        self.charge = Charge("shard 0", "shard", Nothing)
        self.supervisor.start(self.charge)

    def end(self) -> None:
        self.supervisor.keep_no_longer()
        self.supervisor.close(["shard 0"], 0.0)

    def until(self, text: str) -> None:
        def look() -> bool:
            self.supervisor.watch()
            return any(text in line for line in self.said)

        wait_until(look, 30.0, f"{text!r} said; there was {self.said}")


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """All children are that script; the pids of those that were started."""
    real, pids = child_module.subprocess.Popen, []

    def start(command: list[str], **more: object) -> object:
        process = real([sys.executable, "-c", HANGS, str(len(pids) + 1)], **more)  # type: ignore[call-overload]
        pids.append(process.pid)
        return process

    monkeypatch.setattr(child_module.subprocess, "Popen", start)
    monkeypatch.setattr(module, "_SLOW_S", 0.2)
    return pids


def test_a_process_that_hangs_while_it_starts_is_named_and_then_started_again(hanging: list[int]) -> None:
    watched = Watched(starting_s=1.0)
    try:
        watched.until("is still starting after 0 s")
        watched.until("died (it did not come up in 1 s, so it was killed); starting it again")
        wait_until(lambda: watched.supervisor.watch() or watched.charge.up, 30.0, "the second start comes up")
        assert len(hanging) == 2
        assert not watched.given_up
        said = list(watched.said)
        wait_until(lambda: watched.loop.now() - watched.charge.started_at > 1.5)
        watched.supervisor.watch()
        assert watched.said == said, "one that is up has no deadline"
    finally:
        watched.end()


def test_one_that_never_comes_up_is_given_up_with_its_cause(
    hanging: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging += [0, 0]  # so that no start is the second
    watched = Watched(starting_s=0.3)
    try:
        wait_until(lambda: watched.supervisor.watch() or watched.given_up, 30.0, "given up")
        assert "did not come up" in str(watched.given_up[0])
        assert len(hanging) == 2 + 3
    finally:
        watched.end()


def test_one_whose_agent_never_makes_an_update_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real = child_module.subprocess.Popen
    monkeypatch.setattr(
        child_module.subprocess,
        "Popen",
        lambda command, **more: real([sys.executable, "-c", RAISES], **more),
    )
    monkeypatch.setattr(module, "_BACKOFF_S", 0.01)
    watched = Watched(starting_s=30.0)
    try:
        wait_until(lambda: watched.supervisor.watch() or watched.given_up, 60.0, "given up")
        assert str(watched.given_up[0]) == "it raised; so it went 5 times in a row, without an update"
        assert watched.charge.starts == 5
    finally:
        watched.end()
