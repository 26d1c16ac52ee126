"""ES: ranks, the gradient, the optimisers, pairs and generations. What it shares is tested in test_populations.py."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from p2prl_agents import es
from p2prl_agents.es import ES, ESLearner, ESSettings, Optimiser, Statistics, centred_ranks, gradient_of
from p2prl_agents.populations import noise_of, number_of
from p2prl_envs.chain import OBSERVATIONS, make_chain

from p2prl.core.schema import RESET
from p2prl.core.spaces import DictSpace, EnvSpec, Leaf
from p2prl.learn.contracts import Array, Update
from p2prl.learn.spaces import env_spec
from p2prl.testing import check_agent
from tests.unit.population_kit import CARTPOLE, generation_of, one_tick, rollout_of, sessions

P = 10  # of a linear policy on CartPole


def learner_of(settings: ESSettings, seed: int = 1) -> ESLearner:
    return ES(CARTPOLE, settings).learner("cpu", seed)


def give(learner: ESLearner, seed: int, plus: float, minus: float, generation: int = -1) -> Update:
    """A pair of episodes, of the newest generation if none is named."""
    generation = generation_of(learner.weights()) if generation < 0 else generation
    learner.update(one_tick(2 * seed + 1, minus, generation))
    return learner.update(one_tick(2 * seed, plus, generation))


# --- the mathematics


def test_ranks_are_centred_and_ties_share_theirs() -> None:
    assert centred_ranks(np.array([[3.0, -1.0], [100.0, 7.0]])).tolist() == [
        pytest.approx([-1 / 6, -0.5]),
        pytest.approx([0.5, 1 / 6]),
    ]
    assert centred_ranks(np.array([5.0, 5.0, 9.0])).tolist() == [-0.25, -0.25, 0.5]
    assert centred_ranks(np.full((2, 2), 500.0)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_the_gradient_is_that_of_the_paper() -> None:
    """Algorithm 1 in plain Python: the mean over all candidates of utility times noise, over sigma."""
    seeds, utilities = [11, 12, 13], np.array([[0.5, -0.3], [0.1, 0.1], [-0.5, 0.2]])
    expected = np.zeros(4)
    for seed, row in zip(seeds, utilities, strict=True):
        for sign, utility in enumerate(row):
            expected += utility * noise_of(2 * seed + sign, 4) / (6 * 0.2)
    assert np.allclose(gradient_of(seeds, utilities, 0.2, 4), expected)


def test_the_gradient_points_uphill() -> None:
    """Of f(x) = slope . x it is the slope itself, but for the noise of 4000 pairs."""
    slope, seeds = np.array([3.0, -1.0, 0.0]), list(range(4000))
    returns = np.array([[sign * 0.1 * slope @ noise_of(2 * s, 3) for sign in (1, -1)] for s in seeds])
    assert np.allclose(gradient_of(seeds, returns, 0.1, 3), slope, atol=0.15)


def test_adam_by_hand() -> None:
    settings = ESSettings(learning_rate=0.1, momentum=0.5, weight_decay=0.01)
    optimiser = Optimiser(settings, np.array([1.0, -2.0]))
    for gradient in ([2.0, -4.0], [-1.0, -4.0]):
        assert optimiser.step(np.array(gradient))
    # First step: the sign of the gradient. Second: m = .5 (.5 * 2) + .5 * -1 = 0, and -3 / .75 against v = 16.
    first = [1.0 + 0.1 * (1 - 0.01), -2.0 + 0.1 * (-1 + 0.02)]
    second = [first[0] * (1 - 0.001), first[1] * (1 - 0.001) - 0.1]
    assert optimiser.mean.tolist() == pytest.approx(second, rel=1e-6)


def test_sgd_by_hand() -> None:
    optimiser = Optimiser(ESSettings(optimiser="sgd", learning_rate=0.1, momentum=0.5), np.array([1.0]))
    assert optimiser.step(np.array([2.0]))
    assert optimiser.mean.tolist() == pytest.approx([1.1])
    assert optimiser.step(np.array([2.0]))
    assert optimiser.mean.tolist() == pytest.approx([1.25])


def test_statistics_are_those_of_all_samples_inside_episodes() -> None:
    rng, statistics, inside = np.random.default_rng(1), Statistics(3), []
    for _ in range(45):
        batch = {
            "sample": rng.normal(5.0, 3.0, size=(8, 1, 3)).astype(np.float32),
            "tick": rng.integers(0, 3, size=(8, 1)).astype(np.int32),
            "flags": rng.choice([0, RESET], size=(8, 4)).astype(np.uint8),
        }
        statistics.take(batch)
        real = (batch["tick"][:, 0] > 0) & (batch["flags"][:, 0] == 0)
        inside.append(batch["sample"][real, 0])
        if len(np.concatenate(inside)) < es.MIN_SAMPLES:
            assert not statistics.weights()["shift"].any()
    samples = np.concatenate(inside)
    assert len(samples) > es.MIN_SAMPLES
    assert np.allclose(statistics.weights()["shift"], samples.mean(axis=0), rtol=1e-5)
    assert np.allclose(statistics.weights()["scale"], 1 / samples.std(axis=0), rtol=1e-5)


# --- pairs and generations


def test_a_generation_is_a_step_along_the_gradient() -> None:
    settings = ESSettings(pairs=2, optimiser="sgd", learning_rate=0.5, momentum=0.0, sigma=0.2)
    learner = learner_of(settings)
    assert give(learner, 11, plus=3.0, minus=-1.0).publish is False
    update = give(learner, 12, plus=7.0, minus=100.0)
    assert update.publish is True
    step = (1 / 3 * noise_of(22, P) - 1 / 3 * noise_of(24, P)) / (4 * 0.2)
    assert np.allclose(learner.weights()["mean"], 0.5 * step, rtol=1e-5)
    assert update.metrics["return_mean"] == 27.25
    assert update.metrics["gradient_norm"] == pytest.approx(np.linalg.norm(step))
    assert number_of(generation_of(learner.weights())) == 1


def test_an_episode_whose_twin_was_lost_holds_nothing_up() -> None:
    learner = learner_of(ESSettings(pairs=2))
    generation = generation_of(learner.weights())
    for candidate in range(100, 120, 2):
        learner.update(one_tick(candidate, 1e9, generation))
    give(learner, 11, 3.0, -1.0)
    update = give(learner, 12, 7.0, 100.0)
    assert update.publish is True
    assert update.metrics["return_best"] == 100.0, "it does not count"
    assert update.metrics["unfinished"] == 10.0
    learner.update(one_tick(101, 0.0, generation))
    assert len(learner._pairs) == 1, "a late twin is not lost"


def test_waiting_twins_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(es, "EPISODES_KEPT", 5)
    learner = learner_of(ESSettings())
    for candidate in range(0, 40, 2):
        learner.update(one_tick(candidate, 1.0, generation_of(learner.weights())))
    assert len(learner._halves) == 5


def test_a_pair_that_comes_twice_counts_once() -> None:
    learner = learner_of(ESSettings(pairs=2))
    for _ in range(3):
        assert give(learner, 11, 3.0, -1.0).publish is False
    assert give(learner, 12, 7.0, 100.0).metrics["return_mean"] == 27.25


def test_older_pairs_count_until_they_are_too_old() -> None:
    learner = learner_of(ESSettings(pairs=1, fresh=0.0, max_age=2))
    first = generation_of(learner.weights())
    for age in range(3):
        assert give(learner, 50 + age, 1.0, 2.0, first).metrics["age_mean"] == age
    assert give(learner, 60, 1.0, 2.0, first).publish is False
    assert learner._pairs == []
    assert give(learner, 61, 1.0, 2.0).metrics["left_out"] == 2.0


def test_an_older_pair_steps_along_its_own_noise() -> None:
    settings = ESSettings(pairs=1, fresh=0.0, optimiser="sgd", learning_rate=0.1, momentum=0.0, sigma=0.5)
    learner = learner_of(settings)
    first = generation_of(learner.weights())
    give(learner, 1, 1.0, 2.0)
    before = learner.weights()["mean"]
    give(learner, 2, 5.0, 4.0, first)
    assert np.allclose(learner.weights()["mean"] - before, 0.1 * noise_of(4, P) / (2 * 0.5), atol=1e-6)


def test_a_share_must_be_of_the_newest_generation() -> None:
    learner = learner_of(ESSettings(pairs=4, fresh=0.5))
    first = generation_of(learner.weights())
    for seed in range(4):
        update = give(learner, seed, 1.0, 2.0)
    assert update.publish is True
    for seed in range(10, 20):
        assert give(learner, seed, 1.0, 2.0, first).publish is False
    assert give(learner, 30, 1.0, 2.0).publish is False
    update = give(learner, 31, 1.0, 2.0)
    assert update.publish is True
    assert update.metrics["age_mean"] == pytest.approx(10 / 12), "the older ones count too"


def test_what_is_unfinished_goes_with_its_generation() -> None:
    learner = learner_of(ESSettings(pairs=1, max_age=0))
    first = generation_of(learner.weights())
    goes_on = {**one_tick(8, 1.0, first), "flags": np.zeros((1, 1), np.uint8)}
    learner.update(goes_on)
    learner.update(one_tick(10, 1.0, first))
    assert give(learner, 1, 1.0, 2.0).metrics["unfinished"] == 2.0
    learner.update(goes_on)
    assert give(learner, 2, 1.0, 2.0).metrics["unfinished"] == 0.0


def test_what_was_left_out_is_told_once_also_after_a_resume() -> None:
    learner = learner_of(ESSettings(pairs=1))
    give(learner, 1, 1.0, 2.0, generation=1)
    give(learner, 2, 1.0, 2.0)
    give(learner, 3, 1.0, 2.0, generation=1)
    resumed = learner_of(ESSettings(pairs=1))
    resumed.load(learner.save())
    assert give(resumed, 4, 1.0, 2.0).metrics["left_out"] == 2.0
    learner.load(resumed.save())
    assert give(learner, 5, 1.0, 2.0).metrics["left_out"] == 0.0


def test_many_older_pairs_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that nobody plays hold a run up for a while, not for ever."""
    monkeypatch.setattr(es, "PATIENCE", 3)
    learner = learner_of(ESSettings(pairs=2))
    first = generation_of(learner.weights())
    stepped = [give(learner, seed, 1.0, 2.0, first).publish for seed in range(14)]
    assert [index for index, publish in enumerate(stepped) if publish] == [1, 7, 13]


