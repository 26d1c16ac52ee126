"""p2prl.learn.vector_rollout: a vector environment of Gymnasium plays the same sessions as environments one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector import AutoresetMode

from p2prl.core.schema import RESET, TERMINATED, TRUNCATED
from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Array, Explore, Field
from p2prl.learn.environments import EnvironmentFailed, slot_seed
from p2prl.learn.playing import ANNEALING_LEVEL, Bundle
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import env_spec, for_vector_env, plain_space, session_schema
from p2prl.learn.vector_rollout import VectorRollout
from p2prl.nodes.player import rollout_of
from p2prl.registry import make_env_factory
from p2prl.replay.validate import check_bundle
from p2prl.wire.bundle import encode_bundle

Rule = Callable[[Explore, Array], Array]


class Scripted:
    """Acts by a rule of (explore, observations); counts its ticks per episode in the state, and stores the count."""

    annealing = False

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def load(self, weights: Mapping[str, Array]) -> None:
        pass

    def start(self, slots: int) -> dict[str, Array]:
        return {"count": np.full(slots, 100, np.int32)}

    def act(self, obs: Any, state: dict[str, Array], explore: Explore | None) -> tuple[Any, Any, Any]:
        assert explore is not None
        stored = {"count": state["count"].copy(), "begun": state["count"].copy()}
        return self.rule(explore, obs), {"count": state["count"] + 1}, stored


def at_random(explore: Explore, obs: Array) -> Array:
    return explore.rng.integers(2, size=len(obs)).astype(np.uint8)


def balancing(explore: Explore, obs: Array) -> Array:
    """Holds CartPole's pole for hundreds of steps."""
    return (obs @ np.float32([0.1, 0.5, 3.0, 1.0]) > 0).astype(np.uint8)


def idle(explore: Explore, obs: Array) -> Array:
    return np.zeros(len(obs), np.uint8)


FIELDS = {"count": Field("int32"), "begun": Field("int32", once=True)}


def cartpole(
    rule: Rule = at_random, *, ticks: int = 32, slots: int = 8, seed: int = 1, **args: Any
) -> VectorRollout:
    factory = make_env_factory("CartPole-v1", args)
    env = factory()
    spec = env_spec(env, "CartPole-v1")
    env.close()
    make = factory.vector(spec, slots)
    assert make is not None
    schema = session_schema(spec, FIELDS, ticks)
    return VectorRollout(make, spec, schema, Scripted(rule), slots=slots, ladder=4, rank=0, seed=seed)


def check(rollout: VectorRollout | Rollout, bundle: Bundle) -> None:
    """A shard would take it."""
    header, _ = encode_bundle(
        rollout._schema,
        bundle.columns,
        slots=rollout._slots,
        version=0,
        rank=0,
        serial=1,
        steps=bundle.steps,
        episodes=bundle.episodes,
    )
    spec = rollout._spec
    check_bundle(rollout._schema, header, bundle.columns, spec.reward_range, spec.max_episode_steps)


# --- CartPole, as Gymnasium has it


def test_every_tick_without_reset_is_a_step_of_the_single_environment() -> None:
    rollout = cartpole()
    single = CartPoleEnv()
    single.reset(seed=0)
    single.steps_beyond_terminated = None
    ended = 0
    for _ in range(4):
        c = rollout.collect().columns
        for tick, slot in zip(*(axis.tolist() for axis in (c["flags"] & RESET == 0).nonzero()), strict=True):
            single.state = c["obs"][tick, slot].astype(np.float64)
            single.steps_beyond_terminated = None
            obs, reward, terminated, _, _ = single.step(int(c["action"][tick, slot]))
            assert np.allclose(obs, c["obs"][tick + 1, slot], rtol=1e-5, atol=1e-6)
            assert reward == c["reward"][tick, slot]
            assert bool(c["flags"][tick, slot] & TERMINATED) == terminated
            ended += terminated
    assert ended > 10


