"""A member's evaluation jobs: passed on to its players, and what comes of them to the broker."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.core import messages as m
from p2prl.net.sockets import Frame
from p2prl.nodes.players import Players

#: More than any host asks for in one job.
_MOST_EPISODES = 1000


class Volunteer:
    """Glue between the host's jobs and the players. It keeps no weights: a job that fails goes back to the host.

    Args:
        send: sends a word to the broker; it may be lost with a connection, which the next heartbeat shows.
    """

    def __init__(self, players: Players, send: Callable[[m.Message], object]) -> None:
        self._players, self._send = players, send
        #: Steps of each job that is here, by its number: what heartbeats say.
        self.under_way: dict[int, int] = {}

    def job(self, job: m.EvalJob, bulk: list[Frame]) -> None:
        """The host hands one out; behind it come a WeightsHeader and the weights."""
        if len(bulk) != 2 or job.job in self.under_way or not 0 < job.episodes <= _MOST_EPISODES:
            return
        self.under_way[job.job] = 0
        if not self._players.evaluate(job, bulk[1]):
            self._over(m.EvalResult(job=job.job, failure="no player is free"))

    def drop(self, drop: m.EvalDrop) -> None:
        """The host does not want one any more."""
        if self.under_way.pop(drop.job, None) is not None:
            self._players.drop_job(drop.job)

    def evaluated(self, said: m.PlayerEvaluated, faulty: bool) -> None:
        """A player's word. `faulty`: if it failed, the job may be to blame."""
        if said.job not in self.under_way:
            return
        self.under_way[said.job] = steps = max(said.steps, self.under_way[said.job])
        if said.over:
            self._over(
                m.EvalResult(
                    job=said.job,
                    episodes=said.episodes,
                    steps=steps,
                    failure=said.failure,
                    faulty=faulty,
                    kind=said.kind,
                )
            )

    def forget(self) -> None:
        """The host began another run, or this member leaves: what becomes of the players' jobs is of no interest."""
        self.under_way.clear()

    def _over(self, result: m.EvalResult) -> None:
        self.under_way.pop(result.job, None)
        self._send(result)
