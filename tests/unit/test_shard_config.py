"""What an experiment says reaches the shards: nodes/charges.py, one shard's part of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil
import pytest

from p2prl.core.schema import Column, SessionSchema
from p2prl.errors import AgentRaised, LimitsForbid, UsageError
from p2prl.learn.contracts import ReplaySpec
from p2prl.nodes.charges import Plan
from p2prl.nodes.options import HostOptions
from p2prl.nodes.prepare import check_memory, prepare
from p2prl.nodes.wiring import ShardConfig
from p2prl.replay.storage import ring_capacity
from p2prl.settings import find_experiment, overlay, with_agent
from tests.unit.replay_kit import CARTPOLE


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


_ONCE = """
from p2prl.learn.contracts import Field, ReplaySpec
from tests.samples.idle import Idle

class Once(Idle):
    def fields(self):
        return {"state": Field("float32", (2,), once=True)}

    def replay(self):
        return ReplaySpec(ticks=8, window=WINDOW, capacity_bytes=1_000_000, observations=False, actions=False)
"""


@pytest.mark.usefixtures("home")
def test_windows_of_what_is_stored_once_are_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    agent, results = tmp_path / "once.py", tmp_path / "results"
    experiment = with_agent(find_experiment("chain"), f"{agent}:Once")
    agent.write_text(_ONCE.replace("WINDOW", "2"))
    with pytest.raises(UsageError, match=r"stores state once a session.*must say window=0"):
        prepare(experiment, results, False)
    assert not results.exists()


@pytest.mark.usefixtures("home")
def test_an_agent_that_breaks_its_contract_is_named_before_there_is_a_folder(tmp_path: Path) -> None:
    agent, results = tmp_path / "once.py", tmp_path / "results"
    experiment = with_agent(find_experiment("chain"), f"{agent}:Once")
    agent.write_text(_ONCE.replace("return ReplaySpec", "ReplaySpec").replace("WINDOW", "0"))
    with pytest.raises(AgentRaised, match=r"^once.py:Once: replay gave None: it must return a ReplaySpec$"):
        prepare(experiment, results, False)
    agent.write_text(_ONCE.replace('return {"state"', '_ = {"state"').replace("WINDOW", "0"))
    with pytest.raises(AgentRaised, match=r"^once.py:Once: fields gave None: it must return a dict of Field"):
        prepare(experiment, results, False)
    assert not results.exists()


@pytest.mark.usefixtures("home")
def test_what_an_agent_does_not_want_stored_is_not_in_the_runs_schema(tmp_path: Path) -> None:
    agent = tmp_path / "once.py"
    agent.write_text(_ONCE.replace("WINDOW", "0"))
    experiment = with_agent(find_experiment("chain"), f"{agent}:Once")
    prepared = prepare(experiment, tmp_path / "results", False)
    assert [column.name for column in prepared.run.schema.columns] == ["reward", "flags", "state"]


def test_the_memory_of_priorities_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that fits by itself, and no more with 4.5 bytes a tick beside it."""
    capacity = 10_000 * CARTPOLE.session_bytes()
    ticks = 10_000 * CARTPOLE.ticks
    free = psutil.virtual_memory()._replace(available=200_000_000 + capacity + 4 * ticks)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    check_memory(CARTPOLE, ReplaySpec(kind="uniform", capacity_bytes=capacity, ticks=CARTPOLE.ticks))
    wanted = ReplaySpec(kind="prioritised", capacity_bytes=capacity, ticks=CARTPOLE.ticks)
    with pytest.raises(
        LimitsForbid, match=r"of it for priorities\) and .* use --set replay.capacity_bytes="
    ) as said:
        check_memory(CARTPOLE, wanted)
    advised = int(str(said.value).rpartition("=")[2])
    check_memory(CARTPOLE, msgspec.structs.replace(wanted, capacity_bytes=advised, min_ticks=0))
    check_memory(CARTPOLE, msgspec.structs.replace(wanted, window=0))


def test_a_ring_of_pictures_that_would_not_fit_is_refused_with_its_computed_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pictures are kept as they were sent, and room is computed for a quarter of what they are; in a queue for all."""
    pictures = SessionSchema(
        64, (Column("obs", "uint8", (4, 84, 84), extra_row=True), Column("reward", "float32", ()))
    )
    kept = 65 * 4 * 84 * 84 // 4 + 64 * 4
    capacity = 1000 * kept
    free = psutil.virtual_memory()._replace(available=200_000_000 + capacity)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    fits = ReplaySpec(ticks=64, capacity_bytes=capacity, min_ticks=64_000)
    check_memory(pictures, fits)
    assert (
        ring_capacity(pictures, capacity) > 20_000
    )  # most pictures take far less: there are places for those
    with pytest.raises(
        LimitsForbid, match=r"may take 537.8 MB \(75,008 ticks\) and 658.9 MB are free: use"
    ) as said:
        check_memory(pictures, msgspec.structs.replace(fits, capacity_bytes=1172 * kept))
    advised = int(str(said.value).rpartition("=")[2])
    check_memory(pictures, msgspec.structs.replace(fits, capacity_bytes=advised, min_ticks=0))
    with pytest.raises(
        UsageError, match=f"holds 64,000 ticks, and training needs 64001 .* at least {1001 * kept} bytes"
    ):
        check_memory(pictures, msgspec.structs.replace(fits, min_ticks=64_001))
    with pytest.raises(UsageError, match="holds 16,000 ticks, and training needs 16064 "):
        check_memory(pictures, msgspec.structs.replace(fits, kind="queue", batch=251))


@pytest.mark.usefixtures("home")
def test_an_unknown_kind_of_replay_is_refused(tmp_path: Path) -> None:
    agent = tmp_path / "once.py"
    agent.write_text(_ONCE.replace("ticks=8", "kind='sorted', ticks=8").replace("WINDOW", "0"))
    experiment = with_agent(find_experiment("chain"), f"{agent}:Once")
    with pytest.raises(UsageError, match="kind=sorted is not one of queue, uniform, prioritised"):
        prepare(experiment, tmp_path / "results", False)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (ReplaySpec(batch=100_001), "more than the 100000 samples"),
        (ReplaySpec(kind="queue", batch=50_001), "more than the 50000 samples"),
        (ReplaySpec(window=0, batch=640, ticks=64), r"1.2 GB of samples at once: at most 585 can"),
        (
            ReplaySpec(kind="queue", window=0, batch=320, ticks=64),
            r"1.2 GB of samples at once: at most 292 can",
        ),
    ],
)
def test_a_batch_that_no_shard_would_send_is_refused_at_the_start(spec: ReplaySpec, said: str) -> None:
    images = SessionSchema(64, (Column("obs", "uint8", (84, 84, 4), extra_row=True),))
    enough = 100_001 * images.session_bytes()
    with pytest.raises(UsageError, match=said):
        check_memory(images, msgspec.structs.replace(spec, capacity_bytes=enough))
