"""An agent whose exploring return says nothing about its greedy one, in Tally-v0: for the choice of `best`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Array, Explore, State, Tree, Weights
from tests.samples.drill import Drill, DrillSettings
from tests.samples.envs import TALLY_STEPS

#: Updates of one stage; the greedy policy of a stage differs from that of the next.
STAGE = 40


def greedy_return(updates: int) -> int:
    """What greedy play earns after so many updates: 3, 7, 1, 5, 9, 3 ... by stages of STAGE updates."""
    return (3 + 4 * (updates // STAGE)) % TALLY_STEPS


def updates_of(weights: Mapping[str, Any]) -> int:
    """Drill's weights are 1 + 2 + ... + updates."""
    return (math.isqrt(8 * int(weights["place"]) + 1) - 1) // 2


class ContraryActor:
    """Exploring it earns all there is; greedily, as much as its stage says."""

    def __init__(self, raises: bool) -> None:
        self._earns, self._raises = 0, raises

    def load(self, weights: Weights) -> None:
        """Which stage it is."""
        self._earns = greedy_return(updates_of(weights))

    def start(self, slots: int) -> State:
        """Ticks of each slot's episode."""
        return {"tick": np.zeros(slots, np.int64)}

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """1 earns, 0 does not."""
        if explore is None and self._raises:
            raise ValueError("no greedy play here")
        earns = state["tick"] < self._earns if explore is None else np.ones(len(state["tick"]), bool)
        return earns.astype(np.uint8), {"tick": state["tick"] + 1}, {}


class Contrary(Drill):
    """Drill, with a ContraryActor."""

    raises = False

    def __init__(self, env: EnvSpec, settings: DrillSettings) -> None:
        super().__init__(env, settings)

    def actor(self) -> Any:
        """As above."""
        return ContraryActor(self.raises)


class Shy(Contrary):
    """One that cannot play greedily."""

    raises = True
