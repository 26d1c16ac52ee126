"""A player's evaluation jobs: beside play, with weights of their own, and nothing of them reaches play."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from p2prl_envs.chain import make_chain
from p2prl_envs.realtime import RealTime

from p2prl.core import messages as m
from p2prl.core.schema import SessionSchema
from p2prl.errors import MissingPackage
from p2prl.learn.contracts import Array, Explore
from p2prl.learn.evaluation import evaluate
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import env_spec, session_schema
from p2prl.nodes.evaluator import Evaluator
from p2prl.wire.weights import encode_weights

SEED = 3


class Bold:
    """Greedily: goes right for as many ticks as its weights say, then left for ever."""

    def __init__(self) -> None:
        self.ticks = -1

    def load(self, weights: Any) -> None:
        self.ticks = int(weights["ticks"])

    def start(self, slots: int) -> dict[str, Array]:
        return {"tick": np.zeros(slots, np.int64)}

    def act(self, obs: Any, state: dict[str, Array], explore: Explore | None) -> tuple[Any, Any, Any]:
        right = state["tick"] < self.ticks
        return right.astype(np.uint8), {"tick": state["tick"] + 1}, {}


def make() -> gym.Env[Any, Any]:
    return make_chain(length=6, random_start=True, observation="box", max_steps=20, step_reward=-0.01)


SPEC = env_spec(make(), "chain")
NEVER = 10**6


class Desk:
    """A player's evaluator, what it told its member, and a clock that stands unless it is moved."""

    def __init__(self, make_env: Callable[[], gym.Env[Any, Any]] = make, slots: int = 4) -> None:
        self.told: list[m.PlayerEvaluated] = []
        self.deaf = False
        self.now = 0.0
        self.made = 0
        self._make = make_env
        self.evaluator = Evaluator(5, self._counted, SPEC, Bold, SEED, slots, self._tell, lambda: self.now)

    def _counted(self) -> gym.Env[Any, Any]:
        self.made += 1
        return self._make()

    def _tell(self, message: m.Message) -> bool:
        if self.deaf:
            return False
        assert isinstance(message, m.PlayerEvaluated)
        self.told.append(message)
        return True

    def take(
        self, job: int, ticks: int = NEVER, first: int = 0, episodes: int = 4, longest: int = 20
    ) -> None:
        payload = encode_weights({"ticks": np.array(ticks, np.int64)})
        self.evaluator.take(
            m.EvalJob(job=job, version=1, first=first, episodes=episodes, max_length=longest), payload
        )

    def finish(self) -> m.PlayerEvaluated:
        while self.evaluator.busy:
            self.evaluator.tick()
        return self.told[-1]


def greedily(ticks: int, episodes: int) -> list[tuple[float, int]]:
    actor = Bold()
    actor.load({"ticks": ticks})
    return evaluate(make, SPEC, actor, episodes, SEED)


@pytest.mark.parametrize("slots", [1, 2, 16])
def test_a_job_gives_what_these_weights_give_in_these_episodes(slots: int) -> None:
    desk = Desk(slots=slots)
    desk.take(7, first=2, episodes=4)
    said = desk.finish()
    assert said == m.PlayerEvaluated(
        rank=5, job=7, over=True, steps=said.steps, episodes=greedily(NEVER, 6)[2:]
    )
    assert said.steps == sum(length for _, length in said.episodes)
    assert desk.made == min(slots, 4)


def test_each_job_has_its_own_weights_and_environments_are_kept() -> None:
    desk = Desk()
    for job, ticks in enumerate((NEVER, 1, NEVER)):
        desk.take(job, ticks)
        assert desk.finish().episodes == greedily(ticks, 4)
    assert greedily(NEVER, 4) != greedily(1, 4)
    assert desk.made == 4


def test_play_is_the_same_with_a_job_beside_it() -> None:
    schema: SessionSchema = session_schema(SPEC, {}, 30)
    bundles = []
    for beside in (False, True):
        desk = Desk()
        actor = Bold()
        actor.load({"ticks": 3})
        rollout = Rollout(make, SPEC, schema, actor, slots=2, ladder=1, rank=0, seed=1)
        if beside:
            desk.take(1)
        bundles.append(rollout.collect(desk.evaluator.tick if beside else None))
        rollout.close()
        assert bool(desk.told) == beside
        desk.evaluator.close()
    plain, with_job = bundles
    assert plain.episodes == with_job.episodes
    for name, values in plain.columns.items():
        assert np.array_equal(values, with_job.columns[name]), name


