"""core/evaluations.py: no part is lost for ever, the share is kept, each episode counts once."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.core import evaluations as e
from p2prl.core.evaluations import Evaluations
from p2prl.core.jobs import JOB_EPISODES, MAX_TRIES, Abandoned, Effect, Finished, HandOut, Job, TakeBack
from p2prl.errors import RemoteProtocolError

PLENTY = 10**9
A, B = "a" * 40, "b" * 40


def machine(share: float = 0.1, episodes: int = 10, **more: object) -> Evaluations:
    """One that knows that an episode takes ten steps."""
    evaluations = Evaluations(share, episodes, **more)  # type: ignore[arg-type]
    evaluations.played([10] * 20)
    return evaluations


def with_candidate(*keys: str, **more: object) -> Evaluations:
    evaluations = machine(**more)  # type: ignore[arg-type]
    for key in keys:
        evaluations.volunteered(key, 1)
    assert evaluations.offered(7, 0.0, PLENTY)
    return evaluations


def handed(effects: list[Effect]) -> list[tuple[str, Job]]:
    return [(one.key, one.job) for one in effects if isinstance(one, HandOut)]


def played(job: Job, length: int = 10) -> list[tuple[float, int]]:
    """Each episode's return is its number."""
    return [(float(number), length) for number in range(job.first, job.first + job.episodes)]


# --- a candidate's life


def test_a_candidate_is_played_in_parts_and_its_episodes_come_in_order() -> None:
    evaluations = with_candidate(A, B)
    effects = evaluations.ticked(0.0, PLENTY)
    first, second = handed(effects)
    assert {first[0], second[0]} == {A, B}
    assert (first[1].first, first[1].episodes, second[1].first) == (0, JOB_EPISODES, JOB_EPISODES)
    assert first[1].version == 7
    assert evaluations.ticked(0.1, PLENTY) == [], "one job each"
    for key, job in (second, first):
        assert evaluations.result(key, job.id, played(job), 1.0) == ""
    assert evaluations.done == 2 * JOB_EPISODES
    [(key, job)] = handed(evaluations.ticked(1.0, PLENTY))
    assert (job.first, job.episodes) == (8, 2)
    evaluations.result(key, job.id, played(job), 2.0)
    [finished] = evaluations.ticked(2.0, PLENTY)
    assert finished == Finished(7, [(float(number), 10) for number in range(10)], PLENTY)
    assert evaluations.spent == 100
    assert evaluations.version == -1


def test_a_candidate_is_wanted_when_somebody_would_play_it_and_the_whole_of_it_fits() -> None:
    evaluations = machine(share=0.1, episodes=10)
    assert not evaluations.wants(0.0, PLENTY), "nobody volunteers"
    evaluations.volunteered(A, 0)
    assert not evaluations.wants(0.0, PLENTY), "none of its players does"
    evaluations.volunteered(A, 1)
    for steps in (450, 899):
        assert not evaluations.wants(0.0, steps), "100 steps of evaluation are a tenth of 1000"
    assert evaluations.wants(0.0, 900)
    assert evaluations.offered(1, 0.0, 900)
    assert not evaluations.wants(0.0, PLENTY), "one at a time"
    assert not evaluations.offered(2, 0.0, PLENTY)
    assert evaluations.version == 1


def test_a_short_run_has_rough_points_and_a_longer_one_has_whole_ones() -> None:
    """Episodes of 100 steps, ten a candidate, a tenth of the steps: a whole one costs 9000 steps of play."""
    evaluations = Evaluations(0.1, 10)
    evaluations.played([100])
    evaluations.volunteered(A, 1)
    points = []
    now, began = 0.0, 0
    for steps in range(0, 100_000, 100):
        now += 10.0
        if evaluations.wants(now, steps):
            assert evaluations.offered(steps, now, steps)
            began = steps
        for effect in evaluations.ticked(now, steps):
            assert not isinstance(effect, Abandoned)
            if isinstance(effect, HandOut):
                evaluations.result(effect.key, effect.job.id, played(effect.job, 100), now)
            elif isinstance(effect, Finished):
                points.append((effect.version, len(effect.episodes)))
                assert steps <= began + 1000, "no candidate grows old"
    assert points[0] == (3600, 4), "as soon as there are four episodes to spare"
    assert [episodes for _, episodes in points] == sorted(episodes for _, episodes in points)
    assert [episodes for _, episodes in points[-5:]] == [10] * 5
    at = [version for version, _ in points]
    assert all(after <= 4 * before for before, after in pairwise(at))
    assert evaluations.spent <= 0.1 * (100_000 + evaluations.spent)


