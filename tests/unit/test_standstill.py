"""p2prl.core.standstill: when training stands still, and when that is said."""

from __future__ import annotations

from p2prl.core.standstill import NO_SESSION_S, NO_UPDATE_S, Alarm, Standstill

WHY = "waiting for sessions"


def test_updates_make_it_training_and_their_end_waiting_then_stalled() -> None:
    still = Standstill(100.0)
    assert still.look(WHY, 100.0) == ("waiting", WHY)
    still.inserted(64, 100.5)
    still.updated(101.0)
    assert still.look(WHY, 101.9) == ("training", "")
    assert still.look(WHY, 102.1) == ("waiting", WHY)
    assert still.look(WHY, 101.0 + NO_SESSION_S) == (
        "stalled",
        f"no update for 12 s: {WHY}; no session for 12 s",
    )
    still.updated(114.0)
    assert still.look(WHY, 114.5) == ("training", "")


def test_while_sessions_come_it_is_given_more_time() -> None:
    still = Standstill(0.0)
    for second in range(int(NO_UPDATE_S)):
        still.inserted(100 * second, float(second))
        assert still.look(WHY, float(second)) == ("waiting", WHY)
    still.inserted(9999, NO_UPDATE_S)
    assert still.look(WHY, NO_UPDATE_S) == ("stalled", f"no update for 30 s: {WHY}")


def test_as_long_as_sessions_come_a_trainer_that_is_short_of_them_waits() -> None:
    """A slow world takes minutes to fill what the first update needs."""
    still = Standstill(0.0)
    for second in range(0, 300, 10):
        still.inserted(second, float(second))
        assert still.look(WHY, float(second) + 9.0, short=True) == ("waiting", WHY)
    assert still.look(WHY, 290.0 + NO_SESSION_S, short=True)[0] == "stalled"


def test_a_trainer_that_just_started_waits() -> None:
    still = Standstill(0.0)
    assert still.look(WHY, 0.1)[0] == "waiting", "no update was made yet, however fresh it is"
    still.inserted(0, 5.0)  # none: as it was
    assert still.look(WHY, NO_SESSION_S)[0] == "stalled"


def test_a_loud_state_is_said_once_and_its_end_once() -> None:
    alarm = Alarm()
    assert alarm.look("waiting", WHY, 0.0) == ""
    assert alarm.look("stalled", "no update for 10 s: it waits", 10.0) == (
        "the trainer is stalled: no update for 10 s: it waits"
    )
    assert alarm.look("stalled", "no update for 11 s: it waits", 11.0) == ""
    assert alarm.look("waiting", WHY, 12.0) == ""
    assert alarm.look("failed", "ValueError", 13.0) == ""
    assert alarm.look("training", "", 14.0) == "the trainer goes on"
    assert alarm.look("training", "", 15.0) == ""
    assert alarm.look("failed", "ValueError", 99.0) == "the trainer has failed: ValueError"


def test_what_comes_and_goes_is_not_said_each_time() -> None:
    alarm = Alarm()
    said = []
    for second in range(600):
        state = "stalled" if second % 20 >= 10 else "training"
        said.append(alarm.look(state, "why", float(second)))
    assert 5 <= sum("stalled" in line for line in said) <= 10
    assert sum(line == "the trainer goes on" for line in said) == sum("stalled" in line for line in said)