def test_candidates_of_a_life_that_was_lost_do_not_count_after_a_resume() -> None:
    learner = learner_of(ESSettings(pairs=1))
    saved = learner.save()
    give(learner, 1, 1.0, 2.0)
    lost = generation_of(learner.weights())
    learner.load(saved)
    give(learner, 2, 1.0, 2.0)
    now = generation_of(learner.weights())
    assert number_of(now) == number_of(lost)
    assert give(learner, 3, 1.0, 2.0, lost).publish is False
    assert give(learner, 4, 1.0, 2.0, now).publish is True


def test_a_step_that_leaves_the_numbers_is_not_taken() -> None:
    learner = learner_of(ESSettings(pairs=1, learning_rate=1e300))
    before = learner.weights()
    update = give(learner, 1, 1.0, 2.0)
    assert update.skipped
    assert update.publish is False
    assert learner._pairs == []
    _alike(learner.weights(), before)


@pytest.mark.parametrize(
    "settings", [ESSettings(pairs=4), ESSettings(pairs=4, optimiser="sgd", normalise=False)]
)
def test_what_is_saved_goes_on_exactly(settings: ESSettings) -> None:
    agent = ES(CARTPOLE, settings)
    one, other = agent.learner("cpu", 1), agent.learner("cpu", 2)
    players = [rollout_of(agent, one.weights(), seed=seed) for seed in (1, 2)]
    for player in players * 30:
        player._actor.load(one.weights())
        for session in sessions(player, 1)[0]:
            one.update(session)
    other.load(one.save())
    assert one._halves
    for player in players * 60:
        player._actor.load(one.weights())
        for session in sessions(player, 1)[0]:
            assert one.update(session) == other.update(session)
    assert number_of(generation_of(one.weights())) > 2
    _alike(one.save(), other.save())
    _alike(one.weights(), other.weights())