def test_without_a_share_nothing_is_evaluated() -> None:
    evaluations = machine(share=0.0)
    evaluations.volunteered(A, 1)
    assert not evaluations.wants(0.0, PLENTY)
    assert not evaluations.offered(1, 0.0, PLENTY)


def test_before_an_episode_has_ended_nobody_knows_what_one_costs() -> None:
    evaluations = Evaluations(0.5, 4)
    evaluations.volunteered(A, 1)
    assert not evaluations.wants(0.0, PLENTY)
    evaluations.played([10])
    assert evaluations.wants(0.0, PLENTY)


def test_candidates_are_apart_in_time() -> None:
    evaluations = with_candidate(A, episodes=1)
    [(key, job)] = handed(evaluations.ticked(0.0, PLENTY))
    evaluations.result(key, job.id, played(job), 0.1)
    assert isinstance(evaluations.ticked(0.1, PLENTY)[0], Finished)
    assert not evaluations.wants(e.MIN_INTERVAL_S - 0.01, PLENTY)
    assert evaluations.wants(e.MIN_INTERVAL_S, PLENTY)


# --- the share


def test_a_policy_that_lives_longer_than_was_thought_is_paid_for_before_the_next_job() -> None:
    evaluations = with_candidate(A, share=0.5, episodes=12)
    steps = 600
    [(key, job)] = handed(evaluations.ticked(0.0, steps))
    evaluations.result(key, job.id, played(job, length=100), 1.0)
    assert evaluations.spent == 400
    assert evaluations.ticked(1.0, steps) == []
    assert evaluations.ticked(1.0, 799) == [], "400 were played, and 400 more are to be expected"
    assert len(handed(evaluations.ticked(1.0, 800))) == 1


def test_half_of_the_episodes_are_enough_where_more_would_have_to_wait() -> None:
    evaluations = with_candidate(A, share=0.5, episodes=8)
    [(key, job)] = handed(evaluations.ticked(0.0, 100))
    evaluations.result(key, job.id, played(job, length=100), 1.0)
    [finished] = evaluations.ticked(1.0, 100)
    assert finished == Finished(7, played(job, length=100), PLENTY)
    assert not evaluations.wants(10.0, 1199), "400 were spent, and 800 are to be expected"
    assert evaluations.wants(10.0, 1200)


def test_even_the_smallest_share_gets_its_turn() -> None:
    evaluations = machine(share=1e-6, episodes=4)
    evaluations.volunteered(A, 1)
    assert not evaluations.wants(0.0, 10**7)
    assert evaluations.wants(0.0, 4 * 10**7)


def test_a_job_that_is_under_way_counts_with_what_it_has_played() -> None:
    evaluations = with_candidate(A, B, share=0.5, episodes=12)
    evaluations.volunteered(B, 0)
    [(key, job)] = handed(evaluations.ticked(0.0, 200))
    evaluations.at_work(key, {job.id: 5000}, 1.0)
    evaluations.volunteered(B, 1)
    assert evaluations.ticked(1.0, 200) == []
    assert len(handed(evaluations.ticked(1.0, 5100))) == 1


# --- what goes wrong


def test_the_jobs_of_a_node_that_went_go_to_others() -> None:
    evaluations = with_candidate(A, B, episodes=8)
    jobs = dict(handed(evaluations.ticked(0.0, PLENTY)))
    evaluations.at_work(A, {jobs[A].id: 15}, 0.5)
    evaluations.left(A)
    assert evaluations.spent == 15
    evaluations.result(B, jobs[B].id, played(jobs[B]), 1.0)
    [(key, again)] = handed(evaluations.ticked(1.0, PLENTY))
    assert key == B
    assert (again.first, again.id != jobs[A].id) == (jobs[A].first, True)
    assert evaluations.result(A, jobs[A].id, played(jobs[A]), 2.0) == "unknown_job"


