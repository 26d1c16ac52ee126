"""An agent whose sessions say of themselves whether they are whole: for what becomes of them on their way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from p2prl.core.schema import RESET
from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Array, Batch, Explore, Field, ReplaySpec, State, Tree, Update
from tests.samples.idle import IdleActor, IdleLearner


class SwornSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its settings."""

    window: int = 0
    """Ticks of a sample."""
    capacity_bytes: int = 100_000
    """Of the replay: few sessions, which are soon overwritten."""


class Sworn:
    """Acts at random. Each tick has an oath, a large random number, and a witness: the same, but for the action."""

    Settings: ClassVar[type[msgspec.Struct]] = SwornSettings
    ladder: ClassVar[int] = 1
    accelerated: ClassVar[bool] = False

    def __init__(self, env: EnvSpec, settings: SwornSettings) -> None:
        self.settings = settings

    def fields(self) -> Mapping[str, Field]:
        """Both."""
        return {"oath": Field("int64", ()), "witness": Field("int64", ())}

    def replay(self) -> ReplaySpec:
        """Uniform, as fast as it can be sampled."""
        return ReplaySpec(
            ticks=16,
            batch=32,
            window=self.settings.window,
            capacity_bytes=self.settings.capacity_bytes,
            min_ticks=500,
            samples_per_insert=0,
        )

    def actor(self) -> SwornActor:
        """Random."""
        return SwornActor()

    def learner(self, device: str, seed: int) -> SwornLearner:
        """Looks at each sample."""
        return SwornLearner()


class SwornActor(IdleActor):
    """0 or 1."""

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """And an oath on it."""
        rng = explore.rng if explore is not None else np.random.default_rng(0)
        actions, oath = rng.integers(2, size=len(obs)), rng.integers(1 << 40, size=len(obs))
        return actions, state, {"oath": oath, "witness": oath + actions}


class SwornLearner(IdleLearner):
    """Raises at the first tick that is not as it was played."""

    def update(self, batch: Batch) -> Update:
        """One more."""
        played = batch["flags"] & RESET == 0
        broken = played & (batch["witness"] != batch["oath"] + batch["action"])
        if broken.any():
            raise ValueError(f"{np.count_nonzero(broken)} ticks of {broken.size} are not as they were played")
        return super().update(batch)
