"""`--resume` goes on with all that a run had (G3, case 31); each node is told with how it plays (case 34)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2prl.core import messages as m
from p2prl.learn.contracts import Array
from p2prl.nodes import checkpoint
from p2prl.wire import frames
from p2prl.wire.weights import decode_weights, encode_weights
from tests import kit
from tests.conftest import wait_until
from tests.loopback.survival_kit import END_S, RECOVERY_S, Run, hosted, pause

#: Of a status, what a new start must not change.
_RUN = (
    "steps",
    "episodes",
    "return_mean",
    "return_episodes",
    "return_mean_all",
    "updates",
    "updates_skipped",
)
_SHARD = ("sessions", "ticks", "size_bytes", "inserted_ticks", "stored")
#: Of Adam's second moments, what is left after one update.
_KEPT = 0.999


def published(run: Run) -> dict[str, Array]:
    """The weights that a member would get now."""
    with kit.Peer(run.base) as peer:
        peer.say(m.WeightsAsk(have=-1))
        received = peer.hear()
        assert received is not None
        header = frames.decode_weights_header(received.frames[0])
        assert header.version >= 0
        return dict(decode_weights(received.frames[1]))


def at_rest(run: Run) -> kit.Event:
    """The run's figures, once the trainer has done what it can with what is there."""

    def look() -> kit.Event | None:
        first = run.status()
        pause(1.5)
        second = run.status()
        return second if first["updates"] == second["updates"] > 0 else None

    found = wait_until(look, RECOVERY_S, "nothing moves any more")
    assert isinstance(found, dict)
    return found


def played(folder: Path, agent: str) -> tuple[kit.Event, dict[str, Array], Path]:
    """A run whose only player left, and which was then ended: its last figures, its weights, its folder."""
    settings = ("--env", "chain", "--agent", agent, "--seed", "5")
    with hosted(folder, "--players", "0", settings=settings) as run:
        with run.join("--envs", "4", agent="") as joiner:
            run.host.wait_for("progress", lambda e: e["steps"] > 6000 and e["updates"] > 100, RECOVERY_S)
            assert joiner.end(END_S) == 0
        figures, weights = at_rest(run), published(run)
        assert run.host.end(END_S) == 0
        return figures, weights, run.results


def state_of(results: Path) -> checkpoint.Checkpoint:
    return checkpoint.require(results / "checkpoints")


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert np.array_equal(one[name], other[name]), name


@pytest.mark.parametrize("agent", ["dqn", "cem"])
def test_resume_continues_replay_optimiser_counters_and_return(tmp_path: Path, agent: str) -> None:
    if agent == "dqn":
        pytest.importorskip("torch")
    before, weights, results = played(tmp_path, agent)
    saved = state_of(results)
    assert (saved.meta.updates, saved.meta.steps) == (before["updates"], before["steps"])
    # The checkpoint has them exactly; broadcast they were rounded, which dqn allows.
    same(weights, decode_weights(encode_weights(saved.weights, halves=agent == "dqn")))
    with hosted(tmp_path, "--resume", "--results", str(results), "--players", "0") as run:
        up = run.host.wait_for("progress", lambda e: e["trainer"] not in ("starting", "stalled"), RECOVERY_S)
        assert up["updates"] >= before["updates"]
        after = at_rest(run)
        assert {name: after[name] for name in _RUN} == {name: before[name] for name in _RUN}
        assert [[shard[name] for name in _SHARD] for shard in after["shards"]] == [
            [shard[name] for name in _SHARD] for shard in before["shards"]
        ]
        assert after["weights_version"] > before["weights_version"]
        assert sum(shard["sessions"] for shard in after["shards"]) > 0 or agent == "cem"
        same(weights, published(run))
        # And it goes on learning where it was.
        with run.join("--envs", "4", agent="") as joiner:
            run.host.wait_for("progress", lambda e: e["updates"] >= before["updates"] + 20, RECOVERY_S)
            assert joiner.end(END_S) == 0
        assert run.host.end(END_S) == 0
    goes_on(agent, saved, state_of(results))


def goes_on(agent: str, before: checkpoint.Checkpoint, after: checkpoint.Checkpoint) -> None:
    """What the learner had is still in what it has."""
    more = after.meta.updates - before.meta.updates
    assert more >= 20
    assert after.meta.sampled > before.meta.sampled
    if agent == "dqn":
        assert int(after.learner["updates"]) == int(before.learner["updates"]) + more
        # Second moments only decay so fast, whatever the gradients: an optimiser that began anew would have less.
        least = before.learner["adam_variance"] * _KEPT**more * 0.999
        assert (after.learner["adam_variance"] >= least).all()
        assert np.count_nonzero(before.learner["adam_variance"]) > 10
        return
    had, has = (
        dict(zip(state.learner["generations"].tolist(), state.learner["means"], strict=True))
        for state in (before, after)
    )
    assert max(has) > max(had) >= 1
    both = had.keys() & has.keys()
    assert both or len(has) > 1, "a search that began anew would have the first generation alone"
    assert all(np.array_equal(had[generation], has[generation]) for generation in both)


def test_each_node_is_told_with_version_exploration_episodes_and_return(tmp_path: Path) -> None:
    """With the same weights, nodes earn differently: one explores more, or is behind."""
    pytest.importorskip("torch")
    settings = ("--env", "chain", "--agent", "dqn", "--envs", "1", "--set", "agent.epsilon_updates=50")
    with hosted(tmp_path, "--players", "1", settings=settings) as run, run.join(agent="") as joiner:
        joiner.wait_for("joined")

        def both_play() -> list[kit.Event] | None:
            nodes = sorted(run.status()["nodes"], key=lambda node: not node["own"])
            well = len(nodes) == 2 and all(node["return_mean_all"] is not None for node in nodes)
            return nodes if well and all(node["weights_version"] > 3 for node in nodes) else None

        found = wait_until(both_play, RECOVERY_S, "both nodes ended episodes with later weights")
        assert isinstance(found, list)
        own, other = found
        # The ladder has two rungs: slot 0 stands on 0, slot 1 on 1/2.
        assert (own["levels"], other["levels"]) == ([0.0, 0.0], [0.5, 0.5])
        assert own["episodes"] > 0
        assert other["episodes"] > 0
        assert other["return_mean"] is None, "none of its slots explores least"
        version = run.status()["weights_version"]
        assert all(0 <= node["lag"] <= version for node in found)
        assert run.host.end(END_S) == 0
        assert joiner.wait(END_S) == 0
    rows = [json.loads(line) for line in (run.results / "nodes.jsonl").read_text().splitlines()]
    last = {row["name"]: row for row in rows}
    assert last["joiner"]["levels"] == [0.5, 0.5]
    for name in ("weights_version", "lag", "episodes", "return_mean", "return_mean_all"):
        assert name in last["joiner"], name
    assert last["joiner"]["episodes"] >= other["episodes"]
