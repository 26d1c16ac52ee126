"""Prioritised replay in a whole run: two shards, real processes, an agent that wants to see rewards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from p2prl.nodes import checkpoint
from tests import kit
from tests.conftest import wait_until
from tests.loopback.survival_kit import kill_all

_AGENT = f"{kit.ROOT}{os.sep}tests{os.sep}samples{os.sep}ranked.py:Ranked"


def means(results: Path) -> dict[str, float]:
    """The learner's means over all its updates, from its last checkpoint."""
    last = checkpoint.load_last(results / "checkpoints")
    assert last is not None
    sums = {name: float(value) for name, value in last.learner.items()}
    return {name: value / sums["updates"] for name, value in sums.items()} | {"updates": sums["updates"]}


def test_what_has_a_high_priority_is_seen_more_often_and_its_probability_says_how_much(
    tmp_path: Path,
) -> None:
    with kit.host(tmp_path, "--env", "chain", "--agent", _AGENT, "--players", "1") as host:
        results = Path(host.wait_for("started")["results"])
        shown = host.wait_for("progress", lambda e: e["updates"] > 800)
        assert len(kit.status(tmp_path)["shards"]) == 2
        assert kit.balanced(shown["bundles"])
        assert host.end(20.0) == 0
    seen = means(results)
    assert seen["rewarding"] > 2 * seen["weighted"], "rewards are not drawn more often than they are there"
    # The weights 1 / probability have the mean 1 by definition, whatever the priorities.
    assert seen["weight"] == pytest.approx(1.0, rel=0.1)


def test_a_killed_shard_comes_back_and_is_drawn_from_by_priority_again(tmp_path: Path) -> None:
    flags = ("--env", "chain", "--agent", _AGENT, "--players", "1")
    with kit.host(tmp_path, *flags, "--set", "agent.samples_per_insert=2") as host:
        results = Path(host.wait_for("started")["results"])
        before = host.wait_for("progress", lambda e: e["updates"] > 200)
        kill_all(host.children("shard")[:1])
        wait_until(lambda: sum(shard["starts"] for shard in kit.status(tmp_path)["shards"]) == 3, 20)
        host.wait_for("progress", lambda e: e["updates"] > before["updates"] + 500)
        assert host.end(20.0) == 0
    seen = means(results)
    assert seen["rewarding"] > 2 * seen["weighted"]
    assert seen["weight"] == pytest.approx(1.0, rel=0.15)


def test_where_the_experiment_says_uniform_the_agent_runs_on_without_priorities(tmp_path: Path) -> None:
    flags = ("--env", "chain", "--agent", _AGENT, "--players", "1")
    with kit.host(tmp_path, *flags, "--set", "replay.kind=uniform") as host:
        results = Path(host.wait_for("started")["results"])
        host.wait_for("progress", lambda e: e["updates"] > 100)
        assert host.end(20.0) == 0
    seen = means(results)
    assert seen["rewarding"] == pytest.approx(seen["weighted"])
    assert seen["weight"] == 1.0
