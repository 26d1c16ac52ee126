"""Faults inside: environments that raise or die, a trainer that dies again and again, machines that are busy."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import kit
from tests.conftest import wait_until
from tests.loopback import survival_kit as survival

FRAGILE = ("--env", "tests.samples:Fragile-v0", "--agent", survival.DRILL)
#: Longer than the 15 s of silence after which a node is gone, and a broker counts as hung.
BUSY_S = 17.0


# --- environments (G2, case 24)


def test_an_environment_that_raises_in_one_step_of_a_hundred_costs_those_steps_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (*FRAGILE, "--envs", "4", "--set", "env.args.raises=0.01", *survival.OFTEN)
    with survival.hosted(tmp_path, "--players", "0", settings=settings) as run, run.join() as joiner:
        failed = joiner.wait_for("progress", lambda e: e["players"][0]["failures"] >= 20, survival.RECOVERY_S)
        assert failed["players"][0]["restarts"] == 0
        # Of 100 steps one is lost, and a tick to begin anew; the rest is played and learned from.
        run.host.wait_for("progress", lambda e: e["steps"] > 2000 and e["updates"] > 80, survival.RECOVERY_S)
        row = run.row()
        assert row["state"] == "working"
        assert row["player_reports"][0]["failures"] >= 20
        assert any(
            "step raised RuntimeError: the contact solver diverged" in fault for fault in row["faults"]
        )
        assert any("(10 times so far)" in fault for fault in row["faults"])
        assert len(row["faults"]) <= 3
        assert len([line for line in joiner.errors if "diverged" in line]) <= 3, "each failure is told"
        assert joiner.end(survival.END_S) == 0
        left = joiner.last("left")
        assert left is not None
        assert left["bundles"]["refused"] == left["bundles"]["dropped"] == 0
        survival.nothing_lost(run.kept(), run.key(), left["bundles"]["stored"])
        survival.in_order(run.kept(), run.key(), left["bundles"])
        assert run.host.end(survival.END_S) == 0
    times = row["player_reports"][0]["failures"]
    survival.told(capsys, f"an environment that raised {times} times", left["bundles"]["stored"], None)


@pytest.mark.parametrize("code", [3, 0])
def test_an_environment_that_ends_its_process_is_counted_shown_and_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """With 0 it says that all is well: nobody asked it to end."""
    ends = ("--set", "env.args.exits=0.005", "--set", f"env.args.exit_code={code}")
    settings = (*FRAGILE, "--envs", "1", *ends, *survival.OFTEN)
    with survival.hosted(tmp_path, "--players", "0", settings=settings) as run, run.join() as joiner:
        joiner.wait_for("progress", lambda e: e["players"][0]["restarts"] >= 3, survival.RECOVERY_S)
        watch, updates = survival.Watch(), survival.last(run.host)["updates"]
        survival.more_stored(joiner)
        took_s = watch.seconds()
        run.host.wait_for("progress", lambda e: e["updates"] > updates, survival.RECOVERY_S)
        row = run.row()
        assert row["player_reports"][0]["restarts"] >= 3
        [fault] = [fault for fault in row["faults"] if f"exit code {code}" in fault]
        assert fault.startswith("player: ")
        assert "simulator: assertion failed in solver.c" in fault
        assert joiner.end(survival.END_S) == 0
        acknowledged = survival.stored(joiner)
        survival.nothing_lost(run.kept(), run.key(), acknowledged)
        assert run.host.end(survival.END_S) == 0
    survival.told(capsys, "an environment that ends its process", acknowledged, took_s)


def test_a_crash_loop_backs_off_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reset raises on the joiner's machine; the others play on."""
    monkeypatch.setenv("P2PRL_TEST_SIMULATOR", "here")
    settings = (*FRAGILE, "--envs", "1", "--set", "env.args.broken=true")
    with survival.hosted(tmp_path, "--players", "0", settings=settings) as run, ExitStack() as stack:
        monkeypatch.delenv("P2PRL_TEST_SIMULATOR")
        joiner = stack.enter_context(run.join())
        joiner.wait_for_line("it ended 4 times in a row", survival.RECOVERY_S)
        delays = [float(found) for found in re.findall(r"started again in ([\d.]+) s", joiner.stderr)]
        assert delays == [0.5, 1.0, 2.0, 4.0]

        def shown() -> bool:
            row = run.row()
            return "times in a row" in row["reason"] and "no simulator on this machine" in row["reason"]

        wait_until(shown, 20.0, "the loop and its cause are shown")
        assert any("no simulator" in fault for fault in run.row()["faults"])
        assert joiner.end(survival.END_S) == 0
        assert run.host.end(survival.END_S) == 0


