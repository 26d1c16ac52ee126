"""A whole run on loopback: host and joiner as real commands."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests import kit
from tests.conftest import wait_until


def test_a_host_alone_trains_with_its_own_players(tmp_path: Path) -> None:
    with kit.host(tmp_path, "chain", "--players", "1", "--stop-steps", "3000") as host:
        started = host.wait_for("started")
        assert host.wait(60) == 0
        stopped = host.last("stopped")
    assert stopped is not None
    assert stopped["reason"] == "steps"
    assert stopped["steps"] >= 3000
    assert kit.balanced(stopped["bundles"])
    folder = Path(started["results"])
    assert (folder / "experiment.toml").is_file()
    assert (folder / "progress.jsonl").read_bytes().count(b"\n") >= 1
    assert list((folder / "checkpoints").glob("*/DONE"))


def test_a_joiner_plays_for_a_host_without_players(tmp_path: Path) -> None:
    with kit.host(tmp_path, "chain", "--players", "0") as host:
        host.wait_for("progress")
        with kit.join(tmp_path) as joiner:
            joiner.wait_for("joined")
            host.wait_for("progress", lambda e: e["steps"] > 1000 and e["updates"] > 0)
            # A node's own figures come with its heartbeat, each second.
            wait_until(lambda: kit.status(tmp_path)["nodes"][0]["weights_version"] >= 0)
            shown = kit.status(tmp_path)
            [row] = shown["nodes"]
            assert (row["name"], row["state"], row["players"]) == ("joiner", "working", 1)
            assert kit.balanced(row["bundles"])
            assert host.end() == 0
            assert joiner.wait() == 0
        left = joiner.last("left")
    assert left is not None
    assert left["reason"] == "stopped"


def test_resume_goes_on_where_it_was(tmp_path: Path) -> None:
    results = ("--results", str(tmp_path / "results"))
    with kit.host(tmp_path, "chain", "--players", "1", *results, name="classroom") as first:
        first.wait_for("progress", lambda e: e["updates"] > 0)
        assert first.end() == 0
    before = first.last("stopped")
    assert before is not None
    with kit.host(tmp_path, "--players", "0", "--resume", *results, name="") as second:
        started = second.wait_for("started")
        shown = second.wait_for("progress", lambda e: e["trainer"] not in ("starting", "stalled"))
        assert shown["updates"] >= before["updates"] > 0
        assert started["resumed"]
        assert started["term"] == 2
        assert started["name"] == "classroom", "joiners know it by that name"
        # What the shards took in after the last figures were told counts too.
        assert before["steps"] <= shown["steps"] < before["steps"] + 4000
        assert shown["episodes"] >= before["episodes"]
        assert shown["weights_version"] > before["weights_version"]
        assert sum(s["sessions"] for s in kit.status(tmp_path)["shards"]) > 0
        assert second.end() == 0


def test_a_node_of_before_a_resume_is_told_as_such_until_it_is_back(tmp_path: Path) -> None:
    results = ("--results", str(tmp_path / "results"), "--players", "0")
    with kit.host(tmp_path, "chain", *results) as first, kit.join(tmp_path) as joiner:
        first.wait_for("progress", lambda e: e["steps"] > 0)
        assert first.end() == 0
        assert joiner.wait() == 0
    with kit.host(tmp_path, "--resume", *results, name="") as second:
        second.wait_for("progress")
        [row] = kit.status(tmp_path)["nodes"]
        assert (row["name"], row["state"], row["before"]) == ("joiner", "gone", True)
        assert row["reason"] == "not back since the host, or its broker, started again"
        [broker] = second.children("broker")
        broker.kill()  # now it is its broker alone that started again
        wait_until(lambda: second.children("broker") not in ([], [broker]), 20, "another broker")
        again = wait_until(lambda: kit.status(tmp_path)["nodes"], 20, "the new broker tells")
        assert again[0]["reason"] == row["reason"]
        with kit.join(tmp_path):
            wait_until(lambda: kit.status(tmp_path)["nodes"][0]["state"] == "working")
            [row] = kit.status(tmp_path)["nodes"]
            assert not row["before"]
            assert second.end() == 0


def test_the_last_checkpoint_has_the_runs_last_figures(tmp_path: Path) -> None:
    """Also where a second is tens of thousands of steps."""
    with kit.host(tmp_path, "cartpole-cem", "--players", "1", "--stop-steps", "40000") as host:
        results = Path(host.wait_for("started")["results"])
        assert host.wait(60) == 0
    kept = sorted(results.glob("checkpoints/0*/meta.json"), key=lambda path: path.parent.name)
    assert json.loads(kept[-1].read_bytes())["steps"] >= 40_000


def test_a_trainer_tries_how_many_threads_its_updates_are_faster_with(tmp_path: Path) -> None:
    with kit.host(
        tmp_path, "chain", "--players", "1", env={"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
    ) as host:
        results = Path(host.wait_for("started")["results"])
        host.wait_for("progress", lambda e: e["updates"] > 30)
        said = re.compile(
            r"trainer: updates are computed with (1 thread|[23] threads), tried 1 and [23]$", re.MULTILINE
        )
        wait_until(lambda: said.search((results / "host.log").read_text()), 20)
        assert host.end() == 0


@pytest.mark.skipif(os.name == "nt", reason="priorities have classes there")
def test_players_step_back_behind_other_programs(tmp_path: Path) -> None:
    """Also where Linux shares a processor out among sessions first: niceness counts for little in one's own."""
    with kit.host(tmp_path, "chain", "--players", "1") as host:
        host.wait_for("progress", lambda e: e["steps"] > 0)
        [player], [trainer] = host.children("player"), host.children("trainer")
        assert player.nice() == min(19, trainer.nice() + 10)
        group = Path(f"/proc/{player.pid}/autogroup")
        if group.exists():
            assert group.read_text().split()[-1] == "10"
        assert host.end() == 0


