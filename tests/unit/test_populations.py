"""What population methods share: the policy, candidates that are numbers, episodes out of sessions."""

from __future__ import annotations

import numpy as np
import pytest
from p2prl_agents import populations
from p2prl_agents.cem import CEM, CEMSettings
from p2prl_agents.features import Features
from p2prl_agents.populations import (
    Episodes,
    Policy,
    PopulationActor,
    generation_id,
    noise_of,
    number_of,
    parameters_of,
)

from p2prl.core.schema import RESET
from p2prl.core.spaces import DictSpace, EnvSpec, Leaf, TupleSpace
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Explore, Weights
from tests.unit.population_kit import CARTPOLE, Ended, generation_of, one_tick, rollout_of, sessions

AGENT = CEM(CARTPOLE, CEMSettings())
WEIGHTS = AGENT.learner("cpu", 1).weights()
#: Of numpy 2; checked with 1.26.
GOLDEN = [-0.25513601000092306, -1.0301947706584158, 1.171590340385223, -0.06911251763206495]
GOLDEN_LARGEST = [-0.5752132819353535, 1.7842325629029376]
KNOWN = {generation_of(WEIGHTS)}


def played(bundles: int = 40, ticks: int = 8, seed: int = 1) -> tuple[list[dict[str, Array]], list[Ended]]:
    return sessions(rollout_of(AGENT, WEIGHTS, ticks=ticks, seed=seed), bundles)


def going_on(found: list[dict[str, Array]], slots: int = 4) -> int:
    """How many slots end in the middle of an episode."""
    return sum(not session["flags"][0, -1] for session in found[-slots:])


def totals(episodes: list[populations.Episode]) -> list[float]:
    return sorted(episode.total for episode in episodes)


# --- episodes


@pytest.mark.parametrize("order", ["straight", "reversed", "shuffled", "twice", "again"])
@pytest.mark.parametrize("ticks", [8, 40])
def test_episodes_are_put_together_in_any_order_and_once(order: str, ticks: int) -> None:
    """In 8 ticks no episode both begins and ends; in 40 several may."""
    found, ended = played(ticks=ticks)
    unfinished = going_on(found)
    if order == "reversed":
        found.reverse()
    if order == "shuffled":
        np.random.default_rng(0).shuffle(found)  # type: ignore[arg-type]
    if order == "twice":
        found = [session for session in found for _ in range(2)]
    if order == "again":
        found += found
    episodes = Episodes()
    complete = [episode for session in found for episode in episodes.take(session, KNOWN)]
    assert totals(complete) == sorted(total for total, _, _ in ended)
    assert len(episodes) == unfinished > 1


def test_episodes_of_many_players_are_told_apart() -> None:
    players = [played(seed=seed) for seed in range(5)]
    found = [session for sessions_of_one, _ in players for session in sessions_of_one]
    np.random.default_rng(0).shuffle(found)  # type: ignore[arg-type]
    batches = [
        {n: np.concatenate([s[n] for s in found[i : i + 8]]) for n in found[0]}
        for i in range(0, len(found), 8)
    ]
    episodes = Episodes()
    complete = [episode for batch in batches for episode in episodes.take(batch, KNOWN)]
    assert totals(complete) == sorted(total for _, ended in players for total, _, _ in ended)
    assert len(episodes) == sum(going_on(found) for found, _ in players)


def test_an_episode_with_a_lost_session_never_counts() -> None:
    found, ended = played(ticks=4)
    lost = found.pop(8)
    touched = set(lost["candidate"][(lost["flags"] & RESET) == 0].tolist())
    episodes = Episodes()
    complete = {episode.candidate for session in found for episode in episodes.take(session, KNOWN)}
    assert touched
    assert not complete & touched
    assert len(complete) >= len(ended) - len(touched)
    assert len(episodes) > going_on(found)
    episodes.forget(set())
    assert len(episodes) == 0, "it goes with its generation"


def test_unfinished_episodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populations, "EPISODES_KEPT", 3)
    episodes = Episodes()
    for candidate in range(10):
        episodes.take({**one_tick(candidate, 1.0, 5), "flags": np.zeros((1, 1), np.uint8)}, {5})
    assert len(episodes) == 3
    end = {**one_tick(9, 2.0, 5), "tick": np.ones((1, 1), np.int32)}
    assert episodes.take(end, {5}) == [(5, 9, 3.0)], "the newest are kept"


def test_what_is_remembered_of_complete_ones_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populations, "DONE_KEPT", 3)
    episodes = Episodes()
    for candidate in range(10):
        assert len(episodes.take(one_tick(candidate, 1.0, 5), {5})) == 1
    assert episodes.take(one_tick(9, 1.0, 5), {5}) == []
    assert len(episodes.save()["done"]) == 3


def test_episodes_of_unknown_generations_are_left_out_and_counted() -> None:
    episodes = Episodes()
    assert episodes.take(one_tick(1, 1.0, 4), {5}) == []
    assert episodes.take(one_tick(1, 1.0, 5), {5}) == [(5, 1, 1.0)]
    assert episodes.unknown == 1