def test_a_heartbeat_without_the_job_means_that_it_was_lost() -> None:
    evaluations = with_candidate(A, episodes=4)
    [(_, job)] = handed(evaluations.ticked(0.0, PLENTY))
    evaluations.at_work(A, {}, e.LOST_S)
    assert evaluations.ticked(e.LOST_S, PLENTY) == [], "it may not have arrived yet"
    evaluations.at_work(A, {}, e.LOST_S + 1)
    [(_, again)] = handed(evaluations.ticked(e.LOST_S + 1, PLENTY))
    assert again.first == job.first


def test_jobs_that_nobody_knows_are_taken_back() -> None:
    evaluations = with_candidate(A, episodes=4)
    [(_, job)] = handed(evaluations.ticked(0.0, PLENTY))
    assert evaluations.at_work(A, {job.id: 1, 99: 5}, 1.0) == [TakeBack(A, 99)]
    assert evaluations.at_work(B, {job.id: 1}, 1.0) == [TakeBack(B, job.id)]


def test_a_job_without_a_step_is_taken_back_each_time_later() -> None:
    evaluations = with_candidate(A, B, episodes=4)
    [(first, job)] = handed(evaluations.ticked(0.0, PLENTY))
    evaluations.at_work(first, {job.id: 3}, 50.0)
    assert evaluations.ticked(50.0 + e.PATIENCE_S, PLENTY) == []
    late = 50.1 + e.PATIENCE_S
    back, out = evaluations.ticked(late, PLENTY)
    assert back == TakeBack(first, job.id)
    assert isinstance(out, HandOut)
    assert out.key != first, "who let it lie waits for a while"
    assert evaluations.ticked(late + 1.9 * e.PATIENCE_S, PLENTY) == []
    assert evaluations.ticked(late + 2.1 * e.PATIENCE_S, PLENTY)[0] == TakeBack(out.key, out.job.id)


def test_who_failed_waits_longer_each_time_and_a_part_is_given_up_in_the_end() -> None:
    evaluations = with_candidate(A, episodes=4)
    now, handed_at = 0.0, []
    while evaluations.version >= 0:
        for key, job in handed(evaluations.ticked(now, PLENTY)):
            handed_at.append(now)
            evaluations.failed(key, job.id, 3, now)
        now += 0.5
    assert handed_at == [0.0, 5.0, 15.0, 35.0]
    assert len(handed_at) == MAX_TRIES
    assert evaluations.spent == 3 * MAX_TRIES


def test_most_of_the_episodes_are_enough() -> None:
    evaluations = with_candidate(A, episodes=12)
    now = 0.0
    effects: list[Effect] = []
    while evaluations.version >= 0:
        for key, job in handed(effects):
            if job.first == 4:
                evaluations.failed(key, job.id, 0, now)
            else:
                evaluations.result(key, job.id, played(job), now)
        now += 1.0
        effects = evaluations.ticked(now, PLENTY)
    [finished] = effects
    assert isinstance(finished, Finished)
    assert [value for value, _ in finished.episodes] == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_candidate_that_nobody_plays_is_given_up_for_a_newer_one() -> None:
    evaluations = with_candidate(A, episodes=4)
    evaluations.left(A)
    assert evaluations.ticked(1.0, PLENTY) == []
    assert evaluations.ticked(1.0 + e.ABANDON_S, PLENTY) == []
    [effect] = evaluations.ticked(1.1 + e.ABANDON_S, PLENTY)
    assert isinstance(effect, Abandoned)
    assert not evaluations.wants(200.0, PLENTY)
    evaluations.volunteered(B, 1)
    assert evaluations.offered(8, 200.0, PLENTY)


def test_failures_again_and_again_are_not_taken_for_nobody() -> None:
    evaluations = with_candidate(A, episodes=8)
    now = 0.0
    while now < 2 * e.ABANDON_S:  # a slow one, which is back before it is given up
        effects = evaluations.ticked(now, PLENTY)
        assert not any(isinstance(effect, Abandoned) for effect in effects)
        for key, job in handed(effects):
            if evaluations._volunteers[key].failures < 3:
                evaluations.failed(key, job.id, 0, now)
            else:
                evaluations.result(key, job.id, played(job), now)
        now += 1.0
    assert evaluations.version == -1


def test_what_waits_for_its_share_is_not_given_up() -> None:
    evaluations = with_candidate(A, share=0.5, episodes=12)
    [(key, job)] = handed(evaluations.ticked(0.0, 6000))
    evaluations.result(key, job.id, played(job, 1000), 1.0)
    for now in range(2, 500):
        assert evaluations.ticked(float(now), 6000) == []
    assert len(handed(evaluations.ticked(500.0, PLENTY))) == 1