def test_a_reset_answers_with_a_start_and_bundles_are_valid() -> None:
    rollout = cartpole()
    last: Array | None = None
    for _ in range(8):
        bundle = rollout.collect()
        check(rollout, bundle)
        c = bundle.columns
        assert {name: values.dtype.name for name, values in c.items()} == {
            "obs": "float32",
            "action": "uint8",
            "reward": "float32",
            "flags": "uint8",
            "count": "int32",
            "begun": "int32",
        }
        reset = c["flags"] & RESET != 0
        assert reset.any()
        assert (np.abs(c["obs"][1:][reset]) <= 0.05).all()
        assert (c["reward"][reset] == 0).all()
        assert bundle.steps == reset.size - reset.sum()
        if last is not None:
            assert np.array_equal(c["obs"][0], last)
        last = c["obs"][-1]


def test_episodes_are_those_of_the_flags_over_bundles_too() -> None:
    rollout = cartpole()
    bundles = [rollout.collect() for _ in range(6)]
    c = {name: np.concatenate([b.columns[name] for b in bundles]) for name in ("flags", "reward")}
    expected = []
    for slot in range(8):
        total, length = 0.0, 0
        for tick in range(len(c["flags"])):
            if c["flags"][tick, slot] & RESET:
                continue
            total, length = total + float(c["reward"][tick, slot]), length + 1
            if c["flags"][tick, slot]:
                expected.append((tick, slot, (total, length, float(rollout.explore.level[slot]))))
                total, length = 0.0, 0
    assert [episode for _, _, episode in sorted(expected)] == [e for b in bundles for e in b.episodes]
    assert len({level for *_, (_, _, level) in expected}) == 4
    assert max(length for *_, (_, length, _) in expected) > 32


def test_episodes_of_an_annealing_actor_count_as_exploring() -> None:
    rollout = cartpole()
    rollout._actor.annealing = True  # type: ignore[attr-defined]
    assert min(level for _, _, level in rollout.collect().episodes) < ANNEALING_LEVEL, "they had begun"
    rollout.collect()
    rollout.collect()
    assert {level for _, _, level in rollout.collect().episodes} == {ANNEALING_LEVEL}


def test_the_time_limit_truncates() -> None:
    rollout = cartpole(balancing, ticks=101, slots=8)
    bundles = [rollout.collect() for _ in range(10)]
    flags = np.concatenate([b.columns["flags"] for b in bundles])
    held = (flags[:499] == 0).all(axis=0)
    assert held.any(), "the rule is to hold some poles for 500 steps"
    assert (flags[499, held] == TRUNCATED).all()
    assert (flags[500, held] == RESET).all()
    lengths = [length for b in bundles for _, length, _ in b.episodes]
    assert max(lengths) == 500
    short = cartpole(balancing, max_episode_steps=7)
    assert {length for _, length, _ in short.collect().episodes} == {7}


def test_recurrent_state_begins_anew_and_fields_are_kept_once() -> None:
    rollout = cartpole()
    for _ in range(3):
        c = rollout.collect().columns
        assert c["begun"].shape == (1, 8)
        assert np.array_equal(c["begun"][0], c["count"][0])
        reset = c["flags"][:-1] & RESET != 0
        assert (c["count"][1:][reset] == 100).all()
        assert (np.diff(c["count"], axis=0)[~reset] == 1).all()


def bundles_of(seed: int) -> list[Bundle]:
    rollout = cartpole(seed=seed)
    return [rollout.collect() for _ in range(3)]


def test_a_seed_repeats_itself_and_another_plays_otherwise() -> None:
    one, again, other = bundles_of(1), bundles_of(1), bundles_of(2)
    for a, b in zip(one, again, strict=True):
        assert all(np.array_equal(a.columns[name], b.columns[name]) for name in a.columns)
        assert a.episodes == b.episodes
    starts = np.concatenate([one[0].columns["obs"][0], other[0].columns["obs"][0]])
    assert len({row.tobytes() for row in starts}) == 16


def test_after_tick_is_called_after_each() -> None:
    rollout, called = cartpole(ticks=32), []
    rollout.collect(lambda: called.append(1))
    assert len(called) == 32


# --- which environments are stepped so


