"""Starting, stopping, being killed, going on: ports, signals, folders in use, checkpoints."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from p2prl.core import messages as m
from p2prl.net.ports import block_ports, taken_ports
from p2prl.replay.log import SegmentLog
from p2prl.replay.records import BUNDLE, decode_bundle_record
from tests import kit
from tests.conftest import wait_until

#: What design section 10 promises after a signal.
#: The promise is 5 s, and a quiet machine keeps it by far. What must fail here is a command that hangs or lives on,
#: not a machine that is busy with something else: tests do not assert wall time.
PROMISE_S = 20.0
IDLE = ("--env", "chain", "--agent", str(kit.SAMPLES / "idle.py:Idle"))


def host(folder: Path, base: int | None, *flags: str) -> kit.Program:
    """A host that needs no torch; `base` None for no --port."""
    return kit.host(folder, *flags, name=f"s{base or 0}", port=base)


def block_is_free(base: int) -> bool:
    return not taken_ports(block_ports(base, 2))


# --- ports


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Another program listens there; or one does already."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", port))
            other.listen()
        except OSError:
            pass
        yield


def test_2_a_taken_port_ends_a_host_that_was_told_it(tmp_path: Path) -> None:
    base = kit.free_base()
    with taken(base + 12), host(tmp_path, base, *IDLE) as program:
        assert program.wait(20) == 1
    assert str(base + 12) in program.stderr
    assert "--port" in program.stderr
    assert program.of("started") == []
    assert not (tmp_path / "results").exists()


def test_2_4_the_next_free_block_is_taken_and_a_stop_condition_ends_the_host_and_its_members(
    tmp_path: Path,
) -> None:
    with taken(47800), host(tmp_path, None, *IDLE, "--players", "0", "--stop-steps", "5000") as program:
        base = program.wait_for("started")["base_port"]
        assert base > 47800
        assert str(base) in program.wait_for_line("47800 on are taken")
        with kit.join(tmp_path, agent=kit.IDLE, target=f"127.0.0.1:{base}") as joiner:
            assert program.wait(30.0) == 0
            assert joiner.wait(PROMISE_S) == 0
    stopped, left = program.last("stopped"), joiner.last("left")
    assert stopped is not None
    assert left is not None
    assert stopped["reason"] == left["text"] == "steps"
    assert left["reason"] == "stopped"
    assert stopped["steps"] >= 5000
    assert kit.balanced(stopped["bundles"])
    books, own = stopped["bundles"], left["bundles"]
    assert books["produced"] == own["produced"]
    # What a shard stored while the member left is in the host's books only.
    assert own["stored"] <= books["stored"] <= own["stored"] + own["pending"]


def test_the_last_figures_of_a_joiner_are_those_of_its_end(tmp_path: Path) -> None:
    base = kit.free_base()
    with host(tmp_path, base, *IDLE, "--players", "0", "--stop-steps", "3000") as program:
        program.wait_for("started")
        words = (f"127.0.0.1:{base}", "--players", "1", "--agent", kit.IDLE)
        done = kit.run(tmp_path, "join", *words)
        assert program.wait(30.0) == 0
    assert done.returncode == 0, done.stderr
    last, left = done.stdout.splitlines()[-2:]
    assert re.match(r"stopped  host \S+  steps [\d,]+  weights v\d", last), last
    stored = re.fullmatch(r"left: the run reached its steps; ([\d,]+) of [\d,]+ bundles? stored", left)
    assert stored is not None, left
    assert f"bundles {stored[1]} stored, " in last


@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_3_a_host_starts_and_stops_again_and_again_on_one_port(tmp_path: Path, times: int) -> None:
    base = kit.free_base()
    for _ in range(times):
        with host(tmp_path, base, *IDLE, "--players", "0", "--shards", "1") as program:
            assert program.wait_for("started")["base_port"] == base
            assert program.end(PROMISE_S) == 0
        assert block_is_free(base)
    assert len(list((tmp_path / "results").iterdir())) == times


# --- signals


def test_4_5_every_command_ends_within_five_seconds_of_a_signal(tmp_path: Path) -> None:
    base = kit.free_base()
    target = f"127.0.0.1:{base}"
    with ExitStack() as stack:

        def start(*arguments: str) -> list[kit.Program]:
            """One to end with SIGINT, one to end with SIGTERM."""
            homes = [tmp_path / f"home-{arguments[0]}-{arguments[-1]}-{number}" for number in _SIGNALS]
            return [stack.enter_context(kit.Program(*arguments, "--json", home=home)) for home in homes]

        # Without a host: what waits for one.
        dialling = start("join", target)
        watching = start("status", target, "--watch", "--wait", "60")
        listing = start("ls", "--timeout", "60")
        for joiner in dialling:
            joiner.wait_for_line("trying again")
        wait_until(lambda: all(threads(program) >= 3 for program in (*watching, *listing)), 30.0)
        assert end_all(dialling) == [0, 0]
        end_all(watching)
        end_all(listing)
        # With a host; and with one that was killed.
        # Not with an agent in a file: `eval` takes none from a host's word.
        program = stack.enter_context(
            host(tmp_path, base, "--env", "chain", "--agent", "cem", "--players", "1")
        )
        program.wait_for("started")
        present = start("join", target, "--players", "1", "--name", "present")
        orphaned = start("join", target, "--players", "1", "--name", "orphaned")
        watching = start("status", target, "--watch")
        playing = start("eval", target, "-n", "10000000")
        for joiner in (*present, *orphaned):
            joiner.wait_for("progress", lambda e: e["steps"] > 0)
        wait_until(
            lambda: all(one.events for one in watching) and all(used_s(one) > 1.0 for one in playing), 60.0
        )
        assert end_all(present) == [0, 0]
        end_all(watching)
        end_all(playing)
        program.kill()
        assert end_all(orphaned) == [0, 0]
        assert all(joiner.last("left") for joiner in orphaned)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def threads(program: kit.Program) -> int:
    """ZeroMQ and zeroconf have threads of their own: with them a command is past its start."""
    return psutil.Process(program.pid).num_threads()


def used_s(program: kit.Program) -> float:
    """Seconds of processor time: more than it takes to start means that it is at work."""
    return psutil.Process(program.pid).cpu_times().user


def end_all(programs: list[kit.Program]) -> list[int]:
    """Signal each; it must end within the promise. What has nothing to tidy up may die of the signal."""
    began = time.monotonic()
    for program, number in zip(programs, _SIGNALS, strict=True):
        program.tell(number)
    codes = [program.wait(max(0.1, PROMISE_S - (time.monotonic() - began))) for program in programs]
    assert all(code in (0, 130, -number) for code, number in zip(codes, _SIGNALS, strict=True)), codes
    return codes


def test_4_a_second_signal_means_now(tmp_path: Path) -> None:
    base = kit.free_base()
    # Its own player hangs in its environment, so that an orderly end takes a while.
    hanging = ("--env", "tests.samples:Noise-v0", "--set", "env.args.limit=64", "--envs", "1")
    with kit.host(
        tmp_path, *hanging, *IDLE[2:], "--players", "1", name=f"n{base}", port=base, cwd=kit.ROOT
    ) as program:
        program.wait_for("progress", lambda e: e["steps"] == 64)
        children = program.children()
        with kit.join(tmp_path, agent=kit.IDLE, target=f"127.0.0.1:{base}", cwd=kit.ROOT) as joiner:
            joiner.wait_for("joined")
            program.tell(signal.SIGINT)
            left = joiner.wait_for("left", timeout=PROMISE_S)
            assert left["reason"] == "stopped"
            assert left["text"] == "signal"
            program.tell(signal.SIGINT)
            assert program.wait(PROMISE_S) == 130
            said = program.wait_for_line("ended at once")
            assert "updates after the last checkpoint are lost" in said
            [run] = (tmp_path / "results").iterdir()
            again = f"--players 1 --port {base} --interface lo --open"
            command = f"{sys.executable} -m p2prl.cli host --resume --results {run} {again}"
            assert program.wait_for_line("to go on:") == f"to go on:   {command}"
            assert joiner.wait(PROMISE_S) == 0
        _, alive = psutil.wait_procs(children, 6.0)
        assert alive == []
        assert block_is_free(base)


def test_a_host_with_many_players_ends_in_order_and_each_bundle_is_counted(tmp_path: Path) -> None:
    # A bundle takes three seconds: they are in the middle of one.
    slow = ("--env", "tests.samples:Paced-v0", "--set", "env.args.tick_s=0.05", "--envs", "1")
    with kit.host(
        tmp_path, *slow, *IDLE[2:], "--players", "12", name="many", port=kit.free_base(), cwd=kit.ROOT
    ) as program:
        program.wait_for("progress", lambda e: e["bundles"]["stored"] >= 12, 60.0)
        assert program.end(PROMISE_S, signal.SIGINT) == 0
    for trouble in ("silent", "by force", "without a receipt"):
        assert trouble not in program.stderr
    stopped = program.last("stopped")
    assert stopped is not None
    assert kit.balanced(stopped["bundles"])
    assert stopped["bundles"]["pending"] == 0


def test_what_is_under_way_when_a_host_ends_is_stored(tmp_path: Path) -> None:
    """Its own member ends before the shards do, and waits for their last word."""
    fast = ("--env", "CartPole-v1", "--envs", "1", "--players", "2")
    with host(tmp_path, kit.free_base(), *fast, *IDLE[2:], "--set", "agent.ticks=4") as program:
        program.wait_for("progress", lambda e: e["bundles"]["stored"] >= 2000, 60.0)
        assert program.end(PROMISE_S, signal.SIGINT) == 0
    stopped = program.last("stopped")
    assert stopped is not None
    books = stopped["bundles"]
    assert kit.balanced(books)
    assert (books["pending"], books["dropped"]) == (0, 0)
    assert books["stored"] == books["produced"] > 2000


@pytest.mark.parametrize("who", ["host", "joiner"])
def test_what_joiners_have_when_they_or_their_host_end_is_stored(tmp_path: Path, who: str) -> None:
    """Also what waited for a trainer that is behind; so nothing is left on their disks."""
    base, slow = kit.free_base(), str(kit.SAMPLES / "slow.py:Slow")
    behind = (
        "--env",
        "chain",
        "--agent",
        slow,
        "--set",
        "agent.update_s=0.2",
        "--players",
        "0",
        "--envs",
        "1",
    )
    with host(tmp_path, base, *behind) as program, ExitStack() as stack:
        program.wait_for("started")
        joiners = [
            stack.enter_context(kit.join(tmp_path, name=f"j{i}", target=f"127.0.0.1:{base}", agent=slow))
            for i in range(2)
        ]
        for joiner in joiners:
            joiner.wait_for(
                "progress", lambda e: e["state"] == "paused" and e["bundles"]["pending"] > 0, 60.0
            )
        for leaving in [] if who == "host" else joiners:
            assert leaving.end(PROMISE_S, signal.SIGINT) == 0
        assert program.end(PROMISE_S, signal.SIGINT) == 0
        for joiner in joiners:
            left = joiner.wait_for("left")
            assert left["bundles"]["stored"] == left["bundles"]["produced"] > 0
            assert "spool" not in joiner.stderr
            assert "without a receipt" not in joiner.stderr
    told = "the host was stopped" if who == "host" else "stopped on its machine"
    assert {f"j{i} left: {told}" in program.stderr for i in range(2)} == {True}
    stopped = program.last("stopped")
    assert stopped is not None
    books = stopped["bundles"]
    assert kit.balanced(books)
    assert books["stored"] == books["produced"] > 0


@pytest.mark.skipif(sys.platform == "win32", reason="a process is stopped by a signal of POSIX")
def test_no_shard_is_called_silent_while_a_trainer_is_waited_for(tmp_path: Path) -> None:
    with host(tmp_path, kit.free_base(), *IDLE, "--players", "1") as program:
        program.wait_for("progress", lambda e: e["bundles"]["stored"] > 0)
        [trainer] = program.children("trainer")
        trainer.suspend()
        assert program.end(PROMISE_S, signal.SIGINT) == 0
    assert "trainer: did not end in time and was ended by force" in program.stderr
    assert "silent" not in program.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there, what is in use cannot be deleted")
def test_a_folder_that_is_deleted_meanwhile_is_no_traceback_and_does_not_come_back(tmp_path: Path) -> None:
    flags = (
        *IDLE,
        "--players",
        "1",
        "--set",
        "agent.min_ticks=200",
        "--set",
        "train.checkpoint_interval_s=0.2",
    )
    with host(tmp_path, kit.free_base(), *flags) as program:
        results = Path(program.wait_for("started")["results"])
        program.wait_for("progress", lambda e: e["updates"] > 0)
        results.rename(tmp_path / "away")
        last = program.wait_for_line("cannot write")
        seen = len(program.of("progress"))
        wait_until(lambda: len(program.of("progress")) > seen + 5, 30.0)
        program.end(PROMISE_S)
        assert "Traceback" not in program.stderr, last
        assert program.of("stopped")
    assert not results.exists()


# --- kill -9, and going on


@dataclass(frozen=True)
class Killed:
    """A run whose host was killed with -9, and what was known of it then."""

    results: Path
    run_id: str
    status: m.StatusReply
    took_s: float
    base: int

    def copy(self, folder: Path) -> Path:
        """The run's folder for one test alone."""
        return Path(shutil.copytree(self.results, folder / "run"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder, base = tmp_path_factory.mktemp("killed"), kit.free_base()
    settings = ("agent.min_ticks=200", "replay.samples_per_insert=0.02", "train.checkpoint_interval_s=0.2")
    flags = [word for setting in settings for word in ("--set", setting)]
    with host(folder, base, *IDLE, *flags, "--players", "1") as program:
        started = program.wait_for("started")
        results = Path(started["results"])
        wait_until(lambda: len(list((results / "checkpoints").glob("0*/DONE"))) >= 3, 30.0)
        with kit.Peer(base) as peer:
            # The shards tell the broker twice a second what they hold.
            wait_until(lambda: any(shard.stored for shard in peer.status().shards), 30.0)
            status = peer.status()
        children = program.children()
        assert {child.cmdline()[-1] for child in children} == {
            "broker",
            "shard",
            "trainer",
            "member",
            "player",
        }
        program.kill()
        began = time.monotonic()
        _, alive = psutil.wait_procs(children, 6.0)
        took_s = time.monotonic() - began
        for child in alive:
            child.kill()
        assert not alive, "processes outlive their host"
    return Killed(results, started["run_id"], status, took_s, base)


def logged(results: Path) -> int:
    """Bundles in the shards' logs, each once."""
    names = set()
    for folder in sorted((results / "replay").glob("shard-*")):
        log = SegmentLog(folder, 64_000_000, lambda: b"")
        for kind, body in log.records():
            if kind == BUNDLE:
                bundle = decode_bundle_record(body)
                names.add((folder.name, bundle.node, bundle.boot_id, bundle.seq))
        log.close()
    return len(names)


@contextmanager
def resumed(tmp_path: Path, run: Path) -> Iterator[tuple[kit.Program, kit.Peer]]:
    """A host without players that goes on with the run, once its trainer is back."""
    base = kit.free_base()
    flags = ("--resume", "--results", str(run), "--players", "0")
    with host(tmp_path, base, *flags) as program:
        program.wait_for("started")
        program.wait_for("progress", lambda e: e["trainer"] not in ("starting", "stalled"))
        with kit.Peer(base) as peer:
            yield program, peer


def test_a_killed_host_leaves_nothing_running(killed: Killed) -> None:
    assert killed.took_s < 6.0
    assert block_is_free(killed.base)


def test_resume_goes_on_with_all_that_was_stored(killed: Killed, tmp_path: Path) -> None:
    run = killed.copy(tmp_path)
    bundles = logged(run)
    assert bundles >= sum(shard.stored for shard in killed.status.shards) > 0
    newest = max(path.name for path in (run / "checkpoints").glob("0*"))
    with resumed(tmp_path, run) as (program, peer):
        started, status = program.last("started"), peer.status()
        assert started is not None
        assert started["resumed"]
        assert started["run_id"] == status.run_id == killed.run_id
        assert started["term"] == status.term == killed.status.term + 1
        assert sum(shard.stored for shard in status.shards) == bundles
        assert status.steps >= killed.status.steps
        assert status.weights_version >= killed.status.weights_version
        assert status.updates >= int(newest.partition("-")[0])
        # Nobody else may use the folder meanwhile, and nothing in it is touched by the attempt.
        before = (run / "experiment.toml").read_bytes()
        second = (
            "--resume",
            "--results",
            str(run),
            "--set",
            "train.publish_interval_s=9",
            "--name",
            "second",
        )
        done = kit.run(tmp_path, "host", *second, "--interface", "lo", "--json", name="second")
        assert done.returncode == 6
        assert str(run) in done.stderr
        assert str(program.pid) in done.stderr
        assert (run / "experiment.toml").read_bytes() == before
        assert peer.status().term == status.term
        assert program.end(PROMISE_S) == 0


def test_damaged_checkpoints_are_passed_over_and_named(killed: Killed, tmp_path: Path) -> None:
    run = killed.copy(tmp_path)
    good, cut, unfinished = sorted((run / "checkpoints").glob("0*"))[-3:]
    learner = cut / "learner.safetensors"
    learner.write_bytes(learner.read_bytes()[:-3])
    (unfinished / "DONE").unlink()
    with resumed(tmp_path, run) as (program, peer):
        for bad in (cut, unfinished):
            program.wait_for_line(f"checkpoint skipped: .*{bad.name}")
        assert good.name in program.wait_for_line("using the last good checkpoint")
        wait_until(lambda: peer.status().updates >= int(good.name.partition("-")[0]))
        assert peer.status().weights_version >= killed.status.weights_version
        assert program.end(PROMISE_S) == 0


# --- nobody, or somebody else, where a host should be


@contextmanager
def listener(answer: bytes | None) -> Iterator[int]:
    """A base port where something else listens on the enrol port: silent, or answering everything with `answer`."""
    base, over = kit.free_base(), threading.Event()
    with socket.create_server(("127.0.0.1", base + 1)) as server:
        server.settimeout(0.05)
        kept: list[socket.socket] = []

        def serve() -> None:
            while not over.is_set():
                try:
                    kept.append(server.accept()[0])
                except TimeoutError:
                    continue
                if answer is not None:
                    kept[-1].sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield base
        finally:
            over.set()
            thread.join()
            for connection in kept:
                connection.close()


_HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n<html></html>\n"


def test_9_a_joiner_says_what_it_waits_for_and_gives_up_when_told(tmp_path: Path) -> None:
    free = kit.free_base()
    with ExitStack() as stack:
        bases = [stack.enter_context(listener(answer)) for answer in (None, _HTTP)]
        joiners = [
            stack.enter_context(
                kit.join(tmp_path, "--wait", "4", name=f"j{base}", target=f"127.0.0.1:{base}")
            )
            for base in (free, *bases)
        ]
        nameless = stack.enter_context(
            kit.join(tmp_path, "--wait", "4", name="nl", target="no.such.host.invalid:9")
        )
        for joiner, base in zip(joiners, (free, *bases), strict=True):
            line = joiner.wait_for_line("trying again each 1 s")
            assert f"127.0.0.1 port {base + 1}" in line
            assert ("cannot be reached" in line) == (base == free)
            assert ("something listens" in line) == (base != free)
        # Meanwhile the state folder of one that waits for ever is in use.
        holder = stack.enter_context(
            kit.join(tmp_path, name="holder", agent=kit.IDLE, target=f"127.0.0.1:{free}")
        )
        holder.wait_for_line("trying again each 1 s")
        second = kit.run(tmp_path, "join", f"127.0.0.1:{free}", "--json", name="holder")
        assert second.returncode == 6
        assert str(holder.pid) in second.stderr
        assert "P2PRL_HOME" in second.stderr
        assert holder.end() == 0
        for joiner in (*joiners, nameless):
            assert joiner.wait() == 3
            assert "--wait 4" in joiner.stderr
        assert "no.such.host.invalid" in nameless.stderr
