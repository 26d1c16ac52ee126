"""CEM: candidates, episodes put together out of order, generations, saving."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from p2prl_agents.cem import CEM, CEMLearner, CEMSettings, parameters_of
from p2prl_envs.chain import OBSERVATIONS, make_chain

from p2prl.core.schema import RESET
from p2prl.core.spaces import EnvSpec, Leaf, TupleSpace
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Explore
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import env_spec, session_schema
from p2prl.testing import check_agent

CARTPOLE = env_spec(gym.make("CartPole-v1"), "CartPole-v1")


def rollout_of(agent: CEM, learner: CEMLearner, ticks: int = 8, slots: int = 4) -> Rollout:
    actor = agent.actor()
    actor.load(learner.weights())
    schema = session_schema(CARTPOLE, agent.fields(), ticks)
    return Rollout(
        lambda: gym.make("CartPole-v1"), CARTPOLE, schema, actor, slots=slots, ladder=1, rank=0, seed=1
    )


def sessions(rollout: Rollout, bundles: int) -> tuple[list[dict[str, Array]], list[tuple[float, int, float]]]:
    """Each slot's sessions with a batch axis of 1, and the episodes that ended."""
    found, episodes = [], []
    for _ in range(bundles):
        bundle = rollout.collect()
        episodes += bundle.episodes
        found += [
            {name: values[None, :, slot] for name, values in bundle.columns.items()}
            for slot in range(bundle.columns["flags"].shape[1])
        ]
    return found, episodes


def endless(agent_settings: CEMSettings | None = None) -> tuple[CEM, CEMLearner]:
    """A learner that never makes a generation, so that its complete episodes can be read."""
    agent = CEM(CARTPOLE, agent_settings or CEMSettings(population=10**6))
    return agent, agent.learner("cpu", 1)


@pytest.mark.parametrize("order", ["straight", "reversed", "shuffled"])
def test_episodes_are_put_together_in_any_order(order: str) -> None:
    agent, learner = endless()
    found, episodes = sessions(rollout_of(agent, learner), 40)
    if order == "reversed":
        found.reverse()
    if order == "shuffled":
        np.random.default_rng(0).shuffle(found)  # type: ignore[arg-type]
    for session in found:
        assert learner.update(session).publish is False
    assert sorted(total for _, _, total in learner._complete) == sorted(total for total, _, _ in episodes)
    assert len(learner._open) == 4, "the four slots' last episodes go on"


def test_an_episode_with_a_lost_session_never_counts() -> None:
    agent, learner = endless()
    found, episodes = sessions(rollout_of(agent, learner, ticks=4), 40)
    lost = found.pop(8)
    touched = set(lost["candidate"][(lost["flags"] & RESET) == 0].tolist())
    for session in found:
        learner.update(session)
    complete = {candidate for _, candidate, _ in learner._complete}
    assert touched
    assert not complete & touched
    assert len(complete) >= len(episodes) - len(touched)


def test_an_episode_keeps_its_candidate_and_generation_when_weights_change() -> None:
    agent, learner = endless()
    actor = agent.actor()
    actor.load(learner.weights())
    schema = session_schema(CARTPOLE, agent.fields(), 4)
    rollout = Rollout(
        lambda: gym.make("CartPole-v1"), CARTPOLE, schema, actor, slots=3, ladder=1, rank=0, seed=1
    )
    generation_of: dict[int, set[int]] = {}
    for generation in range(30):
        actor.load({**learner.weights(), "generation": np.array(generation, np.int32)})
        columns = rollout.collect().columns
        real = (columns["flags"] & RESET) == 0
        changed = columns["candidate"][1:] != columns["candidate"][:-1]
        assert (columns["tick"][1:][changed] == 0).all()
        for candidate, g in zip(columns["candidate"][real], columns["generation"][real], strict=True):
            generation_of.setdefault(int(candidate), set()).add(int(g))
    assert len(generation_of) > 6
    assert {len(seen) for seen in generation_of.values()} == {1}
    assert len(set.union(*generation_of.values())) > 3


