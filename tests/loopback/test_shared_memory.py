"""Samples through memory that a host's shards and trainer share: what the learner gets is what was played."""

from __future__ import annotations

import os
import sys
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
    found = [line.split(maxsplit=5) for line in lines if "/memfd:p2prl-ring-" in line]
    return {fields[5].removeprefix("/memfd:").split()[0]: fields[1][:2] for fields in found}


@pytest.mark.parametrize("window", [0, 4])
def test_a_trainer_reads_what_shards_write_and_goes_on_when_one_is_killed(
    tmp_path: Path, window: int
) -> None:
    with kit.host(tmp_path, *_FLAGS, "--set", f"agent.window={window}") as host:
        host.wait_for("started")
        before = host.wait_for("progress", lambda e: e["updates"] > 300)
        [trainer], shards = host.children("trainer"), host.children("shard")
        assert rings(trainer) == {"p2prl-ring-0": "r-", "p2prl-ring-1": "r-"}
        assert sorted(name for shard in shards for name in rings(shard)) == ["p2prl-ring-0", "p2prl-ring-1"]
        assert {rights for shard in shards for rights in rings(shard).values()} == {"rw"}
        for others in (host.children("broker"), host.children("member"), host.children("player")):
            assert all(not rings(other) for other in others)
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
        wait_until(lambda: len(rings(trainer)) == 2, 20)
        children = host.children()
        host.kill()
        wait_until(lambda: not any(child.is_running() for child in children), 20)
