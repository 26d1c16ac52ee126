"""What an experiment says reaches the shards: nodes/charges.py, one shard's part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.nodes.charges import Plan
from p2prl.nodes.options import HostOptions
from p2prl.nodes.prepare import prepare
from p2prl.nodes.wiring import ShardConfig
from p2prl.settings import find_experiment, overlay


@pytest.mark.usefixtures("home")
def test_each_shard_gets_its_part_of_a_nodes_quota_and_the_disks_interval(tmp_path: Path) -> None:
    settings = ["shards=4", "replay.fsync_interval_s=0.25", "limits.node_bytes_per_s=20MB"]
    experiment = overlay(find_experiment("chain"), settings)
    options = HostOptions(experiment, "alone", players=0, results=tmp_path / "results")
    plan = Plan(options, prepare(experiment, options.results, False), 22300)
    shards = [charge.make_config() for charge in plan.charges() if charge.role == "shard"]
    assert len(shards) == 4
    for config in shards:
        assert isinstance(config, ShardConfig)
        assert config.fsync_interval_s == 0.25
        assert config.node_bytes_per_s == 5_000_000
        assert config.node_bundles_per_s == 500
        assert config.run.env.max_episode_steps == 20
