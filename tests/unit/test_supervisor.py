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


#: Comes up without ever being ready, and says why it ends; or is killed.
FAILS_LATER = """
print('{"kind": "joined"}')
print('{"kind": "failed", "text": "no room for it", "exit_code": 1}', flush=True)
"""
KILLED_LATER = """
import os
print('{"kind": "joined"}', flush=True)
os._exit(9)
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
        watched.supervisor._starting_s = 30.0  # where others keep the machine busy
        wait_until(lambda: watched.supervisor.watch() or watched.charge.up, 30.0, "the second start comes up")
        assert len(hanging) == 2
        assert not watched.given_up
        watched.supervisor._starting_s = 1.0
        said = list(watched.said)
        wait_until(lambda: watched.loop.now() - watched.charge.started_at > 1.5)
        watched.supervisor.watch()
        assert watched.said == said, "one that is up has no deadline"
    finally:
        watched.end()


def test_beginning_again_ends_by_force_and_forgets_that_it_was_well(hanging: list[int]) -> None:
    """As of a host that goes back to a checkpoint: what cannot read that is told of as if it had never come up."""
    watched = Watched(starting_s=30.0)
    try:
        first = watched.charge.child
        assert first is not None
        watched.supervisor.begin_again()
        wait_until(lambda: watched.supervisor.watch() or watched.charge.up, 30.0, "the second start comes up")
        second = watched.charge.child
        assert second is not None
        wait_until(lambda: not first.alive, 30.0, "the first is gone")
        watched.supervisor.begin_again()
        wait_until(lambda: not second.alive, 30.0, "the second is gone")
        assert not watched.charge.up
        assert not any("died" in line for line in watched.said)
        watched.supervisor._starting_s = 0.3
        wait_until(lambda: watched.supervisor.watch() or watched.given_up, 30.0, "given up")
        assert len(hanging) == 2 + 3
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
    watched = Watched(starting_s=30.0)
    try:
        wait_until(lambda: watched.supervisor.watch() or watched.given_up, 60.0, "given up")
        assert str(watched.given_up[0]) == "it raised; so it went 5 times in a row, without an update"
        assert watched.charge.starts == 5
        assert [line for line in watched.said if "died" in line] == [
            f"died (it raised); starting it again in {delay_s} s" for delay_s in (0.1, 0.2, 0.4, 0.8)
        ]
    finally:
        watched.end()


def test_what_died_is_not_started_again_before_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    real = child_module.subprocess.Popen
    monkeypatch.setattr(
        child_module.subprocess,
        "Popen",
        lambda command, **more: real([sys.executable, "-c", RAISES], **more),
    )
    monkeypatch.setattr(module, "_BACKOFF_S", 1000.0)
    monkeypatch.setattr(module, "_BACKOFF_MAX_S", 1000.0)
    watched = Watched(starting_s=30.0)
    try:
        watched.until("died (it raised); starting it again in 1000.0 s")
        for _ in range(5):
            watched.supervisor.watch()
        assert (watched.charge.starts, watched.charge.child) == (1, None)
        watched.charge.due = watched.loop.now()
        watched.supervisor.watch()
        assert watched.charge.starts == 2
    finally:
        watched.end()


def test_one_that_comes_up_and_then_says_why_it_cannot_go_on_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But not one that says nothing: it was killed, and may well go on."""
    real = child_module.subprocess.Popen
    script = [FAILS_LATER]
    monkeypatch.setattr(
        child_module.subprocess,
        "Popen",
        lambda command, **more: real([sys.executable, "-c", script[0]], **more),
    )
    watched = Watched(starting_s=30.0)
    try:
        wait_until(lambda: watched.supervisor.watch() or watched.given_up, 60.0, "given up")
        assert (str(watched.given_up[0]), watched.charge.starts) == ("no room for it", 3)
    finally:
        watched.end()
    script[0] = KILLED_LATER
    watched = Watched(starting_s=30.0)
    try:
        wait_until(lambda: watched.supervisor.watch() or watched.charge.starts > 3, 60.0, "started again")
        assert watched.given_up == []
    finally:
        watched.end()