def test_drop_oldest_keeps_playing_and_counts_what_it_drops(tmp_path: Path) -> None:
    """The gate is shut after the first ticks, because nothing is sampled; players drop instead of waiting."""
    settings = (
        *("--set", "play.when_full=drop_oldest", "--set", "play.window_bundles=1"),
        *("--set", "replay.samples_per_insert=1000", "--set", "replay.min_ticks=1000"),
    )
    with kit.host(tmp_path, "chain", "--players", "1", *settings) as host:
        shown = host.wait_for("progress", lambda e: e["bundles"]["dropped"] > 20)
        assert set(shown["bundles"]["dropped_reasons"]) == {"window full"}
        assert kit.balanced(shown["bundles"])
        steps = kit.status(tmp_path)["nodes"][0]["steps"]

        def plays_on() -> bool:
            [row] = kit.status(tmp_path)["nodes"]
            return bool(row["state"] == "working" and row["steps"] > steps)

        wait_until(plays_on, 20)
        host.wait_for("progress", lambda e: e["bundles"]["dropped"] > shown["bundles"]["dropped"] + 20)
        assert host.end() == 0


def row_reason(folder: Path) -> str:
    """Why the only node does not play."""
    [row] = kit.status(folder)["nodes"]
    return str(row["reason"])


def test_wait_is_the_default_and_says_why_it_waits(tmp_path: Path) -> None:
    settings = ("--set", "replay.samples_per_insert=100000", "--set", "replay.min_ticks=1000")
    with kit.host(tmp_path, "chain", "--players", "1", *settings) as host:
        host.wait_for("progress", lambda e: e["steps"] >= 1000)

        def paused() -> bool:
            [row] = kit.status(tmp_path)["nodes"]
            return bool(row["state"] == "paused" and "trainer is behind" in row["reason"])

        wait_until(paused, 30)
        [trainer] = host.children("trainer")
        trainer.suspend()
        wait_until(lambda: row_reason(tmp_path) == "the trainer does not answer: players wait for it", 30)
        seen = len(host.of("progress"))
        trainer.kill()
        wait_until(lambda: "starting" in [e["trainer"] for e in host.of("progress")[seen:]], 30)
        wait_until(paused, 30)
        last = host.last("progress")
        assert last is not None
        assert last["bundles"]["dropped"] == 0
        assert host.end() == 0


def test_a_solved_run_evaluates_to_what_it_was_stopped_for(tmp_path: Path) -> None:
    """Near-random play earns the chain's reward too, while exploration falls: that must not count as solved."""
    with kit.host(tmp_path, "chain", "--players", "1", "--stop-return", "0.9", "--seed", "3") as host:
        results = host.wait_for("started")["results"]
        assert host.wait(90) == 0
        stopped = host.last("stopped")
    assert stopped is not None
    assert stopped["reason"] == "return"
    done = kit.run(tmp_path, "eval", results, "-n", "5", "--json")
    assert done.returncode == 0, done.stderr
    assert min(json.loads(done.stdout)["returns"]) >= 0.9
