"""Greedy episodes handed out to volunteers: which weights are evaluated, who plays which part, what it may cost.

A *candidate* is one exact version of the weights. Its episodes, the same numbers (and so seeds) for each candidate, are
cut into parts; a part that is handed out is a *job*. What becomes of a part:

    waiting --hand out--> out --result--> done
       ^                   |
       +--- failed, lost, late, or its node went ---  (after MAX_TRIES failures: given up)

The cost is bounded: no job is handed out unless the steps of all jobs, this one's included, are at most `share` of all
steps. A job's own steps are an estimate until it is over, so a policy that lives longer than was thought overshoots, by
the jobs that were out; then nothing is handed out until play has caught up. A candidate that would have to wait for
that ends with the episodes that it has, if they are half of all: newer weights are of more use than more episodes.

A candidate begins when the whole of it fits. Only where that would not be before the run is twice as long, it begins,
and ends, with a job or two: a short run has few episodes to spare, and a curve of rough points is better than none.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from p2prl.core.jobs import (
    JOB_EPISODES,
    Abandoned,
    Candidate,
    Effect,
    Finished,
    HandOut,
    Job,
    Out,
    Part,
    TakeBack,
    check_episodes,
    parts_of,
)
from p2prl.errors import RemoteProtocolError

#: Jobs that one member may have at a time: each carries the weights.
MAX_JOBS_EACH = 4
#: An episode without end counts as ended after so many steps, where the environment has no limit of its own.
LONGEST_EPISODE = 100_000
#: Between the beginnings of two candidates.
MIN_INTERVAL_S = 2.0
#: A member's heartbeat that does not speak of a job so long after it was handed out has lost it.
LOST_S = 5.0
#: Without a step for so long, a job is taken back; twice as long after each time.
PATIENCE_S = 60.0
#: A member that failed gets no job for so long; twice as long after each failure.
BENCH_S, BENCH_MAX_S = 5.0, 600.0
#: With nobody to play for so long, a candidate is given up: when somebody comes, newer weights are of more use.
ABANDON_S = 60.0
#: The last episodes of play whose lengths are remembered.
LENGTHS = 100
_REMEMBERED = 256


@dataclass
class _Volunteer:
    """A member: how many of its players volunteer, and how it did of late."""

    players: int = 0
    failures: int = 0
    benched_until: float = -math.inf
    served: float = -math.inf


class Evaluations:
    """One candidate at a time.

    Args:
        share: of all steps, play and evaluation together, that evaluation may take; 0 for none.
        episodes: per candidate.
        first_id: the first job's number; higher than any that a broker before this one gave.
        max_episode_steps, reward_range: what the environment declares (core/spaces.py).

    Attributes:
        spent: steps of jobs that are over, as far as known.
        refused: results that were not taken, by reason.
    """

    def __init__(
        self,
        share: float,
        episodes: int,
        first_id: int = 0,
        max_episode_steps: int | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> None:
        self.share, self.episodes = share, episodes
        self.spent = 0
        self.refused: Counter[str] = Counter()
        self._next_id = first_id
        self._max_length = max_episode_steps or LONGEST_EPISODE
        self._rewards = reward_range
        self._volunteers: dict[str, _Volunteer] = {}
        self._candidate: Candidate | None = None
        self._began = -math.inf
        self._play_lengths: deque[int] = deque(maxlen=LENGTHS)
        self._eval_lengths: deque[int] = deque(maxlen=max(1, episodes))
        #: Jobs that gave their result, the newest last.
        self._settled: deque[int] = deque(maxlen=_REMEMBERED)

    # --- what can be seen

    @property
    def version(self) -> int:
        """The candidate's; -1 if there is none."""
        return -1 if self._candidate is None else self._candidate.version

    @property
    def done(self) -> int:
        """Episodes of the candidate that are played."""
        parts = self._candidate.parts if self._candidate is not None else ()
        return sum(len(part.results) for part in parts if part.results is not None)

    @property
    def jobs(self) -> int:
        """Jobs under way."""
        return len(self._out())

    def wants(self, now: float, steps: int) -> bool:
        """True if a candidate is wanted: there is somebody to play it, and it would fit into the share.

        Args:
            steps: of play, since this machine began.
        """
        if self.share <= 0 or self._candidate is not None or now - self._began < MIN_INTERVAL_S:
            return False
        ready = any(one.players and one.benched_until <= now for one in self._volunteers.values())
        first = min(JOB_EPISODES, self.episodes)
        return ready and (
            self._fits(self.episodes, steps) or (self._fits(first, steps) and self._far(self.episodes, steps))
        )

    # --- events

    def played(self, lengths: Iterable[int]) -> None:
        """Episodes of play ended; they say how long one may take."""
        self._play_lengths.extend(lengths)

    def volunteered(self, key: str, players: int) -> None:
        """So many of this member's players take jobs."""
        self._volunteers.setdefault(key, _Volunteer()).players = players

    def left(self, key: str, void: bool = False) -> None:
        """A member went; its jobs wait for others.

        Args:
            void: it was put out: what it gave for the candidate does not count.
        """
        self._volunteers.pop(key, None)
        for part in self._parts():
            if part.out is not None and part.out.key == key:
                self._free(part)
            elif void and part.results is not None and part.by == key:
                part.results, part.by = None, ""

    def members(self) -> list[str]:
        """Those who volunteered and did not leave."""
        return list(self._volunteers)

    def offered(self, version: int, now: float, steps: int) -> bool:
        """The trainer published a version whose state it keeps. True if it is the candidate now."""
        if not self.wants(now, steps):
            return False
        self._candidate, self._began = Candidate(version, steps, parts_of(self.episodes)), now
        return True

    def at_work(self, key: str, under_way: Mapping[int, int], now: float) -> list[TakeBack]:
        """A heartbeat: the jobs that this member has, and the steps of each so far."""
        for part in self._parts():
            out = part.out
            if out is None or out.key != key:
                continue
            if out.job.id not in under_way:
                if now - out.since > LOST_S:
                    self._free(part)
                continue
            steps = min(under_way[out.job.id], out.job.episodes * out.job.max_length)
            if steps > out.steps:
                out.steps, out.moved = steps, now
        ours = {out.job.id for out in self._out() if out.key == key}
        return [TakeBack(key, job) for job in under_way if job not in ours]

    def result(self, key: str, job: int, episodes: Sequence[tuple[float, int]], now: float) -> str:
        """A job's result. Returns why it is not taken, empty if it is.

        Raises:
            RemoteProtocolError: `malformed`, `not_finite` or `out_of_bounds`: no such episodes can be. The job waits
                for somebody else.
        """
        part = self._held(key, job)
        if part is None:
            reason = "duplicate" if job in self._settled else "unknown_job"
            self.refused[reason] += 1
            return reason
        assert part.out is not None
        try:
            check_episodes(part.out.job, episodes, self._rewards)
        except RemoteProtocolError as error:
            self.refused[error.reason] += 1
            self._fail(part, now)
            raise
        part.results, part.by, part.out = list(episodes), key, None
        lengths = [length for _, length in episodes]
        self.spent += sum(lengths)
        self._eval_lengths.extend(lengths)
        self._settled.append(job)
        self._volunteers[key].failures = 0
        return ""

    def failed(self, key: str, job: int, steps: int, now: float, faulty: bool = True) -> None:
        """A job gave no result; `steps` were played.

        Args:
            faulty: the environment raised, or its player died; False if only its player was taken away.
        """
        part = self._held(key, job)
        if part is None:
            self.refused["unknown_job"] += 1
            return
        assert part.out is not None
        most = part.episodes * part.out.job.max_length
        part.out.steps = max(part.out.steps, min(max(0, steps), most))
        self._fail(part, now, faulty)

    def ticked(self, now: float, steps: int) -> list[Effect]:
        """Time passed, and something may have happened: what is to be done now."""
        candidate = self._candidate
        if candidate is None:
            return []
        effects: list[Effect] = self._take_back_late(candidate, now)
        over = self._judge(candidate, steps) or self._abandon(candidate, now, steps)
        if over is not None:
            self._candidate = None
            return [*effects, over]
        return [*effects, *self._hand_out(candidate, now, steps)]

    # --- inside

    def _parts(self) -> list[Part]:
        return self._candidate.parts if self._candidate is not None else []

    def _out(self) -> list[Out]:
        return self._candidate.out() if self._candidate is not None else []

    def _held(self, key: str, job: int) -> Part | None:
        for part in self._parts():
            if part.out is not None and (part.out.key, part.out.job.id) == (key, job):
                return part
        return None

    def _free(self, part: Part) -> None:
        """The part waits again; what was played of it was spent."""
        assert part.out is not None
        self.spent += part.out.steps
        part.out = None

    def _fail(self, part: Part, now: float, faulty: bool = True) -> None:
        assert part.out is not None
        volunteer = self._volunteers[part.out.key]
        volunteer.benched_until = now + min(BENCH_S * 2 ** min(volunteer.failures, 10), BENCH_MAX_S)
        volunteer.failures += 1
        part.tries += faulty
        self._free(part)

    def _take_back_late(self, candidate: Candidate, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for part in candidate.parts:
            if part.out is not None and now - part.out.moved > PATIENCE_S * 2**part.late:
                effects.append(TakeBack(part.out.key, part.out.job.id))
                part.late += 1
                self._fail(part, now)
        return effects

    def _judge(self, candidate: Candidate, steps: int) -> Effect | None:
        """The candidate's end: nothing more is to come, or it would have to wait for its share."""
        waiting = [part.episodes for part in candidate.parts if part.waiting]
        rows = [row for part in candidate.parts for row in part.results or ()]
        enough = 2 * len(rows) >= self.episodes
        if candidate.out() or (waiting and self._fits(waiting[0], steps)):
            return None
        if enough or (rows and waiting and self._far(sum(waiting), steps)):
            return Finished(candidate.version, rows, candidate.steps)
        if waiting:
            return None
        lacking = self.episodes - len(rows)
        return Abandoned(candidate.version, f"{lacking} of its episodes failed again and again")

    def _abandon(self, candidate: Candidate, now: float, steps: int) -> Effect | None:
        part = next((part for part in candidate.parts if part.waiting), None)
        if part is None or candidate.out() or not self._fits(part.episodes, steps):
            candidate.unserved_since = None
            return None
        if candidate.unserved_since is None:
            candidate.unserved_since = now
        if now - candidate.unserved_since <= ABANDON_S:
            return None
        return Abandoned(candidate.version, f"nobody could play it for {ABANDON_S:g} s")

    def _hand_out(self, candidate: Candidate, now: float, steps: int) -> list[Effect]:
        effects: list[Effect] = []
        # What failed comes last: it may fail again, and hold up the rest.
        for part in sorted((one for one in candidate.parts if one.waiting), key=lambda one: one.tries):
            key = self._next_volunteer(now)
            if key is None or not self._fits(part.episodes, steps):
                break
            job = Job(self._next_id, candidate.version, part.first, part.episodes, self._max_length)
            self._next_id += 1
            part.out = Out(job, key, since=now, moved=now)
            self._volunteers[key].served, candidate.unserved_since = now, None
            effects.append(HandOut(key, job))
        return effects

    def _next_volunteer(self, now: float) -> str | None:
        """Who has the fewest jobs, and of those who had none for longest."""
        busy = Counter(out.key for out in self._out())
        free = [
            (busy[key], one.served, key)
            for key, one in self._volunteers.items()
            if busy[key] < min(one.players, MAX_JOBS_EACH) and one.benched_until <= now
        ]
        return min(free)[2] if free else None

    def _fits(self, episodes: int, steps: int) -> bool:
        """True if so many more episodes would stay within the share."""
        length = self._length()
        if length is None:
            return False
        under_way = sum(max(out.steps, out.job.episodes * length) for out in self._out())
        used = self.spent + under_way + episodes * length
        return used <= self.share * (steps + used)

    def _far(self, episodes: int, steps: int) -> bool:
        """True if so many more episodes would not fit before the run is twice as long."""
        return not self._fits(episodes, 2 * steps)

    def _length(self) -> float | None:
        """Steps that an episode is thought to take: the longer of play's and of evaluation's mean; None: unknown."""
        known = [sum(one) / len(one) for one in (self._play_lengths, self._eval_lengths) if one]
        return min(max(known), self._max_length) if known else None
