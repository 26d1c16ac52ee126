"""Whether learning still makes sense: updates that changed nothing, and weights that are no numbers any more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from p2prl.errors import LearningFailed
from p2prl.learn.contracts import Agent, Array, Update, Weights
from p2prl.learn.finite import not_finite
from p2prl.nodes import checkpoint
from p2prl.words import many

log = logging.getLogger("p2prl")

#: So many skipped updates in a row, and it will not mend itself.
MOST_IN_A_ROW = 20
#: So many times its default, or 1, a setting is taken for the cause.
_FAR = 1000.0
#: How long a skipped update is spoken of.
_NEWS_S = 60.0
#: Skips are logged the first, tenth, ... time: there may be many.
_TOLD = frozenset(10**power for power in range(10))


class Guard:
    """Counts the updates that a learner skipped, and lets only finite weights out of the trainer.

    Attributes:
        skipped: updates that changed nothing (`Update.skipped`), since the run began.
        advice: what may help, in words that end a line.
        given_up: the learner's state is not to be trusted any more.
    """

    def __init__(self, folder: Path) -> None:
        self.skipped = 0
        self.advice = "look at the environment's rewards"
        self.given_up = False
        self._folder = folder
        self._in_a_row = 0
        self._why, self._last = "", -1e9

    def skips(self, update: Update, now: float) -> bool:
        """Take an update in; True if it changed nothing, and so is neither to be counted nor published."""
        if not update.skipped:
            if update.metrics or update.publish is not False:  # else it only took something in
                self._in_a_row = 0
            return False
        self.skipped += 1
        self._in_a_row += 1
        self._why, self._last = update.skipped, now
        if self.skipped in _TOLD:
            log.warning("%s", self._text())
        return True

    @property
    def hopeless(self) -> str:
        """Why it is of no use to go on, or an empty string."""
        if self._in_a_row < MOST_IN_A_ROW:
            return ""
        return f"{self._in_a_row} updates in a row were skipped, because {self._why}"

    def news(self, now: float) -> str:
        """A line for people while the last skip is fresh, else an empty string."""
        return self._text() if now - self._last < _NEWS_S else ""

    def weights(self, weights: Weights) -> Weights:
        """The same, to be published or saved. Raises LearningFailed if they are not finite."""
        self._check(not_finite(weights), "the weights are not finite")
        return weights

    def state(self, state: Mapping[str, Array]) -> Mapping[str, Array]:
        """A learner's state, to be saved. Raises LearningFailed if it holds NaN; a bound may be infinite."""
        self._check(not_finite(state, infinity=False), "the learner's state is not finite")
        return state

    def give_up(self, what: str) -> NoReturn:
        """Raises LearningFailed: says what is wrong, names the last good checkpoint, and says what may help."""
        self.given_up = True
        raise LearningFailed(f"learning failed: {what}; {self._kept()}; {self.advice}")

    def _kept(self) -> str:
        """What can be gone on from: the last one is finite, but may be what led here."""
        last = checkpoint.load_last(self._folder)
        if last is None:
            return "there is no checkpoint yet"
        text = f"the last good checkpoint is {last.path} ({many(last.meta.updates, 'update')})"
        earlier = checkpoint.before(self._folder, last.meta.updates)
        if earlier is None:
            return f"{text}, and if that fails again, begin a new run"
        return f"{text}, and if that fails again, {earlier.path} is from before it"

    def _check(self, bad: str, what: str) -> None:
        if bad:
            self.give_up(f"{what}: {bad}")

    def _text(self) -> str:
        if self.skipped == 1:
            return f"an update was skipped, because {self._why}"
        return f"{self.skipped} updates were skipped so far, the last because {self._why}"


def advice(cls: type[Agent], settings: Mapping[str, object], env_id: str) -> str:
    """What may help where `cls` with these settings cannot learn."""
    defaults = msgspec.structs.asdict(cls.Settings())
    chosen = {**defaults, **settings}
    tips = [f"a lower agent.{name} (it is {chosen[name]:g})" for name in _far_up(defaults, chosen)]
    if "learning_rate" in defaults and not tips:
        tips.append(f"a lower agent.learning_rate (it is {chosen['learning_rate']})")
    rewards = f"look at the rewards of {env_id}"
    return f"try {' and '.join(tips)}, and {rewards}" if tips else rewards


def _far_up(defaults: Mapping[str, object], chosen: Mapping[str, object]) -> list[str]:
    """Numbers that are thousands of times what they would be: likelier the cause than anything else."""
    return [
        name
        for name, usual in defaults.items()
        if isinstance(usual, float) and isinstance(value := chosen[name], int | float)
        if abs(value) > _FAR * max(abs(usual), 1.0)
    ]
