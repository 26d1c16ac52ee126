"""core/best.py: greedy means decide, play's mean stands in where it may."""

from __future__ import annotations

from p2prl.core.best import Best

FULL = 100


def evaluated(best: Best, mean: float, play: float | None = None, high: float | None = None) -> bool:
    """An evaluation came; True if its state is `best` now."""
    yes = best.by_evaluation(mean, mean if high is None else high, play, FULL if play is not None else 0)
    if yes:
        best.taken(mean, evaluated=True)
    return yes


def played(best: Best, mean: float, episodes: int = FULL) -> bool:
    yes = best.by_play(mean, episodes)
    if yes:
        best.taken(mean, evaluated=False)
    return yes


def test_without_evaluations_play_decides_and_of_equals_the_newer() -> None:
    best = Best(evaluates=False)
    assert not played(best, 5.0, episodes=99)
    assert not best.by_play(None, 0)
    assert [played(best, mean) for mean in (5.0, 4.9, 5.0, 6.0)] == [True, False, True, True]


def test_the_higher_greedy_mean_is_best_and_of_equals_the_newer() -> None:
    best = Best(evaluates=True)
    assert [evaluated(best, mean) for mean in (5.0, 4.9, 5.0, 6.0)] == [True, False, True, True]
    assert (best.mean, best.evaluated) == (6.0, True)


def test_where_play_flatters_greedy_means_alone_decide() -> None:
    best = Best(evaluates=True)
    assert played(best, 50.0), "nothing is known yet"
    assert evaluated(best, 3.0, play=50.0), "what play earned is no measure for it"
    assert not played(best, 60.0)
    assert not evaluated(best, 2.0, play=70.0)
    assert evaluated(best, 4.0, play=10.0)
    assert best.mean == 4.0


def test_play_stands_in_where_it_does_not_flatter() -> None:
    best = Best(evaluates=True)
    assert evaluated(best, 10.0, play=9.0)
    assert not played(best, 9.5)
    assert not played(best, 10.0), "an evaluated one is left for a higher mean only"
    assert played(best, 20.0)
    assert not evaluated(best, 15.0, play=14.0), "an older state, and worse than what play shows by now"
    assert evaluated(best, 21.0, play=20.0)
    assert best.evaluated


def test_a_difference_that_may_be_luck_is_not_flattery() -> None:
    best = Best(evaluates=True)
    assert evaluated(best, 10.0, play=11.0, high=12.0)
    assert played(best, 13.0)
    assert not evaluated(best, 10.0, play=13.0, high=13.5)
    assert evaluated(best, 9.0, play=13.0, high=12.5), "now it flatters, and 13 is no measure any more"


def test_few_episodes_of_play_say_nothing_about_flattery() -> None:
    best = Best(evaluates=True)
    assert best.by_evaluation(1.0, 1.0, 50.0, FULL - 1)
    best.taken(1.0, evaluated=True)
    assert played(best, 2.0)


def test_at_the_goal_best_has_reached_it() -> None:
    best = Best(evaluates=True)
    assert best.by_goal(100.0)
    evaluated(best, 99.0)
    assert best.by_goal(100.0)
    evaluated(best, 100.0)
    assert not best.by_goal(100.0)
    best.taken(200.0, evaluated=False)
    assert best.by_goal(100.0), "that was play's own mean"


def test_the_bar_goes_on_after_a_resume() -> None:
    best = Best(evaluates=True)
    best.resumed(eval_mean=7.0, eval_high=8.0, play_mean=50.0, play_episodes=FULL)
    assert not evaluated(best, 6.9, play=50.0)
    assert not played(best, 60.0), "it flattered before, too"
    assert evaluated(best, 7.0)
    of_play = Best(evaluates=True)
    of_play.resumed(eval_mean=None, eval_high=None, play_mean=50.0, play_episodes=FULL)
    assert (of_play.mean, of_play.evaluated) == (50.0, False)
