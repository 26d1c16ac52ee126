"""kill -9 of any process, or of all of them: what was acknowledged is there, and all go on. Rows of reliability.md."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests import kit
from tests.conftest import wait_until
from tests.loopback import survival_kit as survival


@pytest.mark.timeout(300)
def test_each_process_is_killed_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a host with two shards and an own player, and a joiner's player; the run is one run all the while."""
    with survival.hosted(tmp_path, "--players", "1") as run, run.join() as joiner:
        survival.more_stored(joiner)
        for role in ("broker", "shard", "trainer", "member", "player"):
            killed_and_back(run, joiner, role, capsys)
        killed_player_and_back(run, joiner, capsys)
        assert joiner.end(survival.END_S) == 0
        assert run.host.end(survival.END_S) == 0
        stopped = run.host.last("stopped")
        assert stopped is not None
        assert kit.balanced(stopped["bundles"])
    for figure in ("steps", "weights_version"):
        values = [event[figure] for event in run.host.of("progress")]
        assert values == sorted(values), f"{figure} went back"


def killed_and_back(
    run: survival.Run, joiner: kit.Program, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kill one of the host's processes (both shards), and wait for all to go on."""
    before, newest = survival.last(run.host), survival.last(joiner)["current_version"]
    learned, victims = survival.checkpoints_intact(run.results), run.host.children(role)
    survival.kill_all(victims)
    watch = survival.Watch()
    survival.more_stored(joiner)

    def back() -> bool:
        """New steps and updates, newer weights than any before, and a new process."""
        now = survival.last(run.host)
        return (
            now["steps"] > before["steps"]
            and now["updates"] > learned
            and now["weights_version"] > newest
            and now["trainer"] in ("training", "waiting")
            and len(run.host.children(role)) == len(victims)
        )

    wait_until(back, survival.RECOVERY_S, f"the {role} is back and all go on")
    joiner.wait_for("progress", lambda e: e["weights_version"] > newest, survival.RECOVERY_S)
    took_s, acknowledged = watch.seconds(), survival.stored(joiner)
    survival.nothing_lost(run.kept(), run.key(), acknowledged)
    assert survival.checkpoints_intact(run.results) >= learned
    assert all(kit.balanced(node["bundles"]) for node in run.status()["nodes"])
    survival.told(capsys, f"kill -9 of the host's {role}", acknowledged, took_s)


def killed_player_and_back(
    run: survival.Run, joiner: kit.Program, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kill a joiner's player; its member starts it again."""
    survival.kill_all(joiner.children("player"))
    watch = survival.Watch()
    joiner.wait_for_line("ended .killed by signal 9.; it will be started again in 0.5 s")
    joiner.wait_for("progress", lambda e: e["players"][0]["restarts"] == 1)
    survival.more_stored(joiner)
    took_s, acknowledged = watch.seconds(), survival.stored(joiner)
    survival.nothing_lost(run.kept(), run.key(), acknowledged)
    row = run.row()
    assert row["state"] == "working"
    assert any(fault.startswith("player: died (killed by signal 9)") for fault in row["faults"])
    assert kit.balanced(row["bundles"])
    assert row["bundles"]["dropped"] == 0
    survival.told(capsys, "kill -9 of a joiner's player", acknowledged, took_s)


def test_a_killed_joiner_is_seen_to_be_gone_and_comes_back_as_the_same_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with survival.hosted(tmp_path, "--players", "0") as run:
        with run.join() as first:
            survival.more_stored(first, 20)
            players, acknowledged = first.children(), survival.stored(first)
            first.kill()
            watch = survival.Watch()
            psutil.wait_procs(players, 10.0)
            assert not any(player.is_running() for player in players), "a player outlives its member"
        with kit.Peer(run.base) as peer:
            wait_until(
                lambda: [n.state for n in peer.status().nodes] == ["gone"], 30.0, "it is shown as gone"
            )
        assert run.row()["state"] == "gone"
        gone_s = watch.seconds()
        survival.nothing_lost(run.kept(), run.key(), acknowledged)
        with run.join() as second:
            watch = survival.Watch()
            survival.more_stored(second)
            took_s = watch.seconds()
            wait_until(lambda: run.row()["bundles"]["stored"] >= acknowledged + 5, 20.0)
            assert run.row()["state"] == "working"  # one row: it is the same node
            assert second.end(survival.END_S) == 0
            acknowledged += survival.stored(second)
        kept, books = run.kept(), run.row()["bundles"]
        survival.nothing_lost(kept, run.key(), acknowledged)
        assert kit.balanced(books)
        assert books["stored"] == len(kept)
        assert books["dropped_reasons"].keys() <= {"member died", "member left"}
        assert run.host.end(survival.END_S) == 0
    survival.told(capsys, f"kill -9 of a joiner (shown as gone after {gone_s:.1f} s)", acknowledged, took_s)


@pytest.mark.timeout(300)
def test_the_whole_host_is_killed_again_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At moments that a seed draws, from a host's first second on; nobody touches the joiner, who needs no new code."""
    rng, code, took = random.Random(3), "17-acorn-ladder", []
    with ExitStack() as stack:
        run = stack.enter_context(survival.hosted(tmp_path, "--players", "1", "--code", code, open_=False))
        joiner = stack.enter_context(run.join("--code", code))
        survival.more_stored(joiner)
        for _ in range(3):
            survival.pause(rng.uniform(0.0, 3.0))
            killed = run
            known = known_of(killed)
            processes = survival.family(killed.host)
            rng.shuffle(processes)
            survival.kill_all(processes)
            acknowledged = survival.stored(joiner)
            survival.nothing_lost(killed.kept(), killed.key(), acknowledged)
            learned = survival.checkpoints_intact(killed.results)
            newest = survival.last(joiner)["current_version"]
            watch = survival.Watch()
            flags = ("--resume", "--results", str(killed.results), "--players", "1")
            run = stack.enter_context(survival.hosted(tmp_path, *flags, base=killed.base, open_=False))
            goes_on(killed.host, run.host, known, learned, newest)
            survival.more_stored(joiner)
            took.append(watch.seconds())
            assert survival.checkpoints_intact(run.results) >= learned
        row = run.row()
        assert row["standing"] == "admitted"
        assert row["player_reports"][0]["restarts"] == 0
        assert joiner.end(survival.END_S) == 0
        left = joiner.last("left")
        assert left is not None
        assert kit.balanced(left["bundles"])
        kept, acknowledged = run.kept(), left["bundles"]["stored"]
        survival.nothing_lost(kept, run.key(), acknowledged)
        survival.in_order(kept, run.key(), left["bundles"])
        assert sum(shard["stored"] for shard in run.status()["shards"]) <= len(run.kept())
        assert len(kept) == len({one.digest for one in kept})
        assert run.host.end(survival.END_S) == 0
    survival.told(capsys, "kill -9 of the whole host, three times (the slowest)", acknowledged, max(took))


def known_of(run: survival.Run) -> kit.Event:
    """The last figures that a host gave more than a second ago: the broker writes its file each second."""
    shown = run.host.of("progress")
    empty = {"steps": 0, "episodes": 0, "weights_version": -1, "return_mean": None}
    return next((one for one in reversed(shown) if one["uptime_s"] < shown[-1]["uptime_s"] - 1.5), empty)


def goes_on(killed: kit.Program, now: kit.Program, known: kit.Event, learned: int, newest: int) -> None:
    """The run that was killed is back with all that it had, and goes on."""
    was, started = killed.last("started"), now.last("started")
    assert was is not None
    assert started is not None
    assert started["resumed"]
    assert started["run_id"] == was["run_id"]
    assert started["term"] == was["term"] + 1
    first = now.wait_for("progress")
    for figure in ("steps", "episodes"):
        assert first[figure] >= known[figure], f"{figure} went back"
    assert first["weights_version"] >= newest, "a version came back"
    assert known["return_mean"] is None or first["return_mean"] == 100.0  # of each episode that Paced ends
    now.wait_for(
        "progress", lambda e: e["updates"] > learned and e["weights_version"] > newest, survival.RECOVERY_S
    )