def players(env_id: str, slots: int, **args: Any) -> VectorRollout | Rollout:
    factory = make_env_factory(env_id, args)
    env = factory()
    spec = env_spec(env, env_id)
    env.close()
    schema = session_schema(spec, FIELDS, 8)
    made = rollout_of(factory, spec, schema, Scripted(idle), slots=slots, ladder=1, rank=0, seed=1)
    made.close()
    assert isinstance(made, VectorRollout | Rollout)
    return made


def test_those_with_a_vector_environment_are_stepped_together() -> None:
    assert isinstance(players("CartPole-v1", 8), VectorRollout)
    assert isinstance(players("CartPole-v1", 16, sutton_barto_reward=True), VectorRollout)
    assert isinstance(players("CartPole-v1", 8, max_episode_steps=50), VectorRollout)
    assert isinstance(players("CartPole-v1", 2), Rollout), "few slots are faster one by one"
    assert isinstance(players("MountainCar-v0", 8), Rollout)
    assert isinstance(players("chain", 8), Rollout)


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Any:
    gym.register("Near-v0", CartPoleEnv, **request.param)
    yield "Near-v0"
    del gym.registry["Near-v0"]


class SameStep(CartPoleVectorEnv):
    metadata: ClassVar[dict[str, Any]] = {
        **CartPoleVectorEnv.metadata,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }


class OtherSpace(CartPoleVectorEnv):
    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.single_action_space = gym.spaces.Discrete(3)


def absent(**args: Any) -> CartPoleVectorEnv:
    raise ImportError("no such package here")


@pytest.mark.parametrize(
    "registered",
    [
        {"vector_entry_point": SameStep, "max_episode_steps": 500},
        {"vector_entry_point": OtherSpace, "max_episode_steps": 500},
        {"vector_entry_point": absent, "max_episode_steps": 500},
        {"vector_entry_point": CartPoleVectorEnv},  # its limit is 500, the single one has none
    ],
    indirect=True,
)
def test_a_vector_environment_that_differs_is_not_used(registered: str) -> None:
    assert isinstance(players(registered, 8), Rollout)


@pytest.mark.parametrize(
    "registered", [{"vector_entry_point": CartPoleVectorEnv, "max_episode_steps": 500}], indirect=True
)
def test_an_environment_of_ones_own_may_bring_its_vector_environment(registered: str) -> None:
    assert isinstance(players(registered, 8), VectorRollout)


def test_actions_are_given_in_the_dtype_of_their_space() -> None:
    actions = gym.spaces.Dict(
        {
            "a": gym.spaces.Discrete(3, start=-1),
            "b": gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,), np.float64)]),
        }
    )
    given = {"a": np.int8([-1, 1]), "b": (np.zeros((2, 2), np.float32),)}
    batch = for_vector_env(actions)(given)
    assert gym.vector.utils.batch_space(actions, 2).contains(batch)
    batch["b"][0][:] = 9
    assert not given["b"][0].any(), "they are copies"


# --- one that fails


class Counting(gym.vector.VectorEnv[Any, Any, Any]):
    """Slots that count up to their length, 3 for slot 0, 4 for slot 1 and so on, and earn `reward` at each step.

    Its calls to `step` are numbered from 0: at `raises` it raises; `spoils` may change what it answers with.
    """

    def __init__(
        self,
        slots: int = 3,
        raises: int = -1,
        spoils: Callable[[int, Array, Array], Any] = lambda call, obs, reward: None,
        reward: float = 0.1,
    ) -> None:
        self.num_envs = slots
        self.single_observation_space = gym.spaces.Box(0, 99, (2,), np.float64)
        self.single_action_space = gym.spaces.Discrete(2)
        self.raises, self.spoils, self.reward = raises, spoils, reward
        self.lengths = np.arange(3, 3 + slots)
        self.error: BaseException = RuntimeError("the motor\n  is hot")
        self.calls, self.closed = -1, 0
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.at, self.over = np.zeros(self.num_envs), np.zeros(self.num_envs, bool)
        obs = np.stack([self.at, self.at], 1)
        self.spoils(-1, obs, np.zeros(self.num_envs))
        return obs, {}

    def step(self, actions: Array) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.calls += 1
        if self.calls == self.raises:
            raise self.error
        self.at = np.where(self.over, 0, self.at + 1)
        reward = np.where(self.over, 0.0, self.reward)
        self.over = self.at == self.lengths
        obs = np.stack([self.at, self.at], 1)
        changed = self.spoils(self.calls, obs, reward)
        return obs, reward if changed is None else changed, self.over, np.zeros(self.num_envs, bool), {}

    def close(self, **more: Any) -> None:
        self.closed += 1


