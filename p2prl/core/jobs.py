"""Evaluation jobs as data: the parts of a candidate, what a part may be, and what is to be done with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from p2prl.errors import RemoteProtocolError

#: Episodes of one job: few, so that a job is over soon and a lost one costs little.
JOB_EPISODES = 4
#: Failures of one part, by an error or by silence, after which its episodes are left out.
MAX_TRIES = 4
#: No return of an honest environment comes near; sums of it stay finite.
MAX_RETURN = 1e15


@dataclass(frozen=True)
class Job:
    """Episodes `first` to `first + episodes - 1` of a candidate, each of at most `max_length` steps."""

    id: int
    version: int
    first: int
    episodes: int
    max_length: int


@dataclass(frozen=True)
class HandOut:
    """Send this job to this member."""

    key: str
    job: Job


@dataclass(frozen=True)
class TakeBack:
    """Tell this member that the job is not wanted any more."""

    key: str
    job: int


@dataclass(frozen=True)
class Finished:
    """The candidate was evaluated: (return, length) of each episode, in order; `steps` of play when it began."""

    version: int
    episodes: list[tuple[float, int]]
    steps: int


@dataclass(frozen=True)
class Abandoned:
    """The candidate was given up."""

    version: int
    why: str


Effect = HandOut | TakeBack | Finished | Abandoned


@dataclass
class Out:
    """A job with a member."""

    job: Job
    key: str
    since: float
    moved: float
    steps: int = 0


@dataclass
class Part:
    """Some episodes of the candidate: waiting (nothing below is set), out, done, or given up."""

    first: int
    episodes: int
    out: Out | None = None
    results: list[tuple[float, int]] | None = None
    by: str = ""
    tries: int = 0
    #: Times that it was taken back for silence.
    late: int = 0

    @property
    def given_up(self) -> bool:
        """It failed so often that its episodes are left out."""
        return self.results is None and self.tries >= MAX_TRIES

    @property
    def waiting(self) -> bool:
        """It may be handed out."""
        return self.out is None and self.results is None and not self.given_up


@dataclass
class Candidate:
    """A version that is evaluated, and the steps of play when it was published."""

    version: int
    steps: int
    parts: list[Part] = field(default_factory=list)
    #: Since when a part could be handed out, if there were anybody, and no job is under way.
    unserved_since: float | None = None

    def out(self) -> list[Out]:
        """The jobs under way."""
        return [part.out for part in self.parts if part.out is not None]


def parts_of(episodes: int) -> list[Part]:
    """So many episodes, cut into parts of JOB_EPISODES."""
    return [Part(first, min(JOB_EPISODES, episodes - first)) for first in range(0, episodes, JOB_EPISODES)]


def check_episodes(
    job: Job, episodes: Sequence[tuple[float, int]], rewards: tuple[float, float] | None
) -> None:
    """A result is of this job, and its episodes can be.

    Args:
        episodes: (return, length) of each.
        rewards: the least and the largest reward of one step, where the environment declares them.

    Raises:
        RemoteProtocolError: `malformed`, `not_finite` or `out_of_bounds`.
    """
    if len(episodes) != job.episodes:
        raise RemoteProtocolError("malformed", f"{len(episodes)} of {job.episodes} episodes")
    for value, length in episodes:
        if not math.isfinite(value):
            raise RemoteProtocolError("not_finite", f"a return of {value}")
        low, high = (bound * length for bound in rewards or (-math.inf, math.inf))
        slack = 1e-6 * max(1.0, abs(value))
        if not 1 <= length <= job.max_length or abs(value) > MAX_RETURN:
            raise RemoteProtocolError("out_of_bounds", f"a return of {value} in {length} steps")
        if not low - slack <= value <= high + slack:
            raise RemoteProtocolError("out_of_bounds", f"a return of {value} in {length} steps of {rewards}")
