"""Contract tests that any agent or environment can be put through, ours and other people's.

    def test_my_agent():
        env = make_my_env()
        check_agent(MyAgent, env_spec(env, "Mine-v0"))

Each raises an AssertionError whose one line says what is wrong. They use numpy's and the agent's own randomness only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, get_args

import gymnasium as gym
import numpy as np

from p2prl.core.schema import TERMINATED, TRUNCATED, SessionSchema, check_schema
from p2prl.core.spaces import EnvSpec, Leaf, Space, leaves
from p2prl.learn.contracts import (
    Actor,
    Agent,
    Array,
    Explore,
    Learner,
    ReplaySpec,
    State,
    Tree,
    Weights,
    weights_tolerance,
)
from p2prl.learn.environments import WrongAnswer, check_reset, check_step
from p2prl.learn.finite import not_finite
from p2prl.learn.rounded import apart_when_rounded
from p2prl.learn.spaces import action_for_env, agent_schema, env_spec, join, split
from p2prl.registry import make_agent
from p2prl.replay.params import ReplayKind

_SLOTS = 3
#: Rows and ticks over which acting with rounded weights is compared.
_ROWS, _TICKS = 256, 5
_KINDS = get_args(ReplayKind)


def check_agent(
    agent_cls: type[Agent], env: EnvSpec, settings: Mapping[str, Any] | None = None, updates: int = 40
) -> None:
    """An agent keeps its contract (p2prl/learn/contracts.py) in this environment's spaces.

    Checked: fields and schema; actions on all slots, inside the space, of the right shapes; greedy play repeats itself;
    observations and weights are left alone; `updates` updates run on random data, with priorities that can be used if
    the replay is prioritised; new weights load; weights stay finite, and a saved state holds no NaN; what the learner
    saved it takes back exactly, and goes on from there alike; weights that were rounded to 16 bits, if the agent allows
    it, act as exact ones do, up to its `weights_tolerance`.

    Raises:
        AssertionError: what is wrong, in one line.
    """
    agent = make_agent(agent_cls, env, settings or {})
    replay = agent.replay()
    schema = agent_schema(env, agent, replay.ticks)
    problem = check_schema(schema)
    assert not problem, f"fields() and replay() make no valid session: {problem}"
    assert replay.kind in _KINDS, f"replay().kind is {replay.kind!r}, not one of {', '.join(_KINDS)}"
    assert 0 <= replay.window <= replay.ticks, (
        f"replay().window {replay.window} is outside 0..ticks ({replay.ticks})"
    )
    assert not (replay.window and schema.needs_whole_sessions), (
        f"a field is stored once a session, and replay().window is {replay.window}: only 0, whole sessions, will do"
    )
    learner = agent.learner("cpu", 1)
    _check_finite(learner, "before any update: ")
    _check_actor(agent, env, learner.weights())
    batches = _batches(agent, env, updates)
    _check_learner(agent, env, learner, batches)
    _check_tolerance(agent, env, learner.weights(), weights_tolerance(agent_cls))


def check_env(make_env: Callable[[], gym.Env[Any, Any]], steps: int = 300) -> None:
    """An environment can be played by p2prl: storable spaces, seeds that work, observations that fit their space.

    `steps` random steps are played from one seed in two environments, and again in the first, which has then played
    already: all must agree. Another seed must give other episodes, unless episodes never differ. An environment on the
    wall clock (RealTime) agrees only while it is stepped in time.

    An observation outside its space's bounds is common and harmless: each leaf's first one is warned of, as a
    `UserWarning` with the value.

    Raises:
        AssertionError: what is wrong, in one line.
        UsageError: the spaces cannot be stored.
    """
    one, other = make_env(), make_env()
    try:
        spec = env_spec(one, "the environment")
        judge = _Judge(spec)
        first = _trace(one, judge, steps)
        _same_trace(
            first, _trace(other, judge, steps), "two environments with the same seed and actions differ"
        )
        _same_trace(first, _trace(one, judge, steps), "an environment that has played differs from a new one")
        _check_seeds_matter(one, judge, first, steps)
    finally:
        one.close()
        other.close()


def sample_columns(
    space: Space, prefix: str, shape: tuple[int, ...], rng: np.random.Generator
) -> dict[str, Array]:
    """Random arrays `[*shape, ...]` per leaf of `space`, inside its bounds (infinite ones are cut to +-1)."""
    return {name: _sample_leaf(leaf, shape, rng) for name, leaf in leaves(space, prefix)}


def _sample_leaf(leaf: Leaf, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    low, high = (
        np.broadcast_to(np.array(b), np.prod(leaf.shape, dtype=int)).reshape(leaf.shape)
        for b in (leaf.low, leaf.high)
    )
    if np.dtype(leaf.dtype).kind in "iub":
        return rng.integers(low, high, size=(*shape, *leaf.shape), endpoint=True).astype(leaf.dtype)
    low, high = np.where(np.isfinite(low), low, -1.0), np.where(np.isfinite(high), high, 1.0)
    return rng.uniform(low, high, size=(*shape, *leaf.shape)).astype(leaf.dtype)


def _check_actor(agent: Agent, env: EnvSpec, weights: Weights) -> None:
    rng = np.random.default_rng(1)
    actor = agent.actor()
    _load(actor, weights)
    columns = sample_columns(env.observation, "obs", (_SLOTS,), rng)
    before = {name: values.copy() for name, values in columns.items()}
    obs = join(env.observation, "obs", columns)
    explore = Explore(rng=np.random.default_rng(2), level=np.arange(_SLOTS) / _SLOTS)
    state = actor.start(_SLOTS)
    for name, rows in state.items():
        assert len(rows) == _SLOTS, f"start({_SLOTS}) gives {len(rows)} rows of {name!r}"
    for _ in range(5):
        actions, state, extras = actor.act(obs, state, explore)
        _check_actions(env, actions)
        _check_extras(agent, extras)
    greedy = [actor.act(obs, actor.start(_SLOTS), None)[0] for _ in range(2)]
    assert _same(env.action, *greedy), (
        "greedy play (explore=None) gave two different actions for one observation"
    )
    for name, values in columns.items():
        assert np.array_equal(values, before[name], equal_nan=True), (
            f"act changed the observation {name!r} in place"
        )


def _check_actions(env: EnvSpec, actions: Tree) -> None:
    named = split(env.action, "action", actions)
    for name, leaf in leaves(env.action, "action"):
        values = np.asarray(named[name])
        expected = (_SLOTS, *leaf.shape)
        assert values.shape == expected, f"{name} has the shape {values.shape}, not {expected}"
        assert np.can_cast(values.dtype, leaf.dtype, "same_kind"), (
            f"{name} has the dtype {values.dtype}, not {leaf.dtype}"
        )
        low, high = (np.array(bound) for bound in (leaf.low, leaf.high))
        flat = values.reshape(_SLOTS, -1)
        inside = (flat >= low) & (flat <= high)
        assert inside.all(), (
            f"{name} leaves its bounds: {flat[~inside][0]} is not in [{low.min()}, {high.max()}]"
        )


def _check_extras(agent: Agent, extras: Mapping[str, Array]) -> None:
    fields = agent.fields()
    assert extras.keys() == fields.keys(), (
        f"act gives the fields {sorted(extras)}, fields() says {sorted(fields)}"
    )
    for name, field in fields.items():
        values = np.asarray(extras[name])
        expected = (_SLOTS, *field.shape)
        assert values.shape == expected, f"the field {name!r} has the shape {values.shape}, not {expected}"
        assert values.dtype == field.dtype, (
            f"the field {name!r} has the dtype {values.dtype}, not {field.dtype}"
        )


def _load(actor: Actor, weights: Weights) -> None:
    """As players do: arrays that cannot be written."""
    frozen = {name: np.array(values) for name, values in weights.items()}
    for values in frozen.values():
        values.setflags(write=False)
    actor.load(frozen)


def _batches(agent: Agent, env: EnvSpec, count: int) -> list[dict[str, Array]]:
    """Random but well-formed samples; the actor's own fields, so that they mean something to the learner."""
    rng = np.random.default_rng(3)
    replay = agent.replay()
    schema = agent_schema(env, agent, replay.ticks)
    actor = agent.actor()
    _load(actor, agent.learner("cpu", 1).weights())
    explore = Explore(rng=np.random.default_rng(4), level=np.zeros(replay.batch))
    state = actor.start(replay.batch)
    batches = []
    for _ in range(count):
        played, state = _played(actor, env, state, explore, replay.window or replay.ticks, rng)
        batch = {c.name: played[c.name][:, : schema.rows(c, replay.window)] for c in schema.columns}
        batch["version"] = np.zeros(replay.batch, np.int64)
        if replay.kind == "prioritised":
            batch["probability"] = rng.uniform(0.1, 10.0, replay.batch).astype(np.float32)
        elif replay.kind == "uniform":
            batch["probability"] = np.ones(replay.batch, np.float32)
        batches.append(batch)
    return batches


