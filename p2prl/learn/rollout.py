"""Playing: steps the slots of one player and lays their ticks out as sessions. See core/schema.py for the layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from p2prl.core.ladder import ladder_level
from p2prl.core.schema import RESET, TERMINATED, TRUNCATED, SessionSchema
from p2prl.core.spaces import EnvSpec, Leaf, Space, leaves
from p2prl.errors import P2prlError
from p2prl.learn.contracts import Actor, Array, Explore, State, Tree
from p2prl.learn.duplicates import DuplicateWatch
from p2prl.learn.spaces import for_env, join, split

MakeEnv = Callable[[], "gym.Env[Any, Any]"]
#: Takes an episode's index and one rendered frame, uint8 `[height, width, 3]`.
TakeFrame = Callable[[int, Array], None]

_SLOTS_OF_EVALUATION = 16
#: The level under which an episode of an annealing actor is counted: never the least exploring one's.
ANNEALING_LEVEL = 0.999


class EnvironmentFailed(P2prlError):
    """An environment raised, or answered with something outside its own spaces' shapes.

    Attributes:
        slot: which slot of the player.
    """

    def __init__(self, message: str, slot: int) -> None:
        super().__init__(message)
        self.slot = slot


@dataclass(frozen=True)
class Bundle:
    """The sessions of all slots for the same ticks.

    Attributes:
        columns: `[T, B, ...]` per column of the schema, in its order; observations `[T+1, B, ...]`.
        steps: ticks that are not RESET, over all slots.
        episodes: (return, length, ladder level) of each episode that ended in it. Returns are summed in float64, over
            bundles too.
    """

    columns: dict[str, Array]
    steps: int
    episodes: list[tuple[float, int, float]]


class Rollout:
    """B slots of one environment, one actor. Owns the environments; call `close` at the end.

    The first reset of slot s gets a 31-bit seed drawn from `SeedSequence(seed, spawn_key=(s,))`, later resets none, so
    that an environment goes on with its own generator. Exploration draws from `SeedSequence(seed)` itself.

    Attributes:
        explore: what `act` is given.
        warning: one line about slots that play alike (see duplicates.py), or an empty string.
    """

    def __init__(
        self,
        make_env: MakeEnv,
        spec: EnvSpec,
        schema: SessionSchema,
        actor: Actor,
        *,
        slots: int,
        ladder: int,
        rank: int,
        seed: int,
    ) -> None:
        """Makes and resets the environments.

        Raises:
            EnvironmentFailed: one of them raised.
        """
        self.explore = Explore(
            rng=np.random.default_rng(np.random.SeedSequence(seed)),
            level=np.array([ladder_level(rank * slots + slot, ladder) for slot in range(slots)]),
        )
        self._spec, self._schema, self._actor, self._slots = spec, schema, actor, slots
        self._writers = _writers(spec.observation, "obs")
        self._fields = _field_names(spec, schema)
        self._watch = DuplicateWatch(spec.id, slots)
        self._state = actor.start(slots)
        #: the rows put back when an episode begins; a copy, because actors may work in place
        self._start = {name: rows.copy() for name, rows in self._state.items()}
        self._over = [False] * slots
        #: True where the episode began while the actor still explored more than it will in the end.
        self._annealing = [annealing(actor)] * slots
        self._returns = [0.0] * slots
        self._lengths = [0] * slots
        self._envs: list[gym.Env[Any, Any]] = []
        try:
            self._first = self._open(make_env, seed)
        except EnvironmentFailed:
            self.close()
            raise
        self._to_env = for_env(self._envs[0].action_space)
        self._steps = [env.step for env in self._envs]

    @property
    def warning(self) -> str:
        """See the class."""
        return self._watch.warning

    def collect(self) -> Bundle:
        """Play T ticks in every slot.

        Raises:
            EnvironmentFailed: an environment raised; the rollout cannot go on.
        """
        columns = self._empty_columns()
        for name, row in self._first.items():
            columns[name][0] = row
        episodes: list[tuple[float, int, float]] = []
        for tick in range(self._schema.ticks):
            self._tick(tick, columns, episodes)
        self._first = {name: columns[name][-1].copy() for name, _ in self._writers}
        if not self._watch.done:
            self._watch.see(columns, [name for name, _ in self._writers])
        resets = int(np.count_nonzero(columns["flags"] & RESET))
        return Bundle(columns, self._schema.ticks * self._slots - resets, episodes)

    def close(self) -> None:
        """Close the environments; may be called twice."""
        for env in self._envs:
            env.close()
        self._envs = []

    def _open(self, make_env: MakeEnv, seed: int) -> dict[str, Array]:
        rows = {
            name: np.empty((self._slots, *leaf.shape), leaf.dtype)
            for name, leaf in leaves(self._spec.observation, "obs")
        }
        for slot in range(self._slots):
            try:
                self._envs.append(make_env())
                obs, _ = self._envs[slot].reset(seed=slot_seed(seed, slot))
            except P2prlError:
                raise
            except Exception as error:
                raise _failed(self._spec.id, slot, "reset", error) from error
            _check_shapes(self._spec, obs, slot)
            _write([(rows[name], read) for name, read in self._writers], slot, obs)
        return rows

    def _empty_columns(self) -> dict[str, Array]:
        schema = self._schema
        return {
            column.name: np.empty((schema.rows(column), self._slots, *column.shape), column.dtype)
            for column in schema.columns
        }

    def _tick(self, tick: int, columns: dict[str, Array], episodes: list[tuple[float, int, float]]) -> None:
        obs = join(self._spec.observation, "obs", {name: columns[name][tick] for name, _ in self._writers})
        actions, self._state, extras = self._actor.act(obs, self._state, self.explore)
        for name, values in split(self._spec.action, "action", actions).items():
            columns[name][tick] = values
        if extras.keys() != self._fields:
            raise P2prlError(
                f"the agent's act gave the fields {sorted(extras)}; fields() says {sorted(self._fields)}"
            )
        for name, values in extras.items():
            columns[name][tick] = values
        rows = [(columns[name][tick + 1], read) for name, read in self._writers]
        rewards, flags = self._step_all(self._to_env(actions), rows)
        columns["reward"][tick] = rewards
        columns["flags"][tick] = flags
        for slot, flag in enumerate(flags):
            if flag:
                self._turn(slot, flag, episodes)

    def _step_all(
        self, actions: list[Any], rows: list[tuple[Array, Callable[[Any], Any]]]
    ) -> tuple[list[float], list[int]]:
        """Step each slot, or reset it where its episode is over. The hot loop: a tick's cost is here."""
        rewards, flags = [0.0] * self._slots, [0] * self._slots
        returns, lengths, over = self._returns, self._lengths, self._over
        single = rows[0][0] if isinstance(self._spec.observation, Leaf) else None
        slot = 0
        try:
            for slot, step in enumerate(self._steps):
                if over[slot]:
                    obs, _ = self._envs[slot].reset()
                    flags[slot] = RESET
                else:
                    obs, reward, terminated, truncated, _ = step(actions[slot])
                    rewards[slot] = reward = float(reward)
                    returns[slot] += reward
                    lengths[slot] += 1
                    if terminated or truncated:
                        flags[slot] = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
                if single is not None:
                    single[slot] = obs
                else:
                    _write(rows, slot, obs)
        except P2prlError:
            raise
        except Exception as error:
            raise _failed(self._spec.id, slot, "reset" if over[slot] else "step", error) from error
        return rewards, flags

    def _turn(self, slot: int, flag: int, episodes: list[tuple[float, int, float]]) -> None:
        """An episode of this slot ended, or (RESET) the next one began."""
        self._over[slot] = flag != RESET
        if flag == RESET:
            for name, rows in self._state.items():
                rows[slot] = self._start[name][slot]
            self._annealing[slot] = annealing(self._actor)
            return
        level = float(self.explore.level[slot])
        if self._annealing[slot]:
            level = max(level, ANNEALING_LEVEL)
        episodes.append((self._returns[slot], self._lengths[slot], level))
        self._returns[slot], self._lengths[slot] = 0.0, 0


