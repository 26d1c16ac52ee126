"""How the broker sees its trainer: p2prl.nodes.status.trainer_state and p2prl.nodes.trainer_watch."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from p2prl.core import messages as m
from p2prl.core.membership import Roster
from p2prl.nodes.status import environment_warnings, nobody_plays, trainer_state
from p2prl.nodes.trainer_watch import TrainerWatch, absence
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


def test_a_trainer_without_sessions_waits_while_they_are_played() -> None:
    short = m.TrainerReport(state="stalled", reason=STALLED.reason, short=True)

    def slow(state: str = "working", **books: int) -> m.NodeStatus:
        report = m.PlayerReport(rank=0, state="working", steps=40, under_way=40)
        return node(1, state=state, player_reports=[report], bundles=m.Books(**books))

    assert trainer_state(short, 0.1, [slow()]) == (
        "waiting",
        f"{short.reason}; 40 steps of the next are played",
    )
    assert trainer_state(short, 0.1, [slow(refused=3, stored=1)])[0] == "waiting"
    assert trainer_state(short, 0.1, [slow(refused=3)])[0] == "stalled", "what it plays is of no use"
    assert trainer_state(short, 0.1, [slow("stalled")])[0] == "stalled"
    assert trainer_state(short, 0.1, [node(1)])[0] == "stalled", "it plays nothing"
    assert trainer_state(STALLED, 0.1, [slow()])[0] == "stalled", (
        "the trainer has what it needs, and does not train"
    )


def test_a_trainer_without_sessions_waits_between_two_bundles_of_a_slow_environment() -> None:
    """None is under way until the next one's first step is over."""
    short = m.TrainerReport(state="stalled", reason=STALLED.reason, short=True)
    roster = Roster()
    slow = roster.hello("k", "lab", "b", 1, [], 0.0)
    for step in range(1, 4):
        roster.heartbeat("k", "b", step, "", 15.0 * step)
    roster.played("k", 46.0)  # all of them are stored

    def row(now: float, **changes: Any) -> m.NodeStatus:
        roster.heartbeat("k", "b", 3, "", now)
        roster.ticked(now)
        return node(1, state=slow.state, step_s_ago=now - slow.progressed, **changes)

    assert trainer_state(short, 0.1, [row(58.5)]) == (
        "waiting",
        f"{short.reason}; a step of laptop-01 takes 12 s so far",
    )
    assert trainer_state(STALLED, 0.1, [row(58.5)])[0] == "stalled", "it has what it needs"
    assert trainer_state(short, 0.1, [row(58.5, bundles=m.Books(refused=3))])[0] == "stalled"
    assert trainer_state(short, 0.1, [row(55.9)])[0] == "stalled", (
        "a step of any environment may take that long"
    )
    assert trainer_state(short, 0.1, [row(77.0)])[0] == "stalled", "it never took so long"


def test_a_trainer_without_sessions_waits_for_a_first_step_that_is_not_too_long() -> None:
    short = m.TrainerReport(state="stalled", reason=STALLED.reason, short=True)

    def first(state: str) -> m.NodeStatus:
        report = m.PlayerReport(rank=0, state="starting", first_step_s=14.0)
        return node(1, state=state, player_reports=[report])

    told = f"{short.reason}; {first('starting').name} is in its first step"
    assert trainer_state(short, 0.1, [first("stalled"), first("starting")]) == ("waiting", told)
    assert trainer_state(short, 0.1, [first("stalled")])[0] == "stalled"
    assert trainer_state(STALLED, 0.1, [first("starting")])[0] == "stalled", "it has what it needs"


def test_silence_and_failure_go_before_what_was_said_last() -> None:
    training = m.TrainerReport(state="training")
    assert trainer_state(training, 0.1, []) == ("training", "")
    assert trainer_state(training, 12.3, []) == ("stalled", "the trainer was not heard for 12 s")
    assert trainer_state(FAILED, 12.3, []) == ("failed", "ValueError: no")


