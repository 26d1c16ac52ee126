"""Which state of the learner is the best so far.

Judged by greedy episodes, where players evaluate; else by the mean return of play's least exploring slots. Evaluations
are seldom, because they may cost little, and a run may end long after the last one. So play's mean may stand in for
one that is missing, as long as it does not flatter: if the last evaluated version's greedy mean was clearly below what
play's mean was at that time, only greedy means count.
"""

from __future__ import annotations

from p2prl.core.episodes import WINDOW


class Best:
    """The bar for `best`.

    Args:
        evaluates: players evaluate.

    Attributes:
        mean: of the best state so far; None before the first.
        evaluated: that mean is of greedy episodes.
        flatters: play's mean did, when it was last compared.
    """

    def __init__(self, evaluates: bool) -> None:
        self._evaluates = evaluates
        self.mean: float | None = None
        self.evaluated = False
        self.flatters = False

    def resumed(
        self,
        eval_mean: float | None,
        eval_high: float | None,
        play_mean: float | None,
        play_episodes: int,
    ) -> None:
        """The best checkpoint of before says how high the bar is."""
        self.taken(play_mean if eval_mean is None else eval_mean, evaluated=eval_mean is not None)
        if eval_high is not None:
            self._compare(eval_high, play_mean, play_episodes)

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

    def by_evaluation(self, mean: float, high: float, play_mean: float | None, play_episodes: int) -> bool:
        """True if the evaluated state is to be `best`.

        Args:
            mean, high: of its greedy episodes, and the upper end of the mean's confidence interval.
            play_mean, play_episodes: play's mean return when the state was published, and over how many episodes.
        """
        self._compare(high, play_mean, play_episodes)
        comparable = self.evaluated or not self.flatters
        return self.mean is None or not comparable or mean >= self.mean

    def by_goal(self, goal: float | None) -> bool:
        """The run's mean return reached its goal. True unless the best one's greedy mean has reached it, too."""
        return not (self.evaluated and goal is not None and self.mean is not None and self.mean >= goal)

    def taken(self, mean: float | None, evaluated: bool) -> None:
        """The state that was asked about is `best` now."""
        self.mean, self.evaluated = mean, evaluated

    def _compare(self, eval_high: float, play_mean: float | None, play_episodes: int) -> None:
        if play_mean is not None and play_episodes >= WINDOW:
            self.flatters = play_mean > eval_high
