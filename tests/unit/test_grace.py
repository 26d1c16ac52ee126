"""How long an ending may take."""

from __future__ import annotations

from p2prl.nodes.grace import CHILD_S, Timetable, more_s


def test_many_players_have_more_time_and_few_have_not() -> None:
    assert Timetable.of(0) == Timetable()
    assert Timetable().over_s < 5.0  # the promise of `p2prl host --help`'s page
    assert more_s(64, 2) > more_s(24, 2) > more_s(8, 2) == 0.0


def test_the_parts_of_an_ending_follow_each_other_and_a_child_outlives_its_part() -> None:
    for players in (0, 64, 256):
        by = Timetable.of(players)
        assert by.farewell_s < by.unborn_s < by.played_s < by.others_s < by.over_s
        assert by.played_s < by.last_status_s < by.over_s, "they wait for the members' goodbyes"
        assert by.others_s < CHILD_S + more_s(players)