def test_a_candidate_is_its_seed() -> None:
    mean, std = np.arange(5.0), np.full(5, 2.0)
    one = parameters_of(123, mean, std)
    assert np.array_equal(one, parameters_of(123, mean.astype(np.float32), std))
    assert not np.array_equal(one, parameters_of(124, mean, std))
    draws = np.stack([parameters_of(seed, mean, std) for seed in range(4000)])
    assert np.allclose(draws.mean(axis=0), mean, atol=0.15)
    assert np.allclose(draws.std(axis=0), 2.0, atol=0.1)


def test_a_generation_is_fitted_to_the_elite() -> None:
    _, learner = endless(CEMSettings(population=8, elite=0.25, noise=0.5, noise_generations=2, batch=1))
    mean, std = learner._means[0], learner._stds[0]
    for candidate in range(8):
        update = learner.update(one_tick(candidate, reward=float(candidate)))
    assert update.publish is True
    best = np.stack([parameters_of(candidate, mean, std) for candidate in (7, 6)]).astype(np.float64)
    assert np.allclose(learner.weights()["mean"], best.mean(axis=0))
    assert np.allclose(learner.weights()["std"], np.sqrt(best.var(axis=0) + 0.25**2))
    assert learner.weights()["generation"] == 1
    for candidate in range(8):
        learner.update(one_tick(100 + candidate, reward=1.0, generation=1))
    assert learner.weights()["std"].mean() < 1.0, "the noise is over"


def test_late_episodes_of_an_older_generation_count_with_their_own_parameters() -> None:
    _, learner = endless(CEMSettings(population=4, elite=0.25))
    first = learner._means[0], learner._stds[0]
    for candidate in range(4):
        learner.update(one_tick(candidate, reward=0.0))
    learner.update(one_tick(77, reward=50.0, generation=0))
    for candidate in range(3):
        learner.update(one_tick(200 + candidate, reward=1.0, generation=1))
    assert learner.weights()["generation"] == 2
    assert np.allclose(learner.weights()["mean"], parameters_of(77, *first))


def test_greedy_play_uses_the_mean() -> None:
    agent, learner = endless()
    actor = agent.actor()
    actor.load({**learner.weights(), "mean": np.array([0] * 8 + [0, 1], np.float32)})
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert actor.act(obs, actor.start(50), None)[0].tolist() == [1] * 50
    explored = actor.act(obs, actor.start(50), Explore(np.random.default_rng(1), np.zeros(50)))[0]
    assert 0 < explored.mean() < 1


def one_tick(candidate: int, reward: float, generation: int = 0) -> dict[str, Array]:
    """A batch of one session of one tick, a whole episode."""
    return {
        "reward": np.array([[reward]], np.float32),
        "flags": np.array([[1]], np.uint8),
        "candidate": np.array([[candidate]], np.int64),
        "generation": np.array([[generation]], np.int32),
        "tick": np.array([[0]], np.int32),
    }


BOX = Leaf("box", "float32", (2,), (-2.0, 0.0), (2.0, 1.0))


@pytest.mark.parametrize("action", [BOX, Leaf("box", "float64", (), (-np.inf,), (np.inf,)), CARTPOLE.action])
@pytest.mark.parametrize("hidden", [0, 6])
def test_contract(action: Leaf, hidden: int) -> None:
    check_agent(CEM, EnvSpec("Test-v0", CARTPOLE.observation, action), {"hidden": hidden})


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_contract_in_the_chain(observation: str) -> None:
    check_agent(CEM, env_spec(make_chain(observation=observation), "chain"), {"population": 4})


@pytest.mark.parametrize("action", [TupleSpace((BOX,)), Leaf("multi_binary", "uint8", (2,), (0.0,), (1.0,))])
def test_other_actions_are_refused(action: Leaf | TupleSpace) -> None:
    with pytest.raises(UsageError, match="cem needs one Discrete or one float Box action"):
        CEM(EnvSpec("Test-v0", CARTPOLE.observation, action), CEMSettings())
