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
from tests.loopback.survival_kit import (
    END_S,
    RECOVERY_S,
    Run,
    Watch,
    checkpoints_intact,
    family,
    hosted,
    in_order,
    kill_all,
    last,
    more_stored,
    nothing_lost,
    pause,
    stored,
    told,
)

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
    with hosted(tmp_path, *flags) as run, run.join() as joiner:
        more_stored(joiner, 20)
        learned, version = checkpoints_intact(run.results), last(run.host)["weights_version"]
        ballast = fill(disk)
        joiner.wait_for("progress", waits_for_a_shard, RECOVERY_S)
        run.host.wait_for("progress", says_so, RECOVERY_S)
        files = {path for path in run.results.rglob("*") if path.suffix == ".seg"}
        for term in (2, 3):  # which the broker cannot write down
            kill_all([*run.host.children("broker"), *run.host.children("trainer")])
            joiner.wait_for("joined", lambda e, n=term: e["term"] == n, RECOVERY_S)
            wait_until(lambda: run.host.children("trainer"), RECOVERY_S, "a new trainer")
        kept = waiting(run)
        acknowledged = stored(joiner)
        nothing_lost(run.kept(), run.key(), acknowledged)
        assert files <= set(run.results.rglob("*")), "something was deleted"
        ballast.unlink()
        watch = Watch()
        more_stored(joiner, kept + 5)
        took_s = watch.seconds()
        run.host.wait_for(
            "progress", lambda e: e["weights_version"] > version and e["updates"] > learned, RECOVERY_S
        )
        wait_until(
            lambda: checkpoints_intact(run.results) > learned, RECOVERY_S, "checkpoints are written again"
        )
        wait_until(lambda: not last(run.host)["warnings"], RECOVERY_S, "the warning goes with its cause")
        assert joiner.end(END_S) == 0
        left = joiner.last("left")
        assert left is not None
        assert kit.balanced(left["bundles"])
        assert left["bundles"]["dropped"] == left["bundles"]["refused"] == 0
        nothing_lost(run.kept(), run.key(), left["bundles"]["stored"])
        in_order(run.kept(), run.key(), left["bundles"])
        versions = [event["weights_version"] for event in run.host.of("progress")]
        assert versions == sorted(versions)
        assert run.host.end(END_S) == 0
    told(capsys, "full disk", acknowledged, took_s)


def waits_for_a_shard(event: kit.Event) -> bool:
    return bool(event["state"] == "paused" and "wait for a shard" in event["reason"])


def says_so(event: kit.Event) -> bool:
    return any("No space left on device; make room there" in text for text in event["warnings"])


def waiting(run: Run) -> int:
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
            hosted(tmp_path, "--results", str(disk / "results"), "--players", "0", *fast)
        )
        joiner = stack.enter_context(run.join())
        more_stored(joiner, 20)
        ballast = fill(disk)
        joiner.wait_for("progress", waits_for_a_shard, RECOVERY_S)
        updates = last(run.host)["updates"]
        pause(5.0)  # in which some fifty versions are published
        assert last(run.host)["updates"] > updates
        kill_all(family(run.host))
        acknowledged = stored(joiner)
        resume = ("--resume", "--results", str(run.results), "--players", "0")
        with kit.host(tmp_path, *resume, name=f"h{run.base}", port=run.base, cwd=kit.ROOT) as program:
            assert program.wait(END_S) == 1
            assert "No space left on device" in program.errors[-1]
            assert len(program.errors) <= 2
        ballast.unlink()
        again = stack.enter_context(hosted(tmp_path, *resume, base=run.base))
        more_stored(joiner, 40)
        versions = [event["current_version"] for event in joiner.of("progress")]
        assert versions == sorted(versions)
        assert joiner.end(END_S) == 0
        left = joiner.last("left")
        assert left is not None
        assert left["bundles"]["refused"] == left["bundles"]["dropped"] == 0
        nothing_lost(again.kept(), run.key(), max(acknowledged, left["bundles"]["stored"]))
        in_order(again.kept(), run.key(), left["bundles"])
        assert again.host.end(END_S) == 0
