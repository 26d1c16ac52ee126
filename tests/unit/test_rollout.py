"""p2prl.learn.rollout: sessions as core/schema.py lays them down, played in the chain."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from p2prl_envs.chain import make_chain

from p2prl.core.ladder import ladder_level
from p2prl.core.schema import RESET, TERMINATED, TRUNCATED
from p2prl.core.spaces import EnvSpec
from p2prl.errors import P2prlError
from p2prl.learn.contracts import Array, Explore, Field
from p2prl.learn.environments import EnvironmentFailed, bare_step, slot_seed
from p2prl.learn.evaluation import evaluate
from p2prl.learn.playing import ANNEALING_LEVEL, Bundle
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import env_spec, session_schema
from p2prl.replay.validate import check_bundle
from p2prl.wire.bundle import encode_bundle

Make = Callable[[], gym.Env[Any, Any]]


class Scripted:
    """Acts by a rule of (explore, slots); counts its own ticks per episode in the state, and stores the count."""

    annealing = False

    def __init__(self, rule: Callable[[Explore | None, int], Array]) -> None:
        self.rule = rule

    def load(self, weights: Mapping[str, Array]) -> None:
        pass

    def start(self, slots: int) -> dict[str, Array]:
        return {"count": np.full(slots, 100, np.int32)}

    def act(self, obs: Any, state: dict[str, Array], explore: Explore | None) -> tuple[Any, Any, Any]:
        return (
            self.rule(explore, len(state["count"])),
            {"count": state["count"] + 1},
            {"count": state["count"].copy()},
        )


def right(explore: Explore | None, slots: int) -> Array:
    return np.ones(slots, np.uint8)


def left(explore: Explore | None, slots: int) -> Array:
    return np.zeros(slots, np.uint8)


def at_random(explore: Explore | None, slots: int) -> Array:
    assert explore is not None
    return explore.rng.integers(2, size=slots).astype(np.uint8)


def roll(
    make: Make, rule: Callable[[Explore | None, int], Array], *, ticks: int = 8, slots: int = 2, **more: Any
) -> Rollout:
    env = make()
    spec = env_spec(env, "chain")
    schema = session_schema(spec, {"count": Field("int32")}, ticks)
    return Rollout(
        make, spec, schema, Scripted(rule), slots=slots, **{"ladder": 1, "rank": 0, "seed": 1, **more}
    )


def test_termination_then_reset_inside_a_session() -> None:
    bundle = roll(lambda: make_chain(length=4), right).collect()
    c = bundle.columns
    # places 0 1 2 3(final) | 0 1 2 3(final) | 0
    assert c["obs"][:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert c["flags"][:, 0].tolist() == [0, 0, TERMINATED, RESET, 0, 0, TERMINATED, RESET]
    assert c["reward"][:, 0].tolist() == [0, 0, 1, 0, 0, 0, 1, 0]
    assert bundle.steps == 12
    assert bundle.episodes == [(1.0, 3, 0.0)] * 4


def test_recurrent_state_begins_anew_with_each_episode() -> None:
    counts = roll(lambda: make_chain(length=4), right).collect().columns["count"][:, 0].tolist()
    assert counts == [100, 101, 102, 103, 100, 101, 102, 103]


def stored_as(make: Make, rule: Any, fields: Mapping[str, Field], ticks: int, **stored: bool) -> Rollout:
    spec = env_spec(make(), "chain")
    schema = session_schema(spec, fields, ticks, **stored)
    return Rollout(make, spec, schema, Scripted(rule), slots=3, ladder=1, rank=0, seed=1)


def test_a_field_that_is_stored_once_keeps_what_was_given_at_the_first_tick() -> None:
    def make() -> Any:
        return make_chain(length=4, step_reward=0.1)

    whole = stored_as(make, at_random, {"count": Field("int32")}, 5)
    once = stored_as(make, at_random, {"count": Field("int32", once=True)}, 5)
    for _ in range(20):
        every, first = whole.collect().columns, once.collect().columns
        assert first["count"].shape == (1, 3)
        assert np.array_equal(first["count"][0], every["count"][0])
        assert np.array_equal(first["obs"], every["obs"])


def test_columns_that_are_not_stored_do_not_change_what_is_played() -> None:
    def make() -> Any:
        return make_chain(length=4, step_reward=0.1)

    fields = {"count": Field("int32")}
    whole = stored_as(make, at_random, fields, 7)
    bare = stored_as(make, at_random, fields, 7, observations=False, actions=False)
    for _ in range(20):
        everything, rest = whole.collect(), bare.collect()
        assert list(rest.columns) == ["reward", "flags", "count"]
        assert rest.episodes == everything.episodes
        for name, values in rest.columns.items():
            assert np.array_equal(values, everything.columns[name])


def test_slots_that_play_alike_are_seen_also_where_observations_are_not_stored() -> None:
    rollout = stored_as(make_chain, left, {"count": Field("int32")}, 8, observations=False, actions=False)
    for _ in range(2):
        rollout.collect()
    assert "byte-identical" in rollout.warnings[0]
    apart = stored_as(make_chain, at_random, {"count": Field("int32")}, 8, observations=False, actions=False)
    for _ in range(2):
        apart.collect()
    assert apart.warnings == []


def test_truncation_keeps_the_final_observation() -> None:
    bundle = roll(
        lambda: make_chain(length=4, observation="box", max_steps=3, step_reward=0.5), left
    ).collect()
    assert bundle.columns["obs"][:, 1, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert bundle.columns["flags"][:, 1].tolist() == [0, 0, TRUNCATED, RESET, 0, 0, TRUNCATED, RESET]
    assert bundle.episodes[0] == (1.5, 3, 0.0)


def test_terminated_and_truncated_at_once_are_both_said() -> None:
    flags = roll(lambda: make_chain(length=4, max_steps=3), right).collect().columns["flags"][:, 0].tolist()
    assert flags[2] == TERMINATED | TRUNCATED


class Counting(TimeLimit):
    """Like Gymnasium's own in all it does, and yet another one: its `step` is left as it is."""


