"""An agent that wants to see rewards again and again: for prioritised replay in a whole run. It learns nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Array, Batch, Field, ReplaySpec, Update, Weights
from tests.samples.idle import IdleActor

#: Priority of a tick with a reward, beside 1 of any other.
WANTED = 8.0
_SUMS = ("updates", "rewarding", "weight", "weighted")


class RankedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its settings."""

    samples_per_insert: float = 8.0
    """Of the replay."""


class Ranked:
    """Acts at random."""

    Settings: ClassVar[type[msgspec.Struct]] = RankedSettings
    ladder: ClassVar[int] = 1
    accelerated: ClassVar[bool] = False

    def __init__(self, env: EnvSpec, settings: RankedSettings) -> None:
        self.settings = settings

    def fields(self) -> Mapping[str, Field]:
        """None."""
        return {}

    def replay(self) -> ReplaySpec:
        """Prioritised."""
        return ReplaySpec(
            kind="prioritised",
            ticks=16,
            batch=32,
            window=1,
            capacity_bytes=1_000_000,
            min_ticks=500,
            samples_per_insert=self.settings.samples_per_insert,
        )

    def actor(self) -> IdleActor:
        """Random."""
        return IdleActor()

    def learner(self, device: str, seed: int) -> RankedLearner:
        """Sums up what it is given."""
        return RankedLearner()


class RankedLearner:
    """Attributes: of all updates together, how many samples had a reward, and what their importance weights say."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(_SUMS, 0.0)

    def update(self, batch: Batch) -> Update:
        """Rewards are wanted."""
        rewarding = batch["reward"][:, 0] > 0
        weights = 1.0 / batch["probability"].astype(np.float64)
        self.sums["updates"] += 1
        self.sums["rewarding"] += rewarding.mean()
        self.sums["weight"] += weights.mean()
        self.sums["weighted"] += (weights * rewarding).mean()
        return Update(
            metrics={"rewarding": float(rewarding.mean()), "weight": float(weights.mean())},
            priorities=np.where(rewarding, WANTED, 1.0).astype(np.float32),
        )

    def weights(self) -> Weights:
        """How many updates."""
        return {"updates": np.array(self.sums["updates"])}

    def save(self) -> Mapping[str, Array]:
        """The sums."""
        return {name: np.array(value) for name, value in self.sums.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on."""
        self.sums = {name: float(state[name]) for name in _SUMS}
