"""`--players` beyond the machine, on a host and on a joiner: allowed, said in one line, and they play."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests import kit

IDLE = ("--agent", kit.IDLE)
CORES = psutil.cpu_count() or 1
MANY = str(CORES + 1)
LINE = rf"{MANY} players share {CORES} cores?: .* and others wait"


def test_more_players_than_cores_are_allowed_and_said(tmp_path: Path) -> None:
    base = kit.free_base()
    with kit.host(
        tmp_path, "--env", "chain", *IDLE, "--players", MANY, "--envs", "1", name=f"m{base}", port=base
    ) as host:
        host.wait_for("started")
        host.wait_for_line(LINE)
        host.wait_for("progress", lambda e: e["steps"] > 0, 60)
        target = f"127.0.0.1:{base}"
        with kit.join(tmp_path, "--players", MANY, target=target, agent=kit.IDLE) as joiner:
            joiner.wait_for_line(LINE)
            joiner.wait_for("progress", lambda e: e["steps"] > 0, 60)
            assert joiner.end() == 0
        assert sum("players share" in line for line in joiner.errors) == 1
        assert host.end() == 0
    assert sum("players share" in line for line in host.errors) == 1


def test_as_many_players_as_there_is_room_for_are_not_worth_a_word(tmp_path: Path) -> None:
    base = kit.free_base()
    with kit.host(tmp_path, "--env", "chain", *IDLE, "--players", "1", name=f"o{base}", port=base) as host:
        host.wait_for("progress", lambda e: e["steps"] > 0, 60)
        assert host.end() == 0
    assert not any("share" in line or "are free" in line for line in host.errors)
