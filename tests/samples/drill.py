"""An agent that learns to count, so that a test sees by its weights whether anything of its state was lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np

from p2prl.learn.contracts import (
    Array,
    Batch,
    Explore,
    ReplaySpec,
    State,
    Tree,
    Update,
    Weights,
)
from tests.samples.idle import Idle, IdleActor, IdleSettings


class DrillSettings(IdleSettings, frozen=True, forbid_unknown_fields=True):
    """Its settings: Idle's and these."""

    kind: str = "uniform"
    """Of the replay buffer."""
    capacity_bytes: int = 64_000_000
    """Of the replay buffer."""
    min_ticks: int = 16
    """One session: it trains from the beginning on."""
    samples_per_insert: float = 0.05
    """One sample per update: so many updates per tick."""
    raises_in: int = 0
    """The learner raises in this update after each start; 0 for never."""


class Drill(Idle):
    """Acts at random; each update moves its weights by a momentum that grows."""

    Settings: ClassVar[type[msgspec.Struct]] = DrillSettings
    settings: DrillSettings

    def replay(self) -> ReplaySpec:
        """One sample per update."""
        s = self.settings
        return ReplaySpec(
            kind=s.kind,
            ticks=s.ticks,
            batch=1,
            window=1 if s.kind == "uniform" else 0,
            capacity_bytes=s.capacity_bytes,
            min_ticks=s.min_ticks,
            samples_per_insert=s.samples_per_insert if s.kind == "uniform" else 0.0,
        )

    def learner(self, device: str, seed: int) -> DrillLearner:
        """Counting."""
        return DrillLearner(self.settings.raises_in)


class Coin(Drill):
    """Drill, whatever is observed."""

    def actor(self) -> IdleActor:
        """Tosses a coin for each slot."""
        return CoinActor()


class CoinActor(IdleActor):
    """For observations that are a dict."""

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """0 or 1 per slot."""
        return super().act(next(iter(obs.values())), state, explore)


class DrillLearner:
    """After n updates the momentum is n and the place is 1 + 2 + ... + n, if nothing was ever lost."""

    def __init__(self, raises_in: int) -> None:
        self._updates = self._momentum = self._place = 0
        self._raises_in, self._since_start = raises_in, 0

    def update(self, batch: Batch) -> Update:
        """One step."""
        self._since_start += 1
        if self._since_start == self._raises_in:
            raise FloatingPointError("the loss is not a number")
        self._updates += 1
        self._momentum += 1
        self._place += self._momentum
        return Update()

    def weights(self) -> Weights:
        """What was learned."""
        return {"place": np.array(self._place, np.int64)}

    def save(self) -> Mapping[str, Any]:
        """And the optimiser's state."""
        state = {"updates": self._updates, "momentum": self._momentum, "place": self._place}
        return {name: np.array(value, np.int64) for name, value in state.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on."""
        self._updates, self._momentum, self._place = (
            int(state[name]) for name in ("updates", "momentum", "place")
        )


def intact(updates: int, learner: Mapping[str, Array], weights: Mapping[str, Array]) -> bool:
    """True if this is what so many updates in a row make."""
    place = updates * (updates + 1) // 2
    return (
        int(learner["updates"]) == int(learner["momentum"]) == updates
        and int(learner["place"]) == int(weights["place"]) == place
    )
