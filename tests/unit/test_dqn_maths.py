"""What DQN's additions are made of: bounds of optimality tightening and priorities, by hand and in plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from p2prl_agents.maths import priorities, real, tightening_bounds

from p2prl.core.schema import RESET, TERMINATED, TRUNCATED

INF = math.inf


def bounds(
    reward: list[float], flags: list[int], values: list[float], chosen: list[float], gamma: float = 0.5
) -> tuple[list[float], list[float]]:
    lower, upper = tightening_bounds(
        np.array([reward], np.float32),
        np.array([flags], np.uint8),
        np.array([values], np.float32),
        np.array([chosen], np.float32),
        gamma,
    )
    assert lower.dtype == upper.dtype == np.float32
    return lower[0].tolist(), upper[0].tolist()


def test_bounds_by_hand() -> None:
    # Lower, k >= 1. Tick 0: 1 + 2/2 + 8/4 = 4, or 1 + 2/2 + 4/4 + 16/8 = 5. Tick 1: 2 + 4/2 + 16/4 = 8. Tick 2: k = 0
    # alone, none. Upper, k >= 1. Tick 2 by tick 0: 6 * 4 - 1 * 4 - 2 * 2 = 16. Ticks 0, 1: none.
    lower, upper = bounds([1, 2, 4], [0, 0, 0], [0, 4, 8, 16], [6, 7, 9])
    assert lower == [5.0, 8.0, -INF]
    assert upper == [INF, INF, 16.0]


def test_bounds_stop_at_a_termination() -> None:
    """Nothing follows it; the next episode has bounds of its own."""
    flags = [0, TERMINATED, RESET, 0, 0, 0]
    lower, upper = bounds([1, 2, 0, 1, 1, 1], flags, [50, 0, 50, 60, 0, 0, 8], [3, 3, 0, 2, 7, 7])
    # 1 + 2/2, whatever row 2 is worth; 1 + 1/2 + 1/4 + 8/8; 1 + 1/2 + 8/4
    assert (lower[0], lower[1]) == (2.0, -INF)
    assert lower[3:] == [2.75, 3.5, -INF]
    assert upper[:2] == [INF, INF]
    assert upper[3:] == [INF, INF, (2 - 1 - 0.5) * 4]


def test_bounds_bootstrap_from_the_final_observation_of_a_truncated_episode() -> None:
    lower, upper = bounds([1, 2, 0, 9], [0, TRUNCATED, RESET, 0], [0, 0, 40, 99, 99], [3, 3, 0, 3])
    assert (lower[0], lower[1]) == (1 + 1 + 40 / 4, -INF)
    assert (lower[3], upper[3]) == (-INF, INF)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """(reward, flags) with a RESET after each end."""
    count, ticks = draw(st.integers(1, 3)), draw(st.integers(1, 10))
    flags = np.zeros((count, ticks), np.uint8)
    for row in range(count):
        tick = int(draw(st.booleans()))
        flags[row, 0] = RESET if tick else 0
        while tick < ticks:
            if draw(st.integers(0, 4)) == 0:
                flags[row, tick] = draw(st.sampled_from([TERMINATED, TRUNCATED, TERMINATED | TRUNCATED]))
                flags[row, tick + 1 : tick + 2] = RESET
                tick += 1
            tick += 1
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.normal(size=(count, ticks)).astype(np.float32), flags


@settings(max_examples=200, deadline=None)
@given(sessions(), st.floats(0.5, 1), st.integers(0, 2**32))
def test_bounds_are_the_papers_double_loop(
    data: tuple[np.ndarray, np.ndarray], gamma: float, seed: int
) -> None:
    """Every L_(j,k) and U_(j,k) of equations 5 and 6 as they stand, k from 1, within j's episode."""
    reward, flags = data
    count, ticks = flags.shape
    rng = np.random.default_rng(seed)
    values, chosen = rng.normal(size=(count, ticks + 1)), rng.normal(size=(count, ticks))
    lower, upper = tightening_bounds(reward, flags, values, chosen, gamma)
    for row in range(count):
        for j in np.flatnonzero(real(flags[row])):
            least, most = -INF, INF
            for k in range(1, ticks):
                whole = flags[row, j : j + k]  # ticks that must go on, so that tick j+k is of the episode
                if j + k < ticks and not whole.any():
                    alive = not flags[row, j + k] & TERMINATED
                    total = sum(gamma**i * reward[row, j + i] for i in range(k + 1))
                    least = max(least, total + alive * gamma ** (k + 1) * values[row, j + k + 1])
                first = j - k - 1
                if first >= 0 and not flags[row, first:j].any():
                    past = sum(gamma ** (i - k - 1) * reward[row, first + i] for i in range(k + 1))
                    most = min(most, gamma ** (-k - 1) * chosen[row, first] - past)
            assert lower[row, j] == pytest.approx(least, rel=1e-3, abs=1e-3)
            assert upper[row, j] == pytest.approx(most, rel=1e-3, abs=1e-3)


def test_priorities_by_hand() -> None:
    """0.75 of the largest error and 0.25 of the mean, of what counts; (1 + 0.001)^0.5."""
    errors = np.array([[1.0, -3.0, 100.0], [0.0, 0.0, 100.0]])
    counts = np.array([[True, True, False], [True, True, False]])
    expected = [(0.75 * 3 + 0.25 * 2 + 1e-3) ** 0.5, 1e-3**0.5]
    result = priorities(errors, counts, 0.5, 0.75)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert result.dtype == np.float32


def test_a_session_of_which_nothing_counts_has_a_priority_all_the_same() -> None:
    assert priorities(np.ones((1, 2)), np.zeros((1, 2), bool), 1.0, 0.9).tolist() == [
        pytest.approx(1e-3, rel=1e-5)
    ]


def test_the_priority_of_a_single_tick_is_its_error() -> None:
    result = priorities(np.array([[-2.0], [0.5]]), np.ones((2, 1), bool), 1.0, 0.3)
    np.testing.assert_allclose(result, [2.001, 0.501], rtol=1e-6)
