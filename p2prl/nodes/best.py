"""The trainer's `best` checkpoint: the state behind a version is kept until its evaluation comes, and then judged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from p2prl.core import messages as m
from p2prl.core.best import Best
from p2prl.errors import P2prlError
from p2prl.nodes import checkpoint
from p2prl.nodes.checkpoint import Snapshot

log = logging.getLogger("p2prl")

#: Between two that play's mean is the reason for.
_INTERVAL_S = 2.0
#: A candidate that the broker has not taken after so long was lost on the way.
_OFFER_S = 3.0


class BestKeeper:
    """Writes `best`.

    Args:
        folder: of the checkpoints.
        eval_episodes: greedy episodes that are asked for of each candidate; 0 if players do not evaluate. Fewer than
            half of them are too few to choose by.
        goal: the mean return that ends the run; None if none does.
        write: writes a state as `best`; False if the disk takes nothing.
    """

    def __init__(
        self, folder: Path, eval_episodes: int, goal: float | None, write: Callable[[Snapshot], bool]
    ) -> None:
        self._folder, self._goal, self._write = folder, goal, write
        self.best = Best(evaluates=eval_episodes > 0)
        self._eval_episodes = eval_episodes
        self._written_at = self._offered_at = -1e9
        self._wanted = False
        #: Other weights were published since the last candidate.
        self._changed = True
        self._candidate: Snapshot | None = None

    def resume(self) -> None:
        """Go on with the bar of the best checkpoint that there is."""
        try:
            meta = checkpoint.load(self._folder / checkpoint.BEST).meta
        except P2prlError:
            return  # none yet, or damaged: the next good one replaces it
        self.best.resumed(meta.eval_mean, meta.eval_high, meta.return_mean, meta.return_episodes)

    # --- candidates

    @property
    def wanted(self) -> bool:
        """True if the next version that is published is to be a candidate."""
        return self._wanted

    @property
    def overdue(self) -> bool:
        """True if a candidate is wanted, and the newest version would do, whether or not there is anything new.

        Not if it was evaluated; but a candidate that the broker did not take, or gave up, comes again.
        """
        return self._wanted and (self._changed or self._candidate is not None)

    def published(self, now: float, snapshot: Callable[[], Snapshot] | None, changed: bool) -> None:
        """A version was published.

        Args:
            snapshot: takes the state behind it, if it is a candidate.
            changed: its weights are other than those of the version before.
        """
        self._changed = self._changed or changed
        if snapshot is not None:
            self._candidate, self._offered_at = snapshot().copy(), now
            self._wanted = self._changed = False

    # --- what is heard

    def heard(self, progress: m.RunProgress, now: float, snapshot: Callable[[], Snapshot]) -> None:
        """How the run stands. `snapshot` takes the state of now."""
        self._wanted = progress.candidate_wanted and now - self._offered_at >= _OFFER_S
        if progress.evaluation is not None:
            self._evaluated(progress.evaluation)
        if now - self._written_at < _INTERVAL_S:
            return
        if self.best.by_play(progress.return_mean, progress.return_episodes):
            self._written_at = now
            if self._write(snapshot()):
                self.best.taken(progress.return_mean, evaluated=False)

    def goal_reached(self, snapshot: Callable[[], Snapshot]) -> None:
        """The run ends because its mean return is what was asked for: so is that of `best`."""
        if self.best.by_goal(self._goal):
            self._write(snapshot())

    def _evaluated(self, evaluation: m.Evaluation) -> None:
        candidate = self._candidate
        if candidate is None or candidate.meta.version != evaluation.version:
            return  # told already, or its state went with a trainer before this one
        self._candidate = None
        if 2 * evaluation.episodes < self._eval_episodes:
            return
        meta = candidate.meta
        mean, high = evaluation.return_mean, evaluation.return_high
        if not self.best.by_evaluation(mean, high, meta.return_mean, meta.return_episodes):
            return
        judged = msgspec.structs.replace(
            meta,
            eval_mean=mean,
            eval_low=evaluation.return_low,
            eval_high=high,
            eval_episodes=evaluation.episodes,
        )
        if self._write(msgspec.structs.replace(candidate, meta=judged)):
            self.best.taken(mean, evaluated=True)
            log.debug("best is v%d: %.2f over greedy episodes", meta.version, mean)
