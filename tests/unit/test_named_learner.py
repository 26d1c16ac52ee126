"""What an agent's learner raises is told as the agent's, in one line with its place."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from p2prl.errors import AgentRaised, LearningFailed
from p2prl.learn.contracts import Batch, Update
from p2prl.nodes.named_learner import NamedLearner
from tests.samples.idle import IdleLearner


class Raises(IdleLearner):
    """In its second update and whenever it saves."""

    def update(self, batch: Batch) -> Update:
        if self._updates:
            raise ValueError("too\nmany")
        return super().update(batch)

    def save(self) -> dict[str, np.ndarray]:
        raise LearningFailed("as it was")


def test_it_names_the_agent_the_method_and_the_place() -> None:
    learner = NamedLearner(Raises(), "mine.py:Mine")
    learner.update({})
    with pytest.raises(AgentRaised) as caught:
        learner.update({})
    told = str(caught.value)
    assert told.startswith(
        "mine.py:Mine: its learner's update raised ValueError: too many (test_named_learner.py line "
    )
    assert not caught.value.fruitless
    assert learner.weights() == {"updates": 1}
    with pytest.raises(LearningFailed, match="as it was"):
        learner.save()


def test_one_that_ends_the_process_is_named_too() -> None:
    class Leaves(IdleLearner):
        def update(self, batch: Batch) -> Update:
            sys.exit(3)

    with pytest.raises(AgentRaised, match="its learner's update raised SystemExit: 3 "):
        NamedLearner(Leaves(), "mine.py:Mine").update({})


def test_only_before_the_first_update_is_it_fruitless() -> None:
    learner = NamedLearner(Raises(), "mine.py:Mine")
    with pytest.raises(AgentRaised) as caught:
        learner.load({})
    assert caught.value.fruitless