# --- the trainer


def test_a_trainer_that_dies_again_and_again_is_started_less_and_less_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It raises in its fifth update after each start: it comes five updates further each time; players play on."""
    settings = survival.PACED
    limits = (
        "agent.raises_in=5",
        "agent.samples_per_insert=0",
    )  # with a limit players would wait for it in the end
    flags = (*(word for limit in limits for word in ("--set", limit)), *survival.OFTEN, "--players", "0")
    with survival.hosted(tmp_path, *flags, settings=settings) as run, run.join() as joiner:
        run.host.wait_for_line(
            r"trainer: died \(.*FloatingPointError: the loss is not a number", survival.RECOVERY_S
        )
        survival.more_stored(joiner, 20)
        run.host.wait_for_line("starting it again in 1.6 s", survival.RECOVERY_S)
        delays = [
            float(found) for found in re.findall(r"trainer: died .* again in ([\d.]+) s", run.host.stderr)
        ]
        assert delays == sorted(delays)
        assert delays[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
        wait_until(
            lambda: survival.checkpoints_intact(run.results) >= 4 * 4,
            survival.RECOVERY_S,
            "each life's updates are kept",
        )
        survival.more_stored(joiner, 20)
        versions = [event["weights_version"] for event in run.host.of("progress")]
        assert versions == sorted(versions)
        assert joiner.end(survival.END_S) == 0
        acknowledged = survival.stored(joiner)
        survival.nothing_lost(run.kept(), run.key(), acknowledged)
        assert run.host.end(survival.END_S) == 0
    survival.told(capsys, f"a trainer that died {len(delays)} times", acknowledged, None)


def test_what_killed_trainers_had_taken_does_not_fill_a_queue_for_ever(tmp_path: Path) -> None:
    """A queue's sessions are given once. With room for forty, six killed trainers must not take it all."""
    session = 17 * 64 + 16 * 13
    settings = (*survival.PACED, "--shards", "2")
    limits = ("agent.kind=queue", f"agent.capacity_bytes={40 * session}", "train.checkpoint_interval_s=3600")
    flags = [word for setting in limits for word in ("--set", setting)]
    with survival.hosted(tmp_path, *flags, "--players", "0", settings=settings) as run, run.join() as joiner:
        for _ in range(6):
            updates = survival.last(run.host)["updates"] if run.host.of("progress") else 0
            survival.more_stored(joiner, 15)
            run.host.wait_for("progress", lambda e, n=updates: e["updates"] >= 10, survival.RECOVERY_S)
            survival.kill_all(run.host.children("trainer"))
            run.host.wait_for_line("trainer: died")
        survival.more_stored(joiner, 60)
        assert joiner.end(survival.END_S) == 0
        assert run.host.end(survival.END_S) == 0
        told = [int(n) for n in re.findall(r"(\d+) sessions had left the queue", run.host.stderr)]
        [end] = run.host.of("stopped")
    # The checkpoint is that of the first update: what they say is since then. Who was killed before it had heard both
    # shards says nothing, but the next one does. Each bundle is one session, each update takes one; some wait in the
    # shards and two at most with the trainer.
    assert 1 <= len(told) <= 6
    assert told == sorted(told)
    assert told[-1] == end["sessions_lost"]
    assert end["sessions_lost"] >= 6 * 9
    assert 0 <= end["bundles"]["stored"] - end["updates"] - end["sessions_lost"] <= 40 + 2


# --- a machine that is busy (G2, case 25)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """As many processes that never rest."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def test_a_busy_machine_is_not_declared_dead(tmp_path: Path) -> None:
    with survival.hosted(tmp_path, "--players", "0") as run, run.join() as joiner:
        survival.more_stored(joiner)
        before, seen = survival.stored(joiner), []
        with busy(4), kit.Peer(run.base) as peer:
            watch = survival.Watch()
            while watch.seconds() < BUSY_S:
                seen += [(node.name, node.state, node.reason) for node in peer.status().nodes]
                survival.pause(0.5)
        assert {state for _, state, _ in seen} == {"working"}, seen
        assert {event["state"] for event in joiner.of("progress")[5:]} == {"working"}
        assert survival.stored(joiner) > before
        assert "trainer: died" not in run.host.stderr
        assert joiner.end(survival.END_S) == 0
        assert run.host.end(survival.END_S) == 0
