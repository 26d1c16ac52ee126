"""Drill with weights of a size that is a setting, so that a checkpoint may not fit."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from p2prl.learn.contracts import Weights
from tests.samples.drill import Drill, DrillLearner, DrillSettings


class SizedSettings(DrillSettings, frozen=True, forbid_unknown_fields=True):
    """Its settings: Drill's and this."""

    size: int = 1
    """Of its weights."""


class Sized(Drill):
    """Learns as Drill does, and says it so many times."""

    Settings: ClassVar[type[msgspec.Struct]] = SizedSettings
    settings: SizedSettings

    def learner(self, device: str, seed: int) -> DrillLearner:
        """Counting."""
        return _SizedLearner(self.settings.size)


class _SizedLearner(DrillLearner):
    def __init__(self, size: int) -> None:
        super().__init__(raises_in=0)
        self._size = size

    def weights(self) -> Weights:
        """As Drill's, repeated."""
        return {name: np.repeat(np.asarray(value), self._size) for name, value in super().weights().items()}
