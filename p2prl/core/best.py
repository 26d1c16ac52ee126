"""Which state of the learner is the best so far.

Judged by greedy episodes, where players evaluate; else by the mean return of play's least exploring slots. Evaluations
are seldom, because they may cost little, and a run may end long after the last one. So play's mean may stand in for
one that is missing, as long as it does not flatter: if an evaluated version's greedy mean turns out clearly below what
play's mean was at that time, only greedy means count, and the best evaluated state, which was kept, comes back.
"""

from __future__ import annotations

from typing import Literal

from p2prl.core.episodes import WINDOW

#: What becomes of an evaluated state: it is `best`; it is kept, for the case that play's mean flatters; the one that
#: was kept is `best` again; or nothing.
Verdict = Literal["take", "keep", "restore", "leave"]


class Best:
    """The bar for `best`.

    Args:
        evaluates: players evaluate.

    Attributes:
        mean: of the best state so far; None before the first.
        evaluated: that mean is of greedy episodes.
        kept: the greedy mean of the evaluated state that is kept beside one that play's mean was the reason for.
        flatters: play's mean did, when it was last compared.
    """

    def __init__(self, evaluates: bool) -> None:
        self._evaluates = evaluates
        self.mean: float | None = None
        self.evaluated = False
        self.kept: float | None = None
        self.flatters = False

    def by_play(self, mean: float | None, episodes: int) -> bool:
        """True if the state of now is to be `best`, with this mean return of the least exploring slots.

        Of equals the newer: it has learned more. But an evaluated one is left for a higher mean only.
        """
        if mean is None or episodes < WINDOW:  # fewer are luck
            return False
        if self.mean is None:
            return True
        if self._evaluates and self.flatters:
            return False
        return mean > self.mean if self.evaluated else mean >= self.mean

    def by_evaluation(self, mean: float, high: float, play_mean: float | None, play_episodes: int) -> Verdict:
        """What becomes of an evaluated state.

        Args:
            mean, high: of its greedy episodes, and the upper end of the mean's confidence interval.
            play_mean, play_episodes: play's mean return when the state was published, and over how many episodes.
        """
        self.compare(high, play_mean, play_episodes)
        if self.mean is None or self.evaluated:
            return "take" if self.mean is None or mean >= self.mean else "leave"
        worse = self.kept is not None and mean < self.kept
        if self.flatters:
            return "restore" if worse else "take"
        if mean >= self.mean:
            return "take"
        return "leave" if worse else "keep"

    def by_goal(self, goal: float | None) -> bool:
        """The run's mean return reached its goal. True unless the best one's greedy mean has reached it, too."""
        return not (self.evaluated and goal is not None and self.mean is not None and self.mean >= goal)

    def taken(self, mean: float | None, evaluated: bool) -> None:
        """Another state is `best` now; an evaluated one that play's mean took the place of is kept."""
        if evaluated:
            self.kept = None
        elif self.evaluated:
            self.kept = self.mean
        self.mean, self.evaluated = mean, evaluated

    def restored(self) -> None:
        """The one that was kept is `best` again."""
        self.mean, self.evaluated, self.kept = self.kept, True, None

    def compare(self, eval_high: float, play_mean: float | None, play_episodes: int) -> None:
        """A version was evaluated: does play's mean flatter?"""
        if play_mean is not None and play_episodes >= WINDOW:
            self.flatters = play_mean > eval_high
