"""What a member and its players keep of weights: the newest (G4, case 37)."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests import kit

#: 1.1 MB in float32; a version is 60 kB and more on its way, so that five hundred of them kept would be over 30 MB.
LARGE = (
    "--set",
    "agent.hidden=[512, 512]",
    "--set",
    "replay.samples_per_insert=0",
    "--set",
    "train.publish_interval_s=0.01",
)
UPDATES = 500
#: Of member and player. A broker that had little to do before may queue some dozens of versions for a busy member.
MOST_GROWTH, MOST_OF_BROKER = 15_000_000, 28_000_000


def resident(processes: list[psutil.Process]) -> list[int]:
    return [process.memory_info().rss for process in processes]


def test_memory_is_flat_over_five_hundred_versions_of_the_weights(tmp_path: Path) -> None:
    with kit.host(tmp_path, "chain", "--players", "0", *LARGE) as host:
        host.wait_for("started")
        with kit.join(tmp_path, "--players", "1") as member:
            began = member.wait_for("progress", lambda e: e["weights_version"] > 150, 60)["weights_version"]
            processes = [psutil.Process(member.pid), *member.children("player"), *host.children("broker")]
            assert len(processes) == 3
            before = resident(processes)
            member.wait_for("progress", lambda e: e["weights_version"] > began + UPDATES, 120)
            grown = [now - then for now, then in zip(resident(processes), before, strict=True)]
            told = f"bytes that member, player and broker grew by: {grown}"
            assert max(grown[:2]) < MOST_GROWTH, told
            assert grown[2] < MOST_OF_BROKER, told
            assert member.end() == 0
        assert host.end() == 0
