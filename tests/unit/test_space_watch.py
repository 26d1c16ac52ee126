"""p2prl.learn.space_watch, alone and in a rollout: what an environment gives outside of what it declares."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from p2prl.core.schema import RESET, TERMINATED
from p2prl.learn.contracts import Explore
from p2prl.learn.environments import EnvironmentFailed, NotFinite
from p2prl.learn.rollout import Rollout
from p2prl.learn.space_watch import SpaceWatch
from p2prl.learn.spaces import env_spec, session_schema
from p2prl.replay.validate import check_bundle
from p2prl.wire.bundle import encode_bundle
from tests.samples.idle import IdleActor

NAN, INF = math.nan, math.inf


class Plain(gym.Env[Any, Any]):
    """Gives what a function of (episode, tick) says; tick 0 is a reset, which gives no reward. Episodes of `last`."""

    def __init__(
        self,
        space: gym.Space[Any],
        give: Callable[[int, int], tuple[Any, float]],
        last: int = 5,
        reward_range: tuple[float, float] | None = None,
    ) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self._give, self._last = give, last
        self._episode, self._tick = -1, 0
        if reward_range is not None:
            self.reward_range = reward_range

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._tick = self._episode + 1, 0
        return self._give(self._episode, 0)[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._tick += 1
        obs, reward = self._give(self._episode, self._tick)
        return obs, reward, self._tick == self._last, False, {}


class Coin(IdleActor):
    """Tosses for each slot, whatever an observation is made of."""

    def __init__(self, slots: int) -> None:
        self._slots = slots

    def act(self, obs: Any, state: Any, explore: Explore | None) -> tuple[Any, Any, Any]:
        return super().act(range(self._slots), state, explore)


def rollout(make: Callable[[], gym.Env[Any, Any]], slots: int = 1, ticks: int = 12) -> Rollout:
    spec = env_spec(make(), "Odd-v0")
    schema = session_schema(spec, {}, ticks)
    return Rollout(make, spec, schema, Coin(slots), slots=slots, ladder=1, rank=0, seed=1)


def sound(run: Rollout) -> Any:
    """The next bundle; a host would take it."""
    bundle = run.collect()
    spec, schema = run._spec, run._schema
    header, _ = encode_bundle(
        schema, bundle.columns, slots=run._slots, version=0, rank=0, serial=1, steps=bundle.steps,
        episodes=bundle.episodes,
    )  # fmt: skip
    check_bundle(schema, header, bundle.columns, spec.reward_range, spec.max_episode_steps)
    return bundle


BOX = spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32))
PLACES = spaces.Box(0, 7, (3,), np.uint8)


@pytest.mark.parametrize(
    ("space", "obs", "text"),
    [
        (BOX, np.array([1.5, 3], np.float32), "obs[0] was 1.5, and its space says -1 to 1"),
        (BOX, np.array([1, -0.25], np.float32), "obs[1] was -0.25, and its space says 0 to inf"),
        (spaces.Box(0, 1, (2, 2)), np.array([[0, 0], [9, 0]]), "obs[1, 0] was 9, and its space says 0 to 1"),
        (spaces.Box(0, 1, ()), np.float32(2), "obs was 2, and its space says 0 to 1"),
        (spaces.Discrete(5), 7, "obs was 7, and its space says 0 to 4"),
        (spaces.Discrete(5, start=3), np.int64(1), "obs was 1, and its space says 3 to 7"),
        (spaces.MultiDiscrete([2, 5]), np.array([1, 5]), "obs[1] was 5, and its space says 0 to 4"),
        (PLACES, np.array([1, 8, 0], np.uint8), "obs[1] was 8, and its space says 0 to 7"),
        # Beyond the dtype: 258 would be stored as 2, which looks well.
        (PLACES, np.array([1, 258, 0]), "obs[1] was 258, and its space says 0 to 7"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([-3]), "obs[0] was -3, and its space says 0 to 255"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([1e9]), "obs[0] was 1e+09, and its space says 0 to 255"),
        (spaces.Dict(a=BOX, b=PLACES), {"a": np.float32([0, 0]), "b": np.uint8([9, 0, 0])},
         "obs.b[0] was 9, and its space says 0 to 7"),
        (spaces.Tuple([BOX]), (np.float32([-2, 0]),), "obs.0[0] was -2, and its space says -1 to 1"),
    ],
)  # fmt: skip
def test_an_observation_outside_its_space_is_said_once_with_leaf_value_and_bounds(
    space: gym.Space[Any], obs: Any, text: str
) -> None:
    run = rollout(lambda: Plain(space, lambda episode, tick: (obs, 1.0)))
    for _ in range(6):
        sound(run)
    assert run.warnings == [f"Odd-v0: {text}"]
    assert run.failures == 0


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (BOX, np.array([-1, 1e30], np.float32)),
        (BOX, np.array([0.5, 1e9])),  # float64, as many environments give
        (spaces.Box(0.1, 0.3, (2,)), np.array([0.1, 0.3])),  # the bounds themselves, rounded otherwise
        (spaces.Discrete(5), 4),
        (PLACES, np.array([0, 7, 3])),
        (spaces.Box(0, 255, (4, 4), np.uint8), np.full((4, 4), 255, np.uint8)),
        (spaces.MultiBinary(3), np.array([0, 1, 1], np.int8)),
    ],
)
def test_what_is_inside_raises_no_warning(space: gym.Space[Any], obs: Any) -> None:
    run = rollout(lambda: Plain(space, lambda episode, tick: (obs, 1.0)))
    for _ in range(3):
        sound(run)
    assert run.warnings == []


def test_each_leaf_is_said_for_itself() -> None:
    space = spaces.Dict(a=BOX, b=spaces.Discrete(3))
    run = rollout(lambda: Plain(space, lambda e, t: ({"a": np.float32([e * 2, 0]), "b": 3 if e else 0}, 0.0)))
    for _ in range(4):
        sound(run)
    assert run.warnings == [
        "Odd-v0: obs.a[0] was 2, and its space says -1 to 1",
        "Odd-v0: obs.b was 3, and its space says 0 to 2",
    ]


def test_an_integer_that_its_dtype_cannot_hold_is_said_although_only_steps_give_it() -> None:
    run = rollout(lambda: Plain(PLACES, lambda e, t: (np.array([1, 258 if t else 0, 0]), 1.0)), ticks=10)
    assert sound(run).columns["flags"][-1, 0] == 0, "what came last is of a step"
    assert run.warnings == ["Odd-v0: obs[1] was 258, and its space says 0 to 7"]


def test_large_observations_are_looked_at_now_and_then() -> None:
    space = spaces.Box(0, 1, (400, 400))
    watch = SpaceWatch(env_spec(Plain(space, lambda e, t: (0, 0.0)), "Big-v0"))
    good, bad = np.zeros((2, 1, 400, 400), np.float32), np.full((2, 1, 400, 400), 2, np.float32)
    for _ in range(8):
        watch.see({"obs": good})
    seen = 0
    while not watch.warnings:
        watch.see({"obs": bad})
        seen += 1
    assert seen == 8, "the 16th bundle"


# --- rewards


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e39])
def test_a_reward_that_is_not_finite_costs_its_step_and_is_named(bad: float) -> None:
    """The third step of each environment's first episode."""
    run = rollout(lambda: Plain(BOX, lambda e, t: (np.float32([0, t]), bad if (e, t) == (0, 3) else 1.0)), 1)
    bundle = sound(run)
    # Two steps, the failure, and then a fresh environment that fails in the same place, over and over.
    assert bundle.columns["flags"][:, 0].tolist() == [0, 0, RESET] * 4
    assert bundle.episodes == []
    assert run.failures == 4
    assert run.failure == f"Odd-v0: slot 0: step gave the reward {bad:g}"


