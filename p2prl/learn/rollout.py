"""Playing one by one: steps the slots of one player, each an environment of its own, as any environment can be."""

from __future__ import annotations

from typing import Any

import numpy as np

from p2prl.core.schema import RESET, TERMINATED, TRUNCATED, SessionSchema
from p2prl.core.spaces import EnvSpec
from p2prl.errors import P2prlError
from p2prl.learn.contracts import Actor, Array, Tree
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
from p2prl.learn.playing import Playing, Rows, Turned
from p2prl.learn.spaces import for_env


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
        self._fruitless = [0] * slots
        try:
            for slot in range(slots):
                self._open(slot)
        except EnvironmentFailed:
            self.close()
            raise
        self._to_env = for_env(self._envs[0].action_space)
        self._steps = [env.step for env in self._envs]

    def _open(self, slot: int) -> None:
        try:
            self._envs.append(self._make_env())
            obs, _ = self._envs[slot].reset(seed=slot_seed(self._seed, slot))
        except P2prlError:
            raise
        except Exception as error:
            raise failure(self._spec.id, slot, "reset", error) from error
        self._take_first(obs, slot, [(self._first[name], read) for name, read in self._writers])

    def _take_first(self, obs: Any, slot: int, rows: Rows) -> None:
        """The first observation of a new environment. Raises EnvironmentFailed if it is none."""
        check_shapes(self._spec, obs, slot)
        write(rows, slot, obs)
        try:
            for at in self._floats:
                check_finite(self._writers[at][0], rows[at][0][slot])
        except NotFinite as error:
            raise failure(self._spec.id, slot, "reset", error) from error

    def _step(self, actions: Tree, rows: Rows) -> tuple[Array, Turned]:
        """As in Playing."""
        rewards, turned = self._step_all(self._to_env(actions), rows)
        earned = self._earned(rewards, rows, turned)
        for leaf in self._floats:
            if not self._all_finite(rows, leaf):
                self._refuse(leaf, rows, earned, turned)
        return earned, turned

    def _step_all(self, actions: list[Any], rows: Rows) -> tuple[list[Any], Turned]:
        """The hot loop: a tick's cost is here. Rewards are as the environments gave them."""
        rewards: list[Any] = [0.0] * self._slots
        turned: Turned = {}
        over = self._over
        # Written without a detour; but integers are read by a writer that takes notes.
        single = rows[0][0] if self._plain and self._floats else None
        turns = iter(enumerate(self._steps))
        slot = 0
        while True:
            try:
                for slot, step in turns:
                    if slot in over:
                        obs, _ = self._envs[slot].reset()
                        turned[slot] = RESET
                    else:
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
            except Exception as error:  # noqa: BLE001 - an environment may raise anything
                rewards[slot] = 0.0
                self._begin_anew(slot, error, rows, turned)

    def _earned(self, rewards: list[Any], rows: Rows, turned: Turned) -> Array:
        """Rewards as numbers in the declared range, float64 `[slots]`."""
        try:
            earned = np.array(rewards, np.float64)
            if earned.shape == (self._slots,) and self._spaces.all_rewarded(earned):
                return earned
        except (TypeError, ValueError, OverflowError):
            pass  # whose it was is found out below
        earned = np.zeros(self._slots)
        for slot, reward in enumerate(rewards):
            if turned.get(slot) != RESET:
                try:
                    earned[slot] = self._spaces.reward(float(reward))
                except Exception as error:  # noqa: BLE001 - a reward may be anything
                    self._begin_anew(slot, error, rows, turned)
        return earned

    def _refuse(self, leaf: int, rows: Rows, earned: Array, turned: Turned) -> None:
        """Some slots' steps or resets gave something that is not finite: as if they had raised."""
        name, row = self._writers[leaf][0], rows[leaf][0]
        for slot in range(self._slots):
            try:
                check_finite(name, row[slot])
            except NotFinite as error:
                earned[slot] = 0.0
                self._begin_anew(slot, error, rows, turned)

    def _begin_anew(self, slot: int, error: Exception, rows: Rows, turned: Turned) -> None:
        """Another environment in the place of one that failed. Raises EnvironmentFailed if that leads nowhere."""
        if self._lengths[slot]:
            self._fruitless[slot] = 0
        where = "reset" if slot in self._over else "step"
        self._replace(slot, failure(self._spec.id, slot, where, error), lambda: self._open_anew(slot, rows))
        turned[slot] = RESET

    def _open_anew(self, slot: int, rows: Rows) -> None:
        self._envs[slot] = env = self._make_env()
        obs, _ = env.reset(seed=slot_seed(self._seed, slot, self.failures))
        self._take_first(obs, slot, rows)
        self._steps[slot] = env.step

    def _turn(self, slot: int, flag: int, episodes: list[tuple[float, int, float]]) -> None:
        """As in Playing."""
        super()._turn(slot, flag, episodes)
        if flag != RESET:
            self._fruitless[slot] = 0