def test_what_a_node_gave_that_is_put_out_does_not_count() -> None:
    evaluations = with_candidate(A, B, episodes=12)
    jobs = dict(handed(evaluations.ticked(0.0, PLENTY)))
    for key, job in jobs.items():
        evaluations.result(key, job.id, played(job), 1.0)
    assert evaluations.done == 8
    evaluations.left(A, void=True)
    assert evaluations.done == 4
    [(key, again)] = handed(evaluations.ticked(2.0, PLENTY))
    assert (key, again.first) == (B, jobs[A].first)


# --- results that are none


@pytest.mark.parametrize(
    ("episodes", "reason"),
    [
        ([], "malformed"),
        ([(1.0, 5)] * 3, "malformed"),
        ([(1.0, 5)] * 5, "malformed"),
        ([(math.nan, 5)] * 4, "not_finite"),
        ([(math.inf, 5)] * 4, "not_finite"),
        ([(1.0, 0)] * 4, "out_of_bounds"),
        ([(1.0, -5)] * 4, "out_of_bounds"),
        ([(1.0, 501)] * 4, "out_of_bounds"),
        ([(5.1, 5)] * 4, "out_of_bounds"),
        ([(-0.1, 5)] * 4, "out_of_bounds"),
    ],
)
def test_episodes_that_cannot_be_are_refused_and_played_again(
    episodes: list[tuple[float, int]], reason: str
) -> None:
    evaluations = with_candidate(A, B, episodes=4, max_episode_steps=500, reward_range=(0.0, 1.0))
    [(liar, job)] = handed(evaluations.ticked(0.0, PLENTY))
    with pytest.raises(RemoteProtocolError) as error:
        evaluations.result(liar, job.id, episodes, 1.0)
    assert error.value.reason == reason
    assert evaluations.refused == {reason: 1}
    [(other, again)] = handed(evaluations.ticked(1.0, PLENTY))
    assert (other != liar, again.first) == (True, 0)
    assert evaluations.result(other, again.id, [(5.0, 5)] * 4, 2.0) == ""


def test_a_huge_return_is_refused_where_nothing_is_declared() -> None:
    evaluations = with_candidate(A, episodes=4)
    [(key, job)] = handed(evaluations.ticked(0.0, PLENTY))
    with pytest.raises(RemoteProtocolError):
        evaluations.result(key, job.id, [(1e300, 5)] * 4, 1.0)


def test_a_result_counts_once_and_only_from_whom_it_is_asked() -> None:
    evaluations = with_candidate(A, B, episodes=8)
    jobs = dict(handed(evaluations.ticked(0.0, PLENTY)))
    assert evaluations.result(B, jobs[A].id, played(jobs[A]), 1.0) == "unknown_job"
    assert evaluations.result(A, jobs[A].id, played(jobs[A]), 1.0) == ""
    assert evaluations.result(A, jobs[A].id, played(jobs[A]), 1.0) == "duplicate"
    assert evaluations.result(A, 10**6, played(jobs[A]), 1.0) == "unknown_job"
    evaluations.failed(A, 10**6, 5, 1.0)
    assert evaluations.refused == {"unknown_job": 3, "duplicate": 1}
    assert evaluations.done == 4


def test_numbers_of_jobs_begin_where_the_broker_before_cannot_have_been() -> None:
    evaluations = with_candidate(A, episodes=4, first_id=1000)
    assert handed(evaluations.ticked(0.0, PLENTY))[0][1].id == 1000


# --- anything, in any order

_LONGEST = 40
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["tick", "result", "again", "fail", "lose", "hang", "leave", "put out", "come", "lie"]
        ),
        st.integers(0, 3),
        st.integers(1, _LONGEST),
    ),
    min_size=1,
    max_size=120,
)


