"""replay/sumtree.py against a plain cumsum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.replay import sumtree
from p2prl.replay.sumtree import SumTree, draw, tree_bytes
from p2prl.wire.blocks import Array

#: Exact in float32, and sums of them in float64, so that the two ways must agree to the last bit.
exact = st.integers(-50, 1000).map(lambda n: n / 8 if n > 0 else float(min(0, n + 40)))
sizes = st.integers(1, 700)


def plain_find(leaves: Array, places: Array) -> Array:
    return np.searchsorted(np.cumsum(np.maximum(leaves, 0), dtype=np.float64), places, side="right")


@st.composite
def writes(draw: st.DrawFn) -> tuple[int, list[tuple[list[int] | int, list[float]]]]:
    """How many leaves, and what is written: to scattered places, or from one place on."""
    size = draw(sizes)
    done: list[tuple[list[int] | int, list[float]]] = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            at = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=40, unique=True))
            done.append((at, draw(st.lists(exact, min_size=len(at), max_size=len(at)))))
        else:
            start = draw(st.integers(0, size - 1))
            count = draw(st.integers(0, size - start))
            rng = np.random.default_rng(draw(st.integers(0, 99)))
            done.append((start, (rng.integers(-10, 1000, count) / 8).tolist()))
    return size, done


@settings(max_examples=200)
@given(writes(), st.sampled_from([4, 64, 1024]), st.integers(0, 99))
def test_it_finds_what_a_plain_cumsum_finds(
    written: tuple[int, list[tuple[list[int] | int, list[float]]]], top: int, seed: int
) -> None:
    size, done = written
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sumtree, "_TOP", top)  # or no tree of a test's size would have more than one level
        tree = SumTree(size)
        assert sum(level.nbytes for level in tree._levels) == tree_bytes(size)
    model = np.zeros(size)
    for at, values in done:
        new = np.array(values, np.float32)
        if isinstance(at, int):
            tree.fill(at, new)
            model[at : at + len(new)] = new
        else:
            tree.put(np.array(at), new)
            model[at] = new
        assert np.array_equal(tree.leaves, model)
        assert tree.total == np.maximum(model, 0).sum()
    if tree.total == 0:
        return
    rng = np.random.default_rng(seed)
    ends = np.cumsum(np.maximum(model, 0))
    edges = np.concatenate(
        [[0.0], ends[ends < tree.total]]
    )  # exactly where one leaf ends and the next begins
    places = np.concatenate([edges, rng.random(50) * tree.total, [np.nextafter(tree.total, 0)]])
    found = tree.find(places)
    assert np.array_equal(found, plain_find(model, places))
    assert (model[found] > 0).all()


@settings(max_examples=50)
@given(
    st.lists(st.floats(0, float(np.float32(1e30)), width=32), min_size=1, max_size=600), st.integers(0, 99)
)
def test_rounding_never_finds_a_leaf_without_weight(weights: list[float], seed: int) -> None:
    """Sums of very unlike numbers round; what has no weight is not found for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sumtree, "_TOP", 4)
        tree = SumTree(len(weights))
    tree.fill(0, np.array(weights, np.float32))
    if tree.total == 0:
        return
    rng = np.random.default_rng(seed)
    places = np.concatenate([rng.random(300), [0.0, np.nextafter(1.0, 0.0)]]) * tree.total
    found = tree.find(np.minimum(places, np.nextafter(tree.total, 0.0)))
    assert (tree.leaves[found] > 0).all()


def test_a_place_that_rounding_puts_behind_the_last_child_belongs_to_that_child() -> None:
    """And not to the first, which has no weight here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sumtree, "_TOP", 4)
        tree = SumTree(4096)
    weights = (10.0 ** np.random.default_rng(1).uniform(-12, 12, 4096)).astype(np.float32)
    weights[:: sumtree.FAN] = 0
    tree.fill(0, weights)
    ends = np.cumsum(weights.reshape(-1, sumtree.FAN).sum(axis=1, dtype=np.float64))
    places = np.concatenate([np.nextafter(ends, 0.0), ends[:-1]])
    found = tree.find(np.minimum(places, np.nextafter(tree.total, 0.0)))
    assert (weights[found] > 0).all()


def test_a_leaf_named_twice_keeps_the_last_value() -> None:
    tree = SumTree(100)
    tree.put(np.array([7, 7, 3]), np.array([1.0, 5.0, 2.0], np.float32))
    assert (tree.leaves[7], tree.leaves[3], tree.total) == (5.0, 2.0, 7.0)


def test_draws_are_as_likely_as_their_shares() -> None:
    rng = np.random.default_rng(5)
    weights = rng.integers(0, 20, 3000).astype(np.float32)
    tree = SumTree(len(weights))
    tree.fill(0, weights)
    counts = np.zeros(len(weights))
    rounds, count = 400, 256
    for _ in range(rounds):
        np.add.at(counts, draw(tree, count, rng), 1)
    expected = rounds * count * weights / weights.sum()
    assert counts[weights == 0].sum() == 0
    some = weights > 0
    # Draws from layers vary less than independent ones, whose statistic has this mean; six standard deviations above.
    statistic = ((counts[some] - expected[some]) ** 2 / expected[some]).sum()
    freedom = some.sum() - 1
    assert statistic < freedom + 6 * (2 * freedom) ** 0.5


def test_each_layer_gives_one() -> None:
    """Stratified: of 100 equal weights 100 draws give nearly each of them once."""
    tree = SumTree(100)
    tree.fill(0, np.ones(100, np.float32))
    assert np.array_equal(draw(tree, 100, np.random.default_rng(1)), np.arange(100))


def test_a_tree_takes_less_than_five_bytes_a_leaf() -> None:
    assert tree_bytes(2_000_000) < 4.6 * 2_000_000
