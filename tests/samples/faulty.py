"""An agent whose actor raises now and then."""

from __future__ import annotations

from collections.abc import Mapping

from p2prl.learn.contracts import Actor, Array, Explore, State, Tree
from tests.samples.idle import Idle, IdleActor


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
