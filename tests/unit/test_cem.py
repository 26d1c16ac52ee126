"""CEM: generations, saving, its contract. What it shares with es is tested in test_populations.py."""

from __future__ import annotations

import numpy as np
import pytest
from p2prl_agents.cem import CEM, CEMLearner, CEMSettings
from p2prl_agents.populations import number_of, parameters_of
from p2prl_envs.chain import OBSERVATIONS, make_chain

from p2prl.core.spaces import DictSpace, EnvSpec, Leaf
from p2prl.errors import UsageError
from p2prl.learn.contracts import Explore
from p2prl.learn.spaces import env_spec
from p2prl.testing import check_agent
from tests.unit.population_kit import CARTPOLE, generation_of, one_tick, rollout_of, sessions


def learner_of(settings: CEMSettings) -> CEMLearner:
    return CEM(CARTPOLE, settings).learner("cpu", 1)


def test_only_rewards_flags_and_candidates_travel() -> None:
    agent = CEM(CARTPOLE, CEMSettings())
    schema = rollout_of(agent, agent.learner("cpu", 1).weights())._schema
    assert [column.name for column in schema.columns] == [
        "reward",
        "flags",
        "candidate",
        "generation",
        "tick",
    ]


def test_a_generation_is_fitted_to_the_elite() -> None:
    learner = learner_of(CEMSettings(population=8, elite=0.25, noise=0.5, noise_generations=2, batch=1))
    weights = learner.weights()
    for candidate in range(8):
        update = learner.update(one_tick(candidate, float(candidate), generation_of(weights)))
    assert update.publish is True
    best = np.stack([parameters_of(c, weights["mean"], weights["std"]) for c in (7, 6)]).astype(np.float64)
    assert np.allclose(learner.weights()["mean"], best.mean(axis=0))
    assert np.allclose(learner.weights()["std"], np.sqrt(best.var(axis=0) + 0.25**2))
    assert number_of(generation_of(learner.weights())) == 1
    for candidate in range(8):
        learner.update(one_tick(100 + candidate, 1.0, generation_of(learner.weights())))
    assert learner.weights()["std"].mean() < 1.0, "the noise is over"


def test_late_episodes_of_an_older_generation_count_with_their_own_parameters() -> None:
    learner = learner_of(CEMSettings(population=4, elite=0.25))
    first = learner.weights()
    for candidate in range(4):
        learner.update(one_tick(candidate, 0.0, generation_of(first)))
    second = learner.weights()
    learner.update(one_tick(77, 50.0, generation_of(first)))
    for candidate in range(3):
        learner.update(one_tick(200 + candidate, 1.0, generation_of(second)))
    assert number_of(generation_of(learner.weights())) == 2
    assert np.allclose(learner.weights()["mean"], parameters_of(77, first["mean"], first["std"]))


def test_what_is_saved_goes_on_exactly() -> None:
    agent = CEM(CARTPOLE, CEMSettings(population=16))
    one, other = agent.learner("cpu", 1), agent.learner("cpu", 2)
    rollout = rollout_of(agent, one.weights())
    for session in sessions(rollout, 40)[0]:
        one.update(session)
    other.load(one.save())
    for session in sessions(rollout, 40)[0]:
        assert one.update(session) == other.update(session)
    assert number_of(generation_of(one.weights())) > 2
    for name, values in one.save().items():
        assert np.array_equal(values, other.save()[name]), name


def test_greedy_play_uses_the_mean() -> None:
    agent = CEM(CARTPOLE, CEMSettings())
    actor = agent.actor()
    actor.load({**agent.learner("cpu", 1).weights(), "mean": np.array([0] * 8 + [0, 1], np.float32)})
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert actor.act(obs, actor.start(50), None)[0].tolist() == [1] * 50
    explored = actor.act(obs, actor.start(50), Explore(np.random.default_rng(1), np.zeros(50)))[0]
    assert 0 < explored.mean() < 1


BOX = Leaf("box", "float32", (2,), (-2.0, 0.0), (2.0, 1.0))
ACTIONS = [
    BOX,
    Leaf("box", "float64", (), (-np.inf,), (np.inf,)),
    CARTPOLE.action,
    Leaf("multi_discrete", "int8", (2, 2), (0, 1, 2, 3), (5, 4, 3, 3)),
    DictSpace({"arm": BOX, "legs": Leaf("multi_binary", "uint8", (2,), (0.0,), (1.0,))}),
]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("hidden", [0, 6])
def test_contract(action: Leaf | DictSpace, hidden: int) -> None:
    settings = {"hidden": hidden, "population": 4}
    check_agent(CEM, EnvSpec("Test-v0", CARTPOLE.observation, action), settings)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_contract_in_the_chain(observation: str) -> None:
    check_agent(CEM, env_spec(make_chain(observation=observation), "chain"), {"population": 4})


def test_boxes_of_integers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"cem needs Discrete, .* Test-v0 has box of uint8"):
        CEM(EnvSpec("Test-v0", BOX, Leaf("box", "uint8", (2,), (0.0,), (9.0,))), CEMSettings())
