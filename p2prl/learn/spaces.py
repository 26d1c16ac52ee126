"""From a Gymnasium environment to the plain words of core: its spaces, its schema, its trees and its actions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from p2prl.core.schema import DTYPE_SIZES, MAX_ROW_ELEMENTS, Column, SessionSchema
from p2prl.core.spaces import DictSpace, EnvSpec, Leaf, Space, TupleSpace, leaves
from p2prl.errors import P2prlError, UsageError
from p2prl.learn.contracts import Agent, Array, Field, Tree
from p2prl.learn.promises import fields_of, replay_of

#: In the order of preference: the first that holds the bounds is the stored dtype.
_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
_RESERVED = ("obs", "action", "reward", "flags", "version", "probability")
_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of those"


class OutsideSpace(P2prlError):
    """An agent acted outside its action space; the text says where, what it did, and what the space says."""


def env_spec(env: gym.Env[Any, Any], env_id: str) -> EnvSpec:
    """Describe an environment.

    Raises:
        UsageError: a leaf of its spaces cannot be stored; the text names the leaf.
    """
    return EnvSpec(
        id=env_id,
        observation=plain_space(env.observation_space, "obs", env_id),
        action=plain_space(env.action_space, "action", env_id),
        max_episode_steps=_time_limit(env),
        reward_range=_reward_range(env),
    )


def plain_space(space: gym.Space[Any], name: str, env_id: str) -> Space:
    """One Gymnasium space as a tree of leaves; `name` is its dotted name, for errors."""
    if isinstance(space, gs.Dict):
        keys: list[Any] = list(space.spaces)
        for key in keys:
            if not isinstance(key, str) or "." in key:
                raise UsageError(f"{env_id}: {name} has the key {key!r}; p2prl needs strings without dots")
        items = {key: plain_space(item, f"{name}.{key}", env_id) for key, item in space.spaces.items()}
        return DictSpace(_not_empty(items, name, env_id))
    if isinstance(space, gs.Tuple):
        parts = tuple(plain_space(item, f"{name}.{i}", env_id) for i, item in enumerate(space.spaces))
        return TupleSpace(_not_empty(parts, name, env_id))
    if int(np.prod(space.shape or (), dtype=object)) > MAX_ROW_ELEMENTS:
        raise UsageError(f"{env_id}: {name} has more than {MAX_ROW_ELEMENTS} elements")
    return _plain_leaf(space, name, env_id)


def agent_schema(spec: EnvSpec, agent: Agent, ticks: int) -> SessionSchema:
    """The columns of a session of `ticks` ticks that this agent plays. Raises as `session_schema`; BrokenContract."""
    replay = replay_of(agent)
    return session_schema(
        spec, fields_of(agent), ticks, observations=replay.observations, actions=replay.actions
    )


def session_schema(
    spec: EnvSpec,
    fields: Mapping[str, Field],
    ticks: int,
    *,
    observations: bool = True,
    actions: bool = True,
) -> SessionSchema:
    """The columns of a session of `ticks` ticks, in bundle order: observations, actions, reward, flags, fields.

    Only actions carry bounds: an observation outside its declared space is common and harmless.

    Args:
        observations, actions: False leaves those columns out.

    Raises:
        UsageError: a field's name is taken or its dtype cannot be stored.
    """
    columns: list[Column] = []
    if observations:
        columns += [
            Column(name, leaf.dtype, leaf.shape, extra_row=True)
            for name, leaf in leaves(spec.observation, "obs")
        ]
    if actions:
        columns += [
            Column(name, leaf.dtype, leaf.shape, low=leaf.low, high=leaf.high)
            for name, leaf in leaves(spec.action, "action")
        ]
    columns += [Column("reward", "float32", ()), Column("flags", "uint8", ())]
    columns += [_field_column(name, field) for name, field in fields.items()]
    return SessionSchema(ticks=ticks, columns=tuple(columns))


def _field_column(name: str, field: Field) -> Column:
    if name.split(".")[0] in _RESERVED:
        raise UsageError(f"the agent's field {name!r} has a name that sessions use themselves; rename it")
    if field.dtype not in DTYPE_SIZES:
        raise UsageError(f"the agent's field {name!r} has the dtype {field.dtype!r}, which cannot be stored")
    return Column(name, field.dtype, tuple(field.shape), once=field.once)


def split(space: Space, prefix: str, tree: Tree) -> dict[str, Array]:
    """A tree's arrays by their dotted names. Any batch axes pass through.

    >>> box = Leaf("box", "float32", (), (0.0,), (1.0,))
    >>> split(DictSpace({"a": box}), "obs", {"a": np.zeros(3)})
    {'obs.a': array([0., 0., 0.])}
    """
    if isinstance(space, Leaf):
        return {prefix: tree}
    named: dict[str, Array] = {}
    for key, item in _children(space):
        named.update(split(item, f"{prefix}.{key}", tree[key]))
    return named


def join(space: Space, prefix: str, columns: Mapping[str, Array]) -> Tree:
    """The inverse of `split`; `columns` may hold others too."""
    if isinstance(space, Leaf):
        return columns[prefix]
    parts = {key: join(item, f"{prefix}.{key}", columns) for key, item in _children(space)}
    return parts if isinstance(space, DictSpace) else tuple(parts.values())


def for_env(space: gym.Space[Any]) -> Callable[[Tree], list[Any]]:
    """A function from a batch of actions, `[slots, ...]` per leaf, to a list of what `env.step` takes.

    Discrete gives Python ints; arrays are copies in the environment's own dtype and shape, so that an environment may
    keep or change them.

    Raises:
        OutsideSpace: from that function, for a Discrete action that is none: an environment may take it for anything.
    """
    if isinstance(space, gs.Discrete):
        return _discrete_for_env(int(space.start), int(space.start) + int(space.n) - 1)
    if isinstance(space, gs.Dict):
        named = {key: for_env(item) for key, item in space.spaces.items()}
        return lambda batch: [
            dict(zip(named, row, strict=True))
            for row in zip(*(part(batch[key]) for key, part in named.items()), strict=True)
        ]
    if isinstance(space, gs.Tuple):
        parts = [for_env(item) for item in space.spaces]
        return lambda batch: list(zip(*(part(batch[i]) for i, part in enumerate(parts)), strict=True))
    dtype, shape = space.dtype, tuple(space.shape or ())
    return lambda batch: list(np.array(batch, dtype=dtype).reshape(-1, *shape))


def _discrete_for_env(first: int, last: int) -> Callable[[Tree], list[Any]]:
    def actions(batch: Tree) -> list[Any]:
        chosen: list[Any] = batch.tolist()
        # Chained, so that NaN is outside.
        if not first <= min(chosen) <= max(chosen) <= last:
            bad = next(one for one in chosen if not first <= one <= last)
            raise OutsideSpace(f"an action was {bad}, and its space says {first} to {last}")
        return chosen

    return actions


def for_vector_env(space: gym.Space[Any]) -> Callable[[Tree], Tree]:
    """As `for_env`, but to what the `step` of a vector environment takes: the same tree, of copies in `space`'s dtype.

    Args:
        space: of one environment's actions.

    Raises:
        OutsideSpace: as there.
    """
    if isinstance(space, gs.Discrete):
        checked = _discrete_for_env(int(space.start), int(space.start) + int(space.n) - 1)
        return lambda batch: np.array(checked(batch), dtype=space.dtype)
    if isinstance(space, gs.Dict):
        named = {key: for_vector_env(item) for key, item in space.spaces.items()}
        return lambda batch: {key: part(batch[key]) for key, part in named.items()}
    if isinstance(space, gs.Tuple):
        parts = [for_vector_env(item) for item in space.spaces]
        return lambda batch: tuple(part(batch[i]) for i, part in enumerate(parts))
    dtype, shape = space.dtype, tuple(space.shape or ())
    return lambda batch: np.array(batch, dtype=dtype).reshape(-1, *shape)


def action_for_env(space: gym.Space[Any], tree: Tree) -> Any:
    """One slot's action, without a batch axis, as `env.step` takes it."""
    return for_env(space)(_add_axis(tree))[0]


