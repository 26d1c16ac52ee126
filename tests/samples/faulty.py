"""Agents with one fault each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2prl.learn.contracts import Actor, Array, Batch, Explore, Learner, ReplaySpec, State, Tree
from tests.samples.idle import Idle, IdleActor, IdleLearner


class FaultyActor(IdleActor):
    """Raises in its 100th call."""

    calls = 0

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        self.calls += 1
        if self.calls == 100:
            raise ValueError("the hundredth call is one too many")
        return super().act(obs, state, explore)


class Faulty(Idle):
    """Idle, with a FaultyActor."""

    def actor(self) -> Actor:
        return FaultyActor()


class RecklessActor(IdleActor):
    """Acts outside a space of two actions."""

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        actions, state, extras = super().act(obs, state, explore)
        return actions + 4, state, extras


class Reckless(Idle):
    """Idle, with a RecklessActor."""

    def actor(self) -> Actor:
        return RecklessActor()


class TerseActor(IdleActor):
    """Gives its actions alone, against the contract."""

    def act(self, obs: Tree, state: State, explore: Explore | None) -> Any:
        actions, _, _ = super().act(obs, state, explore)
        return actions


class Terse(Idle):
    """Idle, with a TerseActor."""

    def actor(self) -> Actor:
        return TerseActor()


class ForgetfulLearner(IdleLearner):
    """Its update has no `return`."""

    def update(self, batch: Batch) -> Any:
        super().update(batch)


class Forgetful(Idle):
    """Idle but for its training, with a ForgetfulLearner."""

    def replay(self) -> ReplaySpec:
        return ReplaySpec(kind="uniform", ticks=16, batch=1, capacity_bytes=1_000_000, min_ticks=16)

    def learner(self, device: str, seed: int) -> Learner:
        return ForgetfulLearner()
