"""A player's evaluation jobs: greedy episodes with exactly the weights that came with the job, a tick at a time.

A tick of evaluation follows each tick of play. So both go on, and where the world runs on the wall clock (RealTime)
neither misses a tick because of the other. While play has to wait, evaluation goes on in short turns.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from p2prl.blame import FAULTS, raised
from p2prl.core import messages as m
from p2prl.core.spaces import EnvSpec
from p2prl.errors import MissingPackage, P2prlError
from p2prl.learn.contracts import Actor
from p2prl.learn.environments import EnvironmentFailed, MakeEnv
from p2prl.learn.evaluation import Evaluation
from p2prl.net.sockets import Frame
from p2prl.nodes.player_faults import failure_kind
from p2prl.wire.weights import decode_weights

log = logging.getLogger("p2prl")

#: Environments beside those of play, at most; kept from job to job.
_MOST_ENVS = 4
#: How long a turn may take while play waits: the member's words are to be heard soon.
_TURN_S = 0.005
_TELL_S = 0.5


class Evaluator:
    """At most one job; a newer one takes the place of an older one.

    Args:
        make_actor: makes an actor apart from the one that plays.
        seed: of the run's evaluations (learn/evaluation.py).
        slots: environments of this player; it gets no more than as many for evaluation.
        tell: sends a word to the member; False if it could not be queued.
    """

    def __init__(
        self,
        rank: int,
        make_env: MakeEnv,
        spec: EnvSpec,
        make_actor: Callable[[], Actor],
        seed: int,
        slots: int,
        tell: Callable[[m.Message], bool],
        now: Callable[[], float],
    ) -> None:
        self._rank, self._make_env, self._spec = rank, make_env, spec
        self._make_actor, self._seed, self._slots = make_actor, seed, min(slots, _MOST_ENVS)
        self._tell, self._now = tell, now
        self._actor: Actor | None = None
        self._envs: list[gym.Env[Any, Any]] = []
        self._job: m.EvalJob | None = None
        self._evaluation: Evaluation | None = None
        self._told_at = 0.0
        #: Said as soon as the member takes it.
        self._last_word: m.PlayerEvaluated | None = None

    @property
    def busy(self) -> bool:
        """True while there is something to play or to tell."""
        return self._evaluation is not None or self._last_word is not None

    def take(self, job: m.EvalJob, payload: Frame) -> None:
        """Begin a job. What goes wrong with it is told, and ends the job alone."""
        self._job, self._evaluation, self._last_word = job, None, None
        self._guarded(lambda: self._begin(job, payload))

    def drop(self, job: int) -> None:
        """This job is not wanted any more."""
        if self._job is not None and self._job.job == job:
            self._job = self._evaluation = self._last_word = None

    def tick(self) -> None:
        """One step of each of the job's episodes under way."""
        if self._evaluation is not None:
            self._guarded(self._evaluation.advance)
        if self._evaluation is not None and self._evaluation.over:
            self._finish(episodes=self._evaluation.results())
        self._say()

    def turn(self) -> bool:
        """Ticks for a moment, while play has nothing to do; True if there is more to do."""
        until = self._now() + _TURN_S
        while self.busy and self._now() < until:
            self.tick()
            if self._evaluation is None:
                return False  # a last word waits for the member
        return self._evaluation is not None

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            with contextlib.suppress(*FAULTS):  # it may be broken: what it says on closing is no news
                env.close()
        self._envs = []

    def _begin(self, job: m.EvalJob, payload: Frame) -> None:
        if self._actor is None:
            self._actor = self._make_actor()
        self._actor.load(decode_weights(payload))
        while len(self._envs) < min(job.episodes, self._slots):
            self._envs.append(self._make())
        self._told_at = self._now()
        self._evaluation = Evaluation(
            self._envs,
            self._spec,
            self._actor,
            range(job.first, job.first + job.episodes),
            self._seed,
            max_length=job.max_length,
        )

    def _make(self) -> gym.Env[Any, Any]:
        try:
            return self._make_env()
        except MissingPackage:
            raise
        except P2prlError as error:
            raise EnvironmentFailed(str(error), 0) from error
        except FAULTS as error:
            raise EnvironmentFailed(f"{self._spec.id} cannot be made: {raised(error)}", 0) from error

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except FAULTS as error:
            log.debug("an evaluation job failed", exc_info=True)
            told = str(error) if isinstance(error, P2prlError) else f"{type(error).__name__}: {error}"
            kind = failure_kind(error, at="player" if isinstance(error, P2prlError) else "agent")
            self._finish(failure=f"evaluation: {told}"[:500], kind=kind)
            self.close()

    def _finish(
        self,
        episodes: list[tuple[float, int]] | None = None,
        failure: str = "",
        kind: m.FailureKind = "environment",
    ) -> None:
        assert self._job is not None
        self._last_word = m.PlayerEvaluated(
            rank=self._rank,
            job=self._job.job,
            steps=self._evaluation.steps if self._evaluation is not None else 0,
            over=True,
            episodes=episodes or [],
            failure=failure,
            kind=kind,
        )
        self._job = self._evaluation = None
        self._say()

    def _say(self) -> None:
        if self._last_word is not None:
            if self._tell(self._last_word):
                self._last_word = None
        elif self._job is not None and self._evaluation is not None:
            now = self._now()
            if now - self._told_at >= _TELL_S:
                self._told_at = now
                steps = self._evaluation.steps
                self._tell(m.PlayerEvaluated(rank=self._rank, job=self._job.job, steps=steps))
