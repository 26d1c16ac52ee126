"""Returns, advantages and corrections: against numbers worked out by hand, and against the papers' own recursions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from p2prl_agents.maths import (
    discounts,
    explained_variance,
    gae,
    huber,
    importance_weights,
    n_step,
    n_step_of_first,
    real,
    vtrace,
)

from p2prl.core.schema import RESET, TERMINATED, TRUNCATED

END = (TERMINATED, TRUNCATED, TERMINATED | TRUNCATED)


def rows(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def flag_rows(*values: int) -> np.ndarray:
    return np.array([values], np.uint8)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(reward, flags, values, log ratio) of sessions as a player lays them out: a RESET after each end.

    And now and then a RESET after no end: there the environment failed.
    """
    count, ticks = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    flags = np.zeros((count, ticks), np.uint8)
    for row in range(count):
        tick = 0
        if draw(st.booleans()):
            flags[row, 0], tick = RESET, 1
        while tick < ticks:
            if draw(st.integers(0, 3)) == 0:
                flags[row, tick] = draw(st.sampled_from((*END, 0)))
                if tick + 1 < ticks:
                    flags[row, tick + 1] = RESET
                tick += 1
            tick += 1
    reward = np.where(flags & RESET, 0, rng.normal(size=(count, ticks))).astype(np.float32)
    return (
        reward,
        flags,
        rng.normal(size=(count, ticks + 1)).astype(np.float32),
        rng.normal(size=(count, ticks)),
    )


# --- plain marks


def test_what_counts_and_what_is_bootstrapped() -> None:
    flags = flag_rows(0, TERMINATED, RESET, TRUNCATED, RESET)
    assert real(flags).tolist() == [[True, True, False, True, False]]
    assert discounts(flags, 0.5).tolist() == [[0.5, 0.0, 0.5, 0.5, 0.5]]


# --- GAE


def test_gae_by_hand() -> None:
    # delta = 1 + 0.5*2 - 1 = 1; 2 + 0.5*4 - 2 = 2; advantage 0 = 1 + 0.25*2
    advantage, target = gae(rows(1, 2), flag_rows(0, 0), rows(1, 2, 4), 0.5, 0.5)
    assert advantage.tolist() == [[1.5, 2.0]]
    assert target.tolist() == [[2.5, 4.0]]


def test_gae_bootstraps_a_truncation_from_the_final_observation_and_a_termination_from_nothing() -> None:
    values = rows(1, 2, 10, 3)
    cut, _ = gae(rows(1, 1, 0), flag_rows(0, TRUNCATED, RESET), values, 0.5, 1.0)
    assert cut.tolist() == [[1 + 0.5 * 2 - 1 + 0.5 * (1 + 0.5 * 10 - 2), 1 + 0.5 * 10 - 2, 0]]
    died, _ = gae(rows(1, 1, 0), flag_rows(0, TERMINATED, RESET), values, 0.5, 1.0)
    assert died.tolist() == [[1 + 0.5 * 2 - 1 + 0.5 * (1 - 2), 1 - 2, 0]]


