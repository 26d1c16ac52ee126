"""Playing all together: the slots of one player are one vector environment, which steps them in numpy.

Its autoreset mode is NEXT_STEP, which is the layout of a session (core/schema.py): the step after an episode's end
takes no action, gives no reward, and answers with the first observation of the next episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from p2prl.blame import FAULTS
from p2prl.core.schema import RESET, TERMINATED, TRUNCATED, SessionSchema
from p2prl.core.spaces import EnvSpec
from p2prl.errors import P2prlError
from p2prl.learn.contracts import Actor, Array, Tree
from p2prl.learn.environments import EnvironmentFailed, NotFinite, check_finite, failure, slot_seed
from p2prl.learn.finite import all_finite
from p2prl.learn.playing import Playing, Rows, Turned
from p2prl.learn.spaces import for_vector_env
from p2prl.learn.vector_environments import MakeVectorEnv


class VectorRollout(Playing):
    """B slots that are one vector environment of B, with the autoreset mode NEXT_STEP.

    Its first reset gets the seed that slot 0 would get in rollout.py; the slots draw their starts from it in turn.

    One that raises, or gives an observation or a reward that is not finite in any slot, is closed and replaced whole:
    the tick is a RESET in all slots, and the episodes before it, which have no flag of an end, count for nothing.
    """

    def __init__(
        self,
        make_vector_env: MakeVectorEnv,
        spec: EnvSpec,
        schema: SessionSchema,
        actor: Actor,
        *,
        slots: int,
        ladder: int,
        rank: int,
        seed: int,
    ) -> None:
        """Makes and resets the environment.

        Raises:
            EnvironmentFailed: it raised.
        """
        super().__init__(spec, schema, actor, slots=slots, ladder=ladder, rank=rank, seed=seed, together=True)
        self._make = make_vector_env
        self._fruitless = [0]
        try:
            self._open([(self._first[name], read) for name, read in self._writers])
        except P2prlError:
            self.close()
            raise
        except FAULTS as error:
            self.close()
            raise failure(spec.id, None, "reset", error) from error

    def _open(self, rows: Rows) -> None:
        """Another environment, and its first observations. Raises whatever it raises."""
        env = self._make()
        self._envs = [env]
        self._to_env, self._step_env = for_vector_env(env.single_action_space), env.step
        obs, _ = env.reset(seed=slot_seed(self._seed, 0, self.failures))
        _write(rows, obs)
        if failed := self._not_finite(rows, set(range(self._slots))):
            raise failed

    def _step(self, actions: Tree, rows: Rows, earned: Array) -> Turned:
        """As in Playing."""
        try:
            obs, rewards, terminated, truncated, _ = self._step_env(self._to_env(actions))
            _write(rows, obs)
            self._take(rewards, earned)
            turned = self._turned(terminated, truncated)
            failed = self._not_finite(rows, self._over) or self._out_of_range(earned)
        except P2prlError:
            raise
        except FAULTS as error:  # an environment may raise anything
            failed = failure(self._spec.id, None, "step", error)
        if failed is not None:
            self._replace(0, failed, lambda: self._open(rows))
            earned[:] = 0.0
            return dict.fromkeys(range(self._slots), RESET)
        if len(self._over) < self._slots:
            self._fruitless[0] = 0
        return turned

    def _take(self, rewards: Any, earned: Array) -> None:
        values = np.asarray(rewards, np.float64)
        _check_shape(values, earned.shape)
        earned[:] = values
        if self._over:
            earned[list(self._over)] = 0.0

    def _turned(self, terminated: Any, truncated: Any) -> Turned:
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        _check_shape(terminated, (self._slots,))
        ends = terminated | truncated
        _check_shape(ends, (self._slots,))
        turned = dict.fromkeys(self._over, RESET)
        for slot in ends.nonzero()[0].tolist():
            flag = (TERMINATED if terminated[slot] else 0) | (TRUNCATED if truncated[slot] else 0)
            turned.setdefault(slot, flag)
        return turned

    def _not_finite(self, rows: Rows, begun: set[int]) -> EnvironmentFailed | None:
        """What an observation that is not finite comes to; `begun`: slots of which it is an episode's first."""
        for leaf in self._floats:
            if not all_finite(rows[leaf][0]):
                name, row = self._writers[leaf][0], rows[leaf][0]
                for slot in range(self._slots):
                    try:
                        check_finite(name, row[slot])
                    except NotFinite as error:
                        return failure(self._spec.id, slot, "reset" if slot in begun else "step", error)
        return None

    def _out_of_range(self, earned: Array) -> EnvironmentFailed | None:
        """Brings rewards into the declared range, in place; what one that is no number comes to."""
        if not self._spaces.all_rewarded(earned):
            for slot in range(self._slots):
                if slot not in self._over:
                    try:
                        earned[slot] = self._spaces.reward(float(earned[slot]))
                    except NotFinite as error:
                        return failure(self._spec.id, slot, "step", error)
        return None


def _write(rows: Rows, obs: Any) -> None:
    """Put the observations of all slots into each leaf's array `[slots, ...]`."""
    for row, read in rows:
        values = np.asarray(read(obs))
        _check_shape(values, row.shape)
        row[...] = values


def _check_shape(values: Array, shape: tuple[int, ...]) -> None:
    """A wrong shape would else be broadcast in silence."""
    if values.shape != shape:
        raise ValueError(f"an array of shape {values.shape} where {shape} is due")