def _played(
    actor: Actor, env: EnvSpec, state: State, explore: Explore, ticks: int, rng: np.random.Generator
) -> tuple[dict[str, Array], State]:
    """`[N, ticks(+1), ...]` of random observations, what the actor does there, random rewards; and its next state."""
    count = len(explore.level)
    columns = sample_columns(env.observation, "obs", (count, ticks + 1), rng)
    rows: list[dict[str, Array]] = []
    for tick in range(ticks):
        obs = join(env.observation, "obs", {name: values[:, tick] for name, values in columns.items()})
        actions, state, extras = actor.act(obs, state, explore)
        rows.append({**split(env.action, "action", actions), **extras})
    columns.update({name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]})
    columns["reward"] = rng.normal(size=(count, ticks)).astype(np.float32)
    # Ends only on the last tick: an end inside would need a RESET after it.
    columns["flags"] = np.zeros((count, ticks), np.uint8)
    columns["flags"][:, -1] = rng.choice([0, TERMINATED, TRUNCATED], size=count)
    return columns, state


def _check_learner(agent: Agent, env: EnvSpec, learner: Learner, batches: list[dict[str, Array]]) -> None:
    first = learner.weights()
    kept = {name: np.array(values) for name, values in first.items()}
    for batch in batches:
        update = learner.update(batch)
        assert not update.skipped, f"update was skipped on sound data: {update.skipped}"
        for name, value in update.metrics.items():
            assert np.isfinite(value), f"update's metric {name!r} is {value}"
        if update.priorities is not None:
            _check_priorities(agent.replay(), update.priorities)
    _check_finite(learner, f"after {len(batches)} updates: ")
    for name, values in kept.items():
        assert np.array_equal(values, first[name], equal_nan=values.dtype.kind == "f"), (
            f"weights() gave {name!r} as a view: later updates changed it"
        )
    _check_actor(agent, env, learner.weights())
    saved = {name: np.array(values) for name, values in learner.save().items()}
    other = agent.learner("cpu", 2)
    other.load(saved)
    _alike(saved, other.save(), "save() after load() differs in")
    _alike(learner.weights(), other.weights(), "weights() after load() differ in")
    for one in (learner, other):
        one.update(batches[0])
    _alike(learner.weights(), other.weights(), "one update after load() gives different")