class Clock:
    """Stands still but for waits, and for the moment that each step takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


class Timed(gym.Wrapper[Any, Any, Any, Any]):
    """A chain on the wall clock, whose steps take a moment; notes the ticks that it missed."""

    def __init__(self, clock: Clock, missed: list[int]) -> None:
        world = RealTime(make(), 0.01, clock=lambda: clock.now, wait=clock.wait)
        super().__init__(world)
        self._clock, self._missed = clock, missed

    def step(self, action: Any) -> Any:
        self._clock.now += 0.0002
        answer = super().step(action)
        self._missed.append(answer[4]["missed_ticks"])
        return answer


def test_on_the_wall_clock_neither_misses_a_tick_because_of_the_other() -> None:
    """Play misses what it misses alone (of a tick in which all slots began anew nobody waits for the end)."""
    missed: list[list[int]] = []
    for beside in (False, True):
        clock, played, evaluated = Clock(), list[int](), list[int]()
        desk = Desk(partial(Timed, clock, evaluated))
        actor = Bold()
        actor.load({"ticks": 3})
        schema = session_schema(SPEC, {}, 30)
        make_timed = partial(Timed, clock, played)
        rollout = Rollout(make_timed, SPEC, schema, actor, slots=4, ladder=1, rank=0, seed=1)
        if beside:
            desk.take(1, ticks=0, episodes=8)
        for _ in range(5):
            rollout.collect(desk.evaluator.tick if beside else None)
        rollout.close()
        missed.append(played)
    assert desk.told[-1].over
    assert len(evaluated) > 100
    assert sum(evaluated) == 0
    assert missed[0] == missed[1]
    assert sum(missed[0]) <= 1


def test_how_far_it_is_is_told_now_and_then() -> None:
    desk = Desk()
    desk.take(1, ticks=0)
    for _ in range(5):
        desk.evaluator.tick()
    assert desk.told == []
    desk.now = 0.6
    desk.evaluator.tick()
    desk.evaluator.tick()
    assert desk.told == [m.PlayerEvaluated(rank=5, job=1, steps=24)]


def test_a_turn_is_short_and_says_whether_there_is_more() -> None:
    class Slow(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            desk.now += 0.001
            return super().step(action)

    desk = Desk(lambda: Slow(make()), slots=1)
    assert not desk.evaluator.turn()
    desk.take(1, ticks=0, episodes=1)
    assert desk.evaluator.turn()
    assert 0.005 <= desk.now < 0.007
    turns = 1
    while desk.evaluator.turn():
        turns += 1
    assert 3 <= turns <= 4
    assert desk.told[-1].over


def test_a_result_waits_for_a_member_that_takes_nothing() -> None:
    desk = Desk()
    desk.take(1)
    desk.deaf = True
    for _ in range(100):
        desk.evaluator.tick()
    assert desk.evaluator.busy
    assert not desk.evaluator.turn(), "the loop shall not spin for it"
    desk.deaf = False
    assert desk.finish().episodes == greedily(NEVER, 4)
    assert not desk.evaluator.busy


def test_a_newer_job_takes_the_place_of_an_older_one() -> None:
    desk = Desk()
    desk.take(1, ticks=0)
    desk.evaluator.tick()
    desk.take(2)
    assert desk.finish().job == 2
    assert {said.job for said in desk.told if said.over} == {2}


def test_what_is_dropped_is_not_told() -> None:
    desk = Desk()
    desk.take(1, ticks=0)
    desk.evaluator.drop(99)
    assert desk.evaluator.busy
    desk.evaluator.drop(1)
    assert not desk.evaluator.busy
    desk.evaluator.tick()
    assert desk.told == []


class Breaks(gym.Wrapper[Any, Any, Any, Any]):
    """Raises in its third step, where it was made to."""

    steps, broken = 0, True

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.broken and self.steps == 3:
            raise RuntimeError("the contact solver\ndiverged")
        return super().step(action)


def test_an_environment_that_raises_ends_the_job_and_is_replaced_for_the_next() -> None:
    made: list[Breaks] = []

    def make_breaking() -> gym.Env[Any, Any]:
        made.append(Breaks(make()))
        made[-1].broken = len(made) <= 2
        return made[-1]

    desk = Desk(make_breaking, slots=2)
    desk.take(1, ticks=0)
    said = desk.finish()
    assert said.over
    assert said.episodes == []
    assert "step raised RuntimeError: the contact solver diverged" in said.failure
    assert said.kind == "environment"
    desk.take(2, ticks=0)
    assert desk.finish().episodes == greedily(0, 4)
    assert len(made) == 4


def test_an_environment_that_cannot_be_made_and_weights_that_are_none_end_the_job() -> None:
    """And it is said whose fault it is: an environment's, a package's, weights that are none, an agent's."""

    def none() -> gym.Env[Any, Any]:
        raise OSError("no simulator on this machine")

    def no_package() -> gym.Env[Any, Any]:
        raise MissingPackage("ale-py is not here")

    def leaves() -> gym.Env[Any, Any]:
        sys.exit(3)

    for make_env, text, kind in (
        (leaves, "cannot be made: SystemExit: 3", "environment"),
        (none, "no simulator on this machine", "environment"),
        (no_package, "ale-py is not here", "missing_package"),
    ):
        desk = Desk(make_env)
        desk.take(1)
        said = desk.finish()
        assert text in said.failure
        assert said.kind == kind
    for payload, kind in (
        (b"nonsense", "player"),
        (encode_weights({"other": np.array(1, np.int64)}), "agent"),  # Bold looks for "ticks"
    ):
        desk = Desk()
        desk.evaluator.take(m.EvalJob(job=3, version=1, first=0, episodes=1, max_length=5), payload)
        said = desk.finish()
        assert said.failure.startswith("evaluation: ")
        assert said.kind == kind