def annealing(actor: Actor) -> bool:
    """True while an actor explores more than it will in the end; actors without the attribute never do."""
    return bool(getattr(actor, "annealing", False))


def evaluate(
    make_env: MakeEnv,
    spec: EnvSpec,
    actor: Actor,
    episodes: int,
    seed: int,
    frames: TakeFrame | None = None,
) -> list[tuple[float, int]]:
    """Play greedily, several episodes at a time.

    Args:
        episodes: how many; each has its own seed, so the same `seed` gives the same list.
        frames: takes each rendered frame. Needs environments made with `render_mode="rgb_array"`, which then play one
            episode after the other.

    Returns:
        (return, length) per episode, in order.

    Raises:
        EnvironmentFailed: an environment raised.
    """
    slots = 1 if frames else max(1, min(episodes, _SLOTS_OF_EVALUATION))
    lanes = [_Lane(make_env(), spec, slot, seed, frames) for slot in range(slots)]
    try:
        return _evaluate(lanes, spec, actor, episodes)
    finally:
        for lane in lanes:
            lane.env.close()


def _evaluate(lanes: list[_Lane], spec: EnvSpec, actor: Actor, episodes: int) -> list[tuple[float, int]]:
    waiting = iter(range(episodes))
    results: dict[int, tuple[float, int]] = {}
    slots = len(lanes)
    rows = {
        name: np.zeros((slots, *leaf.shape), leaf.dtype) for name, leaf in leaves(spec.observation, "obs")
    }
    writers = [(rows[name], read) for name, read in _writers(spec.observation, "obs")]
    state = actor.start(slots)
    start = {name: values.copy() for name, values in state.items()}
    to_env = for_env(lanes[0].env.action_space)
    for lane in lanes:
        _write(writers, lane.slot, lane.begin(next(waiting, None)))
    while any(lane.episode is not None for lane in lanes):
        actions, state, _ = actor.act(join(spec.observation, "obs", rows), state, None)
        native = to_env(actions)
        for lane in lanes:
            if lane.episode is None:
                continue
            obs = lane.step(native[lane.slot])
            if lane.over:
                results[lane.episode] = (lane.total, lane.length)
                _put_back(state, start, lane.slot)
                obs = lane.begin(next(waiting, None))
            if obs is not None:
                _write(writers, lane.slot, obs)
    return [results[episode] for episode in range(episodes)]


