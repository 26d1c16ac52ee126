"""The host's disk is full: shards are busy, members keep what they have, and all of it arrives once there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import kit
from tests.conftest import wait_until
from tests.loopback import survival_kit as survival

DISK_BYTES = 8_000_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own, in memory. Linux and root only."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("mount") is None:
        if os.environ.get("CI"):
            pytest.fail("a small disk needs Linux and root, and in CI this test must run")
        pytest.skip("a small disk needs Linux and root")
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True, timeout=30)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


def fill(disk: Path) -> Path:
    """Take every byte that is left on it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for block in (64 * 1024, 4096, 1):
            try:
                while True:
                    file.write(b"x" * block)
            except OSError:
                continue
    return ballast


@pytest.mark.timeout(240)
def test_a_full_disk_loses_nothing_and_everybody_says_so(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G2, case 17. While it is full the broker and the trainer are killed, too."""
    flags = ("--results", str(disk / "results"), "--players", "0", "--set", "play.window_bundles=16")
    with survival.hosted(tmp_path, *flags) as run, run.join() as joiner:
        survival.more_stored(joiner, 20)
        learned, version = (
            survival.checkpoints_intact(run.results),
            survival.last(run.host)["weights_version"],
        )
        ballast = fill(disk)
        joiner.wait_for("progress", waits_for_a_shard, survival.RECOVERY_S)
        run.host.wait_for("progress", says_so, survival.RECOVERY_S)
        files = {path for path in run.results.rglob("*") if path.suffix == ".seg"}
        for term in (2, 3):  # which the broker cannot write down
            survival.kill_all([*run.host.children("broker"), *run.host.children("trainer")])
            joiner.wait_for("joined", lambda e, n=term: e["term"] == n, survival.RECOVERY_S)
            wait_until(lambda: run.host.children("trainer"), survival.RECOVERY_S, "a new trainer")
        kept = waiting(run)
        acknowledged = survival.stored(joiner)
        survival.nothing_lost(run.kept(), run.key(), acknowledged)
        assert files <= set(run.results.rglob("*")), "something was deleted"
        ballast.unlink()
        watch = survival.Watch()
        survival.more_stored(joiner, kept + 5)
        took_s = watch.seconds()
        run.host.wait_for(
            "progress",
            lambda e: e["weights_version"] > version and e["updates"] > learned,
            survival.RECOVERY_S,
        )
        wait_until(
            lambda: survival.checkpoints_intact(run.results) > learned,
            survival.RECOVERY_S,
            "checkpoints are written again",
        )
        wait_until(
            lambda: not survival.last(run.host)["warnings"],
            survival.RECOVERY_S,
            "the warning goes with its cause",
        )
        assert joiner.end(survival.END_S) == 0
        left = joiner.last("left")
        assert left is not None
        assert kit.balanced(left["bundles"])
        assert left["bundles"]["dropped"] == left["bundles"]["refused"] == 0
        survival.nothing_lost(run.kept(), run.key(), left["bundles"]["stored"])
        survival.in_order(run.kept(), run.key(), left["bundles"])
        versions = [event["weights_version"] for event in run.host.of("progress")]
        assert versions == sorted(versions)
        assert run.host.end(survival.END_S) == 0
    survival.told(capsys, "full disk", acknowledged, took_s)


def waits_for_a_shard(event: kit.Event) -> bool:
    return bool(event["state"] == "paused" and "wait for a shard" in event["reason"])


def says_so(event: kit.Event) -> bool:
    return any("No space left on device; make room there" in text for text in event["warnings"])


def waiting(run: survival.Run) -> int:
    """Bundles that the joiner keeps meanwhile; none is lost, and none is refused."""
    books = run.row()["bundles"]
    assert kit.balanced(books)
    assert books["dropped"] == books["refused"] == 0
    return int(books["pending"])


@pytest.mark.timeout(240)
def test_a_host_that_dies_on_a_full_disk_says_what_is_in_the_way_and_brings_no_version_back(
    tmp_path: Path, disk: Path
) -> None:
    """Training goes on while nothing can be written; but weights that the run's files do not name go to nobody."""
    fast = ("--set", "agent.samples_per_insert=0", "--set", "play.window_bundles=16")
    with ExitStack() as stack:
        run = stack.enter_context(
            survival.hosted(tmp_path, "--results", str(disk / "results"), "--players", "0", *fast)
        )
        joiner = stack.enter_context(run.join())
        survival.more_stored(joiner, 20)
        ballast = fill(disk)
        joiner.wait_for("progress", waits_for_a_shard, survival.RECOVERY_S)
        updates = survival.last(run.host)["updates"]
        survival.pause(5.0)  # in which some fifty versions are published
        assert survival.last(run.host)["updates"] > updates
        survival.kill_all(survival.family(run.host))
        acknowledged = survival.stored(joiner)
        resume = ("--resume", "--results", str(run.results), "--players", "0")
        with kit.host(tmp_path, *resume, name=f"h{run.base}", port=run.base, cwd=kit.ROOT) as program:
            assert program.wait(survival.END_S) == 1
            assert "No space left on device" in program.errors[-1]
            assert len(program.errors) <= 2
        ballast.unlink()
        again = stack.enter_context(survival.hosted(tmp_path, *resume, base=run.base))
        survival.more_stored(joiner, 40)
        versions = [event["current_version"] for event in joiner.of("progress")]
        assert versions == sorted(versions)
        assert joiner.end(survival.END_S) == 0
        left = joiner.last("left")
        assert left is not None
        assert left["bundles"]["refused"] == left["bundles"]["dropped"] == 0
        survival.nothing_lost(again.kept(), run.key(), max(acknowledged, left["bundles"]["stored"]))
        survival.in_order(again.kept(), run.key(), left["bundles"])
        assert again.host.end(survival.END_S) == 0