class Fickle(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode, or raises, now and then."""

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        super().__init__(env)
        self.rng = np.random.default_rng(seed)

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = self.env.step(action)
        drawn = self.rng.random()
        if drawn < 0.02:
            raise RuntimeError("now")
        return obs, reward, drawn < 0.2, drawn > 0.95, info


@pytest.mark.parametrize("limits", [[1], [3], [7], [5, 4], [4, 5], [2, 9, 6]])
def test_time_limits_that_are_kept_here_are_those_of_gymnasium(limits: list[int]) -> None:
    """The limits of each slot differ, too; and episodes end, and environments fail, before they are reached."""

    def played(wrapper: type[TimeLimit]) -> list[Bundle]:
        made = itertools.count()

        def make() -> gym.Env[Any, Any]:
            number = next(made)
            env: gym.Env[Any, Any] = OrderEnforcing(Fickle(make_chain(length=400), number))
            for limit in limits:
                env = wrapper(env, limit + number % 2)
            return env

        rollout = roll(make, right, ticks=40, slots=3)
        bundles = [rollout.collect() for _ in range(6)]
        assert rollout.failures > 3
        rollout.close()
        return bundles

    for ours, theirs in zip(played(TimeLimit), played(Counting), strict=True):
        assert sorted(ours.episodes) == sorted(theirs.episodes)  # of one tick in any order
        assert ours.steps == theirs.steps
        for name, column in ours.columns.items():
            assert np.array_equal(column, theirs.columns[name]), name


def test_what_steps_an_environment_that_has_wrappers_of_its_own() -> None:
    inner = make_chain(length=400)
    plain = inner.unwrapped
    assert bare_step(TimeLimit(OrderEnforcing(plain), 7)) == (plain.step, 7)
    clipped = gym.wrappers.TransformReward(TimeLimit(plain, 7), float)
    assert bare_step(TimeLimit(clipped, 9)) == (clipped.step, 9)
    assert bare_step(plain) == (plain.step, math.inf)
    unknown = TimeLimit(plain, 7)
    del unknown._max_episode_steps  # a Gymnasium that names it otherwise
    assert bare_step(unknown) == (unknown.step, math.inf)


def test_episodes_of_one_step() -> None:
    bundle = roll(lambda: make_chain(length=2), right, ticks=5, slots=1).collect()
    assert bundle.columns["flags"][:, 0].tolist() == [TERMINATED, RESET, TERMINATED, RESET, TERMINATED]
    assert bundle.columns["obs"][:, 0].tolist() == [0, 1, 0, 1, 0, 1]
    assert bundle.episodes == [(1.0, 1, 0.0)] * 3
    assert bundle.steps == 3


@pytest.mark.parametrize("ticks", [1, 2, 3, 5, 7])
def test_episodes_span_bundles(ticks: int) -> None:
    """Cut anywhere, the same ticks come out: the last row of a bundle is the first of the next."""
    whole = roll(lambda: make_chain(length=4, step_reward=0.1), at_random, ticks=210, slots=3).collect()
    rollout = roll(lambda: make_chain(length=4, step_reward=0.1), at_random, ticks=ticks, slots=3)
    parts = [rollout.collect() for _ in range(210 // ticks)]
    for name in ("action", "reward", "flags", "count"):
        assert np.array_equal(np.concatenate([p.columns[name] for p in parts]), whole.columns[name])
    rows = np.concatenate([p.columns["obs"][:-1] for p in parts] + [parts[-1].columns["obs"][-1:]])
    assert np.array_equal(rows, whole.columns["obs"])
    assert [e for p in parts for e in p.episodes] == whole.episodes
    assert sum(p.steps for p in parts) == whole.steps


def test_every_tick_without_reset_is_a_true_transition() -> None:
    """Checked against the chain's own rule, for random play."""
    c = roll(lambda: make_chain(length=4, max_steps=5), at_random, ticks=300, slots=4).collect().columns
    real = (c["flags"] & RESET) == 0
    moved = np.maximum(c["obs"][:-1].astype(int) + np.where(c["action"] == 1, 1, -1), 0)
    assert np.array_equal(moved[real], c["obs"][1:][real])
    assert (c["obs"][1:][~real] == 0).all()
    over = (c["flags"] & (TERMINATED | TRUNCATED)) != 0
    assert np.array_equal(over[:-1], (c["flags"][1:] & RESET) != 0)


def test_nested_observations_land_in_their_columns() -> None:
    for kind, names in (("dict", ("obs.place", "obs.ticks")), ("tuple", ("obs.0", "obs.1"))):
        c = roll(lambda kind=kind: make_chain(length=4, observation=kind), right).collect().columns
        assert c[names[0]][:4, 0].tolist() == [0, 1, 2, 3]
        assert c[names[1]].shape == (9, 2, 1)
        assert c[names[1]][:5, 0, 0].tolist() == [0, 1, 2, 3, 0]


def test_returns_are_summed_in_float64() -> None:
    bundle = roll(
        lambda: make_chain(length=9, max_steps=200, step_reward=0.1), left, ticks=200, slots=1
    ).collect()
    assert bundle.episodes[0][0] == pytest.approx(20.0, abs=1e-12)


def test_ladder_fills_evenly_over_players() -> None:
    levels = [ladder_level(index, 4) for index in range(64)]
    assert levels[:4] == [0.0, 0.5, 0.25, 0.75]
    for block in range(0, 64, 4):
        assert sorted(levels[block : block + 4]) == [0.0, 0.25, 0.5, 0.75]
    assert {ladder_level(index, 1) for index in range(20)} == {0.0}
    second = roll(make_chain, right, ladder=4, rank=1, slots=3)
    assert second.explore.level.tolist() == levels[3:6]


class NoisyStart(gym.Env[Any, Any]):
    """A random start; its generator is seeded by reset, or (`deaf`) by itself, always alike."""

    def __init__(self, deaf: bool = False) -> None:
        self.observation_space = gym.spaces.Box(0, 1, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self.deaf, self.left = deaf, 0
        self.seeds: list[int | None] = []
        if deaf:
            self.np_random = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        if not self.deaf:
            super().reset(seed=seed)
        self.left = 3
        return self.np_random.random(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.array([action, self.left / 3]), 0.0, self.left == 0, False, {}


def test_only_the_first_reset_of_a_slot_has_a_seed_and_slots_differ() -> None:
    made: list[NoisyStart] = []

    def make() -> NoisyStart:
        made.append(NoisyStart())
        return made[-1]

    rollout = roll(make, at_random, slots=4)
    rollout.collect()
    played = made[1:]
    assert [env.seeds[0] for env in played] == [slot_seed(1, slot) for slot in range(4)]
    assert len({env.seeds[0] for env in played}) == 4
    assert all(len(env.seeds) > 1 and set(env.seeds[1:]) == {None} for env in played)
    assert {slot_seed(1, slot) for slot in range(50)}.isdisjoint(slot_seed(2, slot) for slot in range(50))


def test_an_environment_that_ignores_seeds_is_named() -> None:
    """G1.11: all slots would play the same episodes."""
    rollout = roll(lambda: NoisyStart(deaf=True), at_random)
    rollout.collect()
    [warning] = rollout.warnings
    assert "chain ignores reset(seed=)" in warning
    assert "\n" not in warning


@pytest.mark.parametrize("make", [NoisyStart, make_chain, lambda: gym.make("CartPole-v1")])
def test_seeded_and_fixed_starts_raise_no_warning(make: Make) -> None:
    rollout = roll(make, at_random, slots=8)
    for _ in range(4):
        rollout.collect()
    assert rollout.warnings == []


def test_slots_that_play_identical_sessions_are_named() -> None:
    rollout = roll(make_chain, right, slots=3)
    rollout.collect()
    assert rollout.warnings == []
    rollout.collect()
    [warning] = rollout.warnings
    assert "slots 0 and 1 play byte-identical sessions" in warning


class Failing(gym.Wrapper[Any, Any, Any, Any]):
    """Raises in the step after `steps` steps, and in the reset after `resets` resets; keeps the seeds it was given."""

    def __init__(self, env: gym.Env[Any, Any], steps: int = 999, resets: int = 999) -> None:
        super().__init__(env)
        self.steps, self.resets = steps, resets
        self.closed = 0
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        self.resets -= 1
        if self.resets < 0:
            raise OSError("no simulator")
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps -= 1
        if self.steps < 0:
            raise RuntimeError("the motor\n  is hot")
        return self.env.step(action)

    def close(self) -> None:
        self.closed += 1


def failing(*envs: Failing, ticks: int = 8, **more: Any) -> Rollout:
    """A rollout whose environments are these in turn: one for each slot, then those that replace others."""
    made = iter(envs)
    env = make_chain(length=30)
    spec = env_spec(env, "chain")
    schema = session_schema(spec, {"count": Field("int32")}, ticks)
    return Rollout(
        made.__next__, spec, schema, Scripted(right), ladder=1, rank=0, seed=1, **{"slots": 1, **more}
    )


def chain(steps: int = 999, resets: int = 999, length: int = 30) -> Failing:
    return Failing(make_chain(length=length), steps, resets)


def test_an_environment_that_raises_is_replaced_and_its_episode_counts_for_nothing() -> None:
    envs = [chain(), chain(steps=5), chain(), chain()]
    rollout = failing(*envs, slots=3)
    bundle = rollout.collect()
    c = bundle.columns
    assert c["obs"][:, 1].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert c["flags"][:, 1].tolist() == [0, 0, 0, 0, 0, RESET, 0, 0]
    assert c["count"][:, 1].tolist() == [100, 101, 102, 103, 104, 105, 100, 101]
    assert bundle.episodes == []  # what it would have come to nobody knows
    assert bundle.steps == 3 * 8 - 1
    for slot in (0, 2):
        assert c["obs"][:, slot].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
        assert not c["flags"][:, slot].any()
    assert rollout.failures == 1
    assert rollout.failure == "chain: slot 1: step raised RuntimeError: the motor is hot"
    assert [env.closed for env in envs] == [0, 1, 0, 0]
    assert len({seed for env in envs for seed in env.seeds}) == 4
    rollout.close()


def test_an_episode_that_breaks_off_between_two_bundles_is_not_counted() -> None:
    rollout = failing(chain(steps=8), chain())
    assert rollout.collect().episodes == []
    bundle = rollout.collect()
    assert bundle.columns["obs"][:, 0].tolist() == [8, 0, 1, 2, 3, 4, 5, 6, 7]
    assert bundle.columns["flags"][:, 0].tolist() == [RESET, *[0] * 7]
    assert (bundle.episodes, bundle.steps) == ([], 7)


def test_a_reset_that_raises_costs_no_episode() -> None:
    rollout = failing(chain(resets=1, length=4), chain(length=30))
    bundle = rollout.collect()
    assert bundle.columns["obs"][:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert bundle.columns["flags"][:, 0].tolist() == [0, 0, TERMINATED, RESET, 0, 0, 0, 0]
    assert bundle.episodes == [(1.0, 3, 0.0)]
    assert "reset raised OSError: no simulator" in rollout.failure


class Leaving(Failing):
    """Ends the process where Failing raises, and whenever it is closed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        try:
            return super().reset(seed=seed, options=options)
        except OSError:
            sys.exit("no simulator")

    def step(self, action: Any) -> Any:
        try:
            return super().step(action)
        except RuntimeError:
            sys.exit(3)

    def close(self) -> None:
        super().close()
        sys.exit(4)


def test_one_that_ends_the_process_is_replaced_like_one_that_raises() -> None:
    envs = [Leaving(make_chain(length=30), steps=5), Leaving(make_chain(length=30), resets=0), chain()]
    rollout = failing(*envs)
    assert rollout.collect().columns["obs"][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert (rollout.failures, rollout.failure) == (2, "chain: slot 0: reset raised SystemExit: no simulator")
    rollout = failing(*(Leaving(make_chain(length=30), steps=0) for _ in range(9)))
    with pytest.raises(EnvironmentFailed, match="chain: slot 0: step raised SystemExit: 3"):
        rollout.collect()


def test_whatever_raises_bundles_are_valid_and_each_step_is_a_true_transition() -> None:
    rng = np.random.default_rng(7)

    def make() -> Failing:
        return chain(int(rng.integers(12)), int(rng.integers(1, 4)), length=6)

    spec = env_spec(make_chain(length=6), "chain")
    schema = session_schema(spec, {"count": Field("int32")}, 8)
    rollout = Rollout(make, spec, schema, Scripted(right), slots=4, ladder=1, rank=0, seed=1)
    for _ in range(100):
        bundle = rollout.collect()
        header, _ = encode_bundle(
            schema,
            bundle.columns,
            slots=4,
            version=0,
            rank=0,
            serial=1,
            steps=bundle.steps,
            episodes=bundle.episodes,
        )
        check_bundle(schema, header, bundle.columns)
        obs, flags = bundle.columns["obs"].astype(int), bundle.columns["flags"]
        assert (np.diff(obs, axis=0)[flags & RESET == 0] == 1).all()
        assert (obs[1:][flags & RESET != 0] == 0).all()
    assert rollout.failures > 100


@pytest.mark.parametrize("replacement", [{"steps": 0}, {"resets": 0}])
def test_an_environment_that_only_ever_raises_ends_the_player_and_is_named_with_its_slot(
    replacement: dict[str, int],
) -> None:
    envs = [chain(), chain(steps=5), *(chain(**replacement) for _ in range(9))]
    rollout = failing(*envs, slots=2)
    match = r"chain: slot 1: \w+ raised \w+: (the motor|no sim)"
    with pytest.raises(EnvironmentFailed, match=match) as caught:
        _ = rollout.collect(), rollout.collect()
    assert caught.value.slot == 1
    assert isinstance(caught.value.__cause__, RuntimeError | OSError)
    assert [env.closed for env in envs[1:4]] == [1, 1, 1]
    assert not envs[6].seeds, "it was tried without end"


def test_a_reset_of_the_wrong_shape_is_refused_and_what_was_made_is_closed() -> None:
    spec = env_spec(make_chain(observation="box"), "chain")
    schema = session_schema(spec, {"count": Field("int32")}, 4)
    made = [Failing(make_chain(observation="box"), 9), Failing(make_chain(), 9)]
    with pytest.raises(EnvironmentFailed, match=r"slot 1: reset gave obs the shape \(\)"):
        Rollout(iter(made).__next__, spec, schema, Scripted(right), slots=2, ladder=1, rank=0, seed=1)
    assert [env.closed for env in made] == [1, 1]


def declaring(reward_range: tuple[float, float]) -> gym.Env[Any, Any]:
    """A chain that gives -0.1 a step and 1 at its end, and says what it gives."""
    env = make_chain(step_reward=-0.1)
    env.unwrapped.reward_range = reward_range  # type: ignore[attr-defined]
    return env


def test_a_reward_outside_the_declared_range_is_taken_as_the_nearest_one_and_said_once() -> None:
    """A host would refuse each such bundle, and in the end the node."""
    honest = roll(lambda: declaring((-0.1, 1.0)), right)
    assert honest._spec.reward_range == (-0.1, 1.0)
    assert honest.collect().episodes
    assert honest.warnings == []
    wrong = roll(lambda: declaring((0.0, 0.5)), right, slots=1)
    bundles = [wrong.collect() for _ in range(5)]
    real = [b.columns["reward"][(b.columns["flags"] & RESET) == 0] for b in bundles]
    assert {value for rewards in real for value in rewards.tolist()} == {0.0, 0.5}
    returns = {total for bundle in bundles for total, _, _ in bundle.episodes}
    assert returns == {0.5}, "returns are made of what is passed on, or the host would refuse them"
    assert wrong.warnings == [
        "chain: a reward of -0.1, and its reward_range is 0 to 0.5: it is taken as 0; correct one of them"
    ]
    assert wrong.failures == 0


def test_an_agent_that_leaves_a_field_out_is_stopped() -> None:
    env = make_chain()
    spec = env_spec(env, "chain")
    schema = session_schema(spec, {"count": Field("int32"), "value": Field("float32")}, 4)
    rollout = Rollout(make_chain, spec, schema, Scripted(right), slots=1, ladder=1, rank=0, seed=1)
    with pytest.raises(P2prlError, match="value"):
        rollout.collect()


def spec_of(make: Make) -> EnvSpec:
    return env_spec(make(), "chain")


class Greedy(Scripted):
    def act(self, obs: Any, state: dict[str, Array], explore: Explore | None) -> tuple[Any, Any, Any]:
        assert explore is None
        # Three times left, then right: lengths depend on the seed, and on the state being put back.
        wait = state["count"] - 100 < 3
        return np.where(wait, 0, 1).astype(np.uint8), {"count": state["count"] + 1}, {}


def test_evaluate_gives_each_episode_its_own_seed_whatever_the_order() -> None:
    def make() -> gym.Env[Any, Any]:
        return make_chain(length=30, random_start=True, observation="box", max_steps=80, step_reward=-0.01)

    spec = env_spec(make(), "chain")
    many = evaluate(make, spec, Greedy(right), 40, seed=3)
    assert many == evaluate(make, spec, Greedy(right), 40, seed=3)
    assert many[:5] == evaluate(make, spec, Greedy(right), 5, seed=3)
    assert len(set(many)) > 10
    assert min(length for _, length in many) > 3
    assert many != evaluate(make, spec, Greedy(right), 40, seed=4)


def test_evaluate_hands_out_every_frame() -> None:
    seen: list[tuple[int, tuple[int, ...]]] = []

    def make() -> gym.Env[Any, Any]:
        return make_chain(length=4, render_mode="rgb_array")

    results = evaluate(
        make, spec_of(make), Scripted(right), 2, seed=1, frames=lambda e, f: seen.append((e, f.shape))
    )
    assert results == [(1.0, 3), (1.0, 3)]
    assert seen == [(e, (32, 128, 3)) for e in (0, 1) for _ in range(4)]


def test_episodes_of_an_annealing_actor_do_not_count_as_least_exploring() -> None:
    """A run must not stop at a return that near-random play earned while exploration was still falling."""
    spec = env_spec(make_chain(length=3), "chain")
    schema = session_schema(spec, {"count": Field("int32")}, 6)
    actor = Scripted(right)
    actor.annealing = True
    rollout = Rollout(lambda: make_chain(length=3), spec, schema, actor, slots=2, ladder=1, rank=0, seed=1)
    assert {level for _, _, level in rollout.collect().episodes} == {ANNEALING_LEVEL}
    actor.annealing = False
    rollout.collect()  # the episode that spans the change began while it annealed
    assert {level for _, _, level in rollout.collect().episodes} == {0.0}
    rollout.close()