class World:
    """Four members that do as they are told, a trainer that offers whenever one is wanted, and a clock."""

    def __init__(self, share: float, episodes: int) -> None:
        self.evaluations = Evaluations(share, episodes, max_episode_steps=_LONGEST)
        self.now, self.steps, self.version = 0.0, 0, 0
        self.held: dict[str, list[Job]] = {}
        self.given: list[tuple[str, Job]] = []
        #: Steps really played, whoever heard of them.
        self.cost = 0
        self.most_out = 0
        self.finished: list[Finished] = []
        self.ids: set[int] = set()

    def act(self, action: str, who: int, length: int) -> None:
        key = f"{who}" * 40
        held = self.held.get(key, [])
        if action == "come":
            self.held.setdefault(key, [])
            self.evaluations.volunteered(key, 1 + who % 2)
        elif action in ("leave", "put out"):
            self.held.pop(key, None)
            self.evaluations.left(key, void=action == "put out")
        elif action == "again" and self.given:
            other, job = self.given[length % len(self.given)]
            assert self.evaluations.result(other, job.id, played(job, 1), self.now) != ""
        elif held and action in ("result", "fail", "lose", "lie"):
            self.over(action, key, held.pop(0), length)
        self.pass_time(1.0 if action != "hang" else 200.0, length)

    def over(self, action: str, key: str, job: Job, length: int) -> None:
        if action == "fail":
            self.cost += length
            self.evaluations.failed(key, job.id, length, self.now)
        elif action == "lie":
            with pytest.raises(RemoteProtocolError):
                self.evaluations.result(key, job.id, [(0.0, _LONGEST + 1)] * job.episodes, self.now)
        elif action == "result":
            self.cost += length * job.episodes
            assert self.evaluations.result(key, job.id, played(job, length), self.now) == ""
            self.given.append((key, job))

    def pass_time(self, seconds: float, length: int) -> None:
        self.now += seconds
        self.steps += 100
        self.evaluations.played([length])
        for key, held in self.held.items():
            for back in self.evaluations.at_work(key, {job.id: 0 for job in held}, self.now):
                held[:] = [job for job in held if job.id != back.job]
        if self.evaluations.wants(self.now, self.steps):
            self.version += 1
            assert self.evaluations.offered(self.version, self.now, self.steps)
        for effect in self.evaluations.ticked(self.now, self.steps):
            self.take(effect)
        self.most_out = max(self.most_out, self.evaluations.jobs)
        self.check()

    def take(self, effect: Effect) -> None:
        if isinstance(effect, HandOut):
            assert effect.job.id not in self.ids
            assert effect.key in self.held, "a job for somebody who left"
            self.ids.add(effect.job.id)
            self.held[effect.key].append(effect.job)
        elif isinstance(effect, TakeBack):
            held = self.held[effect.key]
            held[:] = [job for job in held if job.id != effect.job]
        elif isinstance(effect, Finished):
            self.finished.append(effect)
            numbers = [value for value, _ in effect.episodes]
            assert len(set(numbers)) == len(numbers), "an episode counts twice"
            assert set(numbers) <= set(range(self.evaluations.episodes))
            assert len(numbers) >= min(JOB_EPISODES, self.evaluations.episodes) / 2

    def check(self) -> None:
        """All that holds at any moment."""
        e = self.evaluations
        if e.version >= 0:
            parts = e._parts()
            covered = [n for part in parts for n in range(part.first, part.first + part.episodes)]
            assert covered == list(range(e.episodes))
            states = Counter()
            for part in parts:
                state = (part.waiting, part.out is not None, part.results is not None, part.given_up)
                assert sum(state) == 1, state
                states[state] += 1
            out = [one.key for one in e._out()]
            assert set(out) <= self.held.keys()
        wave = self.most_out * JOB_EPISODES * _LONGEST
        assert e.spent <= e.share * (self.steps + e.spent) + wave


@settings(max_examples=200, deadline=None)
@given(ACTIONS, st.sampled_from([0.01, 0.1, 0.5]), st.sampled_from([1, 4, 10]))
def test_whatever_happens_no_part_is_lost_and_the_share_is_kept(
    actions: list[tuple[str, int, int]], share: float, episodes: int
) -> None:
    world = World(share, episodes)
    world.act("come", 0, 5)
    for action in actions:
        world.act(*action)
    before = len(world.finished)
    # Now somebody who does it well: what waits is played, and the next candidate, too.
    world.act("come", 3, 5)
    for _ in itertools.count():
        key = "3" * 40
        world.act("result" if world.held.get(key) else "tick", 3, 5)
        for other in [one for one in world.held if one != key]:
            world.act("leave", int(other[0]), 5)
        if len(world.finished) >= before + 2:
            break
        assert world.now < 100_000, "nothing comes to an end any more"
