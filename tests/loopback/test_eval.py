"""`p2prl eval` on a live host and on a run's folder, with videos; TensorBoard files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import gymnasium as gym
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests import kit

SLOWLY = ("--set", "agent.learning_rate=1e-5")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short CartPole run, which was also looked at while it was live.

    It learns so slowly that its episodes end early, each at another length.
    """
    folder = tmp_path_factory.mktemp("eval")
    with kit.host(folder, "cartpole", "--players", "1", *SLOWLY) as host:
        started = host.wait_for("started")
        host.wait_for("progress", lambda e: e["updates"] > 0)
        done = kit.run(folder, "eval", f"127.0.0.1:{kit.BASE_PORT}", "-n", "3", "--json")
        assert done.returncode == 0, done.stderr
        live = json.loads(done.stdout)
        assert live["weights_version"] >= 0
        assert len(live["returns"]) == 3
        host.wait_for("progress", lambda e: e["steps"] > 10_000)
        assert host.end() == 0
    return Path(started["results"])


def test_the_same_seed_gives_the_same_score(finished_run: Path, tmp_path: Path) -> None:
    scores = []
    for seed in ("1", "1", "2"):
        done = kit.run(tmp_path, "eval", str(finished_run), "-n", "4", "--seed", seed, "--json")
        assert done.returncode == 0, done.stderr
        scores.append(json.loads(done.stdout)["returns"])
    assert scores[0] == scores[1]
    assert scores[0] != scores[2]


def test_a_score_comes_with_how_sure_it_is_and_as_a_table(finished_run: Path, tmp_path: Path) -> None:
    table = tmp_path / "scores.csv"
    done = kit.run(tmp_path, "eval", str(finished_run), "-n", "6", "--csv", str(table), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["min"] <= told["mean_low"] <= told["mean"] <= told["mean_high"] <= told["max"]
    with table.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [float(row["return"]) for row in rows] == told["returns"]
    assert [int(row["length"]) for row in rows] == told["lengths"]
    assert [int(row["seed"]) for row in rows] == told["seeds"]
    # Anybody can play an episode again: its seed is all that it depends on.
    env = gym.make("CartPole-v1")
    assert len({env.reset(seed=seed)[0].tobytes() for seed in told["seeds"]}) == 6
    bad = kit.run(tmp_path, "eval", str(finished_run), "--csv", str(tmp_path / "none" / "scores.csv"))
    assert bad.returncode == 2


def test_a_run_can_be_watched_where_there_is_a_screen(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("test", str(finished_run), "-n", "2", "--seed", "1")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    blind = kit.run(tmp_path, *flags)
    assert blind.returncode == 0, blind.stderr
    assert blind.stdout.splitlines()[0].startswith("not shown: ")
    monkeypatch.setenv("DISPLAY", ":99")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown = kit.run(tmp_path, *flags)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0] == "showing CartPole-v1"
    unwanted = kit.run(tmp_path, *flags, "--no-render")
    told = [
        [line for line in one.stdout.splitlines() if "episode " in line] for one in (blind, shown, unwanted)
    ]
    assert told[0] == told[1] == told[2]
    assert len(told[0]) == 2
    scored = kit.run(tmp_path, "eval", str(finished_run), "-n", "2", "--seed", "1", "--json")
    for line, value in zip(told[0], json.loads(scored.stdout)["returns"], strict=True):
        assert f"return {value:.1f}" in line


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


def test_a_runs_own_videos_lie_in_its_folder(finished_run: Path, tmp_path: Path) -> None:
    done = kit.run(tmp_path, "eval", str(finished_run), "-n", "1", "--video", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    [file] = told["videos"]
    assert Path(file) == finished_run / "videos" / checkpoint_of(told) / "episode-0000.mp4"
    assert Path(file).stat().st_size > 1000
    for bad in (("127.0.0.1:1", "--video"), (str(finished_run), "--video", "--record", str(tmp_path))):
        assert kit.run(tmp_path, "eval", *bad).returncode in (2, 3)


def checkpoint_of(told: dict[str, str]) -> str:
    return told["source"].rpartition("checkpoint ")[2]


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
