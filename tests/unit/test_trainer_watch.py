"""How the broker sees its trainer: p2prl.nodes.status.trainer_state and p2prl.nodes.trainer_watch."""

from __future__ import annotations

from p2prl.core import messages as m
from p2prl.nodes.status import trainer_state
from p2prl.nodes.trainer_watch import TrainerWatch
from tests.unit.cli_samples import node

STALLED = m.TrainerReport(state="stalled", reason="no update for 31 s: waiting for sessions")
FAILED = m.TrainerReport(state="failed", reason="ValueError: no")
STARTING = m.TrainerReport(state="starting")


def test_a_standstill_is_told_with_who_may_be_its_cause() -> None:
    well, gone = node(1), node(2, state="gone", reason="left")
    sick = node(3, state="starting", reason="Nan-v0: slot 0: step gave the reward nan")
    assert trainer_state(STALLED, 0.1, [well, gone]) == ("stalled", STALLED.reason)
    assert trainer_state(STALLED, 0.1, [well, sick]) == (
        "stalled",
        f"{STALLED.reason}; laptop-03: Nan-v0: slot 0: step gave the reward nan",
    )
    assert trainer_state(STALLED, 0.1, [gone]) == ("waiting", f"{STALLED.reason}; nobody plays")
    assert trainer_state(STALLED, 0.1, [node(4, players=0)])[0] == "waiting"


def test_silence_and_failure_go_before_what_was_said_last() -> None:
    training = m.TrainerReport(state="training")
    assert trainer_state(training, 0.1, []) == ("training", "")
    assert trainer_state(training, 12.3, []) == ("stalled", "the trainer was not heard for 12 s")
    assert trainer_state(FAILED, 12.3, []) == ("failed", "ValueError: no")


def test_failures_are_counted_and_told_for_a_minute() -> None:
    watch = TrainerWatch()
    assert watch.warnings(0.0) == []
    before = STARTING
    for now, report in enumerate((FAILED, FAILED, STARTING, FAILED, STARTING)):
        watch.reported(before, report, float(now))
        before = report
    assert watch.warnings(30.0) == ["the trainer failed 2 times: ValueError: no"]
    assert watch.warnings(100.0) == []
