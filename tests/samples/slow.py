"""Drill with updates that take long, so that much comes in meanwhile."""

from __future__ import annotations

import threading
from typing import ClassVar

import msgspec

from p2prl.learn.contracts import Batch, Update
from tests.samples.drill import Drill, DrillLearner, DrillSettings


class SlowSettings(DrillSettings, frozen=True, forbid_unknown_fields=True):
    """Its settings: Drill's and this."""

    update_s: float = 1.0
    """How long an update takes, in seconds."""


class Slow(Drill):
    """Learns as Drill does, slowly."""

    Settings: ClassVar[type[msgspec.Struct]] = SlowSettings
    settings: SlowSettings

    def learner(self, device: str, seed: int) -> DrillLearner:
        """Counting."""
        return _SlowLearner(self.settings.update_s)


class _SlowLearner(DrillLearner):
    def __init__(self, update_s: float) -> None:
        super().__init__(raises_in=0)
        self._update_s = update_s

    def update(self, batch: Batch) -> Update:
        """One step."""
        threading.Event().wait(self._update_s)
        return super().update(batch)
