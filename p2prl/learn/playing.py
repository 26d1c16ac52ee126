"""What all rollouts share: the actor, the bundle and its layout (core/schema.py), the books on episodes.

How the slots are stepped is left to the kinds: rollout.py one by one, vector_rollout.py all in one environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from p2prl.blame import FAULTS
from p2prl.core.ladder import ladder_level
from p2prl.core.schema import RESET, SessionSchema
from p2prl.core.spaces import EnvSpec, Leaf, leaves
from p2prl.errors import AgentRaised, P2prlError
from p2prl.learn.acted import check_act, started
from p2prl.learn.contracts import Actor, Array, Explore, State, Tree
from p2prl.learn.duplicates import DuplicateWatch
from p2prl.learn.environments import EnvironmentFailed, failure
from p2prl.learn.space_watch import SpaceWatch
from p2prl.learn.spaces import join, split
from p2prl.wire.pictures import Stacks

#: What fails so often in a row, without a step in between, is not begun anew once more.
_FRUITLESS = 3
#: The level under which an episode of an annealing actor is counted: never the least exploring one's.
ANNEALING_LEVEL = 0.999
#: For each leaf of the observation its array `[slots, ...]`, and how to read it out of an observation.
Rows = list[tuple[Array, Callable[[Any], Any]]]
#: The slots in which an episode ended or (RESET) began at a tick, with the tick's flag.
Turned = dict[int, int]


@dataclass(frozen=True)
class Bundle:
    """The sessions of all slots for the same ticks.

    Attributes:
        columns: `[T, B, ...]` per column of the schema; observations `[T+1, B, ...]`, fields with `once` `[1, B, ...]`.
        stacks: observations that are not in `columns`, but here with each picture once.
        steps: ticks that are not RESET, over all slots.
        episodes: (return, length, ladder level) of each episode that ended in it. Returns are summed in float64, over
            bundles too.
    """

    columns: dict[str, Array]
    stacks: dict[str, Stacks]
    steps: int
    episodes: list[tuple[float, int, float]]

    @property
    def packable(self) -> dict[str, Array | Stacks]:
        """All columns, as an encoder takes them."""
        return {**self.columns, **self.stacks}


class Playing:
    """B slots of one environment, one actor. A kind of it makes the environments; call `close` at the end.

    Attributes:
        explore: what `act` is given; it draws from `SeedSequence(seed)`.
        warnings: one line each, about slots that play alike (duplicates.py) and about what lies outside the declared
            spaces and reward range (space_watch.py); none is said twice.
        failures: how often an environment failed and was replaced.
        failure: one line about the last time, or an empty string.
    """

    #: Observations of which a bundle has each picture once.
    _filmed: frozenset[str] = frozenset()

    def __init__(
        self,
        spec: EnvSpec,
        schema: SessionSchema,
        actor: Actor,
        *,
        slots: int,
        ladder: int,
        rank: int,
        seed: int,
        together: bool,
    ) -> None:
        """`together`: one observation is of all slots, `[slots, ...]` per leaf."""
        self.explore = Explore(
            rng=np.random.default_rng(np.random.SeedSequence(seed)),
            level=np.array([ladder_level(rank * slots + slot, ladder) for slot in range(slots)]),
        )
        self._levels: list[float] = self.explore.level.tolist()
        self._spec, self._schema, self._actor, self._slots = spec, schema, actor, slots
        self._seed = seed
        self.failures, self.failure, self.warnings = 0, "", list[str]()
        self._envs: list[Any] = []
        #: Failures of each environment since its last whole step.
        self._fruitless: list[int] = []
        self._watch, self._spaces = DuplicateWatch(spec.id, slots), SpaceWatch(spec, together)
        self._writers = self._spaces.writers
        self._fields = _field_names(spec, schema)
        self._once = {column.name for column in schema.columns if column.once}
        self._layout = _layout(spec, schema, slots)
        #: An observation is one array, and so is an action.
        self._plain, self._plain_action = (
            isinstance(space, Leaf) for space in (spec.observation, spec.action)
        )
        #: Which leaves of an observation may not be finite.
        self._floats = [at for at, (name, _) in enumerate(self._writers) if self._is_float(name)]
        self._state, self._act = started(actor, slots), self._first_act
        #: the rows put back when an episode begins; a copy, because actors may work in place
        self._start = {name: rows.copy() for name, rows in self._state.items()}
        #: Slots whose episode is over: at the next tick another one begins.
        self._over: set[int] = set()
        #: True where the episode began while the actor still explored more than it will in the end.
        self._annealing = [annealing(actor)] * slots
        #: Whole ticks so far, and of the episodes under way how many there were before each, and what each gave.
        self._ticks, self._before, self._returns = 0, [0] * slots, np.zeros(slots)
        #: Of the bundle under way: the ticks before it, and its RESET ticks over all slots.
        self._began = self._resets = 0
        #: The first observation of the next bundle, `[slots, ...]` per leaf.
        self._first = {
            name: np.empty((slots, *leaf.shape), leaf.dtype) for name, leaf in leaves(spec.observation, "obs")
        }

    def _is_float(self, name: str) -> bool:
        return np.dtype(self._layout[name][1]).kind == "f"

    def collect(self, after_tick: Callable[[], None] | None = None) -> Bundle:
        """Play T ticks in every slot.

        Args:
            after_tick: called after each tick, for work that goes on beside play. What it raises ends the rollout.

        Raises:
            EnvironmentFailed: an environment fails again and again; the rollout cannot go on.
        """
        # Until the watch is done it must see arrays.
        left_out = self._filmed if self._watch.done else ()
        columns = {
            name: np.empty(shape, dtype)
            for name, (shape, dtype) in self._layout.items()
            if name not in left_out
        }
        columns["flags"][:] = 0
        episodes: list[tuple[float, int, float]] = []
        rewards = np.empty((self._schema.ticks, self._slots))
        self._began, self._resets = self._ticks, 0
        seen = self._rows(0, columns)
        for (row, _), first in zip(seen, self._first.values(), strict=True):
            row[...] = first
        for tick, earned in enumerate(rewards):
            seen = self._tick(tick, seen, columns, earned, episodes)
            if after_tick is not None:
                after_tick()
        columns["reward"][:] = rewards
        self._first = {name: row.copy() for (name, _), (row, _) in zip(self._writers, seen, strict=True)}
        self._look_at(columns)
        stored = {
            column.name: columns[column.name]
            for column in self._schema.columns
            if column.name not in self._filmed
        }
        return Bundle(stored, self._stacks(), self.under_way, episodes)

    @property
    def under_way(self) -> int:
        """Steps so far of the bundle that is played, over all slots."""
        return (self._ticks - self._began) * self._slots - self._resets

    def close(self) -> None:
        """Close the environments; may be called twice."""
        for env in self._envs:
            env.close()
        self._envs = []

    def _look_at(self, columns: dict[str, Array]) -> None:
        if not self._watch.done:
            self._watch.see(columns, [name for name, _ in self._writers])
        self._spaces.see(columns)
        for text in (self._watch.warning, *self._spaces.warnings):
            if text and text not in self.warnings:
                self.warnings.append(text)

    def _rows(self, row: int, columns: dict[str, Array]) -> Rows:
        # What is left out is an array of its own in each tick: an actor may keep what it is given.
        return [
            (columns[name][row] if name in columns else np.empty_like(self._first[name]), read)
            for name, read in self._writers
        ]

    def _stacks(self) -> dict[str, Stacks]:
        """A bundle's columns of `_filmed`."""
        return {}

    def _tick(
        self,
        tick: int,
        seen: Rows,
        columns: dict[str, Array],
        earned: Array,
        episodes: list[tuple[float, int, float]],
    ) -> Rows:
        """Act on what is `seen` in all slots, and step them; what is seen then. Rewards go into `earned`."""
        obs = seen[0][0] if self._plain else self._tree(seen)
        actions, self._state, extras = self._act(obs, self._state, self.explore)
        if self._plain_action:
            columns["action"][tick] = actions
        else:
            for name, values in split(self._spec.action, "action", actions).items():
                columns[name][tick] = values
        if extras.keys() != self._fields:
            raise AgentRaised(
                f"the agent's act gave the fields {sorted(extras)}; fields() says {sorted(self._fields)}"
            )
        for name, values in extras.items():
            if tick == 0 or name not in self._once:
                columns[name][tick] = values
        rows = self._rows(tick + 1, columns)
        turned = self._step(actions, rows, earned)
        self._returns += earned
        self._ticks += 1
        for slot, flag in turned.items():
            columns["flags"][tick, slot] = flag
            self._turn(slot, flag, episodes)
        return rows

    def _first_act(
        self, obs: Tree, state: State, explore: Explore
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """An act whose answer is looked at; those that follow are not."""
        answer = self._actor.act(obs, state, explore)
        fields = {column.name: column.shape for column in self._schema.columns if column.name in self._fields}
        check_act(answer, self._spec, self._start, self._slots, fields)
        self._act = self._actor.act
        return answer

    def _tree(self, rows: Rows) -> Tree:
        named = {name: values for (name, _), (values, _) in zip(self._writers, rows, strict=True)}
        return join(self._spec.observation, "obs", named)

    def _step(self, actions: Tree, rows: Rows, earned: Array) -> Turned:
        """Step each slot, or reset it where its episode is over (`_over`), and put what is observed into `rows`.

        Args:
            earned: float64 `[slots]`, to be filled with the rewards, 0 in a RESET.

        Returns:
            The slots that turned. A slot in which a new environment was begun has turned to RESET.
        """
        raise NotImplementedError

    def _replace(self, at: int, failed: EnvironmentFailed, begin: Callable[[], None]) -> None:
        """Another environment in the place of one that failed.

        Args:
            at: which of `_envs`.
            begin: makes it, and takes its first observation.

        Raises:
            EnvironmentFailed: that leads nowhere.
        """
        while True:
            self.failures += 1
            self.failure = str(failed)
            self._fruitless[at] += 1
            if self._fruitless[at] > _FRUITLESS:
                raise failed
            with contextlib.suppress(*FAULTS):  # it is broken: what it says on closing is no news
                self._envs[at].close()
            try:
                begin()
            except EnvironmentFailed as error:
                failed = error
            except P2prlError:
                raise
            except FAULTS as error:  # an environment may raise anything
                failed = failure(self._spec.id, failed.slot, "reset", error)
            else:
                return

    def _turn(self, slot: int, flag: int, episodes: list[tuple[float, int, float]]) -> None:
        """An episode of this slot ended, or (RESET) the next one began."""
        if flag == RESET:
            self._resets += 1
            self._over.discard(slot)
            for name, rows in self._state.items():
                rows[slot] = self._start[name][slot]
            self._annealing[slot] = annealing(self._actor)
        else:
            self._over.add(slot)
            level = self._levels[slot]
            if self._annealing[slot]:
                level = max(level, ANNEALING_LEVEL)
            episodes.append((float(self._returns[slot]), self._length(slot), level))
        # What an episode that broke off would have come to nobody knows: it counts for nothing.
        self._returns[slot], self._before[slot] = 0, self._ticks

    def _length(self, slot: int) -> int:
        """Whole ticks of the episode under way."""
        return self._ticks - self._before[slot]


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