def test_a_reward_that_is_no_number_costs_its_step_alone() -> None:
    """None of the others of that tick: what they earned is theirs."""
    made = itertools.count()

    def make() -> gym.Env[Any, Any]:
        bad = next(made) == 2  # the first tells the spaces, so it is that of slot 1
        return Plain(BOX, lambda e, t: (np.float32([0, t]), "much" if bad and t == 3 else 0.5))

    run = rollout(make, slots=3, ticks=5)
    columns = sound(run).columns
    assert columns["flags"][:, 1].tolist() == [0, 0, RESET, 0, 0]
    assert columns["reward"].T.tolist() == [[0.5] * 5, [0.5, 0.5, 0, 0.5, 0.5], [0.5] * 5]
    assert run.failures == 1
    assert "could not convert string to float: 'much'" in run.failure


def test_an_environment_that_gives_nothing_else_ends_its_player() -> None:
    run = rollout(lambda: Plain(BOX, lambda e, t: (np.float32([0, 0]), NAN)))
    with pytest.raises(EnvironmentFailed, match="Odd-v0: slot 0: step gave the reward nan"):
        run.collect()


def test_rewards_at_the_declared_bounds_stay_as_they_are() -> None:
    """0.1 as float32 is a little more than 0.1; a host rounds its bounds too."""
    given = [0.1, float(np.float32(0.1)), -0.3, float(np.float32(-0.3))]
    run = rollout(
        lambda: Plain(BOX, lambda e, t: (np.float32([0, 0]), given[t % 4]), reward_range=(-0.3, 0.1))
    )
    for _ in range(3):
        sound(run)
    assert run.warnings == []


