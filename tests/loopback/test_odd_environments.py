"""Environments that give what they should not (G3, cases 33 and 35): named, never a reason to put a node out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import kit
from tests.conftest import wait_until
from tests.loopback.survival_kit import END_S, PACED, RECOVERY_S, hosted

COIN = f"{kit.SAMPLES / 'drill.py'}:Coin"
ODD = ("--env", "tests.samples:Odd-v0", "--agent", COIN, "--envs", "2")


def row_of(run: Any) -> kit.Event:
    [row] = run.status()["nodes"]
    return dict(row)


def nothing_refused(row: kit.Event) -> bool:
    return not row["bundles"]["refused"] and not row["refused_by_host"] and row["standing"] == "admitted"


def test_what_lies_outside_is_said_once_by_name_and_the_run_goes_on(tmp_path: Path) -> None:
    outside = ("--set", "env.args.obs=1.5", "--set", "env.args.reward=3.0")
    with hosted(tmp_path, "--players", "1", settings=(*ODD, *outside)) as run:
        shown = run.host.wait_for("progress", lambda e: e["updates"] > 5 and e["episodes"] > 10, RECOVERY_S)
        assert shown["return_mean"] == 20.0, "rewards are taken as the nearest one that it declares"
        wait_until(lambda: len(row_of(run)["faults"]) >= 2, RECOVERY_S, "both are said")
        row = row_of(run)
        assert nothing_refused(row)
        assert sorted(row["faults"]) == [
            "warning: tests.samples:Odd-v0: a reward of 3, and its reward_range is 0 to 1: it is taken as 1; "
            "correct one of them",
            "warning: tests.samples:Odd-v0: obs.place[1] was 1.5, and its space says 0 to 1",
        ]
        assert row["player_reports"][0]["failures"] == row["player_reports"][0]["restarts"] == 0
        assert run.host.end(END_S) == 0
        log = (run.results / "host.log").read_text()
        assert "is not within the observation space" not in log, (
            "Gymnasium's checker says the same, less clearly"
        )
        # Once by the player to its member, once by the member to its host.
        assert log.count("obs.place[1] was 1.5") == log.count("a reward of 3,") == 2


def test_what_gymnasium_warns_of_is_one_plain_line_for_all_players(tmp_path: Path) -> None:
    with hosted(tmp_path, "--players", "2", settings=(*ODD, "--set", "env.args.warns=true")) as run:
        wait_until(
            lambda: all(player["steps"] for player in row_of(run)["player_reports"]), RECOVERY_S, "both play"
        )
        assert run.host.end(END_S) == 0
        log = (run.results / "host.log").read_text()
    for text in (log, run.host.stderr):
        assert "logger.warn(" not in text
        assert "[33m" not in text
        told = [line.partition(": player ")[2].partition(": ")[2] for line in text.splitlines()]
        ours = [line for line in told if "this world is out of date" in line]
        assert ours, text
        assert len(ours) == len(set(ours))


def test_a_step_that_is_no_number_is_refused_where_it_is_played_and_named(tmp_path: Path) -> None:
    now_and_then = ("--set", "env.args.nan=0.02", "--set", "env.args.nan_obs=0.02")
    with hosted(tmp_path, "--players", "1", settings=(*ODD, *now_and_then)) as run:
        run.host.wait_for("progress", lambda e: e["updates"] > 20 and e["steps"] > 2000, RECOVERY_S)
        row = row_of(run)
        assert nothing_refused(row)
        assert row["player_reports"][0]["failures"] > 10
        assert any(
            "step gave the reward nan" in fault or "step gave obs.place[1] = nan" in fault
            for fault in row["faults"]
        )
        assert run.host.end(END_S) == 0


def test_nothing_but_nan_is_no_session_and_that_is_said_with_its_cause(tmp_path: Path) -> None:
    with hosted(tmp_path, "--players", "1", settings=(*ODD, "--set", "env.args.nan=1.0")) as run:
        shown = run.host.wait_for("progress", lambda e: e["trainer"] == "stalled", RECOVERY_S)
        assert "no update for 1" in shown["trainer_reason"]
        assert "no session for 1" in shown["trainer_reason"]
        assert "step gave the reward nan" in shown["trainer_reason"]
        trainer = run.status()["trainer"]
        assert trainer["state"] == "stalled"
        assert "step gave the reward nan" in trainer["reason"]
        line = run.host.wait_for_line("the trainer is stalled: no update for")
        assert "step gave the reward nan" in line
        run.host.wait_for("progress", lambda e: "no session for 15 s" in e["trainer_reason"], RECOVERY_S)
        row = row_of(run)
        assert nothing_refused(row)
        assert row["bundles"]["produced"] == 0
        assert run.host.end(END_S) == 0
        assert len([line for line in run.host.errors if "the trainer is stalled" in line]) == 1


def test_training_that_stops_is_loud_and_says_when_it_goes_on(tmp_path: Path) -> None:
    """Its one player hangs in a step; another one comes."""
    settings = (*ODD, "--set", "env.args.limit=600")
    with hosted(tmp_path, "--players", "0", settings=settings) as run, run.join(agent=COIN) as joiner:
        run.host.wait_for("progress", lambda e: e["updates"] > 5, RECOVERY_S)
        shown = run.host.wait_for("progress", lambda e: e["trainer"] == "stalled", RECOVERY_S)
        assert "no session for" in shown["trainer_reason"]
        assert "joiner: no step for" in shown["trainer_reason"]
        assert row_of(run)["step_s_ago"] >= 10.0
        run.host.wait_for_line("trainer is stalled")
        with run.join(name="second", agent=COIN) as second:
            run.host.wait_for("progress", lambda e: e["trainer"] == "training", RECOVERY_S)
            run.host.wait_for_line("the trainer goes on")
            assert second.end(END_S) == 0
        assert joiner.end(END_S) == 0
        # Nobody plays: that is no fault of the trainer's.
        run.host.wait_for("progress", lambda e: "nobody plays" in e["trainer_reason"], RECOVERY_S)
        assert run.host.end(END_S) == 0


def test_a_slow_environment_is_seen_to_work_long_before_its_first_bundle(tmp_path: Path) -> None:
    """One of 64 ticks at 0.6 s each: longer than what makes a node, or a trainer, stalled."""
    slow = ("--set", "env.args.tick_s=0.6", "--set", "agent.ticks=64", "--set", "agent.min_ticks=64")
    with hosted(tmp_path, "--players", "1", settings=(*PACED, *slow)) as run:
        seen: list[tuple[int, int]] = []

        def waits() -> kit.Event | None:
            row, trainer = row_of(run), run.status()["trainer"]
            seen.append((row["steps"], row["bundles"]["produced"]))
            assert row["state"] in ("starting", "working"), row
            assert trainer["state"] in ("starting", "waiting"), trainer
            return trainer if "of the next are played" in trainer["reason"] else None

        trainer: Any = wait_until(waits, RECOVERY_S, "sessions that are played")
        assert "no session for 1" in trainer["reason"]
        steps = [count for count, _ in seen]
        assert steps == sorted(steps)
        assert len(set(steps)) > 2
        assert {produced for _, produced in seen} == {0}
        assert run.host.end(END_S) == 0