def counting(*envs: Counting, ticks: int = 8, reward_range: Any = None) -> VectorRollout:
    """A rollout whose environments are these in turn."""
    observation = plain_space(envs[0].single_observation_space, "obs", "counting")
    action = plain_space(envs[0].single_action_space, "action", "counting")
    spec = EnvSpec("counting", observation, action, None, reward_range)
    schema = session_schema(spec, FIELDS, ticks)
    made = iter(envs)
    return VectorRollout(
        made.__next__,
        spec,
        schema,
        Scripted(idle),
        slots=envs[0].num_envs,
        ladder=1,
        rank=0,
        seed=1,
    )


def test_sessions_of_a_vector_environment() -> None:
    env = Counting()
    bundle = counting(env).collect()
    c = bundle.columns
    assert c["obs"][:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert c["obs"][:, 2, 1].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert c["flags"][:, 0].tolist() == [0, 0, TERMINATED, RESET, 0, 0, TERMINATED, RESET]
    assert c["reward"][:, 0].tolist() == np.float32([0.1, 0.1, 0.1, 0] * 2).tolist()
    assert bundle.episodes[0] == (0.1 + 0.1 + 0.1, 3, 0.0), "summed in float64"
    assert [length for _, length, _ in bundle.episodes] == [3, 4, 5, 3]
    assert bundle.steps == 3 * 8 - 4
    assert env.seeds == [slot_seed(1, 0)]


def test_what_is_given_for_a_reset_is_no_reward() -> None:
    def generous(call: int, obs: Array, reward: Array) -> None:
        reward[:] = 1.0

    rollout = counting(Counting(spoils=generous))
    bundle = rollout.collect()
    check(rollout, bundle)
    assert bundle.columns["reward"][:, 0].tolist() == [1, 1, 1, 0, 1, 1, 1, 0]
    assert [(total, length) for total, length, _ in bundle.episodes] == [(3, 3), (4, 4), (5, 5), (3, 3)]


def test_one_that_raises_is_replaced_whole_and_its_episodes_count_for_nothing() -> None:
    envs = [Counting(raises=4), Counting()]
    rollout = counting(*envs)
    bundle = rollout.collect()
    check(rollout, bundle)
    c = bundle.columns
    assert c["obs"][:, 0, 0].tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 3]
    assert c["flags"][:, 0].tolist() == [0, 0, TERMINATED, RESET, RESET, 0, 0, TERMINATED]
    assert c["obs"][:, 2, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert c["flags"][:, 2].tolist() == [0, 0, 0, 0, RESET, 0, 0, 0]
    assert c["count"][:, 2].tolist() == [100, 101, 102, 103, 104, 100, 101, 102]
    assert not c["reward"][4].any()
    assert [length for _, length, _ in bundle.episodes] == [3, 4, 3], "that of slot 2 broke off"
    assert (rollout.failures, rollout.failure) == (1, "counting: step raised RuntimeError: the motor is hot")
    assert [env.closed for env in envs] == [1, 0]
    assert envs[0].seeds != envs[1].seeds


def nan_in_slot(slot: int, at: int) -> Callable[[int, Array, Array], None]:
    def spoil(call: int, obs: Array, reward: Array) -> None:
        if call == at:
            obs[slot, 1] = np.nan

    return spoil


def infinite_reward(call: int, obs: Array, reward: Array) -> None:
    if call == 3:
        reward[1] = np.inf


@pytest.mark.parametrize(
    ("spoils", "text"),
    [
        (nan_in_slot(1, 2), "counting: slot 1: step gave obs[1] = nan"),
        (nan_in_slot(0, 3), "counting: slot 0: reset gave obs[1] = nan"),
        (infinite_reward, "counting: slot 1: step gave the reward inf"),
    ],
)
def test_what_is_not_finite_is_refused_and_its_slot_is_named(spoils: Any, text: str) -> None:
    rollout = counting(Counting(spoils=spoils), Counting())
    bundle = rollout.collect()
    check(rollout, bundle)
    [tick] = (bundle.columns["flags"] == RESET).all(axis=1).nonzero()[0].tolist()
    assert tick == (2 if "step gave obs" in text else 3)
    assert not bundle.columns["obs"][tick + 1].any()
    assert rollout.failure == text


@pytest.mark.parametrize("answer", [np.zeros((3, 1)), 0.5, "much", [None, {}, 1.0]])
def test_rewards_that_are_none_are_a_failure(answer: Any) -> None:
    rollout = counting(Counting(spoils=lambda call, obs, reward: answer if call == 2 else None), Counting())
    flags = rollout.collect().columns["flags"]
    assert (flags[2] == RESET).all()
    assert rollout.failures == 1
    assert rollout.failure.startswith("counting: step ")


def test_one_that_ends_the_process_is_replaced_too() -> None:
    envs = [Counting(raises=4), Counting()]
    envs[0].error = SystemExit(3)
    rollout = counting(*envs)
    rollout.collect()
    assert (rollout.failures, rollout.failure) == (1, "counting: step raised SystemExit: 3")


def test_one_that_only_ever_raises_ends_the_player() -> None:
    envs = [Counting(raises=6), *(Counting(raises=0) for _ in range(9))]
    rollout = counting(*envs)
    with pytest.raises(EnvironmentFailed, match="counting: step raised RuntimeError: the motor") as caught:
        _ = rollout.collect(), rollout.collect()
    assert caught.value.slot is None
    assert [bool(env.seeds) for env in envs] == [True] * 4 + [False] * 6, (
        "it was tried without end, or not at all"
    )


def test_failures_with_steps_in_between_go_on() -> None:
    rollout = counting(*(Counting(raises=2) for _ in range(40)))
    for _ in range(4):
        check(rollout, rollout.collect())
    assert rollout.failures == 10


def test_a_first_observation_that_is_none_is_refused_and_the_environment_closed() -> None:
    env = Counting(spoils=nan_in_slot(2, -1))
    with pytest.raises(EnvironmentFailed, match="slot 2: reset gave"):
        counting(env)
    assert env.closed == 1


def test_observations_of_a_wrong_shape_are_refused() -> None:
    env = Counting()
    env.reset = lambda **more: (np.zeros((3, 1)), {})  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFailed, match=r"counting: reset .*an array of shape"):
        counting(env)
    assert env.closed == 1


def test_a_reward_outside_the_declared_range_is_taken_as_the_nearest_one_and_said_once() -> None:
    rollout = counting(Counting(reward=0.7), reward_range=(0.1, 0.5))
    for _ in range(3):
        bundle = rollout.collect()
        real = bundle.columns["flags"] & RESET == 0
        assert np.unique(bundle.columns["reward"][real]).tolist() == [0.5]
        assert not bundle.columns["reward"][~real].any()
        assert {total / length for total, length, _ in bundle.episodes} == {0.5}
    assert rollout.warnings == [
        "counting: a reward of 0.7, and its reward_range is 0.1 to 0.5: it is taken as 0.5; correct one of them"
    ]
    assert rollout.failures == 0


def test_integers_outside_their_space_are_said_though_they_fit_no_dtype() -> None:
    class Wide(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.single_observation_space = gym.spaces.MultiDiscrete([6, 256])

    def widened(call: int, obs: Array, reward: Array) -> None:
        obs[1, 1] = 300

    env = Wide()
    env.spoils = widened
    rollout = counting(env)
    rollout.collect()
    assert rollout.warnings == ["counting: obs[1] was 300, and its space says 0 to 255"]