def test_a_range_that_is_open_on_one_side_still_holds_on_the_other() -> None:
    run = rollout(lambda: Plain(BOX, lambda e, t: (np.float32([0, 0]), -5.0), reward_range=(-1.0, INF)))
    assert set(sound(run).columns["reward"][:, 0].tolist()) == {-1.0, 0.0}
    assert run.warnings == [
        "Odd-v0: a reward of -5, and its reward_range is -1 to inf: it is taken as -1; correct one of them"
    ]


# --- observations that are not finite


def test_an_observation_that_is_not_finite_costs_its_step_and_the_actor_never_sees_it() -> None:
    def give(episode: int, tick: int) -> tuple[Any, float]:
        return np.float32([0, NAN if (episode, tick) == (1, 2) else tick]), 1.0

    run = rollout(lambda: Plain(BOX, give), slots=2, ticks=20)
    bundle = sound(run)
    c = bundle.columns
    assert np.isfinite(c["obs"]).all()
    # One episode of five, one step of the next, the failure; then a new environment, whose second episode fails too.
    begin = [0, 0, 0, 0, TERMINATED, RESET, 0, RESET]
    assert c["flags"][:, 0].tolist() == [*begin, *begin, 0, 0, 0, 0]
    assert c["obs"][:9, 0, 1].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 0]
    assert bundle.episodes[::2] == [(5.0, 5, 0.0)] * 2
    assert run.failures == 4
    assert run.failure.endswith("step gave obs[1] = nan")


def test_one_slot_costs_the_others_nothing() -> None:
    made = []

    def make() -> gym.Env[Any, Any]:
        number = len(made)
        made.append(number)

        def give(episode: int, tick: int) -> tuple[Any, float]:
            return np.float32([0, INF if number == 2 and tick == 3 else tick]), 1.0

        return Plain(BOX, give)

    run = rollout(make, slots=3)  # the first made tells the spaces, so it is slot 1's that fails, once
    bundle = sound(run)
    assert [int(np.count_nonzero(bundle.columns["flags"][:, slot] & RESET)) for slot in range(3)] == [2, 2, 2]
    assert bundle.columns["flags"][:4, 1].tolist() == [0, 0, RESET, 0]
    assert run.failures == 1


def test_a_reset_that_is_not_finite_begins_anew() -> None:
    run = rollout(
        lambda: Plain(BOX, lambda e, t: (np.float32([0, NAN if (e, t) == (1, 0) else t]), 1.0)), 1, 14
    )
    flags = sound(run).columns["flags"][:, 0].tolist()
    assert flags == [0, 0, 0, 0, TERMINATED, RESET] * 2 + [0, 0]
    assert run.failures == 2
    assert run.failure == "Odd-v0: slot 0: reset gave obs[1] = nan"


def test_a_first_reset_that_is_not_finite_is_a_failure_from_the_start() -> None:
    with pytest.raises(EnvironmentFailed, match=r"Odd-v0: slot 0: reset gave obs\[1\] = inf"):
        rollout(lambda: Plain(BOX, lambda e, t: (np.float32([0, INF]), 1.0)))


def test_a_value_too_large_for_the_stored_dtype_is_not_finite() -> None:
    run = rollout(lambda: Plain(BOX, lambda e, t: (np.array([0, 1e39 if t == 4 else t]), 1.0)), 1)
    with pytest.warns(RuntimeWarning, match="overflow"):
        sound(run)
    assert run.failure == "Odd-v0: slot 0: step gave obs[1] = inf"


def test_reward_is_told_apart_from_what_is_merely_outside() -> None:
    watch = SpaceWatch(env_spec(Plain(BOX, lambda e, t: (0, 0.0), reward_range=(0, 1)), "x"))
    assert (watch.low, watch.high) == (0.0, 1.0)
    assert watch.reward(1.5) == 1.0
    with pytest.raises(NotFinite):
        watch.reward(NAN)
