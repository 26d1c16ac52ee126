"""Curiosity: what is new is rewarded until it is known."""

from __future__ import annotations

import numpy as np
import pytest
from p2prl_agents.curiosity import Curiosity
from p2prl_agents.networks import Observations

from p2prl.core.schema import RESET, TERMINATED
from p2prl.core.spaces import DictSpace, EnvSpec, Leaf
from p2prl.learn.contracts import Array

ACTION = Leaf("discrete", "uint8", (), (0.0,), (1.0,))
VECTOR = EnvSpec("test", Leaf("box", "float32", (3,), (-1.0,), (1.0,)), ACTION)
PICTURE = Leaf("box", "uint8", (24, 24, 1), (0.0,), (255.0,))
BOTH = EnvSpec(
    "test", DictSpace({"eye": PICTURE, "place": Leaf("box", "float32", (2,), (-1.0,), (1.0,))}), ACTION
)


def curiosity(env: EnvSpec = VECTOR, seed: int = 1) -> Curiosity:
    return Curiosity(Observations(env), "cpu", 1e-3, seed)


def batch(obs: Array) -> dict[str, Array]:
    """Whole sessions of observations `[N, T+1, 3]`."""
    return {"obs": obs.astype(np.float32), "flags": np.zeros((len(obs), obs.shape[1] - 1), np.uint8)}


def known(rng: np.random.Generator) -> dict[str, Array]:
    """Observations about 0 with a deviation of 1 in each feature, each unit its own."""
    return batch(rng.normal(size=(16, 3, 3)) * [1, 10, 0.01])


def test_what_was_seen_often_is_worth_less_and_what_is_far_from_it_more() -> None:
    rng = np.random.default_rng(1)
    subject = curiosity()
    first = subject.rewards(known(rng))[0].mean()
    for _ in range(300):
        familiar = subject.rewards(known(rng))[0].mean()
    new = known(rng)
    new["obs"][0] = np.array([3, 30, 0.03])
    rewards, norm = subject.rewards(new)
    assert familiar < first / 3
    assert rewards[0].min() > 5 * rewards[1:].mean()
    assert np.isfinite(norm)


def test_rewards_are_in_units_of_the_deviation_of_all_errors_so_far() -> None:
    """A predictor that hardly learns errs alike each time: then the deviation of all errors is that of one batch."""
    subject = Curiosity(Observations(VECTOR), "cpu", 1e-12, 1)

    def errors(data: dict[str, Array]) -> Array:
        rewards, _ = subject.rewards(data)
        kept = subject.save()
        return rewards * np.sqrt(kept["curiosity/error_norm_m2"] / kept["curiosity/error_norm_count"])

    first = known(np.random.default_rng(1))
    once = errors(first)
    assert subject.rewards(first)[0].std() == pytest.approx(1, rel=1e-5)
    other = errors(known(np.random.default_rng(2)))
    spread = subject.save()["curiosity/error_norm_m2"] / 96
    assert spread == pytest.approx(np.concatenate([once, once, other]).var(), rel=1e-4)


def test_the_observation_after_a_tick_is_what_counts_and_a_reset_is_worth_nothing() -> None:
    rng = np.random.default_rng(1)
    data = known(rng)
    data["flags"][0] = [TERMINATED, RESET]
    first, second = curiosity(), curiosity()
    rewards = first.rewards(data)[0]
    assert rewards.shape == (16, 2)
    assert rewards[0, 1] == 0
    assert (rewards[1:] > 0).all()
    # What a session begins with, and what follows a RESET tick, nobody looks at.
    other = {"obs": data["obs"].copy(), "flags": data["flags"]}
    other["obs"][:, 0] = 77.0
    other["obs"][0, 2] = 77.0
    np.testing.assert_array_equal(second.rewards(other)[0], rewards)


def test_what_is_not_finite_trains_nothing_and_is_told() -> None:
    subject = curiosity()
    subject.rewards(known(np.random.default_rng(1)))
    state = subject.save()
    state["curiosity/parameters"][7] = np.nan
    subject.load(state)
    rewards, norm = subject.rewards(known(np.random.default_rng(2)))
    assert not np.isfinite(norm)
    assert not rewards.any()
    for name, values in subject.save().items():
        if not name.startswith("curiosity/seen_"):
            assert np.array_equal(values, state[name], equal_nan=True), name


@pytest.mark.parametrize("env", [VECTOR, BOTH], ids=["vector", "dict with a picture"])
def test_what_was_saved_goes_on_bit_for_bit(env: EnvSpec) -> None:
    rng = np.random.default_rng(1)

    def more() -> dict[str, Array]:
        if env is VECTOR:
            return known(rng)
        flags = np.zeros((4, 2), np.uint8)
        eye = rng.integers(256, size=(4, 3, 24, 24, 1)).astype(np.uint8)
        return {"obs.eye": eye, "obs.place": rng.normal(size=(4, 3, 2)).astype(np.float32), "flags": flags}

    straight, resumed = curiosity(env), curiosity(env, seed=99)
    for _ in range(3):
        straight.rewards(more())
    resumed.load({name: values.copy() for name, values in straight.save().items()})
    for _ in range(3):
        data = more()
        np.testing.assert_array_equal(straight.rewards(data)[0], resumed.rewards(data)[0])
    for name, values in straight.save().items():
        assert np.array_equal(values, resumed.save()[name]), name
