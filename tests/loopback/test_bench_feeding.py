"""scripts/bench: what its members are fed with goes the way of all bundles, and its trainer takes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
from bench_parts import ingest
from bench_parts.play import observed, play
from bench_parts.recorded import ENV
from bench_parts.running import Running, Workload, sets

SMALL = Workload("cartpole", "CartPole-v1", slots=2, ticks=16, played=3)


def test_a_replayers_bundles_are_stored_and_none_is_refused(home: Path) -> None:
    """Each has a number of its own, or shards would say duplicate."""
    with Running([*SMALL.arguments("Feed"), *sets("agent.ticks=16", "agent.batch=1")]) as run:
        member = run.feed("Feed", SMALL.played)
        run.until(lambda now: bool(now.nodes) and now.nodes[0].bundles.stored >= 10 * SMALL.played, "bundles")
        assert ingest.stored(run, 0.1) > 0
        books = run.status().bundles
        assert (books.refused, books.dropped, books.stale) == (0, 0, 0)
        assert member.children("player") == []  # nobody plays there
        assert any(
            "bench_parts.replayer" in child.cmdline() for child in psutil.Process(member.pid).children()
        )


def test_a_trainer_takes_and_gathers_in_turns_while_bundles_come_at_a_pace(home: Path) -> None:
    settings = sets("agent.ticks=16", "agent.batch=4", "agent.held=8", "replay.min_ticks=64")
    with Running([*SMALL.arguments("Taker"), *settings], writes=True) as run:
        run.feed("Taker", SMALL.played, pace=50)
        found = run.wait_for_lines(2, "turns")
        assert all(set(one) == {"ours", "limit"} and one["ours"] > 0 < one["limit"] for one in found)
        # At full speed it would be thousands.
        assert 0 < run.status().nodes[0].bundles.stored < 50 * (2 + run.status().uptime_s)


def test_recorded_frames_are_played_as_an_environment_gives_them(tmp_path: Path) -> None:
    frames = np.random.default_rng(1).integers(256, size=(9, 2, 4, 84, 84), dtype=np.uint8)
    np.save(tmp_path / "frames.npy", frames)
    work = Workload("atari", ENV, slots=2, ticks=3, args=(("file", str(tmp_path / "frames.npy")),))
    played = play(work, 2)
    newest = {picture.tobytes() for picture in frames[:, :, -1].reshape(-1, 84, 84)}
    seen = [observed(bundle) for bundle in played.bundles]
    assert {picture.tobytes() for obs in seen for picture in obs.reshape(-1, 84, 84)} <= newest
    assert np.array_equal(seen[0][1:, :, :-1], seen[0][:-1, :, 1:])
    assert all(len(kept) == 4 + 3 for bundle in played.bundles for kept in bundle.stacks["obs"].kept)
    assert len(played.encoded) == 2
    sessions = played.sessions(5)
    assert len(sessions) == 5
    assert sessions[0]["obs"].shape == (3, 4, 84, 84)