class _Lane:
    """One slot of an evaluation; `episode` is None when there is nothing left for it to play."""

    def __init__(
        self, env: gym.Env[Any, Any], spec: EnvSpec, slot: int, seed: int, frames: TakeFrame | None
    ) -> None:
        self.env, self.slot = env, slot
        self.episode: int | None = None
        self.total, self.length, self.over = 0.0, 0, False
        self._spec, self._seed, self._frames = spec, seed, frames

    def begin(self, episode: int | None) -> Any:
        self.episode, self.total, self.length, self.over = episode, 0.0, 0, False
        if episode is None:
            return None
        try:
            obs, _ = self.env.reset(seed=slot_seed(self._seed, episode))
            self._show()
        except Exception as error:
            raise _failed(self._spec.id, self.slot, "reset", error) from error
        return obs

    def step(self, action: Any) -> Any:
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            self._show()
        except Exception as error:
            raise _failed(self._spec.id, self.slot, "step", error) from error
        self.total += float(reward)
        self.length += 1
        self.over = bool(terminated or truncated)
        return obs

    def _show(self) -> None:
        if self._frames is not None and self.episode is not None:
            self._frames(self.episode, np.asarray(self.env.render()))


def slot_seed(seed: int, slot: int) -> int:
    """A seed for `reset(seed=)`: 31 bits, because that is what the pickiest generators take."""
    state = np.random.SeedSequence(seed, spawn_key=(slot,)).generate_state(1, np.uint32)
    return int(state[0]) >> 1


def _writers(space: Space, prefix: str) -> list[tuple[str, Callable[[Any], Any]]]:
    """Each leaf's name, and how to read it out of one observation."""
    paths = [(name, name[len(prefix) + 1 :]) for name, _ in leaves(space, prefix)]
    return [(name, _reader(space, path.split(".") if path else [])) for name, path in paths]


def _field_names(spec: EnvSpec, schema: SessionSchema) -> set[str]:
    """The columns that only the agent fills; one left out would carry uninitialised memory to the host."""
    ours = {name for name, _ in (*leaves(spec.observation, "obs"), *leaves(spec.action, "action"))}
    return {column.name for column in schema.columns} - ours - {"reward", "flags"}


def _reader(space: Space, path: Sequence[str]) -> Callable[[Any], Any]:
    if isinstance(space, Leaf):
        return lambda obs: obs
    key: Any = path[0] if isinstance(space.items, dict) else int(path[0])
    inner = _reader(space.items[key], path[1:])
    return lambda obs: inner(obs[key])


def _write(rows: Sequence[tuple[Array, Callable[[Any], Any]]], slot: int, obs: Any) -> None:
    for row, read in rows:
        row[slot] = read(obs)


def _put_back(state: State, start: State, slot: int) -> None:
    for name, rows in state.items():
        rows[slot] = start[name][slot]


def _check_shapes(spec: EnvSpec, obs: Tree, slot: int) -> None:
    """Once per slot: a wrong shape would else be broadcast in silence."""
    try:
        shapes = {name: np.shape(part) for name, part in split(spec.observation, "obs", obs).items()}
    except (KeyError, IndexError, TypeError) as error:
        raise _failed(spec.id, slot, "reset", error) from error
    for name, leaf in leaves(spec.observation, "obs"):
        if shapes[name] != leaf.shape:
            text = f"{spec.id}: slot {slot}: reset gave {name} the shape {shapes[name]}, its space says {leaf.shape}"
            raise EnvironmentFailed(text, slot)


def _failed(env_id: str, slot: int, where: str, error: Exception) -> EnvironmentFailed:
    text = " ".join(str(error).split())
    return EnvironmentFailed(f"{env_id}: slot {slot}: {where} raised {type(error).__name__}: {text}", slot)