def test_saved_episodes_go_on_exactly() -> None:
    found, _ = played()
    np.random.default_rng(0).shuffle(found)  # type: ignore[arg-type]
    one, other = Episodes(), Episodes()
    for session in found[:80]:
        one.take(session, KNOWN)
    other.load(one.save())
    # Some come again; those that are known already must not count after the load either.
    rest = [*found[80:], *found[:80]]
    assert [one.take(session, KNOWN) for session in rest] == [other.take(session, KNOWN) for session in rest]
    for name, values in one.save().items():
        assert np.array_equal(values, other.save()[name]), name


# --- candidates


def test_a_candidate_is_its_number() -> None:
    mean, std = np.arange(5.0), np.full(5, 2.0)
    one = parameters_of(123, mean, std)
    assert np.array_equal(one, parameters_of(123, mean.astype(np.float32), std))
    assert not np.array_equal(one, parameters_of(125, mean, std))
    draws = np.stack([parameters_of(number, mean, std) for number in range(0, 8000, 2)])
    assert np.allclose(draws.mean(axis=0), mean, atol=0.15)
    assert np.allclose(draws.std(axis=0), 2.0, atol=0.1)


def test_noise_is_the_same_with_every_version_of_numpy() -> None:
    """Players and the learner draw it apart. If this fails, runs of mixed versions learn nothing, in silence."""
    assert noise_of(2 * 20_240_607, 4).tolist() == pytest.approx(GOLDEN, rel=1e-12)
    assert noise_of(2**63 - 2, 2).tolist() == pytest.approx(GOLDEN_LARGEST, rel=1e-12)


def test_twins_are_mirrored() -> None:
    assert np.array_equal(noise_of(246, 9), -noise_of(247, 9))


def test_a_generation_is_its_number_and_what_it_draws_from() -> None:
    """A run resumed from an older checkpoint comes to the same number with another mean."""
    one, other = generation_id(7, np.zeros(3)), generation_id(7, np.ones(3))
    assert one != other
    assert number_of(one) == number_of(other) == 7
    assert one == generation_id(7, np.zeros(3))


def test_an_episode_keeps_its_candidate_and_generation_when_weights_change() -> None:
    actor = AGENT.actor()
    generations: dict[int, set[int]] = {}
    rollout = rollout_of(AGENT, WEIGHTS, ticks=4, slots=3)
    rollout._actor = actor
    for generation in range(30):
        actor.load({**WEIGHTS, "generation": np.array(generation, np.int64)})
        columns = rollout.collect().columns
        real = (columns["flags"] & RESET) == 0
        for candidate, g in zip(columns["candidate"][real], columns["generation"][real], strict=True):
            generations.setdefault(int(candidate), set()).add(int(g))
    assert len(generations) > 6
    assert {len(seen) for seen in generations.values()} == {1}
    assert len(set.union(*generations.values())) > 3