def _check_tolerance(agent: Agent, env: EnvSpec, weights: Weights, tolerance: float) -> None:
    """Rounded as for the wire, trained weights act as exact ones do, on random observations."""
    assert 0.0 <= tolerance < 1.0, f"weights_tolerance is {tolerance}; it must be 0 or more, and below 1"
    if not tolerance:
        return
    rng = np.random.default_rng(6)
    columns = (sample_columns(env.observation, "obs", (_ROWS,), rng) for _ in range(_TICKS))
    ticks = (join(env.observation, "obs", values) for values in columns)
    for name, far in apart_when_rounded(agent, env, weights, ticks, _ROWS).items():
        assert far <= tolerance, (
            f"with weights rounded to 16 bits, {name} differs by {far:.3g}; weights_tolerance is {tolerance}"
        )


def _check_finite(learner: Learner, when: str) -> None:
    """A trainer publishes and saves nothing else (p2prl/nodes/guard.py)."""
    bad = not_finite(learner.weights())
    assert not bad, f"{when}weights() are not finite: {bad}"
    bad = not_finite(learner.save(), infinity=False)
    assert not bad, f"{when}save() holds NaN, which is taken for learning that failed: {bad}"


def _check_priorities(replay: ReplaySpec, priorities: Array) -> None:
    assert replay.kind == "prioritised", f"update gives priorities, and replay().kind is {replay.kind!r}"
    values = np.asarray(priorities)
    assert values.shape == (replay.batch,), f"priorities have the shape {values.shape}, not ({replay.batch},)"
    assert values.dtype == np.float32, f"priorities have the dtype {values.dtype}, not float32"
    sound = np.isfinite(values) & (values > 0)
    assert sound.all(), f"a priority is {values[~sound][0]}; each must be finite and above 0"