def test_a_trainer_that_starts_is_silent_for_long_and_does_not_stand_still() -> None:
    assert trainer_state(STARTING, 60.0, []) == ("starting", "loading the agent")
    watch, training = TrainerWatch(), m.TrainerReport(state="training", updates=7)
    assert watch.greeted(STARTING, "first").state == "starting"
    assert watch.greeted(training, "first") == training  # said again, after a connection was lost
    anew = watch.greeted(training, "second")  # the first was killed
    assert (anew.state, anew.updates) == ("starting", 7)


def test_what_a_killed_trainer_had_learned_since_its_checkpoint_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch, before = TrainerWatch(), m.TrainerReport(state="training", updates=2372)
    with caplog.at_level(logging.WARNING, "p2prl"):
        starting = watch.greeted(before, "second")
        first = m.TrainerReport(state="waiting", updates=1000)
        watch.reported(starting, first, 1.0)
        watch.reported(first, m.TrainerReport(state="training", updates=1001), 2.0)
    assert [record.getMessage() for record in caplog.records] == [
        "1,372 updates went with the trainer that ended: no checkpoint had them. Training goes on from there"
    ]
    caplog.clear()
    watch.reported(starting, m.TrainerReport(state="training", updates=2372), 1.0)
    assert not caplog.records, "nothing was lost"


def test_players_are_told_what_is_amiss_with_the_trainer() -> None:
    training = m.TrainerReport(state="training")
    assert absence(training, 1.0) == ""
    assert absence(training, 11.0) == "the trainer does not answer"
    assert absence(STARTING, 11.0) == "the trainer is starting"
    assert absence(FAILED, 1.0) == "the trainer failed"


def test_failures_are_counted_and_told_for_a_minute() -> None:
    watch = TrainerWatch()
    assert watch.warnings(0.0) == []
    before = STARTING
    for now, report in enumerate((FAILED, FAILED, STARTING, FAILED, STARTING)):
        watch.reported(before, report, float(now))
        before = report
    assert watch.warnings(30.0) == ["the trainer failed 2 times: ValueError: no"]
    assert watch.warnings(100.0) == []


def played(failures: int = 0, steps: int = 5000, episodes: int = 9, **changes: Any) -> m.NodeStatus:
    player = m.PlayerReport(rank=0, state="working", steps=steps, failures=failures)
    return node(1, name="desk", steps=steps, episodes=episodes, player_reports=[player], **changes)


def test_environments_that_fail_often_are_named_with_their_last_words() -> None:
    assert environment_warnings([played(failures=5, steps=5000)]) == []
    assert environment_warnings([played(failures=4, steps=10)]) == []
    assert environment_warnings([played(failures=6, faults=["x: a NaN"])]) == [
        "desk: environments failed again and again: x: a NaN"
    ]
    assert environment_warnings([played(failures=6, state="gone")]) == []
    told = {
        text
        for failures in range(6, 7584)
        for text in environment_warnings(
            [played(failures=failures, faults=["x: a NaN (1,000 times so far)"])]
        )
    }
    assert told == {
        f"desk: environments failed {often}: x: a NaN"
        for often in ("again and again", "10 times and more", "100 times and more", "1,000 times and more")
    }, "a line that changes each second would be told each second, and with another count than the player's"


def test_episodes_that_never_end_are_told() -> None:
    assert environment_warnings([played(steps=60_000, episodes=0)]) == []
    assert environment_warnings([played(steps=60_000, episodes=0), played(steps=60_000, episodes=1)]) == []
    [text] = environment_warnings([played(steps=60_000, episodes=0)] * 2)
    assert text.startswith("no episode ended in 120,000 steps")


def test_who_could_join_a_host_without_players() -> None:
    others = nobody_plays("attic", ["127.0.0.1", "192.0.2.20"], 47800)
    assert others == "no players: waiting for `p2prl join attic` on another machine"
    here = nobody_plays("attic", ["127.0.0.1"], 47800)
    assert here.endswith(
        "no other machine reaches this host; waiting for `p2prl join 127.0.0.1:47800` on this one"
    )
    assert "`p2prl join [::1]:47810`" in nobody_plays("attic", ["::1"], 47810)
