"""core/best.py: greedy means decide, play's mean stands in where it may."""

from __future__ import annotations

from p2prl.core.best import Best

FULL = 100


def evaluated(best: Best, mean: float, play: float | None = None, high: float | None = None) -> str:
    """An evaluation came; what became of its state."""
    verdict = best.by_evaluation(mean, mean if high is None else high, play, FULL if play is not None else 0)
    if verdict == "take":
        best.taken(mean, evaluated=True)
    elif verdict == "keep":
        best.kept = mean
    elif verdict == "restore":
        best.restored()
    return verdict


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
    assert [evaluated(best, mean) for mean in (5.0, 4.9, 5.0, 6.0)] == ["take", "leave", "take", "take"]
    assert (best.mean, best.evaluated) == (6.0, True)


def test_where_play_flatters_greedy_means_alone_decide() -> None:
    best = Best(evaluates=True)
    assert played(best, 50.0), "nothing is known yet"
    assert evaluated(best, 3.0, play=50.0) == "take", "what play earned is no measure for it"
    assert not played(best, 60.0)
    assert evaluated(best, 2.0, play=70.0) == "leave"
    assert evaluated(best, 4.0, play=70.0) == "take"
    assert best.mean == 4.0


def test_play_stands_in_where_it_does_not_flatter() -> None:
    best = Best(evaluates=True)
    assert evaluated(best, 10.0, play=9.0) == "take"
    assert not played(best, 9.5)
    assert not played(best, 10.0), "an evaluated one is left for a higher mean only"
    assert played(best, 20.0)
    assert best.kept == 10.0
    # An older state, and worse than what play shows by now; but better than the one that is kept.
    assert evaluated(best, 15.0, play=14.0) == "keep"
    assert evaluated(best, 12.0, play=11.0) == "leave"
    assert evaluated(best, 21.0, play=20.0) == "take"
    assert (best.evaluated, best.kept) == (True, None)


def test_the_best_evaluated_state_comes_back_when_play_turns_out_to_flatter() -> None:
    best = Best(evaluates=True)
    assert evaluated(best, 7.0) == "take", "play had too few episodes to compare it with"
    assert played(best, 10.0)
    assert evaluated(best, 3.0, play=10.0) == "restore"
    assert (best.mean, best.evaluated, best.kept) == (7.0, True, None)
    assert not played(best, 10.0)
    other = Best(evaluates=True)
    evaluated(other, 7.0)
    played(other, 10.0)
    assert evaluated(other, 8.0, play=10.0) == "take", "it is better than the one that was kept"
    assert (other.mean, other.kept) == (8.0, None)


def test_a_difference_that_may_be_luck_is_not_flattery() -> None:
    best = Best(evaluates=True)
    assert evaluated(best, 10.0, play=11.0, high=12.0) == "take"
    assert played(best, 13.0)
    assert evaluated(best, 10.5, play=13.0, high=13.5) == "keep"
    assert evaluated(best, 9.0, play=13.0, high=12.5) == "restore", "now it flatters, and 13 is no measure"
    assert best.mean == 10.5


def test_few_episodes_of_play_say_nothing_about_flattery() -> None:
    best = Best(evaluates=True)
    assert best.by_evaluation(1.0, 1.0, 50.0, FULL - 1) == "take"
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
