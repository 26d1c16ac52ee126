"""`p2prl eval` on a live host and on a run's folder, with videos; TensorBoard files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests import kit


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short CartPole run, which was also looked at while it was live."""
    folder = tmp_path_factory.mktemp("eval")
    with kit.host(folder, "cartpole", "--players", "1", "--stop-steps", "30000") as host:
        started = host.wait_for("started")
        host.wait_for("progress", lambda e: e["updates"] > 0)
        done = kit.run(folder, "eval", f"127.0.0.1:{kit.BASE_PORT}", "-n", "3", "--json")
        assert done.returncode == 0, done.stderr
        live = json.loads(done.stdout)
        assert live["weights_version"] >= 0
        assert len(live["returns"]) == 3
        assert host.wait(60) == 0
    return Path(started["results"])


def test_the_same_seed_gives_the_same_score(finished_run: Path, tmp_path: Path) -> None:
    scores = []
    for seed in ("1", "1", "2"):
        done = kit.run(tmp_path, "eval", str(finished_run), "-n", "4", "--seed", seed, "--json")
        assert done.returncode == 0, done.stderr
        scores.append(json.loads(done.stdout)["returns"])
    assert scores[0] == scores[1]
    assert scores[0] != scores[2]


def test_videos_are_written_and_can_be_read(finished_run: Path, tmp_path: Path) -> None:
    import imageio_ffmpeg

    videos = tmp_path / "videos"
    done = kit.run(tmp_path, "eval", str(finished_run), "-n", "2", "--record", str(videos), "--json")
    assert done.returncode == 0, done.stderr
    lengths = json.loads(done.stdout)["lengths"]
    files = sorted(videos.glob("*.mp4"))
    assert len(files) == 2
    for file, length in zip(files, lengths, strict=True):
        frames, _ = imageio_ffmpeg.count_frames_and_secs(str(file))
        assert frames in (length, length + 1)


def test_tensorboard_files_have_the_figures(finished_run: Path) -> None:
    board = EventAccumulator(str(finished_run / "tensorboard"))
    board.Reload()
    tags = set(board.Tags()["scalars"])
    assert {"play/return_mean", "play/steps_per_s", "train/updates", "bundles/stored"} <= tags
    assert any(tag.startswith("learner/") for tag in tags)
    assert board.Scalars("train/updates")[-1].value > 0


def test_a_folder_that_is_no_run_is_said(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = kit.run(tmp_path, "eval", str(empty))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
