"""What half-trained policies did in Atari games, as `record.py` wrote it down: a list of actions for each slot.

A game goes as its seed and its actions have it go, so these few thousand letters are the play itself, and need neither
the policies nor torch. Marks along the way, digests of the console's memory, tell where another ale-py would
play another game.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
FILE = Path(__file__).with_name("half_trained.json")
#: An action is one of these letters.
LETTERS = "0123456789abcdefgh"
#: Rows from one mark to the next. The first is at the first row that is kept.
MARKED = 64


@dataclass(frozen=True)
class Slot:
    """One slot's play.

    Attributes:
        lead: ticks that are played before the first row that is kept.
        actions: one a tick, those of the lead first, each the index of a letter.
        marks: the digest at each `MARKED`th row that is kept.
    """

    lead: int
    actions: tuple[int, ...]
    marks: tuple[str, ...]

    @property
    def rows(self) -> int:
        """How many rows can be kept."""
        return len(self.actions) - self.lead + 1


@dataclass(frozen=True)
class Recording:
    """A game's.

    Attributes:
        ale_py: the version with which it was recorded.
        slots: one for each seed from 0 on.
    """

    ale_py: str
    slots: tuple[Slot, ...]


def told(file: Path = FILE) -> dict[str, Any]:
    """The file: of each game the play, the policy's mean return and that of random play."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@cache
def recordings(file: Path = FILE) -> Mapping[str, Recording]:
    """The play, by game."""
    found = told(file)
    return {
        game: Recording(found["ale_py"], tuple(_slot(one) for one in its["slots"]))
        for game, its in found["games"].items()
    }


def _slot(its: Mapping[str, Any]) -> Slot:
    actions = tuple(LETTERS.index(letter) for letter in its["actions"])
    return Slot(its["lead"], actions, tuple(its["marks"]))


class Marks:
    """A digest of all that the console's memory was so far, tick by tick."""

    def __init__(self, lead: int) -> None:
        self._digest, self._at = hashlib.sha256(), -lead

    def take(self, ram: Array) -> str | None:
        """The memory of the next tick; the mark, if one is due there."""
        self._digest.update(ram.tobytes())
        at, self._at = self._at, self._at + 1
        return self._digest.hexdigest()[:16] if at >= 0 and at % MARKED == 0 else None
