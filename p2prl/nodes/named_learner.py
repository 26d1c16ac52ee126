"""An agent's learner in the trainer: what it raises is told as the agent's, in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from p2prl.blame import FAULTS, raised
from p2prl.errors import AgentRaised, MissingPackage, P2prlError
from p2prl.learn.contracts import Agent, Array, Batch, Learner, Update, Weights
from p2prl.learn.promises import BrokenContract, check_arrays, check_learner, check_update, named
from p2prl.nodes.device import choose_device, flush_denormals
from p2prl.nodes.trainer_config import TrainerConfig
from p2prl.packages import install_command
from p2prl.registry import is_accelerated, make_agent, resolve_agent

_TORCH = "p2prl[train]"
T = TypeVar("T")


class NamedLearner:
    """The learner itself, but for its errors.

    Args:
        agent: the agent's name, for people.

    Raises:
        AgentRaised: from each method, for whatever the learner raised, or gave against its contract.
    """

    def __init__(self, learner: Learner, agent: str) -> None:
        self._learner, self._agent = learner, agent
        self._updated = False

    def update(self, batch: Batch) -> Update:
        """One update."""
        update = self._guarded("update", lambda: self._learner.update(batch), check_update)
        self._updated = True
        return update

    def weights(self) -> Weights:
        """What actors need."""
        return self._guarded("weights", self._learner.weights, partial(check_arrays, "weights"))

    def save(self) -> Mapping[str, Array]:
        """Its state."""
        return self._guarded("save", self._learner.save, partial(check_arrays, "save"))

    def load(self, state: Mapping[str, Array]) -> None:
        """Take a state back."""
        self._guarded("load", lambda: self._learner.load(state))

    def _guarded(
        self, where: str, work: Callable[[], T], check: Callable[[object], None] = lambda answer: None
    ) -> T:
        try:
            answer = work()
            check(answer)
            return answer
        except BrokenContract as error:
            text = f"{self._agent}: its learner's {error}"
            raise AgentRaised(text, fruitless=not self._updated) from error
        except P2prlError:
            raise
        except FAULTS as error:
            text = f"{self._agent}: its learner's {where} raised {raised(error)}"
            raise AgentRaised(text, fruitless=not self._updated) from error


def learner_of(config: TrainerConfig) -> tuple[str, NamedLearner]:
    """The device and the learner on it, which may import torch. Raises as `choose_device` and `make_learner`."""
    run, cls = config.run, resolve_agent(config.agent)
    device = choose_device(config.device, run.agent_name, is_accelerated(cls))
    learner = make_learner(make_agent(cls, run.env, run.agent_settings), run.agent_name, device, run.seed)
    flush_denormals()
    return device, learner


def make_learner(agent: Agent, name: str, device: str, seed: int) -> NamedLearner:
    """The agent's learner; `name` is the agent's, for people.

    Raises:
        MissingPackage: it needs torch, or another module, that is not installed.
        AgentRaised: it raised, or is none.
    """
    try:
        learner = agent.learner(device, seed)
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"training {name} needs {error.name}: {install_command(_TORCH)}", _TORCH
        ) from error
    except P2prlError:
        raise
    except FAULTS as error:
        raise AgentRaised(f"{name}: its learner cannot be made: {raised(error)}") from error
    with named(name):
        check_learner(learner)
    return NamedLearner(learner, name)
