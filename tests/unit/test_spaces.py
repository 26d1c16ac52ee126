"""p2prl.learn.spaces: from Gymnasium's spaces to ours and back."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from p2prl.core.schema import check_schema
from p2prl.core.spaces import DictSpace, EnvSpec, Leaf, TupleSpace, difference
from p2prl.errors import UsageError
from p2prl.learn.contracts import Field
from p2prl.learn.spaces import action_for_env, env_spec, for_env, join, plain_space, session_schema, split

EVERYTHING = gs.Dict(
    {
        "camera": gs.Box(0, 255, (4, 5, 3), np.uint8),
        "arm": gs.Tuple((gs.Discrete(3, start=-1), gs.MultiDiscrete([2, 300]))),
        "switches": gs.MultiBinary((2, 2)),
        "speed": gs.Box(-np.inf, np.inf, (2,), np.float64),
    }
)


def plain(space: gym.Space[Any]) -> Any:
    return plain_space(space, "obs", "Test-v0")


@pytest.mark.parametrize(
    ("start", "n", "dtype"),
    [
        (0, 2, "uint8"),
        (0, 256, "uint8"),
        (0, 257, "uint16"),
        (-1, 3, "int8"),
        (-1, 130, "int16"),
        (-128, 256, "int8"),
        (0, 65537, "uint32"),
        (-40000, 2, "int32"),
        (2**40, 2, "uint64"),
        (-(2**40), 2, "int64"),
    ],
)
def test_discrete_is_stored_in_the_smallest_dtype_that_holds_its_ends(start: int, n: int, dtype: str) -> None:
    assert plain(gs.Discrete(n, start=start)) == Leaf("discrete", dtype, (), (start,), (start + n - 1,))


def test_multi_discrete_bounds_are_per_element_in_c_order() -> None:
    leaf = plain(gs.MultiDiscrete(np.array([[2, 3], [4, 300]]), start=np.array([[0, -1], [0, 0]])))
    assert leaf == Leaf("multi_discrete", "int16", (2, 2), (0.0, -1.0, 0.0, 0.0), (1.0, 1.0, 3.0, 299.0))


def test_box_keeps_its_dtype_and_one_bound_if_uniform() -> None:
    assert plain(gs.Box(-1, 1, (3,), np.float32)) == Leaf("box", "float32", (3,), (-1.0,), (1.0,))
    mixed = plain(gs.Box(np.array([-np.inf, 0]), np.array([1.0, np.inf]), dtype=np.float64))
    assert mixed == Leaf("box", "float64", (2,), (-np.inf, 0.0), (1.0, np.inf))


def test_a_real_environment() -> None:
    with gym.make("CartPole-v1") as env:
        spec = env_spec(env, "CartPole-v1")
    assert spec.max_episode_steps == 500
    assert spec.action == Leaf("discrete", "uint8", (), (0.0,), (1.0,))
    assert isinstance(spec.observation, Leaf)
    assert spec.observation.shape == (4,)


# --- what an environment declares


class Declares(gym.Env[Any, Any]):
    """An environment with a reward range; it is never played."""

    def __init__(self, reward_range: Any) -> None:
        self.action_space = self.observation_space = gs.Discrete(2)
        if reward_range is not None:
            self.reward_range = reward_range


class Doubles(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return (obs, 2 * float(reward), *rest)


class DoublesAndSaysSo(Doubles):
    reward_range = (0, 2)


def declared(env: gym.Env[Any, Any]) -> tuple[float, float] | None:
    return env_spec(env, "Test-v0").reward_range


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ((0, 1), (0.0, 1.0)),
        ([np.float32(-1), np.float32(0.5)], (-1.0, 0.5)),
        ((-np.inf, 0), (-np.inf, 0.0)),
        ((0, np.inf), (0.0, np.inf)),
        ((0, 0), (0.0, 0.0)),
        ((-np.inf, np.inf), None),
        ((1, 0), None),
        ((np.nan, 1), None),
        ((0, np.nan), None),
        ((0, 1, 2), None),
        ((-np.inf, -np.inf), None),
        ("ab", None),
        (3, None),
        (None, None),
    ],
)
def test_a_reward_range_is_a_pair_that_bounds_something(said: Any, taken: tuple[float, float] | None) -> None:
    assert declared(Declares(said)) == taken


def test_a_wrapper_that_may_change_rewards_hides_what_is_below_it() -> None:
    env = Declares((0, 1))
    plain_ones = gym.wrappers.OrderEnforcing(gym.wrappers.TimeLimit(env, 5))
    assert declared(gym.wrappers.FlattenObservation(plain_ones)) == (0.0, 1.0)
    assert declared(Doubles(plain_ones)) is None
    assert declared(gym.wrappers.NormalizeReward(env)) is None
    assert declared(gym.wrappers.ClipReward(env, 0, 5)) is None
    assert declared(gym.wrappers.OrderEnforcing(DoublesAndSaysSo(env))) == (0.0, 2.0)


def test_a_real_environment_that_declares_its_rewards() -> None:
    with gym.make("FrozenLake-v1", reward_schedule=(1, -1, 0)) as env:
        assert declared(env) == (-1.0, 1.0)
    with gym.make("CartPole-v1") as env:
        assert declared(env) is None


def test_the_time_limit_is_the_one_that_is_enforced() -> None:
    with gym.make("CartPole-v1", max_episode_steps=-1) as env:
        assert env_spec(env, "CartPole-v1").max_episode_steps is None
    with gym.make("CartPole-v1", max_episode_steps=7) as env:
        assert env_spec(env, "CartPole-v1").max_episode_steps == 7
        assert env_spec(env.unwrapped, "CartPole-v1").max_episode_steps is None
        assert env_spec(gym.wrappers.TimeLimit(env, 20), "CartPole-v1").max_episode_steps == 20


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (gs.Text(3), "obs is a Text space"),
        (gs.Dict({"a": gs.Dict({"words": gs.Text(3)})}), "obs.a.words is a Text space"),
        (gs.Tuple((gs.Discrete(2), gs.Sequence(gs.Discrete(2)))), "obs.1 is a Sequence space"),
        (gs.Dict({"net": gs.Graph(gs.Discrete(2), None)}), "obs.net is a Graph space"),
        (gs.Dict({}), "obs is an empty space"),
        (gs.Dict({"a.b": gs.Discrete(2)}), "'a.b'"),
        (gs.Box(0, 1, (70_000, 1000), np.uint8), "more than"),
    ],
)
def test_what_cannot_be_stored_is_named(space: gym.Space[Any], named: str) -> None:
    with pytest.raises(UsageError, match="Test-v0") as caught:
        plain(space)
    assert named in str(caught.value)


def test_split_and_join_are_inverse_on_batches() -> None:
    space = plain(EVERYTHING)
    assert isinstance(space, DictSpace)
    assert isinstance(space.items["arm"], TupleSpace)
    rng = np.random.default_rng(0)
    tree = {
        "camera": rng.integers(255, size=(6, 4, 5, 3)).astype(np.uint8),
        "arm": (rng.integers(-1, 2, size=6), rng.integers(2, size=(6, 2))),
        "switches": rng.integers(2, size=(6, 2, 2)),
        "speed": rng.normal(size=(6, 2)),
    }
    named = split(space, "obs", tree)
    assert set(named) == {"obs.camera", "obs.arm.0", "obs.arm.1", "obs.switches", "obs.speed"}
    back = join(space, "obs", named)
    assert back["arm"][1] is tree["arm"][1]
    assert back["speed"] is tree["speed"]
    assert isinstance(back["arm"], tuple)


@pytest.mark.parametrize(
    "space",
    [
        gs.Discrete(3, start=-1),
        gs.MultiDiscrete([3, 200]),
        gs.MultiBinary(3),
        gs.Box(-1, 1, (2,), np.float64),
        gs.Box(0, 1, (), np.float32),
        EVERYTHING,
    ],
)
def test_an_action_comes_back_as_the_environment_wants_it(space: gym.Space[Any]) -> None:
    space.seed(1)
    ours = plain_space(space, "action", "Test-v0")
    samples = [space.sample() for _ in range(4)]
    named = [split(ours, "action", sample) for sample in samples]
    stored = {
        name: np.stack([np.asarray(row[name]) for row in named]).astype(leaf_dtype)
        for name, leaf_dtype in _dtypes(ours).items()
    }
    native = for_env(space)(join(ours, "action", stored))
    assert len(native) == 4
    for action, sample in zip(native, samples, strict=True):
        assert space.contains(action), action
        assert str(action) == str(sample) or isinstance(space, gs.Discrete | gs.Dict)
    assert space.contains(action_for_env(space, join(ours, "action", {k: v[0] for k, v in stored.items()})))


def _dtypes(space: Any) -> dict[str, str]:
    from p2prl.core.spaces import leaves

    return {name: leaf.dtype for name, leaf in leaves(space, "action")}


def test_discrete_actions_are_python_ints() -> None:
    assert [type(a) for a in for_env(gs.Discrete(4))(np.array([1, 3], np.uint8))] == [int, int]


def test_an_environment_may_change_the_action_it_was_given() -> None:
    batch = np.zeros((2, 3), np.float32)
    for_env(gs.Box(-1, 1, (3,), np.float32))(batch)[0][:] = 7
    assert batch.max() == 0


def test_schema_of_a_session() -> None:
    spec = EnvSpec("Test-v0", plain(gs.Dict({"a": gs.Discrete(5)})), plain(gs.Box(-2, 2, (3,), np.float32)))
    schema = session_schema(spec, {"logits": Field("float32", (3,))}, 8)
    assert [c.name for c in schema.columns] == ["obs.a", "action", "reward", "flags", "logits"]
    assert [c.extra_row for c in schema.columns] == [True, False, False, False, False]
    assert (schema.columns[1].low, schema.columns[1].high) == ((-2.0,), (2.0,))
    assert schema.columns[0].low == ()
    assert check_schema(schema) == ""
    assert schema.session_bytes() == 9 * 1 + 8 * (12 + 4 + 1 + 12)


def test_schema_of_a_session_without_observations_and_with_a_field_that_is_stored_once() -> None:
    spec = EnvSpec("Test-v0", plain(gs.Dict({"a": gs.Discrete(5)})), plain(gs.Discrete(2)))
    fields = {"state": Field("float32", (3,), once=True)}
    schema = session_schema(spec, fields, 8, observations=False, actions=False)
    assert [c.name for c in schema.columns] == ["reward", "flags", "state"]
    assert schema.needs_whole_sessions
    assert [schema.rows(c) for c in schema.columns] == [8, 8, 1]
    assert check_schema(schema) == ""
    assert schema.session_bytes() == 8 * (4 + 1) + 12


@pytest.mark.parametrize("name", ["obs", "reward", "flags", "action.x", "version", "probability"])
def test_a_field_may_not_take_a_reserved_name(name: str) -> None:
    spec = EnvSpec("Test-v0", plain(gs.Discrete(5)), plain(gs.Discrete(2)))
    with pytest.raises(UsageError, match="rename it"):
        session_schema(spec, {name: Field("float32")}, 8)
    with pytest.raises(UsageError, match="complex64"):
        session_schema(spec, {"fine": Field("complex64")}, 8)


BOX = gs.Box(0, 1, (3,))


def spec_of(observation: gym.Space[Any] = BOX, action: gym.Space[Any] = BOX, **more: Any) -> EnvSpec:
    return EnvSpec("Test-v0", plain(observation), plain_space(action, "action", "Test-v0"), **more)


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        (spec_of(gs.Box(0, 1, (4,))), spec_of(), "observation is Box(4,), the host's is Box(3,)"),
        (
            spec_of(action=gs.Discrete(3)),
            spec_of(action=gs.Discrete(2)),
            "action is Discrete(3), the host's is Discrete(2)",
        ),
        (
            spec_of(action=gs.Discrete(3, start=1)),
            spec_of(action=gs.Discrete(3)),
            "action is Discrete(3, start=1), the host's is Discrete(3)",
        ),
        (
            spec_of(gs.Discrete(16)),
            spec_of(gs.MultiDiscrete([2, 3])),
            "observation is Discrete(16), the host's is MultiDiscrete([2, 3])",
        ),
        (
            spec_of(gs.MultiDiscrete([2, 2])),
            spec_of(gs.MultiDiscrete([2, 3])),
            "observation is MultiDiscrete([2, 2]), the host's is MultiDiscrete([2, 3])",
        ),
        (
            spec_of(gs.Dict(a=BOX, b=gs.MultiBinary(2))),
            spec_of(gs.Dict(a=BOX, b=gs.MultiBinary(4))),
            "observation.b is MultiBinary(2,), the host's is MultiBinary(4,)",
        ),
        (
            spec_of(gs.Dict(a=BOX)),
            spec_of(gs.Tuple([BOX])),
            "observation is Dict(a: Box(3,)), the host's is Tuple(Box(3,))",
        ),
        (
            spec_of(gs.Box(0, 1, (3,), np.float64)),
            spec_of(),
            "observation is Box(3,) of float64, the host's is Box(3,) of float32",
        ),
        (
            spec_of(action=gs.Box(-2, 1, (3,))),
            spec_of(),
            "action is Box(3,) from -2 to 1, the host's is Box(3,) from 0 to 1",
        ),
        (
            spec_of(reward_range=(0.0, 1.0)),
            spec_of(),
            "reward_range is 0 to 1, the host's is not declared",
        ),
        (
            spec_of(max_episode_steps=20),
            spec_of(),
            "the time limit is 20 steps, the host's is none",
        ),
        (spec_of(gs.Box(0, 2, (3,))), spec_of(), ""),
        (spec_of(EVERYTHING, EVERYTHING), spec_of(EVERYTHING, EVERYTHING), ""),
    ],
)
def test_the_first_difference_of_two_environments_is_told(ours: EnvSpec, theirs: EnvSpec, told: str) -> None:
    assert difference(ours, theirs) == told
