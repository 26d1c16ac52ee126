"""`p2prl host --resume --results RUN/checkpoints/NAME`: a run goes on from an earlier checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from p2prl.nodes import checkpoint
from tests import kit
from tests.conftest import wait_until
from tests.loopback.survival_kit import END_S, RECOVERY_S, checkpoints_intact, hosted
from tests.samples.drill import intact

MANY = ("--set", "train.checkpoint_interval_s=0.3", "--set", "train.keep_checkpoints=20")


#: More steps than are played in a second and a half: a checkpoint knows them as of a second before.
SECOND = 300


def numbered(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("0*"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended, with many checkpoints."""
    flags = ("--players", "1", *MANY, "--set", "env.args.episode=10")
    with hosted(tmp_path_factory.mktemp("ended"), *flags) as run:
        wait_until(lambda: len(numbered(run.results)) >= 8, RECOVERY_S, "eight checkpoints")
        run.host.wait_for("progress", lambda e: e["episodes"] > 30, RECOVERY_S)
        assert run.host.end(END_S) == 0
        return run.results


def test_the_run_goes_on_from_there_with_all_its_counters(ended: Path, tmp_path: Path) -> None:
    results = Path(shutil.copytree(ended, tmp_path / "run"))
    paths = numbered(results)
    chosen, later = checkpoint.load(paths[4]), paths[5:]
    meta = chosen.meta
    assert meta.steps > 0
    assert meta.inserted > 0
    last = checkpoint.load(paths[-1]).meta
    flags = ("--resume", "--results", str(chosen.path), "--players", "0")
    with hosted(tmp_path, *flags) as run:
        assert run.results == results
        pattern = rf"going on from checkpoint {chosen.path.name} at ([\d,]+) steps; {len(later)} later"
        said = re.search(pattern, run.host.wait_for_line(pattern))
        assert said is not None
        steps = int(said[1].replace(",", ""))
        assert meta.steps <= steps < meta.steps + SECOND
        first = run.host.wait_for("progress")
        assert meta.updates <= first["updates"] < last.updates
        first = run.host.wait_for("progress", lambda e: e["trainer"] not in ("starting", "stalled"))
        assert first["steps"] == steps
        assert first["episodes"] == meta.episodes
        assert first["return_mean"] == meta.return_mean
        assert first["return_episodes"] == meta.return_episodes
        assert first["weights_version"] > last.version, "a version that was seen never comes again"
        assert run.host.end(END_S) == 0
        assert first["updates"] < last.updates
    [aside] = (results / "set-aside").iterdir()
    assert {path.name for path in (aside / "checkpoints").iterdir()} >= {path.name for path in later}
    for path in later:
        moved = checkpoint.load(aside / "checkpoints" / path.name)
        assert intact(moved.meta.updates, moved.learner, moved.weights)
    what_was_set_aside_can_be_evaluated(aside, later[0].name, tmp_path)
    board = EventAccumulator(str(results / "tensorboard"))
    board.Reload()
    curve = [point.step for point in board.Scalars("play/episodes")]
    assert curve == sorted(curve), "what came after is not in the curves any more"
    # And from there on as any other run: with players, and resumed in the ordinary way.
    with hosted(tmp_path, "--resume", "--results", str(results), "--players", "1") as run:
        again = run.host.wait_for("progress", lambda e: e["steps"] > meta.steps + 500, RECOVERY_S)
        assert again["updates"] > meta.updates
        assert run.host.end(END_S) == 0
    assert checkpoints_intact(results) > meta.updates


def what_was_set_aside_can_be_evaluated(aside: Path, name: str, tmp_path: Path) -> None:
    for path in (aside, aside / "checkpoints" / name):
        done = kit.run(tmp_path, "eval", str(path), "-n", "1", "--json", cwd=kit.ROOT)
        assert done.returncode == 0, done.stderr
        if path != aside:
            assert name in json.loads(done.stdout)["source"]
    resume = ("--resume", "--results", str(aside), "--interface", "lo", "--json")
    done = kit.run(tmp_path, "host", *resume, cwd=kit.ROOT)
    assert done.returncode == 2
    assert "p2prl eval takes it" in done.stderr


def test_one_checkpoint_can_be_evaluated(ended: Path, tmp_path: Path) -> None:
    path = numbered(ended)[2]
    done = kit.run(tmp_path, "eval", str(path), "-n", "1", "--json", cwd=kit.ROOT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["weights_version"] == checkpoint.load(path).meta.version
    assert path.name in told["source"]


def test_a_damaged_checkpoint_is_said_and_nothing_is_changed(ended: Path, tmp_path: Path) -> None:
    results = Path(shutil.copytree(ended, tmp_path / "run"))
    path = numbered(results)[3]
    (path / "DONE").unlink()
    before = sorted(results.rglob("*"))
    done = kit.run(
        tmp_path, "host", "--resume", "--results", str(path), "--interface", "lo", "--json", cwd=kit.ROOT
    )
    assert done.returncode == 1
    assert path.name in done.stderr.splitlines()[-1]
    assert [one for one in sorted(results.rglob("*")) if one.name != "run.lock"] == [
        one for one in before if one.name != "run.lock"
    ]
