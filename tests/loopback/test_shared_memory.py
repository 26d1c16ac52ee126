"""Samples through memory that a host's shards and trainer share: what the learner gets is what was played."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import kit
from tests.conftest import wait_until
from tests.loopback.survival_kit import kill_all

_AGENT = f"{kit.ROOT}{os.sep}tests{os.sep}samples{os.sep}sworn.py:Sworn"
_FLAGS = ("--env", "chain", "--agent", _AGENT, "--players", "1")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")


def rings(process: psutil.Process) -> dict[str, str]:
    """The rings that a process has in its memory, with what it may do there: r, w."""
    lines = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").splitlines()
    found = [line.split(maxsplit=5) for line in lines if "/memfd:p2prl-rings" in line]
    return {fields[5].removeprefix("/memfd:").split()[0]: fields[1][:2] for fields in found}


def holders(inodes: set[int]) -> dict[int, set[int]]:
    """The processes that have one of these rings open or in their memory, and which."""
    found: dict[int, set[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is not ours
            held = set(inodes_of(folder)) & inodes
            if held:
                found[int(folder.name)] = held
    return found


def inodes_of(folder: Path) -> Iterator[int]:
    """Of all rings that the process of this folder of /proc has."""
    for line in (folder / "maps").read_text(encoding="utf-8").splitlines():
        if "/memfd:p2prl-rings" in line:
            yield int(line.split()[4])
    for link in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if link.readlink().name.startswith("memfd:p2prl-rings"):
                yield link.stat().st_ino


def flags(process: psutil.Process) -> set[int]:
    """How the rings' descriptors were opened: flags of open(2)."""
    found = set()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        if link.readlink().name.startswith("memfd:p2prl-rings"):
            lines = Path(f"/proc/{process.pid}/fdinfo/{link.name}").read_text(encoding="utf-8").splitlines()
            [line] = [line for line in lines if line.startswith("flags:")]
            found.add(int(line.split()[1], 8) & (os.O_ACCMODE | os.O_CLOEXEC))
    return found


@pytest.mark.parametrize("window", [0, 4])
def test_a_trainer_reads_what_shards_write_and_goes_on_when_one_is_killed(
    tmp_path: Path, window: int
) -> None:
    with kit.host(tmp_path, *_FLAGS, "--set", f"agent.window={window}") as host:
        host.wait_for("started")
        before = host.wait_for("progress", lambda e: e["updates"] > 300)
        [trainer], shards = host.children("trainer"), host.children("shard")
        assert len(shards) == 2
        assert rings(trainer) == {"p2prl-rings": "r-"}
        assert [rings(shard) for shard in shards] == [{"p2prl-rings": "rw"}] * 2
        assert flags(trainer) == {os.O_RDONLY | os.O_CLOEXEC}
        assert [flags(shard) for shard in shards] == [{os.O_RDWR | os.O_CLOEXEC}] * 2
        for others in (host.children("broker"), host.children("member"), host.children("player")):
            assert all(not rings(other) and not flags(other) for other in others)
        for kills in (1, 2):
            kill_all(host.children("shard")[:1])
            starts = 2 + kills
            wait_until(lambda: sum(row["starts"] for row in kit.status(tmp_path)["shards"]) == starts, 20)  # noqa: B023
            before = host.wait_for("progress", lambda e: e["updates"] > before["updates"] + 500)  # noqa: B023
        assert host.children("trainer") == [trainer], "the learner saw something that nobody played"
        assert kit.balanced(host.wait_for("progress")["bundles"])
        assert host.end(20.0) == 0
    assert "not as they were played" not in host.stderr


def test_a_killed_host_leaves_nothing_and_a_killed_trainer_finds_the_rings_again(tmp_path: Path) -> None:
    with kit.host(tmp_path, *_FLAGS) as host:
        host.wait_for("started")
        host.wait_for("progress", lambda e: e["updates"] > 100)
        killed = host.children("trainer")
        kill_all(killed)
        wait_until(lambda: host.children("trainer") not in (killed, []), 20)
        [trainer] = host.children("trainer")
        wait_until(lambda: len(rings(trainer)) == 1, 20)
        children = host.children()
        inodes = set(inodes_of(Path(f"/proc/{trainer.pid}")))
        assert len(inodes) == 1
        wanted = {trainer.pid, host.pid, *(shard.pid for shard in host.children("shard"))}
        assert set(holders(inodes)) == wanted
        host.kill()
        wait_until(lambda: not any(child.is_running() for child in children), 20)
        wait_until(lambda: not holders(inodes), 20)
