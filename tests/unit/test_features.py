"""p2prl_agents.features: one vector from any observation, alike from a player's tree and a trainer's columns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from p2prl_agents.features import Features

from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.errors import UsageError
from p2prl.learn.spaces import plain_space, split
from p2prl.testing import sample_columns

_ACTION = Leaf("discrete", "uint8", (), (0.0,), (1.0,))
_ALL = gs.Dict(
    place=gs.Discrete(3, start=-1),
    camera=gs.Box(0, 255, (2, 2, 3), np.uint8),
    planes=gs.Box(0, 1, (2, 2), np.uint8),
    sonar=gs.Box(-100, 100, (2,), np.int16),
    both=gs.Tuple((gs.MultiBinary(3), gs.MultiDiscrete([2, 3]), gs.Box(-1, 4, (2,), np.float32))),
)


def features_of(space: gym.Space[Any]) -> Features:
    return Features(EnvSpec("Test-v0", plain_space(space, "obs", "Test-v0"), _ACTION))


def vector(box: gs.Box, *values: float) -> list[float]:
    return features_of(box).of_columns({"obs": np.array([values], box.dtype)})[0].tolist()


def test_trees_and_columns_give_the_same() -> None:
    features, space = features_of(_ALL), plain_space(_ALL, "obs", "Test-v0")
    columns = sample_columns(space, "obs", (7, 5), np.random.default_rng(0))
    whole = features.of_columns(columns)
    assert whole.shape == (7, 5, features.size)
    assert features.size == 3 + 12 + 4 + 2 + 3 + 5 + 2
    assert whole.dtype == np.float32
    for tick in range(5):
        tree: dict[str, Any] = {
            key: columns[f"obs.{key}"][:, tick] for key in ("place", "camera", "planes", "sonar")
        }
        tree["both"] = tuple(columns[f"obs.both.{i}"][:, tick] for i in range(3))
        assert np.array_equal(split(space, "obs", tree)["obs.both.2"], tree["both"][2])
        assert np.array_equal(features.of_tree(tree), whole[:, tick])


def test_integers_are_scaled_by_their_own_bounds() -> None:
    assert vector(gs.Box(0, 255, (3,), np.uint8), 0, 51, 255) == pytest.approx([0, 0.2, 1])
    assert vector(gs.Box(0, 1, (2,), np.uint8), 0, 1) == [0, 1]
    assert vector(gs.Box(0, 10, (2,), np.uint8), 1, 10) == pytest.approx([0.1, 1])
    assert vector(gs.Box(-100, 100, (3,), np.int16), -100, 0, 50) == pytest.approx([0, 0.5, 0.75])
    low, high = np.array([0, 5, -4]), np.array([10, 5, 4])
    assert vector(gs.Box(low, high, dtype=np.int32), 5, 5, -4) == pytest.approx([0.5, 0, 0])


def test_large_integers_lose_nothing_before_they_are_scaled() -> None:
    base = 2**40
    assert vector(gs.Box(base, base + 10, (2,), np.int64), base + 3, base + 10) == pytest.approx([0.3, 1])


def test_integers_without_bounds_stay_as_they_are() -> None:
    info = np.iinfo(np.int64)
    assert vector(gs.Box(info.min, info.max, (2,), np.int64), -3, 1000) == [-3, 1000]
    low, high = np.array([info.min, 0]), np.array([info.max, 4])
    assert vector(gs.Box(low, high, dtype=np.int64), 7, 1) == [7, 0.25]


def test_floats_stay_as_they_are() -> None:
    assert vector(gs.Box(0, 100, (2,), np.float32), 50, 100) == [50, 100]
    assert vector(gs.Box(-np.inf, np.inf, (2,), np.float64), -7.5, 3) == [-7.5, 3]


def test_categories_become_one_hot_and_those_outside_the_nearest() -> None:
    features = features_of(gs.Discrete(3, start=-1))
    assert features.of_tree(np.array([-1, 1, 5])).tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    pair = features_of(gs.MultiDiscrete([2, 3]))
    assert pair.of_tree(np.array([[1, 2], [0, 0]])).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_too_many_categories_are_refused() -> None:
    with pytest.raises(UsageError, match="obs has 5000 categories; this agent takes 4096"):
        features_of(gs.Discrete(5000))