def drawn(actor: PopulationActor, slots: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """(generation, candidate) of `slots` slots that begin."""
    obs = np.zeros((slots, 4), np.float32)
    _, _, extras = actor.act(obs, actor.start(slots), Explore(rng, np.zeros(slots)))
    return list(zip(extras["generation"].tolist(), extras["candidate"].tolist(), strict=True))


def test_twins_are_drawn_together_even_over_new_weights() -> None:
    features = Features(CARTPOLE)
    actor = PopulationActor(features, Policy("es", CARTPOLE, features.size, ()), mirrored=True)
    rng, found = np.random.default_rng(3), []
    for generation, slots in enumerate((3, 1, 4, 2, 5)):
        actor.load({**WEIGHTS, "generation": np.array(generation, np.int64)})
        found += drawn(actor, slots, rng)
    assert len({candidate for _, candidate in found}) == 15
    owed = found.pop()
    assert all(a == b ^ 1 for (_, a), (_, b) in zip(found[::2], found[1::2], strict=True))
    assert [a == b for (a, _), (b, _) in zip(found[::2], found[1::2], strict=True)] == [True] * 7
    assert found[2][0] == found[3][0] == 0, "the twin that was owed is of the older generation"
    assert drawn(actor, 1, rng) == [(owed[0], owed[1] ^ 1)]


def test_greedy_play_owes_no_twin() -> None:
    features = Features(CARTPOLE)
    actor = PopulationActor(features, Policy("es", CARTPOLE, features.size, ()), mirrored=True)
    actor.load(WEIGHTS)
    rng = np.random.default_rng(3)
    [(_, candidate)] = drawn(actor, 1, rng)
    actor.act(np.zeros((5, 4), np.float32), actor.start(5), None)
    assert drawn(actor, 1, rng)[0][1] == candidate ^ 1


# --- the policy


def act(env: EnvSpec, parameters: Array, x: Array, hidden: tuple[int, ...] = ()) -> Array:
    actions: Array = Policy("cem", env, x.shape[1], hidden).act(np.float32(parameters), np.float32(x))
    return actions


BOX = Leaf("box", "float32", (2,), (-2.0, 0.0), (2.0, 1.0))


def spec_of(action: Leaf | DictSpace | TupleSpace) -> EnvSpec:
    return EnvSpec("Test-v0", CARTPOLE.observation, action)


def test_each_slot_acts_with_its_own_parameters() -> None:
    """One layer: two inputs, outputs of weight [[w00, w01], [w10, w11]], then biases."""
    parameters = np.array([[1, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 3]])
    assert act(CARTPOLE, parameters, np.array([[2, 1]] * 3)).tolist() == [0, 1, 1]


def test_hidden_layers() -> None:
    rng = np.random.default_rng(1)
    env = spec_of(Leaf("box", "float32", (2,), (-np.inf,), (np.inf,)))
    policy = Policy("es", env, 3, (4, 5))
    layers = [(rng.normal(size=(a, b)), rng.normal(size=b)) for a, b in ((3, 4), (4, 5), (5, 2))]
    parameters = np.concatenate([part.ravel() for layer in layers for part in layer])
    assert policy.size == len(parameters)
    x = rng.normal(size=(7, 3))
    expected = x
    for index, (weight, bias) in enumerate(layers):
        expected = (np.tanh(expected) if index else expected) @ weight + bias
    assert np.allclose(act(env, np.tile(parameters, (7, 1)), x, (4, 5)), expected, atol=1e-5)


def test_the_first_mean_has_unit_hidden_layers_and_no_preference() -> None:
    mean = Policy("es", CARTPOLE, 100, (200,)).initial(np.random.default_rng(1))
    assert mean[: 100 * 200].std() == pytest.approx(0.1, rel=0.02)
    assert not mean[100 * 200 :].any()
    assert not Policy("es", CARTPOLE, 4, ()).initial(np.random.default_rng(1)).any()


def test_elements_of_many_choices_are_chosen_apart() -> None:
    env = spec_of(Leaf("multi_discrete", "int8", (3,), (0, 5, -1), (1, 7, 0)))
    outputs = [0, 1, 0, 0, 9, 1, 0]
    parameters = np.array([[0] * 7 + outputs])
    assert act(env, parameters, np.zeros((1, 1))).tolist() == [[1, 7, -1]]


def test_dicts_of_actions() -> None:
    env = spec_of(
        DictSpace({"arm": BOX, "grip": TupleSpace((Leaf("multi_binary", "uint8", (2,), (0,), (1,)),))})
    )
    actions = Policy("cem", env, 1, ()).act(
        np.float32([[0] * 6 + [100, 0, 0, 1, 1, 0]]), np.zeros((1, 1), np.float32)
    )
    assert actions["arm"].tolist() == [[2.0, 0.5]], "squashed into the bounds"
    assert actions["grip"][0].tolist() == [[1, 0]]


@pytest.mark.parametrize("agent", ["cem", "es"])
def test_boxes_of_integers_are_refused(agent: str) -> None:
    action = TupleSpace((BOX, Leaf("box", "int64", (2,), (0.0,), (9.0,))))
    with pytest.raises(UsageError, match=f"{agent} needs Discrete, .* Test-v0 has box of int64"):
        Policy(agent, spec_of(action), 1, ())


# --- normalised observations


def normalised(shift: float, scale: float) -> Weights:
    return {
        **WEIGHTS,
        "mean": np.float32([1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        "shift": np.full(4, shift, np.float32),
        "scale": np.full(4, scale, np.float32),
    }


def test_observations_are_normalised_as_when_the_episode_began() -> None:
    features = Features(CARTPOLE)
    actor = PopulationActor(features, Policy("es", CARTPOLE, 4, ()), mirrored=True, normalised=True)
    obs = np.float32([[3, 0, 0, 0], [1, 0, 0, 0]])
    actor.load(normalised(2.0, 10.0))
    actions, state, extras = actor.act(obs, actor.start(2), None)
    assert actions.tolist() == [0, 1], "the first is above the mean of 2, the second below"
    assert np.array_equal(extras["sample"], obs), "as it was seen"
    actor.load(normalised(0.0, 1.0))
    actions, _, _ = actor.act(obs, state, None)
    assert actions.tolist() == [0, 1], "an episode goes on as it began"
    assert actor.act(obs, actor.start(2), None)[0].tolist() == [0, 0]


def test_normalised_observations_are_cut() -> None:
    env = spec_of(Leaf("box", "float32", (), (-np.inf,), (np.inf,)))
    actor = PopulationActor(Features(env), Policy("es", env, 4, ()), mirrored=True, normalised=True)
    actor.load({**normalised(0.0, 1e6), "mean": np.float32([1, 0, 0, 0, 0])})
    assert actor.act(np.ones((1, 4), np.float32), actor.start(1), None)[0].tolist() == [5.0]
