"""The broker's evaluation desk: hands greedy episodes to members, and keeps what came of the last ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from p2prl.core import messages as m
from p2prl.core.bounds import checked_result
from p2prl.core.evaluations import LENGTHS, Evaluations
from p2prl.core.jobs import Abandoned, Finished, HandOut, TakeBack
from p2prl.errors import RemoteProtocolError
from p2prl.net.sockets import Frame
from p2prl.wire import frames

if TYPE_CHECKING:
    from p2prl.core.membership import Member
    from p2prl.nodes.broker import Broker

log = logging.getLogger("p2prl")

#: Job numbers of one broker; terms that a file lost may be large.
_JOBS_OF_A_TERM, _TERMS = 1 << 20, 1 << 20
#: States in which a member's players can be given something.
_READY = ("working", "paused")


class EvalDesk:
    """Glue between core/evaluations.py, the members and the trainer's candidates.

    Args:
        finished: called when `saved.evaluation` has changed.
    """

    def __init__(self, broker: Broker, finished: Callable[[], None]) -> None:
        config, env = broker.config, broker.run.env
        self._broker, self._finished = broker, finished
        self.evaluations = Evaluations(
            config.eval_share,
            config.eval_episodes,
            first_id=broker.saved.term % _TERMS * _JOBS_OF_A_TERM,
            max_episode_steps=env.max_episode_steps,
            reward_range=env.reward_range,
        )
        #: Steps of play before this broker: they earn no share, for what they were spent on is not known any more.
        self._steps_before = broker.desk.steps
        self._candidate: list[Frame] | None = None

    # --- what can be seen

    def wanted(self) -> bool:
        """True if the trainer shall publish a candidate."""
        return self.evaluations.wants(self._broker.loop.now(), self._steps)

    def state(self) -> m.Evaluating:
        """For the status."""
        evaluations = self.evaluations
        return m.Evaluating(
            version=evaluations.version,
            done=evaluations.done,
            episodes=evaluations.episodes if evaluations.share > 0 else 0,
            jobs=evaluations.jobs,
            steps=evaluations.spent,
            refused=dict(evaluations.refused),
        )

    @property
    def _steps(self) -> int:
        # Never negative: a broker counts again from what its shards tell, which may come later.
        return max(0, self._broker.desk.steps - self._steps_before)

    # --- events

    def offered(self, header: m.WeightsHeader, parts: list[Frame]) -> None:
        """The trainer published a candidate; `parts` are its header and payload, whole."""
        if self.evaluations.offered(header.version, self._broker.loop.now(), self._steps):
            self._candidate = parts

    def heartbeat(self, member: Member, evaluators: int, beat: m.Heartbeat) -> None:
        """A member's, checked."""
        if self.evaluations.share <= 0:
            return
        now = self._broker.loop.now()
        self.evaluations.volunteered(member.key, evaluators if member.state in _READY else 0)
        for back in self.evaluations.at_work(member.key, beat.evaluating, now):
            self._send(back.key, [frames.encode(m.EvalDrop(job=back.job))])

    def played(self, episodes: Sequence[tuple[float, int, float]]) -> None:
        """Episodes of play ended, as in BundleHeader."""
        self.evaluations.played([length for _, length, _ in episodes[-LENGTHS:]])

    def result(self, key: str, result: m.EvalResult) -> None:
        """A member's EvalResult.

        Raises:
            RemoteProtocolError: it cannot be.
        """
        result, now = checked_result(result), self._broker.loop.now()
        if key not in self._broker.members.peers:
            raise RemoteProtocolError("unknown_node")
        if result.failure:
            self.evaluations.failed(key, result.job, result.steps, now, result.faulty)
            if result.faulty:
                self._broker.members.fault(key, m.Fault(kind=result.kind, text=result.failure))
        else:
            self.evaluations.result(key, result.job, result.episodes, now)
        self.ticked()

    def put_out(self, key: str) -> None:
        """The owner, or what it did, ended this member's part: what it gave does not count."""
        self.evaluations.left(key, void=True)

    def ticked(self) -> None:
        """Time passed, or something happened."""
        live = {member.key for member in self._broker.roster.live()}
        for key in self.evaluations.members():
            if key not in live:
                self.evaluations.left(key)
        for effect in self.evaluations.ticked(self._broker.loop.now(), self._steps):
            if isinstance(effect, HandOut):
                self._hand_out(effect)
            elif isinstance(effect, TakeBack):
                self._send(effect.key, [frames.encode(m.EvalDrop(job=effect.job))])
            elif isinstance(effect, Finished):
                self._take_down(effect)
            else:
                self._give_up(effect)

    # --- inside

    def _hand_out(self, effect: HandOut) -> None:
        assert self._candidate is not None
        job = effect.job
        message = m.EvalJob(
            job=job.id,
            version=job.version,
            first=job.first,
            episodes=job.episodes,
            max_length=job.max_length,
        )
        self._send(effect.key, [frames.encode(message), *self._candidate])

    def _send(self, key: str, parts: list[Frame]) -> None:
        """What is lost with a connection is seen in the next heartbeats."""
        peer = self._broker.members.peers.get(key)
        if peer is not None:
            self._broker.control.send(parts, peer.route)

    def _take_down(self, finished: Finished) -> None:
        try:
            from p2prl.learn.statistics import (
                bootstrap_interval,
            )  # brings numpy, which a broker else never needs
        except OSError as error:  # such as no file left to open; the next evaluation comes
            self._give_up(Abandoned(finished.version, f"its figures could not be worked out: {error}"))
            return
        returns = [value for value, _ in finished.episodes]
        low, high = bootstrap_interval(returns, seed=finished.version)
        count = len(returns)
        self._candidate = None
        self._broker.saved.evaluation = m.Evaluation(
            version=finished.version,
            episodes=count,
            return_mean=sum(returns) / count,
            return_low=low,
            return_high=high,
            length_mean=sum(length for _, length in finished.episodes) / count,
            steps=self._steps_before + finished.steps,
        )
        self._finished()

    def _give_up(self, abandoned: Abandoned) -> None:
        self._candidate = None
        log.warning("the evaluation of weights v%d was given up: %s", abandoned.version, abandoned.why)