@settings(max_examples=200, deadline=None)
@given(sessions(), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_papers_sum(data: tuple, gamma: float, decay: float) -> None:
    """Equation 16 as it stands: the sum of (gamma lambda)^l delta_(t+l), as far as the episode goes."""
    reward, flags, values, _ = data
    advantage, target = gae(reward, flags, values, gamma, decay)
    count, ticks = flags.shape
    for row in range(count):
        for tick in range(ticks):
            if flags[row, tick] & RESET:
                assert advantage[row, tick] == 0
                continue
            total, weight = 0.0, 1.0
            for at in range(tick, ticks):
                alive = 0.0 if flags[row, at] & TERMINATED else 1.0
                delta = reward[row, at] + gamma * alive * values[row, at + 1] - values[row, at]
                total += weight * delta
                weight *= gamma * decay
                if flags[row, at] or (at + 1 < ticks and flags[row, at + 1] & RESET):
                    break
            assert advantage[row, tick] == pytest.approx(total, abs=1e-4)
            assert target[row, tick] == pytest.approx(total + values[row, tick], abs=1e-4)


# --- V-trace


def test_vtrace_by_hand() -> None:
    # ratio 2 is clipped to 1, ratio 0.5 is not. Tick 1: rho 0.5: delta = 0.5 (2 + 0.5*4 - 2) = 1: target 3.
    # Tick 0: rho 1, c 1: delta = 1 + 0.5*2 - 1 = 1, plus 0.5 * 1 * (3 - 2): target 2.5.
    log_ratio = np.log(rows(2, 0.5))
    target, advantage = vtrace(log_ratio, rows(1, 2), flag_rows(0, 0), rows(1, 2, 4), 0.5)
    np.testing.assert_allclose(target, [[2.5, 3.0]], atol=1e-6)
    # rho_0 (1 + 0.5 * 3 - 1), rho_1 (2 + 0.5 * 4 - 2)
    np.testing.assert_allclose(advantage, [[1.5, 1.0]], atol=1e-6)


def vtrace_of_the_paper(
    ratio: list[float],
    reward: list[float],
    alive: list[float],
    values: list[float],
    gamma: float,
    bars: tuple[float, float],
    decay: float,
) -> list[float]:
    """Remark 1 of the paper, from the end: v_s = V(x_s) + delta_s + gamma c_s (v_(s+1) - V(x_(s+1))).

    By remark 2 lambda goes with c.
    """
    rho_bar, c_bar = bars
    vs = values[len(reward)]
    result = []
    for tick in range(len(reward) - 1, -1, -1):
        rho, c = min(rho_bar, ratio[tick]), decay * min(c_bar, ratio[tick])
        delta = rho * (reward[tick] + gamma * alive[tick] * values[tick + 1] - values[tick])
        vs = values[tick] + delta + gamma * alive[tick] * c * (vs - values[tick + 1])
        result.append(vs)
    return result[::-1]


def episodes_of(flags: np.ndarray) -> list[tuple[int, int]]:
    """Stretches of ticks that belong to one episode, in one session's flags."""
    stretches, start = [], None
    for tick, flag in enumerate(flags.tolist()):
        if flag & RESET:
            if start is not None:
                stretches.append((start, tick))
            start = None
            continue
        start = tick if start is None else start
        if flag:
            stretches.append((start, tick + 1))
            start = None
    if start is not None:
        stretches.append((start, len(flags)))
    return stretches


@settings(max_examples=200, deadline=None)
@given(sessions(), st.floats(0, 1), st.floats(0.1, 3), st.floats(0.1, 3), st.floats(0, 1))
def test_vtrace_is_the_papers_recursion(
    data: tuple, gamma: float, rho_bar: float, c_bar: float, decay: float
) -> None:
    reward, flags, values, log_ratio = data
    target, advantage = vtrace(
        log_ratio, reward, flags, values, gamma, decay=decay, clip_rho=rho_bar, clip_c=c_bar
    )
    for row in range(len(flags)):
        assert (advantage[row][flags[row] & RESET != 0] == 0).all()
        for begin, end in episodes_of(flags[row]):
            ratio = [math.exp(x) for x in log_ratio[row, begin:end]]
            alive = [0.0 if f & TERMINATED else 1.0 for f in flags[row, begin:end]]
            vs = vtrace_of_the_paper(
                ratio,
                reward[row, begin:end].tolist(),
                alive,
                values[row, begin : end + 1].tolist(),
                gamma,
                (rho_bar, c_bar),
                decay,
            )
            np.testing.assert_allclose(target[row, begin:end], vs, atol=2e-4, rtol=1e-4)
            after = [*vs[1:], float(values[row, end])]
            for i, tick in enumerate(range(begin, end)):
                expected = min(rho_bar, ratio[i]) * (
                    reward[row, tick] + gamma * alive[i] * after[i] - values[row, tick]
                )
                assert advantage[row, tick] == pytest.approx(expected, abs=5e-4, rel=1e-3)


@settings(max_examples=100, deadline=None)
@given(sessions(), st.floats(0, 1))
def test_on_policy_vtrace_is_the_whole_return(data: tuple, gamma: float) -> None:
    """Section 4.1: with pi = mu and no clipping in the way it is the on-policy n-step target: GAE with lambda 1."""
    reward, flags, values, _ = data
    target, _ = vtrace(np.zeros(flags.shape), reward, flags, values, gamma)
    _, whole = gae(reward, flags, values, gamma, 1.0)
    np.testing.assert_allclose(target[real(flags)], whole[real(flags)], atol=1e-4)


# --- n-step


def test_n_step_by_hand() -> None:
    parts = n_step(rows(1, 2, 4, 8), flag_rows(0, 0, 0, 0), 0.5, 2)
    assert parts.partial.tolist() == [[2.0, 4.0, 8.0, 8.0]]
    assert parts.discount.tolist() == [[0.25, 0.25, 0.25, 0.5]]  # the last sum ends with the session
    assert parts.row.tolist() == [[2, 3, 4, 4]]


def test_n_step_stops_where_the_episode_does() -> None:
    reward = rows(1, 2, 0, 4)
    cut = n_step(reward, flag_rows(0, TRUNCATED, RESET, 0), 0.5, 3)
    assert (cut.partial[0, 0], cut.discount[0, 0], cut.row[0, 0]) == (2.0, 0.25, 2)  # the final observation
    died = n_step(reward, flag_rows(0, TERMINATED, RESET, 0), 0.5, 3)
    assert (died.partial[0, 0], died.discount[0, 0]) == (2.0, 0.0)
    assert (died.partial[0, 3], died.discount[0, 3], died.row[0, 3]) == (4.0, 0.5, 4)


@settings(max_examples=200, deadline=None)
@given(sessions(), st.floats(0, 1), st.integers(1, 6))
def test_n_step_is_the_plain_sum(data: tuple, gamma: float, steps: int) -> None:
    reward, flags, _, _ = data
    parts = n_step(reward, flags, gamma, steps)
    for row in range(len(flags)):
        for begin, end in episodes_of(flags[row]):
            for tick in range(begin, end):
                last = min(tick + steps, end)
                total = sum(gamma**i * reward[row, tick + i] for i in range(last - tick))
                ended = bool(flags[row, last - 1] & TERMINATED)
                assert parts.partial[row, tick] == pytest.approx(total, abs=1e-4)
                assert parts.discount[row, tick] == pytest.approx(
                    0 if ended else gamma ** (last - tick), abs=1e-5
                )
                assert parts.row[row, tick] == last


@settings(max_examples=200, deadline=None)
@given(sessions(), st.floats(0, 1), st.integers(1, 6))
def test_n_step_of_the_first_ticks_is_that_of_all(data: tuple, gamma: float, steps: int) -> None:
    reward, flags, _, _ = data
    every, first = n_step(reward, flags, gamma, steps), n_step_of_first(reward, flags, gamma, steps)
    assert first.partial.dtype == first.discount.dtype == np.float32
    np.testing.assert_allclose(first.partial, every.partial[:, :1], atol=1e-4)
    np.testing.assert_array_equal(first.discount, every.discount[:, :1])
    np.testing.assert_array_equal(first.row, every.row[:, :1])


# --- corrections


def test_importance_weights_by_hand() -> None:
    # Drawn 4 times, once, a quarter as often as uniformly: 1/4, 1, 4 over 4
    np.testing.assert_allclose(importance_weights(np.array([4.0, 1.0, 0.25]), 1.0), [1 / 16, 1 / 4, 1])
    np.testing.assert_allclose(importance_weights(np.array([4.0, 1.0, 0.25]), 0.5), [1 / 4, 1 / 2, 1])
    assert importance_weights(np.array([4.0, 0.25]), 0.0).tolist() == [1.0, 1.0]


def test_explained_variance() -> None:
    target = np.array([1.0, 2.0, 3.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(target, np.full(3, 7.0)) == pytest.approx(0.0)
    assert explained_variance(np.ones(3), target) == 0.0  # nothing to explain


def test_hubers_loss_and_its_slope_by_hand() -> None:
    losses, slopes = huber(np.array([0.0, 0.5, -0.5, 1.0, 3.0, -3.0], np.float32))
    np.testing.assert_allclose(losses, [0, 0.125, 0.125, 0.5, 2.5, 2.5])
    np.testing.assert_allclose(slopes, [0, 0.5, -0.5, 1, 1, -1])
    assert np.isnan(huber(np.array([np.nan], np.float32))[0]).all()
