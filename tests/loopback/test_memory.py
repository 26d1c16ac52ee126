"""What a member and its players keep of weights: the newest (G4, case 37)."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests import kit

#: 280 kB in float32: five hundred of them kept would be 140 MB.
LARGE = (
    "--set",
    "agent.hidden=[256, 256]",
    "--set",
    "replay.samples_per_insert=0",
    "--set",
    "train.publish_interval_s=0.01",
)
UPDATES, MOST_GROWTH = 500, 30_000_000


def resident(processes: list[psutil.Process]) -> list[int]:
    return [process.memory_info().rss for process in processes]


def test_memory_is_flat_over_five_hundred_versions_of_the_weights(tmp_path: Path) -> None:
    with kit.host(tmp_path, "chain", "--players", "0", *LARGE) as host:
        host.wait_for("started")
        with kit.join(tmp_path, "--players", "1") as member:
            began = member.wait_for("progress", lambda e: e["weights_version"] > 50, 60)["weights_version"]
            processes = [psutil.Process(member.pid), *member.children("player"), *host.children("broker")]
            assert len(processes) == 3
            before = resident(processes)
            member.wait_for("progress", lambda e: e["weights_version"] > began + UPDATES, 120)
            grown = [now - then for now, then in zip(resident(processes), before, strict=True)]
            assert max(grown) < MOST_GROWTH, f"bytes that member, player and broker grew by: {grown}"
            assert member.end() == 0
        assert host.end() == 0