def _add_axis(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {key: _add_axis(item) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_add_axis(item) for item in tree)
    return np.asarray(tree)[None]


def _children(space: DictSpace | TupleSpace) -> list[tuple[Any, Space]]:
    return list(space.items.items()) if isinstance(space, DictSpace) else list(enumerate(space.items))


def _not_empty(items: Any, name: str, env_id: str) -> Any:
    if not items:
        raise UsageError(f"{env_id}: {name} is an empty space, there is nothing to store")
    return items


def _plain_leaf(space: gym.Space[Any], name: str, env_id: str) -> Leaf:
    if isinstance(space, gs.Discrete):
        first, last = int(space.start), int(space.start) + int(space.n) - 1
        return Leaf("discrete", _integer_dtype(first, last), (), (float(first),), (float(last),))
    if isinstance(space, gs.MultiDiscrete):
        low = np.asarray(space.start, dtype=object)
        high = low + np.asarray(space.nvec, dtype=object) - 1
        dtype = _integer_dtype(int(low.min()), int(high.max()))
        return Leaf("multi_discrete", dtype, tuple(space.shape), _bounds(low), _bounds(high))
    if isinstance(space, gs.MultiBinary):
        return Leaf("multi_binary", "uint8", tuple(space.shape or ()), (0.0,), (1.0,))
    if isinstance(space, gs.Box):
        dtype = np.dtype(space.dtype).name
        if dtype not in DTYPE_SIZES:
            raise UsageError(f"{env_id}: {name} has the dtype {dtype}, which p2prl cannot store")
        return Leaf("box", dtype, tuple(space.shape), _bounds(space.low), _bounds(space.high))
    kind = type(space).__name__
    raise UsageError(f"{env_id}: {name} is a {kind} space; p2prl takes {_SUPPORTED}. Wrap the environment")


def _integer_dtype(first: int, last: int) -> str:
    for name in _INTEGERS:
        info = np.iinfo(name)
        if info.min <= first and last <= info.max:
            return name
    raise UsageError(f"integers from {first} to {last} fit no dtype")


def _bounds(values: Array) -> tuple[float, ...]:
    """One number if all elements have the same bound, else one per element in C order."""
    flat = [float(value) for value in values.ravel(order="C")[:1]]
    if values.size and bool(np.all(values == values.flat[0])):
        return tuple(flat)
    return tuple(float(value) for value in values.ravel(order="C"))


def _layers(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    """The environment's wrappers, the outermost first, and what they wrap."""
    yield env
    while isinstance(env, gym.Wrapper):
        env = env.env
        yield env


def _time_limit(env: gym.Env[Any, Any]) -> int | None:
    """Of the outermost wrapper that limits time: `spec.max_episode_steps` alone limits nothing."""
    for layer in _layers(env):
        if isinstance(layer, gym.wrappers.TimeLimit) and layer._max_episode_steps >= 1:
            return int(layer._max_episode_steps)
    return None


#: Wrappers whose own `step` hands on the reward, and steps once.
_KEEPS_REWARD = (
    gym.wrappers.TimeLimit,
    gym.wrappers.OrderEnforcing,
    gym.wrappers.PassiveEnvChecker,
    gym.wrappers.RecordEpisodeStatistics,
    gym.wrappers.FrameStackObservation,
    gym.wrappers.TimeAwareObservation,
)
_KEEPS_REWARD_STEPS = (gym.Wrapper.step, gym.ObservationWrapper.step, gym.ActionWrapper.step)


def _reward_range(env: gym.Env[Any, Any]) -> tuple[float, float] | None:
    """The attribute `reward_range` of the outermost layer that has one of its own.

    A wrapper that may change rewards, and does not say into what, hides what is below it. A pair that bounds nothing,
    or is none, declares nothing.
    """
    for layer in _layers(env):
        # Static: a wrapper would else answer with what the layers below it say.
        declared = inspect.getattr_static(layer, "reward_range", None)
        if declared is not None:
            return _pair(declared)
        if isinstance(layer, gym.Wrapper) and not _keeps_reward(layer):
            return None
    return None


def _keeps_reward(layer: gym.Wrapper[Any, Any, Any, Any]) -> bool:
    return type(layer).step in _KEEPS_REWARD_STEPS or type(layer) in _KEEPS_REWARD


def _pair(declared: Any) -> tuple[float, float] | None:
    try:
        low, high = (float(side) for side in declared)
    except (TypeError, ValueError):
        return None
    bounds_something = math.isfinite(low) or math.isfinite(high)
    return (low, high) if low <= high and bounds_something else None
