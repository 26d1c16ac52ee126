"""An agent whose learning goes wrong after so many updates, in one way or another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Batch, Update, Weights
from tests.samples.drill import Drill, DrillLearner, DrillSettings
from tests.samples.idle import IdleActor


class DivergingSettings(DrillSettings, frozen=True, forbid_unknown_fields=True):
    """Its settings."""

    after: int = 20
    """Good updates before it goes wrong."""
    times: int = 1_000_000_000
    """So many updates go wrong, then it is well again."""
    how: Literal["skips", "weights", "state"] = "skips"
    """It skips its updates and says so; or its weights, or its state alone, hold NaN, and it says nothing."""
    learning_rate: float = 0.5
    """Does nothing."""


class Diverging(Drill):
    """Drill, until it goes wrong."""

    Settings: ClassVar[type[msgspec.Struct]] = DivergingSettings
    settings: DivergingSettings

    def __init__(self, env: EnvSpec, settings: DivergingSettings) -> None:
        super().__init__(env, settings)

    def actor(self) -> IdleActor:
        """One that refuses NaN."""
        return DivergingActor()

    def learner(self, device: str, seed: int) -> DrillLearner:
        """The one that goes wrong."""
        return DivergingLearner(self.settings)


class DivergingActor(IdleActor):
    """Plays with no weights that are not finite: that it got some is then said by its player."""

    def load(self, weights: Weights) -> None:
        """Look at them."""
        if not np.isfinite(weights["scale"]).all():
            raise ValueError("a player got weights that are not finite")


class DivergingLearner(DrillLearner):
    """Counts as Drill does; beside it a float that is 1, or NaN."""

    def __init__(self, settings: DivergingSettings) -> None:
        super().__init__(0)
        self._settings = settings
        self._wrong = 0

    def update(self, batch: Batch) -> Update:
        """One step, or none."""
        if self._updates < self._settings.after or self._wrong >= self._settings.times:
            return super().update(batch)
        self._wrong += 1
        if self._settings.how == "skips":
            return Update(metrics={"loss": float("nan")}, skipped="the loss is nan")
        return super().update(batch)

    def weights(self) -> Weights:
        """And the float."""
        return {**super().weights(), "scale": self._scale("weights")}

    def save(self) -> Mapping[str, Any]:
        """And the float, and one that may be infinite."""
        scale = self._scale("weights") + self._scale("state")
        return {**super().save(), "scale": scale, "best": np.array(-np.inf, np.float32)}

    def _scale(self, where: str) -> Any:
        bad = self._wrong and self._settings.how == where
        return np.array([1.0, float("nan") if bad else 1.0], np.float32)
