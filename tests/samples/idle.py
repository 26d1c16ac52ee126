"""An agent that acts at random and never trains: for what has to do with delivery alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np

from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import (
    Array,
    Batch,
    Explore,
    Field,
    Learner,
    ReplaySpec,
    State,
    Tree,
    Update,
    Weights,
)


class IdleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its settings."""

    ticks: int = 16
    """T, the length of a session."""
    capacity_bytes: int = 120_000_000
    """Of the replay buffer."""
    min_ticks: int = 80_000
    """More than any test plays, so that training never begins."""


class Idle:
    """Random actions; the weights are one number."""

    Settings: ClassVar[type[msgspec.Struct]] = IdleSettings
    ladder: ClassVar[int] = 1
    accelerated: ClassVar[bool] = False

    def __init__(self, env: EnvSpec, settings: IdleSettings) -> None:
        self.settings = settings

    def fields(self) -> Mapping[str, Field]:
        """None."""
        return {}

    def replay(self) -> ReplaySpec:
        """Uniform, without limits."""
        s = self.settings
        return ReplaySpec(
            kind="uniform", ticks=s.ticks, batch=1, capacity_bytes=s.capacity_bytes, min_ticks=s.min_ticks
        )

    def actor(self) -> IdleActor:
        """Random."""
        return IdleActor()

    def learner(self, device: str, seed: int) -> Learner:
        """Idle."""
        return IdleLearner()


class IdleActor:
    """Tosses a coin for each slot."""

    def load(self, weights: Weights) -> None:
        """Nothing to take."""

    def start(self, slots: int) -> State:
        """No state."""
        return {}

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """0 or 1 per slot."""
        rng = explore.rng if explore is not None else np.random.default_rng(0)
        return rng.integers(2, size=len(obs)), state, {}


class IdleLearner:
    """Counts its updates."""

    def __init__(self) -> None:
        self._updates = np.zeros((), np.int64)

    def update(self, batch: Batch) -> Update:
        """One more."""
        self._updates = self._updates + 1
        return Update()

    def weights(self) -> Weights:
        """The count."""
        return {"updates": self._updates.copy()}

    def save(self) -> Mapping[str, Any]:
        """The count."""
        return self.weights()

    def load(self, state: Mapping[str, Array]) -> None:
        """The count."""
        self._updates = state["updates"].copy()
