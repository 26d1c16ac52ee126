"""The trainer's `best` checkpoint: the state behind a version is kept until its evaluation comes, and then judged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from p2prl.core import messages as m
from p2prl.core.best import Best, Verdict
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
        write: writes a state under a name, and keeps what had that name under another one, if it is not empty; False
            if the disk takes nothing.
    """

    def __init__(
        self,
        folder: Path,
        eval_episodes: int,
        goal: float | None,
        write: Callable[[Snapshot, str, str], bool],
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
        kept, meta = self._meta(checkpoint.KEPT), self._meta(checkpoint.BEST)
        if kept is not None:
            self.best.taken(kept.eval_mean, evaluated=True)
        if meta is not None:
            evaluated = meta.eval_mean is not None
            self.best.taken(meta.eval_mean if evaluated else meta.return_mean, evaluated)
            if meta.eval_high is not None:
                self.best.compare(meta.eval_high, meta.return_mean, meta.return_episodes)

    def _meta(self, name: str) -> checkpoint.Meta | None:
        try:
            return checkpoint.load(self._folder / name).meta
        except P2prlError:
            return None  # none yet, or damaged: the next good one replaces it

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

    def published(self, now: float, snapshot: Snapshot | None, changed: bool) -> None:
        """A version was published.

        Args:
            snapshot: a copy of the state behind it, if it is a candidate.
            changed: its weights are other than those of the version before.
        """
        self._changed = self._changed or changed
        if snapshot is not None:
            self._candidate, self._offered_at = snapshot, now
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
            self._take_by_play(snapshot(), progress.return_mean)

    def goal_reached(self, snapshot: Callable[[], Snapshot]) -> None:
        """The run ends because its mean return is what was asked for: so is that of `best`."""
        if self.best.by_goal(self._goal):
            state = snapshot()
            self._take_by_play(state, state.meta.return_mean)

    def _take_by_play(self, state: Snapshot, mean: float | None) -> None:
        keep = checkpoint.KEPT if self.best.evaluated else ""
        if self._write(state, checkpoint.BEST, keep):
            self.best.taken(mean, evaluated=False)

    def _evaluated(self, evaluation: m.Evaluation) -> None:
        candidate = self._candidate
        if candidate is None or candidate.meta.version != evaluation.version:
            return  # told already, or its state went with a trainer before this one
        self._candidate = None
        if 2 * evaluation.episodes < self._eval_episodes:
            return
        meta = candidate.meta
        mean, high = evaluation.return_mean, evaluation.return_high
        verdict = self.best.by_evaluation(mean, high, meta.return_mean, meta.return_episodes)
        log.debug("v%d, %.2f over greedy episodes: %s", meta.version, mean, verdict)
        judged = msgspec.structs.replace(
            meta,
            eval_mean=mean,
            eval_low=evaluation.return_low,
            eval_high=high,
            eval_episodes=evaluation.episodes,
        )
        self._carry_out(verdict, msgspec.structs.replace(candidate, meta=judged), mean)

    def _carry_out(self, verdict: Verdict, state: Snapshot, mean: float) -> None:
        if verdict == "take" and self._write(state, checkpoint.BEST, ""):
            self.best.taken(mean, evaluated=True)
            checkpoint.drop_kept(self._folder)
        elif verdict == "keep" and self._write(state, checkpoint.KEPT, ""):
            self.best.kept = mean
        elif verdict == "restore":
            try:
                checkpoint.restore_kept(self._folder)
            except OSError as error:
                log.warning("the best evaluated checkpoint cannot be brought back: %s", error)
            else:
                self.best.restored()
