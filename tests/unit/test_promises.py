"""What an agent gives against its contract is told in one line: what it gave, and what is expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from p2prl_envs.chain import make_chain

from p2prl.core.spaces import EnvSpec
from p2prl.errors import AgentRaised
from p2prl.learn.contracts import Field, ReplaySpec, Update
from p2prl.learn.evaluation import Evaluation
from p2prl.learn.promises import BrokenContract
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import agent_schema, env_spec
from p2prl.nodes.named_learner import NamedLearner, make_learner
from p2prl.nodes.player_faults import failure_kind
from tests.samples.idle import Idle, IdleActor, IdleLearner, IdleSettings

SLOTS = 4
NAME = "mine.py:Mine"


def giving(method: str, answer: Any, base: type) -> Any:
    """A `base` whose `method` gives this."""
    return type("Giving", (base,), {method: lambda self, *given: answer})


def idle(env: EnvSpec, base: type[Idle] = Idle) -> Idle:
    return base(env, IdleSettings())


# --- the learner

LEARNERS = {
    "update None": ("update", None, "update gave None: it must return an Update"),
    "update dict": (
        "update",
        {"loss": 1.0},
        "update gave a value of the type dict: it must return an Update",
    ),
    "metrics": (
        "update",
        Update(metrics=None),
        "update gave the metrics None: they must be a dict of numbers",
    ),  # type: ignore[arg-type]
    "metric": (
        "update",
        Update(metrics={"loss": "3"}),  # type: ignore[dict-item]
        "update gave the metric 'loss' as a value of the type str: it must be a number",
    ),
    "weights": ("weights", None, "weights gave None: it must return a dict of numpy arrays by name"),
    "weight": ("weights", {"w": None}, "weights gave 'w' as None: it must be a numpy array"),
    "save": (
        "save",
        [1.0],
        "save gave a value of the type list: it must return a dict of numpy arrays by name",
    ),
    "state": ("save", {3: np.zeros(2)}, "save gave an array with the name 3: names must be text"),
}


@pytest.mark.parametrize("case", LEARNERS)
def test_what_a_learner_gives_is_told_with_its_name(case: str) -> None:
    method, answer, said = LEARNERS[case]
    learner = NamedLearner(giving(method, answer, IdleLearner)(), NAME)
    with pytest.raises(AgentRaised) as caught:
        getattr(learner, method)(*([{}] if method == "update" else []))
    assert str(caught.value).startswith(f"{NAME}: its learner's {said}")
    assert "\n" not in str(caught.value)
    assert caught.value.fruitless, "it never made an update, so the run ends"


@pytest.mark.parametrize("value", [1, 1.5, True, np.float32(2), np.array(3.0)])
def test_any_number_is_a_metric(value: Any) -> None:
    update = Update(metrics={"loss": value})
    assert NamedLearner(giving("update", update, IdleLearner)(), NAME).update({}) is update


def test_no_learner_is_none() -> None:
    agent = idle(env_spec(make_chain(), "chain"), giving("learner", None, Idle))
    said = f"{NAME}: learner gave None: it must return a Learner, and that lacks update, weights, save, load"
    with pytest.raises(AgentRaised) as caught:
        make_learner(agent, NAME, "cpu", 1)
    assert str(caught.value) == said


# --- the agent

AGENTS = {
    "replay": ("replay", None, "replay gave None: it must return a ReplaySpec"),
    "ticks": (
        "replay",
        ReplaySpec(ticks="32"),
        "replay gave a ReplaySpec with a wrong value: Expected int, got str - at ticks",
    ),  # type: ignore[arg-type]
    "fields": ("fields", None, "fields gave None: it must return a dict of Field by name, or {}"),
    "field": (
        "fields",
        {"value": "float32"},
        "fields: 'value' gave a value of the type str: it must return a Field",
    ),
    "shape": (
        "fields",
        {"value": Field("float32", 3)},
        "fields: 'value' gave a Field with a wrong value: Expected array, got int - at shape",
    ),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", AGENTS)
def test_what_an_agent_says_of_itself(case: str) -> None:
    method, answer, said = AGENTS[case]
    env = env_spec(make_chain(), "chain")
    with pytest.raises(BrokenContract) as caught:
        agent_schema(env, idle(env, giving(method, answer, Idle)), 8)
    assert str(caught.value) == said


# --- the actor

GOOD = np.zeros(SLOTS, np.int64)
ACTS = {
    "None": (None, "act gave None: it must return (actions, state, extras)"),
    "actions alone": (GOOD, "act gave an array of shape (4,): it must return (actions, state, extras)"),
    "two": ((GOOD, {}), "act gave 2 values: it must return (actions, state, extras)"),
    "column": (
        (GOOD[:, None], {}, {}),
        "act gave actions as an array of shape (4, 1): it must be an array of shape (4,)",
    ),
    "one": (
        (np.int64(0), {}, {}),
        "act gave actions as a value of the type int64: it must be an array of shape (4,)",
    ),
    "list": (
        ([0] * SLOTS, {}, {}),
        "act gave actions as a value of the type list: it must be an array of shape (4,)",
    ),
    "state": (
        (GOOD, None, {}),
        "act gave the state None: it must return (actions, state, extras), and start() gave",
    ),
}


@pytest.mark.parametrize("case", ACTS)
def test_what_an_actor_gives_at_its_first_act_in_play_and_in_evaluation(case: str) -> None:
    answer, said = ACTS[case]
    spec = env_spec(make_chain(), "chain")
    rollout = rollout_of(giving("act", answer, IdleActor)())
    envs = [make_chain() for _ in range(SLOTS)]
    evaluation = Evaluation(envs, spec, giving("act", answer, IdleActor)(), range(SLOTS), 1)
    for work in (rollout.collect, evaluation.advance):
        with pytest.raises(BrokenContract) as caught:
            work()
        assert str(caught.value).startswith(said)
        assert failure_kind(caught.value, "player") == "agent"


def rollout_of(actor: Any, base: type[Idle] = Idle) -> Rollout:
    spec = env_spec(make_chain(), "chain")
    schema = agent_schema(spec, idle(spec, base), 8)
    return Rollout(make_chain, spec, schema, actor, slots=SLOTS, ladder=1, rank=0, seed=1)


@pytest.mark.parametrize(
    ("extras", "said"),
    [
        ({}, "act gave the fields []: it must return (actions, state, extras), and fields() says ['value']"),
        (
            {"value": np.zeros((SLOTS, 1))},
            "act gave the field 'value' as an array of shape (4, 1): it must be an array of",
        ),
    ],
)
def test_fields_are_looked_at(extras: Any, said: str) -> None:
    base = giving("fields", {"value": Field("float32")}, Idle)
    with pytest.raises(BrokenContract) as caught:
        rollout_of(giving("act", (GOOD, {}, extras), IdleActor)(), base).collect()
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "start gave None: it must return a dict of arrays, or {}"),
        (
            {"h": np.zeros((3, 2))},
            "start gave 'h' as an array of shape (3, 2): it must be an array of 4 rows",
        ),
    ],
)
def test_a_start_that_is_none(state: Any, said: str) -> None:
    with pytest.raises(BrokenContract) as caught:
        rollout_of(giving("start", state, IdleActor)())
    assert str(caught.value) == said


def test_play_asks_the_actor_itself_after_the_first_act() -> None:
    """So that what is looked at costs the play loop nothing."""
    rollout = rollout_of(actor := IdleActor())
    rollout.collect()
    assert rollout._act == actor.act
