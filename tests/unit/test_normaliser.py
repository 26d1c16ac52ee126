"""The running mean and deviation of features: alike in one batch or in many, and what never varies keeps its unit."""

from __future__ import annotations

import numpy as np
from p2prl_agents.normaliser import Normaliser, normalised


def test_many_batches_are_as_one() -> None:
    x = np.random.default_rng(1).normal((5.0, -1e3), (3.0, 0.1), (100, 2)).astype(np.float32)
    norm = Normaliser(2)
    for rows in np.split(x, [1, 1, 10, 70]):
        norm.see(rows)
    assert norm.count == 100
    assert np.allclose(norm.scale()["norm/mean"], x.mean(axis=0, dtype=np.float64), rtol=1e-6)
    assert np.allclose(norm.scale()["norm/scale"], 1 / x.std(axis=0, dtype=np.float64), rtol=1e-5)


def test_a_feature_that_never_varies_is_centred_and_keeps_its_unit() -> None:
    norm = Normaliser(1)
    norm.see(np.full((9, 1), 7.0, np.float32))
    assert normalised(np.float32([[7.0], [7.5]]), norm.scale()).tolist() == [[0.0], [0.5]]


def test_what_is_far_outside_is_clipped() -> None:
    norm = Normaliser(1)
    norm.see(np.float32([[-1.0], [1.0]]))
    assert normalised(np.float32([[1e6]]), norm.scale()).tolist() == [[Normaliser.CLIP]]


def test_without_a_scale_features_stay_as_they_are() -> None:
    x = np.float32([[1e6]])
    assert normalised(x, {"progress": np.float32(1)}) is x