def _alike(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert np.array_equal(values, other[name]), name


def test_an_observation_travels_only_to_be_normalised() -> None:
    names = {}
    for normalise in (False, True):
        agent = ES(CARTPOLE, ESSettings(normalise=normalise))
        schema = rollout_of(agent, agent.learner("cpu", 1).weights())._schema
        names[normalise] = [column.name for column in schema.columns]
        assert schema.session_bytes() == 8 * 21 + 4 + 16 * normalise
    assert names[False] == ["reward", "flags", "candidate", "generation", "tick"]
    assert names[True] == [*names[False], "sample"]


# --- the contract

BOX = Leaf("box", "float32", (2,), (-2.0, 0.0), (2.0, 1.0))
ACTIONS = [
    BOX,
    CARTPOLE.action,
    Leaf("multi_discrete", "int8", (2, 2), (0, 1, 2, 3), (5, 4, 3, 3)),
    DictSpace({"arm": BOX, "legs": Leaf("multi_binary", "uint8", (2,), (0.0,), (1.0,))}),
]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("hidden", [(), (6, 5)])
def test_contract(action: Leaf | DictSpace, hidden: tuple[int, ...]) -> None:
    settings = {"hidden": hidden, "pairs": 2}
    check_agent(ES, EnvSpec("Test-v0", CARTPOLE.observation, action), settings)


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("normalise", [False, True])
def test_contract_in_the_chain(observation: str, normalise: bool) -> None:
    spec = env_spec(make_chain(observation=observation), "chain")
    check_agent(ES, spec, {"pairs": 2, "normalise": normalise})
