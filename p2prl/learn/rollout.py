"""Playing: steps the slots of one player and lays their ticks out as sessions. See core/schema.py for the layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from p2prl.core.ladder import ladder_level
from p2prl.core.schema import RESET, TERMINATED, TRUNCATED, SessionSchema
from p2prl.core.spaces import EnvSpec, Leaf, leaves
from p2prl.errors import P2prlError
from p2prl.learn.contracts import Actor, Array, Explore
from p2prl.learn.duplicates import DuplicateWatch
from p2prl.learn.environments import (
    EnvironmentFailed,
    MakeEnv,
    NotFinite,
    check_finite,
    check_shapes,
    failure,
    slot_seed,
    write,
)
from p2prl.learn.space_watch import SpaceWatch
from p2prl.learn.spaces import for_env, join, split

#: A slot that fails so often in a row, without a step in between, is not begun anew once more.
_FRUITLESS = 3
#: The level under which an episode of an annealing actor is counted: never the least exploring one's.
ANNEALING_LEVEL = 0.999
#: For each leaf of the observation its array `[slots, ...]`, and how to read it out of one observation.
Rows = list[tuple[Array, Callable[[Any], Any]]]


@dataclass(frozen=True)
class Bundle:
    """The sessions of all slots for the same ticks.

    Attributes:
        columns: `[T, B, ...]` per column of the schema, in its order; observations `[T+1, B, ...]`, fields with `once`
            `[1, B, ...]`.
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

    An environment that raises, or gives an observation or a reward that is not finite, is closed, and its slot begins
    anew with another one: the tick at which it failed is a RESET, and the episode before it, which has no flag of an
    end, counts for nothing. So one bad step costs a tick, not the work of all slots, and a host never sees what it
    would refuse.

    Attributes:
        explore: what `act` is given.
        warnings: one line each, about slots that play alike (duplicates.py) and about what lies outside the declared
            spaces and reward range (space_watch.py); none is said twice.
        failures: how often an environment failed and was replaced.
        failure: one line about the last time, or an empty string.
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
        self._make_env, self._seed = make_env, seed
        self.failures, self.failure, self.warnings = 0, "", list[str]()
        #: Failures of each slot since its last whole step.
        self._fruitless = [0] * slots
        self._watch, self._spaces = DuplicateWatch(spec.id, slots), SpaceWatch(spec)
        self._writers = self._spaces.writers
        self._fields = _field_names(spec, schema)
        self._once = {column.name for column in schema.columns if column.once}
        self._layout = _layout(spec, schema, slots)
        #: Which leaves of an observation may not be finite.
        self._floats = [at for at, (name, _) in enumerate(self._writers) if self._is_float(name)]
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
            self._first = self._open()
        except EnvironmentFailed:
            self.close()
            raise
        self._to_env = for_env(self._envs[0].action_space)
        self._steps = [env.step for env in self._envs]

    def _is_float(self, name: str) -> bool:
        return np.dtype(self._layout[name][1]).kind == "f"

    def collect(self, after_tick: Callable[[], None] | None = None) -> Bundle:
        """Play T ticks in every slot.

        Args:
            after_tick: called after each tick, for work that goes on beside play. It must not raise.

        Raises:
            EnvironmentFailed: an environment fails again and again; the rollout cannot go on.
        """
        columns = {name: np.empty(shape, dtype) for name, (shape, dtype) in self._layout.items()}
        for name, row in self._first.items():
            columns[name][0] = row
        episodes: list[tuple[float, int, float]] = []
        for tick in range(self._schema.ticks):
            self._tick(tick, columns, episodes)
            if after_tick is not None:
                after_tick()
        self._first = {name: columns[name][-1].copy() for name, _ in self._writers}
        if not self._watch.done:
            self._watch.see(columns, [name for name, _ in self._writers])
        self._spaces.see(columns)
        for text in (self._watch.warning, *self._spaces.warnings):
            if text and text not in self.warnings:
                self.warnings.append(text)
        resets = int(np.count_nonzero(columns["flags"] & RESET))
        stored = {column.name: columns[column.name] for column in self._schema.columns}
        return Bundle(stored, self._schema.ticks * self._slots - resets, episodes)

    def close(self) -> None:
        """Close the environments; may be called twice."""
        for env in self._envs:
            env.close()
        self._envs = []

    def _open(self) -> dict[str, Array]:
        rows = {
            name: np.empty((self._slots, *leaf.shape), leaf.dtype)
            for name, leaf in leaves(self._spec.observation, "obs")
        }
        for slot in range(self._slots):
            try:
                self._envs.append(self._make_env())
                obs, _ = self._envs[slot].reset(seed=slot_seed(self._seed, slot))
            except P2prlError:
                raise
            except Exception as error:
                raise failure(self._spec.id, slot, "reset", error) from error
            self._take_first(obs, slot, [(rows[name], read) for name, read in self._writers])
        return rows

    def _take_first(self, obs: Any, slot: int, rows: Rows) -> None:
        """The first observation of a new environment. Raises EnvironmentFailed if it is none."""
        check_shapes(self._spec, obs, slot)
        write(rows, slot, obs)
        try:
            for at in self._floats:
                check_finite(self._writers[at][0], rows[at][0][slot])
        except NotFinite as error:
            raise failure(self._spec.id, slot, "reset", error) from error

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
            if tick == 0 or name not in self._once:
                columns[name][tick] = values
        rows = [(columns[name][tick + 1], read) for name, read in self._writers]
        rewards, flags, broken = self._step_all(self._to_env(actions), rows)
        for at in self._floats:
            # The cheapest way to ask whether all are finite: half of what `.all()` costs.
            if b"\0" in np.isfinite(rows[at][0]).tobytes():
                self._refuse(at, rows, rewards, flags, broken)
        columns["reward"][tick] = rewards
        columns["flags"][tick] = flags
        for slot in broken:
            # What its episode would have come to nobody knows: it counts for nothing.
            self._returns[slot], self._lengths[slot] = 0.0, 0
        for slot, flag in enumerate(flags):
            if flag:
                self._turn(slot, flag, episodes)

    def _refuse(
        self, leaf: int, rows: Rows, rewards: list[float], flags: list[int], broken: list[int]
    ) -> None:
        """Some slots' steps or resets gave something that is not finite: as if they had raised."""
        name, row = self._writers[leaf][0], rows[leaf][0]
        for slot in range(self._slots):
            try:
                check_finite(name, row[slot])
            except NotFinite as error:
                where = "reset" if flags[slot] == RESET else "step"
                if where == "step":  # it was counted as a whole one
                    self._lengths[slot] -= 1
                    self._returns[slot] -= rewards[slot]
                rewards[slot], flags[slot] = 0.0, RESET
                self._begin_anew(slot, failure(self._spec.id, slot, where, error), rows)
                broken.append(slot)

    def _step_all(self, actions: list[Any], rows: Rows) -> tuple[list[float], list[int], list[int]]:
        """Step each slot, or reset it where its episode is over. The hot loop: a tick's cost is here.

        Returns:
            The rewards and flags of all slots, and those slots whose environment was replaced.
        """
        rewards, flags = [0.0] * self._slots, [0] * self._slots
        broken: list[int] = []
        returns, lengths, over = self._returns, self._lengths, self._over
        low, high = self._spaces.low, self._spaces.high
        # Integers are read by a writer that takes notes.
        single = rows[0][0] if isinstance(self._spec.observation, Leaf) and self._floats else None
        turns = iter(enumerate(self._steps))
        slot, earned = 0, 0.0
        while True:
            try:
                for slot, step in turns:
                    flag = 0
                    if over[slot]:
                        obs, _ = self._envs[slot].reset()
                        flag = RESET
                    else:
                        obs, reward, terminated, truncated, _ = step(actions[slot])
                        earned = float(reward)
                        if not low <= earned <= high:
                            earned = self._spaces.reward(earned)
                        if terminated or truncated:
                            flag = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
                    if single is not None:
                        single[slot] = obs
                    else:
                        write(rows, slot, obs)
                    # From here on nothing of theirs can fail: only whole steps are counted.
                    flags[slot] = flag
                    if flag != RESET:
                        rewards[slot] = earned
                        returns[slot] += earned
                        lengths[slot] += 1
                return rewards, flags, broken
            except P2prlError:
                raise
            except Exception as error:  # noqa: BLE001 - an environment may raise anything
                where = "reset" if over[slot] else "step"
                self._begin_anew(slot, failure(self._spec.id, slot, where, error), rows)
                flags[slot] = RESET
                broken.append(slot)

    def _begin_anew(self, slot: int, failed: EnvironmentFailed, rows: Rows) -> None:
        """Another environment in the place of one that failed. Raises EnvironmentFailed if that leads nowhere."""
        if self._lengths[slot]:
            self._fruitless[slot] = 0
        while True:
            self.failures += 1
            self.failure = str(failed)
            self._fruitless[slot] += 1
            if self._fruitless[slot] > _FRUITLESS:
                raise failed
            with contextlib.suppress(Exception):  # it is broken: what it says on closing is no news
                self._envs[slot].close()
            try:
                self._envs[slot] = env = self._make_env()
                obs, _ = env.reset(seed=slot_seed(self._seed, slot, self.failures))
                self._take_first(obs, slot, rows)
            except EnvironmentFailed as error:
                failed = error
            except P2prlError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                failed = failure(self._spec.id, slot, "reset", error)
            else:
                self._steps[slot] = env.step
                return

    def _turn(self, slot: int, flag: int, episodes: list[tuple[float, int, float]]) -> None:
        """An episode of this slot ended, or (RESET) the next one began."""
        self._over[slot] = flag != RESET
        if flag == RESET:
            for name, rows in self._state.items():
                rows[slot] = self._start[name][slot]
            self._annealing[slot] = annealing(self._actor)
            return
        self._fruitless[slot] = 0
        level = float(self.explore.level[slot])
        if self._annealing[slot]:
            level = max(level, ANNEALING_LEVEL)
        episodes.append((self._returns[slot], self._lengths[slot], level))
        self._returns[slot], self._lengths[slot] = 0.0, 0


def annealing(actor: Actor) -> bool:
    """True while an actor explores more than it will in the end; actors without the attribute never do."""
    return bool(getattr(actor, "annealing", False))


def _layout(spec: EnvSpec, schema: SessionSchema, slots: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each array that a bundle is played in.

    Observations and actions are among them whether the schema has them or not: the actor and the watch need them.
    """
    layout: dict[str, tuple[tuple[int, ...], str]] = {}
    for prefix, space, rows in (
        ("obs", spec.observation, schema.ticks + 1),
        ("action", spec.action, schema.ticks),
    ):
        for name, leaf in leaves(space, prefix):
            layout[name] = ((rows, slots, *leaf.shape), leaf.dtype)
    for column in schema.columns:
        layout[column.name] = ((schema.rows(column), slots, *column.shape), column.dtype)
    return layout


def _field_names(spec: EnvSpec, schema: SessionSchema) -> set[str]:
    """The columns that only the agent fills; one left out would carry uninitialised memory to the host."""
    ours = {name for name, _ in (*leaves(spec.observation, "obs"), *leaves(spec.action, "action"))}
    return {column.name for column in schema.columns} - ours - {"reward", "flags"}
