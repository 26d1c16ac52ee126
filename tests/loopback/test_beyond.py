"""More than the machine has, on a host and on a joiner: allowed, said in one line, and they play.

More than can be sent is refused before anything is played.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from p2prl.core.schema import Column, SessionSchema
from p2prl.errors import UsageError
from p2prl.wire.bundle import check_slots
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


#: 17 MB a session: fifteen of them can be sent at once.
LARGE = ("--env", "tests.samples:Noise-v0", "--set", "env.args.size=1_000_000", "--set", "agent.min_ticks=16")


def test_slots_whose_bundles_cannot_be_sent_are_refused_before_anything_is_played(tmp_path: Path) -> None:
    base = kit.free_base()
    large = (*LARGE, *IDLE)
    with kit.host(
        tmp_path, *large, "--envs", "16", "--players", "0", name=f"l{base}", port=base, cwd=kit.ROOT
    ) as host:
        assert host.wait(30) == 2
    assert (
        "--envs 16 makes bundles of 272 MB where 268.4 MB are possible: use --envs 15 or less" in host.stderr
    )
    assert not (tmp_path / "results").exists()
    with kit.host(
        tmp_path, *large, "--envs", "1", "--players", "0", name=f"l{base}", port=base, cwd=kit.ROOT
    ) as host:
        host.wait_for("started")
        target = f"127.0.0.1:{base}"
        with kit.join(tmp_path, "--envs", "100", target=target, agent=kit.IDLE, cwd=kit.ROOT) as joiner:
            assert joiner.wait(30) == 1
        assert "--envs 100 makes bundles of 1.7 GB" in joiner.stderr
        assert host.end() == 0


def test_a_session_that_cannot_be_sent_at_all_asks_for_fewer_ticks() -> None:
    schema = SessionSchema(ticks=1, columns=(Column("obs", "uint8", (300_000_000,)),))
    with pytest.raises(UsageError, match=r"possible: use a smaller replay\.ticks"):
        check_slots(schema, 1)
