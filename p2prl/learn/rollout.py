"""Playing one by one: steps the slots of one player, each an environment of its own, as any environment can be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from p2prl.blame import FAULTS
from p2prl.core.schema import RESET, TERMINATED, TRUNCATED, SessionSchema
from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.errors import P2prlError
from p2prl.learn.contracts import Actor, Array, Tree
from p2prl.learn.environments import (
    EnvironmentFailed,
    MakeEnv,
    NotFinite,
    bare_step,
    check_finite,
    check_shapes,
    failure,
    slot_seed,
    write,
)
from p2prl.learn.film import Film, stacked, taken
from p2prl.learn.finite import all_finite
from p2prl.learn.playing import Playing, Rows, Turned
from p2prl.learn.spaces import for_env
from p2prl.wire.pictures import MOST_STACKED, Stacks, is_pictures

#: As an environment's `step`.
Step = Callable[[Any], tuple[Any, Any, Any, Any, Any]]


class Ways(NamedTuple):
    """What a slot's environment is stepped by.

    Attributes:
        go_on: while an episode goes on. begin: in the place of a step, where the next one begins.
        limit: the length at which an episode is truncated.
    """

    go_on: Step
    limit: float
    begin: Step


class Rollout(Playing):
    """B environments, stepped one by one.

    The first reset of slot s gets a 31-bit seed drawn from `SeedSequence(seed, spawn_key=(s,))`, later resets none, so
    that an environment goes on with its own generator.

    An environment that raises, or gives an observation or a reward that is not finite, is closed, and its slot begins
    anew with another one: the tick at which it failed is a RESET, and the episode before it, which has no flag of an
    end, counts for nothing. So one bad step costs a tick, not the work of all slots, and a host never sees what it
    would refuse.
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
        super().__init__(
            spec, schema, actor, slots=slots, ladder=ladder, rank=rank, seed=seed, together=False
        )
        self._make_env = make_env
        #: Of each slot, where pictures are kept once.
        self._films: list[Film] = []
        self._fruitless = [0] * slots
        try:
            for slot in range(slots):
                self._open(slot)
            self._begin_films()
        except EnvironmentFailed:
            self.close()
            raise
        self._ways = [self._ways_of(slot) for slot in range(slots)]
        self._to_env = for_env(self._envs[0].action_space)
        #: What steps each slot next.
        self._steps = [ways.go_on for ways in self._ways]
        #: The count of ticks at which an episode may be as long as it can get.
        self._due = min(ways.limit for ways in self._ways)

    def _open(self, slot: int) -> None:
        try:
            env = self._make_env()
            self._envs.append(env)
            obs, _ = env.reset(seed=slot_seed(self._seed, slot))
        except P2prlError:
            raise
        except FAULTS as error:
            raise failure(self._spec.id, slot, "reset", error) from error
        self._take_first(obs, slot, [(self._first[name], read) for name, read in self._writers])

    def _begin_films(self) -> None:
        """If all that is observed are stacks that Gymnasium makes; if they are sent, and nobody looks at them later."""
        name, space = self._writers[0][0], self._spec.observation
        if (
            isinstance(space, Leaf)
            and is_pictures(space.dtype, space.shape)
            and 2 <= space.shape[0] <= MOST_STACKED
            and all(stacked(env) == space.shape[0] for env in self._envs)
            and name in {column.name for column in self._schema.columns}
            and not self._spaces.looks_at(name)
        ):
            self._filmed = frozenset((name,))
            self._films = [Film(first, self._schema.ticks + 1) for first in self._first[name]]

    def _ways_of(self, slot: int) -> Ways:
        env = self._envs[slot]
        begin = partial(_begin, env)
        if not self._films:
            return Ways(*bare_step(env), begin)
        film = self._films[slot]
        # An environment that took the place of one that failed may be another.
        is_stacked = stacked(env) == film.stack
        step, limit = bare_step(env, past_stack=is_stacked)
        take = film.newest if is_stacked else film.whole
        return Ways(partial(taken, step, take), limit, partial(taken, begin, film.whole))

    def _take_first(self, obs: Any, slot: int, rows: Rows) -> None:
        """The first observation of a new environment. Raises EnvironmentFailed if it is none."""
        check_shapes(self._spec, obs, slot)
        write(rows, slot, obs)
        try:
            for at in self._floats:
                check_finite(self._writers[at][0], rows[at][0][slot])
        except NotFinite as error:
            raise failure(self._spec.id, slot, "reset", error) from error

    def _step(self, actions: Tree, rows: Rows, earned: Array) -> Turned:
        """As in Playing."""
        rewards, turned = self._step_all(self._to_env(actions), rows)
        if self._ticks + 1 >= self._due:
            self._truncate(turned)
        if not self._take(rewards, earned):
            self._take_one_by_one(rewards, earned, rows, turned)
        for leaf in self._floats:
            if not all_finite(rows[leaf][0]):
                self._refuse(leaf, rows, earned, turned)
        for film in self._films:
            film.turn()
        return turned

    def _stacks(self) -> dict[str, Stacks]:
        """As in Playing."""
        played = [film.take() for film in self._films]
        kept, breaks = [pictures for pictures, _ in played], np.array([broken for _, broken in played]).T
        return {name: Stacks(kept, breaks, self._films[0].stack) for name in self._filmed}

    def _step_all(self, actions: list[Any], rows: Rows) -> tuple[list[Any], Turned]:
        """The hot loop: a tick's cost is here. Rewards are as the environments gave them."""
        rewards: list[Any] = [0.0] * self._slots
        turned: Turned = dict.fromkeys(self._over, RESET)
        # Written without a detour; but integers are read by a writer that takes notes.
        single = rows[0][0] if self._plain and self._floats else None
        turns = iter(enumerate(self._steps))
        slot = 0
        while True:
            try:
                for slot, step in turns:
                    obs, rewards[slot], terminated, truncated, _ = step(actions[slot])
                    if terminated or truncated:
                        turned[slot] = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
                    if single is not None:
                        single[slot] = obs
                    else:
                        write(rows, slot, obs)
                return rewards, turned
            except P2prlError:
                raise
            except FAULTS as error:  # an environment may raise anything
                rewards[slot] = 0.0
                self._begin_anew(slot, error, rows, turned)

    def _truncate(self, turned: Turned) -> None:
        """End the episodes that have come to their limit, as Gymnasium's TimeLimit does."""
        now = self._ticks + 1
        ends = [before + ways.limit for before, ways in zip(self._before, self._ways, strict=True)]
        for slot, end in enumerate(ends):
            if now >= end and turned.get(slot) != RESET:
                turned[slot] = turned.get(slot, 0) | TRUNCATED
        self._due = min((end for end in ends if end > now), default=now + 1)

    def _take(self, rewards: list[Any], earned: Array) -> bool:
        """Rewards as numbers; False if some of them are none, or out of the declared range."""
        try:
            earned[:] = rewards
        except (TypeError, ValueError, OverflowError):
            return False
        # The first is asked here, without a detour.
        return bool(earned.dot(earned) <= self._spaces.safe_squares) or self._spaces.all_rewarded(earned)

    def _take_one_by_one(self, rewards: list[Any], earned: Array, rows: Rows, turned: Turned) -> None:
        """Brings them into the declared range, and begins anew where one is no number."""
        earned[:] = 0.0
        for slot, reward in enumerate(rewards):
            if turned.get(slot) != RESET:
                try:
                    earned[slot] = self._spaces.reward(float(reward))
                except FAULTS as error:  # a reward may be anything
                    self._begin_anew(slot, error, rows, turned)

    def _refuse(self, leaf: int, rows: Rows, earned: Array, turned: Turned) -> None:
        """Some slots' steps or resets gave something that is not finite: as if they had raised."""
        name, row = self._writers[leaf][0], rows[leaf][0]
        for slot in range(self._slots):
            try:
                check_finite(name, row[slot])
            except NotFinite as error:
                earned[slot] = 0.0
                self._begin_anew(slot, error, rows, turned)

    def _begin_anew(self, slot: int, error: BaseException, rows: Rows, turned: Turned) -> None:
        """Another environment in the place of one that failed. Raises EnvironmentFailed if that leads nowhere."""
        if self._length(slot):
            self._fruitless[slot] = 0
        where = "reset" if slot in self._over else "step"
        self._replace(slot, failure(self._spec.id, slot, where, error), lambda: self._open_anew(slot, rows))
        turned[slot] = RESET

    def _open_anew(self, slot: int, rows: Rows) -> None:
        self._envs[slot] = env = self._make_env()
        obs, _ = env.reset(seed=slot_seed(self._seed, slot, self.failures))
        self._take_first(obs, slot, rows)
        if self._films:
            self._films[slot].whole(rows[0][0][slot])
        self._ways[slot] = self._ways_of(slot)

    def _turn(self, slot: int, flag: int, episodes: list[tuple[float, int, float]]) -> None:
        """As in Playing."""
        super()._turn(slot, flag, episodes)
        if flag == RESET:
            self._steps[slot] = self._ways[slot].go_on
            self._due = min(self._due, self._ticks + self._ways[slot].limit)
        else:
            self._steps[slot] = self._ways[slot].begin
            self._fruitless[slot] = 0


def _begin(env: gym.Env[Any, Any], action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """In the place of `step` where an episode is over: the next one's first observation. The action is not used."""
    del action
    obs, info = env.reset()
    return obs, 0.0, False, False, info
