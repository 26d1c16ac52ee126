"""`--resume` with what a kill, a disk or a person left behind. Rows of reliability.md, and G2's case 27."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from p2prl.nodes import checkpoint
from p2prl.settings import EXPERIMENT_FILE, load_experiment
from tests import kit
from tests.conftest import wait_until
from tests.loopback import survival_kit as survival

#: So that there are some to damage.
MANY = (
    "--set", "train.checkpoint_interval_s=0.2",
    "--set", "train.keep_checkpoints=6",
)  # fmt: skip


@dataclass(frozen=True)
class Killed:
    """A run whose host was killed with -9, and what its shards had stored by then."""

    results: Path
    steps: int
    version: int
    bundles: int

    def copy(self, folder: Path) -> Path:
        """The run's folder for one test alone."""
        return Path(shutil.copytree(self.results, folder / "run"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    with survival.hosted(tmp_path_factory.mktemp("killed"), "--players", "1", *MANY) as run:
        wait_until(lambda: len(numbered(run.results)) >= 6, survival.RECOVERY_S, "six checkpoints")
        run.host.wait_for("progress", timeout=survival.RECOVERY_S)  # checkpoints may come before
        figures = survival.last(run.host)
        survival.kill_all(survival.family(run.host))
        return Killed(run.results, figures["steps"], figures["weights_version"], len(run.kept()))


def numbered(results: Path) -> list[Path]:
    """All checkpoints but `best`, the oldest first."""
    return sorted(path for path in (results / "checkpoints").glob("0*") if (path / "DONE").exists())


@contextmanager
def resumed(folder: Path, results: Path, *flags: str) -> Iterator[survival.Run]:
    """A host that goes on with the run in `results`, with a player."""
    with survival.hosted(folder, "--resume", "--results", str(results), "--players", "1", *flags) as run:
        yield run


def test_half_written_checkpoints_are_passed_over_and_do_not_come_in_the_way_later(
    killed: Killed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = killed.copy(tmp_path)
    good, *newer = numbered(results)[-4:]
    # Far ahead of what is trained from now on, as if they were written seldom.
    cut, empty, unfinished = (
        path.rename(path.with_name(f"{10**6 + number:010d}-v9999")) for number, path in enumerate(newer)
    )
    learner = cut / "learner.safetensors"
    learner.write_bytes(learner.read_bytes()[:-3])
    (empty / "weights.safetensors").write_bytes(b"")
    (unfinished / "DONE").unlink()
    updates = checkpoint.load(good).meta.updates
    watch = survival.Watch()
    with resumed(tmp_path, results, "--set", "train.keep_checkpoints=2") as run:
        run.host.wait_for("progress", lambda e: e["updates"] > updates, survival.RECOVERY_S)
        took_s = watch.seconds()
        for bad in (cut, empty, unfinished):
            run.host.wait_for_line(f"checkpoint skipped: .*{bad.name}")
        assert good.name in run.host.wait_for_line("using the last good checkpoint")
        first = run.host.of("progress")[0]
        assert first["weights_version"] >= killed.version
        assert first["steps"] >= killed.steps
        assert sum(shard["stored"] for shard in run.status()["shards"]) >= killed.bundles
        # What is written from now on outlives the damaged ones, which are newer by name.
        wait_until(
            lambda: survival.checkpoints_intact(results) > updates, survival.RECOVERY_S, "a new checkpoint"
        )
        survival.kill_all(survival.family(run.host))
    learned = survival.checkpoints_intact(results)
    assert learned > updates
    with resumed(tmp_path, results) as run:
        run.host.wait_for("progress", lambda e: e["updates"] > learned, survival.RECOVERY_S)
        assert "checkpoint skipped" not in run.host.stderr
        assert run.host.end(survival.END_S) == 0
    survival.told(capsys, "half-written checkpoints after a kill", killed.bundles, took_s)


def test_without_any_readable_checkpoint_the_host_says_what_to_do_and_changes_nothing(
    killed: Killed, tmp_path: Path
) -> None:
    results = killed.copy(tmp_path)
    folder = results / "checkpoints"
    for path in folder.iterdir():
        (path / "DONE").unlink(missing_ok=True)
    before = contents(folder)
    base = kit.free_base()
    flags = ("--resume", "--results", str(results), "--players", "0")
    with kit.host(tmp_path, *flags, name=f"h{base}", port=base, cwd=kit.ROOT) as program:
        assert program.wait(survival.END_S) == 1
    line = program.errors[-1]
    assert str(folder) in line
    assert "move that folder away" in line
    assert contents(folder) == before
    # Which does what it says: training begins anew, with all sessions, and no version comes back.
    folder.rename(tmp_path / "moved-away")
    with resumed(tmp_path, results) as run:
        first = run.host.wait_for("progress", lambda e: e["updates"] > 0)
        assert run.host.of("progress")[0]["steps"] >= killed.steps
        assert first["weights_version"] >= killed.version
        assert sum(shard["stored"] for shard in run.status()["shards"]) >= killed.bundles
        assert run.host.end(survival.END_S) == 0


def contents(folder: Path) -> dict[Path, bytes]:
    """All files below."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_new_flags_win_over_what_the_run_had(killed: Killed, tmp_path: Path) -> None:
    results = killed.copy(tmp_path)
    assert load_experiment(results / EXPERIMENT_FILE).play.envs == 1
    session = 17 * 64 + 16 * 8  # about: of noise, and beside it
    flags = (
        "--envs", "3",
        "--set", f"replay.capacity_bytes={20 * session}",
        "--set", "train.keep_checkpoints=1",
        "--set", "agent.samples_per_insert=0.2",
        "--stop-steps", str(killed.steps + 4000),  # of 600 a second: not before the status was seen
    )  # fmt: skip
    with resumed(tmp_path, results, *flags) as run:
        progress = run.host.wait_for("progress", lambda e: e["steps"] > killed.steps + 300)
        shards = run.status()["shards"]
        assert sum(shard["size_bytes"] for shard in shards) <= 22 * session
        assert sum(shard["stored"] for shard in shards) > killed.bundles
        run.host.wait_for("progress", lambda e: e["updates"] > progress["updates"])
        wait_until(lambda: len(numbered(results)) == 1, survival.RECOVERY_S, "one checkpoint is kept")
        assert 3 in {one.slots for one in run.kept()}
        assert run.host.wait(survival.RECOVERY_S) == 0
        stopped = run.host.last("stopped")
        assert stopped is not None
        assert stopped["reason"] == "steps"
    saved = load_experiment(results / EXPERIMENT_FILE)
    assert saved.play.envs == 3
    assert saved.replay.capacity_bytes == 20 * session
    assert saved.train.keep_checkpoints == 1
    assert saved.agent.settings["samples_per_insert"] == 0.2


@pytest.mark.skipif(sys.platform == "win32", reason="a named pipe stands for a disk that does not answer")
def test_a_restore_that_hangs_is_said_and_holds_nobody(killed: Killed, tmp_path: Path) -> None:
    results = killed.copy(tmp_path)
    segment = max((results / "replay" / "shard-0").glob("*.seg"))
    segment.unlink()
    os.mkfifo(segment)
    base = kit.free_base()
    flags = ("--resume", "--results", str(results), "--players", "0")
    with kit.host(tmp_path, *flags, name=f"h{base}", port=base, cwd=kit.ROOT) as program:
        program.wait_for_line("shard 0: is still starting after 10 s", 60.0)
        assert program.of("started") == []
        assert program.end(survival.END_S) == 0