def _alike(one: Mapping[str, Array], other: Mapping[str, Array], text: str) -> None:
    assert one.keys() == other.keys(), f"{text} names: {sorted(one.keys() ^ other.keys())}"
    for name, values in one.items():
        assert np.array_equal(values, other[name]), f"{text} {name!r}"


def _same(space: Space, one: Tree, other: Tree) -> bool:
    first, second = split(space, "", one), split(space, "", other)
    return all(np.array_equal(first[name], second[name]) for name in first)


def _same_trace(one: list[bytes], other: list[bytes], text: str) -> None:
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        assert a == b, f"{text} at step {step}: reset(seed=) ignored?"


def _check_seeds_matter(env: gym.Env[Any, Any], judge: _Judge, first: list[bytes], steps: int) -> None:
    """Another seed than that of `first` gives other episodes, if episodes ever differ."""
    if _trace(env, judge, steps, seed=7) == first:
        one, other = (_trace(env, judge, steps, seed=None) for _ in range(2))
        assert one == other, "episodes differ, and two seeds gave the same ones: reset(seed=) ignored?"


def _trace(env: gym.Env[Any, Any], judge: _Judge, steps: int, seed: int | None = 6) -> list[bytes]:
    """Everything an environment says over `steps` random steps, always the same, as bytes."""
    spec = judge.spec
    rng = np.random.default_rng(5)
    obs = _reset(env, seed)
    trace = [judge.seen(obs, "reset")]
    over = False
    for _ in range(steps):
        if over:
            obs = _reset(env)
            trace.append(judge.seen(obs, "reset"))
        columns = sample_columns(spec.action, "action", (), rng)
        action = action_for_env(env.action_space, join(spec.action, "action", columns))
        answer = env.step(action)
        _well_formed(check_step, answer)
        obs, reward, terminated, truncated, info = answer
        judge.rewarded(float(reward))
        over = bool(terminated or truncated)
        assert "final_observation" not in info, (
            "the environment resets itself at an episode's end; remove its autoreset"
        )
        ends = bytes([bool(terminated), bool(truncated)])
        trace.append(judge.seen(obs, "step") + np.float64(reward).tobytes() + ends)
    return trace


def _reset(env: gym.Env[Any, Any], seed: int | None = None) -> Any:
    answer = env.reset(seed=seed) if seed is not None else env.reset()
    _well_formed(check_reset, answer)
    return answer[0]


def _well_formed(check: Callable[[Any], None], answer: Any) -> None:
    try:
        check(answer)
    except WrongAnswer as error:
        raise AssertionError(str(error)) from error


class _Judge:
    """Holds what an environment says against its own spaces."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self._warned: set[str] = set()

    def rewarded(self, reward: float) -> None:
        """A reward of one step."""
        assert np.isfinite(reward), f"step gave the reward {reward}"
        low, high = self.spec.reward_range or (-np.inf, np.inf)
        assert low <= reward <= high, f"step gave the reward {reward}; its reward_range is {low} to {high}"

    def seen(self, obs: Tree, where: str) -> bytes:
        """The observation's bytes, as they would be stored."""
        parts = []
        named = split(self.spec.observation, "obs", obs)
        for name, leaf in leaves(self.spec.observation, "obs"):
            values = np.asarray(named[name])
            assert values.shape == leaf.shape, (
                f"{where} gave {name} the shape {values.shape}, its space says {leaf.shape}"
            )
            stored = values.astype(leaf.dtype)
            assert np.array_equal(stored, values, equal_nan=stored.dtype.kind == "f"), (
                f"{where} gave {name} values that {leaf.dtype}, its space's dtype, cannot hold"
            )
            assert np.isfinite(stored).all(), f"{where} gave {name} a value that is not finite"
            self._warn_outside(name, leaf, stored, where)
            parts.append(stored.tobytes())
        return b"".join(parts)

    def _warn_outside(self, name: str, leaf: Leaf, values: Array, where: str) -> None:
        flat = values.reshape(-1)
        low, high = (np.broadcast_to(np.array(bound), flat.shape) for bound in (leaf.low, leaf.high))
        [outside] = np.nonzero((flat < low) | (flat > high))
        if outside.size and name not in self._warned:
            self._warned.add(name)
            at = outside[0]
            text = f"{where} gave {name} the value {flat[at]}; its space says {low[at]} to {high[at]}"
            warnings.warn(text, stacklevel=4)


__all__ = ["SessionSchema", "check_agent", "check_env", "sample_columns"]
