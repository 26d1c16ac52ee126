"""A host whose parts hang, die or are in the way, and that is told to stop at any moment of its life."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from p2prl.net.cards import HostCard
from p2prl.net.discovery import Browser
from p2prl.net.interfaces import all_interfaces
from p2prl.nodes.announce import Announced, Announcer
from tests import kit
from tests.conftest import wait_until

IDLE = ("--env", "chain", "--agent", str(kit.SAMPLES / "idle.py:Idle"))
LOOPBACK = next(interface.name for interface in all_interfaces() if interface.loopback)
#: A command that hangs must fail; how busy the machine is must not matter.
PROMISE_S = 20.0
#: A process group of its own for the command, as a shell gives it, so that Ctrl-C can reach the whole group.
OWN_GROUP = (sys.executable, "-c", "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])")
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and process groups of POSIX")


def folder(results: Path) -> Path | None:
    """The run's folder below `results`, once there is one."""
    found = list(results.glob("*/run.json"))
    return found[0].parent if found else None


def base_of(results: Path) -> int:
    """The block that a host has chosen, by its run's file; 0 while it has none."""
    run = folder(results)
    return int(msgspec.json.decode((run / "run.json").read_bytes())["base_port"]) if run else 0


def all_ended(children: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(children, 6.0)
    for child in alive:
        child.kill()
    assert not alive, "processes outlive their host"


# --- a broker that hangs


@posix
def test_a_hung_broker_is_said_and_restarted_and_training_goes_on(tmp_path: Path) -> None:
    with kit.host(tmp_path, "chain", "--players", "1", port=kit.free_base()) as host:
        before = host.wait_for("progress", lambda e: e["steps"] > 500 and e["updates"] > 0)
        [broker] = host.children("broker")
        broker.suspend()
        shown = len(host.of("progress"))
        wait_until(lambda: len(host.of("progress")) > shown + 3, 30.0, "progress goes on")
        assert broker.is_running()
        assert not any("died" in line for line in host.errors), "progress came only after the restart"
        host.wait_for_line("broker: the broker has not answered for 5 s")
        host.wait_for_line("broker: died .*not answered for 15 s.*starting it again", 60.0)
        host.wait_for_line("broker: is back")
        assert not broker.is_running()
        steps, updates = before["steps"], before["updates"]
        host.wait_for("progress", lambda e: e["steps"] > steps + 500 and e["updates"] > updates, 60.0)
        assert host.end(PROMISE_S) == 0
    stopped = host.last("stopped")
    assert stopped is not None
    assert kit.balanced(stopped["bundles"])


@posix
def test_a_hung_broker_keeps_neither_the_time_nor_a_signal_from_ending_the_run(tmp_path: Path) -> None:
    with ExitStack() as stack:
        hosts = {
            reason: stack.enter_context(
                kit.host(tmp_path, *IDLE, "--players", "1", *flags, name=reason, port=kit.free_base())
            )
            for reason, flags in (("time", ("--stop-time", "8")), ("signal", ()))
        }
        families = []
        for host in hosts.values():
            host.wait_for("started")
            families += host.children()
            [broker] = host.children("broker")
            broker.suspend()
        hosts["signal"].tell()
        for reason, host in hosts.items():
            assert host.wait(PROMISE_S) == 0
            stopped = host.last("stopped")
            assert stopped is not None
            assert stopped["reason"] == reason
            assert "not answered for 15 s" not in host.stderr, "it waited for the restart"
        all_ended(families)


# --- ports


def test_hosts_that_start_at_the_same_moment_take_different_blocks(tmp_path: Path) -> None:
    with ExitStack() as stack:
        hosts = [
            stack.enter_context(
                kit.host(
                    tmp_path,
                    *(*IDLE, "--players", "0", "--results", str(tmp_path / f"results-{number}")),
                    name=f"twin{number}",
                    port=None,
                )
            )
            for number in range(3)
        ]
        bases = [host.wait_for("started", timeout=60.0)["base_port"] for host in hosts]
        assert len(set(bases)) == 3
        for host in hosts:
            host.wait_for("progress", lambda e: e["trainer"] == "waiting")
            assert not any("died" in line for line in host.errors)
        assert [host.end(PROMISE_S) for host in hosts] == [0, 0, 0]


@pytest.mark.parametrize("named", [False, True])
def test_a_port_that_is_taken_after_the_look_moves_the_host_or_ends_one_that_was_told_it(
    tmp_path: Path, named: bool
) -> None:
    port = kit.free_base() if named else None
    with (
        kit.host(tmp_path, *IDLE, "--players", "0", name="late", port=port) as host,
        socket.socket() as other,
    ):
        base = wait_until(lambda: base_of(tmp_path / "results"), 30.0)
        assert isinstance(base, int)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(
            ("127.0.0.1", base + 12)
        )  # shard 1's: the host has looked, and its shard does not exist yet
        other.listen()
        if named:
            assert host.wait(PROMISE_S) == 1
            assert str(base + 12) in host.stderr
            assert "--port" in host.stderr
            assert host.of("started") == []
        else:
            started = host.wait_for("started")
            assert started["base_port"] > base
            line = host.wait_for_line("moving to the block")
            assert str(base + 12) in line
            assert str(started["base_port"]) in line
            assert base_of(tmp_path / "results") == started["base_port"]
            host.wait_for("progress", lambda e: e["trainer"] == "waiting")
            with kit.join(tmp_path, agent=kit.IDLE, target=f"127.0.0.1:{started['base_port']}") as joiner:
                joiner.wait_for("progress", lambda e: e["steps"] > 0)
            assert host.end(PROMISE_S) == 0


# --- a stop at any moment

SLOW_ENV = """
import pathlib, threading
import gymnasium
from gymnasium.envs.registration import register

class Slow(gymnasium.Env):
    def __init__(self):
        pathlib.Path("being-made").touch()
        threading.Event().wait(60)

register("Slow-v0", entry_point=Slow)
"""


def group(tmp_path: Path, *flags: str, **more: Any) -> kit.Program:
    """A host that leads a process group."""
    return kit.host(tmp_path, *flags, name="group", port=kit.free_base(), prefix=OWN_GROUP, **more)


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_there_is_anything_to_stop_ends_the_command_quietly(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "slow_env.py").write_text(SLOW_ENV)
    with group(tmp_path, "--env", "slow_env:Slow-v0", *IDLE[2:], cwd=tmp_path) as host:
        wait_until((tmp_path / "being-made").exists, 30.0)
        os.killpg(host.pid, number)
        assert host.wait(PROMISE_S) == 130
    assert host.events == []
    assert "Traceback" not in host.stderr
    assert not (tmp_path / "results").exists()


Moment = Callable[[kit.Program, Path], object]


def a_process(role: str) -> Moment:
    return lambda host, results: host.children(role)


MOMENTS: dict[str, Moment] = {
    "the folder exists": lambda host, results: folder(results),
    "the broker exists": a_process("broker"),
    "the trainer exists": a_process("trainer"),
    "the member exists": a_process("member"),
    "started": lambda host, results: host.of("started"),
    "a player exists": a_process("player"),
}


@posix
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_ends_a_starting_host_in_order(
    tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    flags = ("chain", "--players", "1")  # its trainer imports torch
    with group(tmp_path, *flags) as host:
        wait_until(lambda: MOMENTS[moment](host, tmp_path / "results"), 60.0)
        children = host.children()
        if moment == "the broker exists":
            children[0].suspend()  # so that nothing can be `started` before the signal is there
        os.killpg(host.pid, number)
        code = host.wait(PROMISE_S)
        all_ended(children)
    for word in ("Traceback", "died", "starting it again", "KeyboardInterrupt", "unexpected"):
        assert word not in host.stderr, host.stderr
    kinds = [event["event"] for event in host.events]
    if moment == "the folder exists" and not kinds:
        assert code == 130  # nothing ran yet
        return
    assert code == 0
    assert kinds[-1] == "stopped"
    assert host.events[-1]["reason"] == "signal"
    if moment == "the broker exists":
        assert kinds == ["stopped"]
    if moment not in ("started", "a player exists"):
        assert "by force" not in host.stderr.replace("broker: did not end", "")


SLOW_SAVER = """
import importlib.util, pathlib, threading
spec = importlib.util.spec_from_file_location("idle", IDLE)
idle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(idle)

class Learner(idle.IdleLearner):
    def save(self):
        slow = pathlib.Path("slow")
        if slow.exists():  # once: a `best` that is just being written may take it
            slow.unlink()
            threading.Event().wait(2.5)
        return super().save()

class Slow(idle.Idle):
    def learner(self, device, seed):
        return Learner()
"""


@posix
def test_the_trainer_has_the_time_to_write_its_last_checkpoint(tmp_path: Path) -> None:
    agent = tmp_path / "slow_saver.py"
    agent.write_text(SLOW_SAVER.replace("IDLE)", f"{str(kit.SAMPLES / 'idle.py')!r})"))
    settings = ("agent.min_ticks=200", "train.checkpoint_interval_s=3600")
    flags = ("--env", "chain", "--agent", f"{agent}:Slow", "--players", "1")
    with group(tmp_path, *flags, *(w for s in settings for w in ("--set", s)), cwd=tmp_path) as host:
        host.wait_for("progress", lambda e: e["updates"] > 0)
        (tmp_path / "slow").touch()
        os.killpg(host.pid, signal.SIGTERM)
        assert host.wait(PROMISE_S) == 0
    assert not (tmp_path / "slow").exists(), "it was slow"
    run = folder(tmp_path / "results")
    assert run is not None
    assert list((run / "checkpoints").glob("0*/DONE"))
    assert "by force" not in host.stderr


# --- refused before anything exists


@pytest.mark.parametrize("flags", [("--gpu",), ("--device", "cuda"), ("--device", "mps")])
def test_a_device_that_is_not_there_is_refused_before_there_is_a_folder(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    torch = pytest.importorskip("torch")
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if present[flags[1]] if len(flags) > 1 else any(present.values()):
        pytest.skip("this machine has one")
    words = ("host", "chain", *flags, "--results", str(tmp_path / "results"), "--interface", LOOPBACK)
    done = kit.run(tmp_path, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert flags[-1] in line
    assert not (tmp_path / "results").exists()


# --- kill -9 of a part


@posix
@pytest.mark.parametrize(
    ("role", "line"),
    [
        ("trainer", "trainer: died .killed by signal 9.; starting it again"),
        ("member", "member: died .killed by signal 9.; starting it again"),
        ("player", "ended .killed by signal 9.; it will be started again"),
    ],
)
def test_a_killed_part_comes_back_and_the_run_goes_on(tmp_path: Path, role: str, line: str) -> None:
    base = kit.free_base()
    settings = ("--set", "train.checkpoint_interval_s=0.2")
    with kit.host(tmp_path, "chain", "--players", "1", *settings, port=base) as host:
        host.wait_for("progress", lambda e: e["steps"] > 500 and e["updates"] > 0)
        run = Path(host.of("started")[0]["results"])
        wait_until(lambda: list((run / "checkpoints").glob("0*/DONE")), 30.0)
        [killed] = host.children(role)
        killed.kill()
        host.wait_for_line(line)
        if role != "player":
            host.wait_for_line(f"{role}: is back")
        with kit.Peer(base) as peer:

            def goes_on() -> bool:
                """From here on: new steps, new updates, new weights, and a new process."""
                now = peer.status()
                return (
                    now.steps > then.steps
                    and now.updates > then.updates
                    and now.weights_version > then.weights_version
                    and now.trainer_state in ("training", "waiting")
                    and [child.pid for child in host.children(role)] not in ([], [killed.pid])
                )

            then = peer.status()
            wait_until(goes_on, 60.0)
            assert peer.status().steps > 500
            books = msgspec.to_builtins(peer.status().bundles)
        assert kit.balanced(books), books
        assert line.partition(" ")[0].strip(":") in (run / "host.log").read_text()
        assert host.end(PROMISE_S) == 0
    stopped = host.last("stopped")
    assert stopped is not None
    assert kit.balanced(stopped["bundles"])


# --- mDNS on a thread of its own


def news(announcer: Announcer) -> Announced:
    found = wait_until(announcer.news, 20.0)
    assert isinstance(found, Announced)
    return found


def test_an_announcer_announces_updates_and_says_goodbye_without_making_anybody_wait() -> None:
    name, run = f"thread{os.getpid()}", f"t{os.getpid()}"
    card = HostCard(run, name, "boot1", 1, 1, f"{run[:4]}-{run[:4]}", "chain", "idle")
    browser = Browser([LOOPBACK])
    announcer = Announcer(card, [LOOPBACK], 23_700)
    try:
        assert announcer.news() is None, "the constructor waited for mDNS"

        def seen() -> list[tuple[int, int]]:
            return [(host.term, host.base_port) for host in browser.hosts() if host.run_id == run]

        assert (found := news(announcer)).name == name
        assert not found.problem
        assert "127.0.0.1" in found.addresses
        wait_until(lambda: seen() == [(1, 23_700)])
        announcer.follow()
        announcer.update(replace(card, term=2), 23_800)
        wait_until(lambda: seen() == [(2, 23_800)])
        assert announcer.news() is None, "nothing changed for the owner"
        assert announcer.close(10.0)
        assert announcer.close(10.0)
        wait_until(lambda: not seen())
        assert "announcer" not in [thread.name for thread in threading.enumerate()]
    finally:
        announcer.close(10.0)
        browser.close()


def test_an_announcer_that_cannot_work_says_why_and_ends() -> None:
    card = HostCard("r", "nowhere", "b", 1, 1, "abcd-abcd", "chain", "idle")
    announcer = Announcer(card, ["none9"], 23_700)
    found = news(announcer)
    assert "none9" in found.problem
    assert found.addresses == ()
    announcer.update(card, 1)
    announcer.follow()
    assert announcer.close(10.0)
