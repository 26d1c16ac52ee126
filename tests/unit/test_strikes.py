"""Refusals add up to a quarantine; the clock is fake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.core.messages import REFUSALS
from p2prl.core.strikes import MAX_NODES, WEIGHTS, Strikes


def test_every_weighed_reason_is_a_refusal() -> None:
    assert set(WEIGHTS) <= set(REFUSALS)


def test_too_many_refusals_strike_once() -> None:
    strikes = Strikes(limit=100.0)
    struck = [strikes.struck("k", "malformed", 1, number / 10) for number in range(300)]
    assert struck.index(True) == 99
    assert struck.count(True) == 1


def test_many_at_once_strike_at_once_and_each_node_by_itself() -> None:
    strikes = Strikes()
    assert not strikes.struck("a", "not_finite", 99, 0.0)
    assert not strikes.struck("b", "not_finite", 99, 0.0)
    assert strikes.struck("a", "bad_codec", 1, 0.0)
    assert strikes.struck("b", "bad_codec", 10**9, 0.0)


@pytest.mark.parametrize(
    "reason", ["unknown_node", "wrong_run", "not_admitted", "removed", "stale", "no such reason"]
)
def test_what_an_honest_node_can_do_is_no_strike(reason: str) -> None:
    strikes = Strikes()
    assert not strikes.struck("k", reason, 10**6, 0.0)
    assert len(strikes) == 0


def test_too_fast_weighs_a_fiftieth() -> None:
    strikes = Strikes()
    assert not strikes.struck("k", "over_quota", 4999, 0.0)
    assert strikes.struck("k", "rate_limited", 1, 0.0)


def test_no_count_is_no_strike() -> None:
    strikes = Strikes(limit=1.0)
    assert not strikes.struck("k", "malformed", 0, 0.0)
    assert not strikes.struck("k", "malformed", -5, 0.0)


def test_old_refusals_are_forgotten() -> None:
    strikes = Strikes(limit=100.0, window_s=600.0)
    assert not strikes.struck("k", "malformed", 99, 0.0)
    assert strikes.struck("k", "malformed", 1, 540.0)  # the window moves in tenths
    strikes.forgive("k")
    assert not strikes.struck("k", "malformed", 99, 0.0)
    assert not strikes.struck("k", "malformed", 99, 600.0)
    assert not strikes.struck("k", "malformed", 99, 1200.0)
    assert strikes.struck("k", "malformed", 1, 1201.0)


def test_one_a_minute_is_never_too_much() -> None:
    strikes = Strikes()
    assert not any(strikes.struck("k", "malformed", 1, 60.0 * minute) for minute in range(5000))


def test_the_text_names_what_it_was() -> None:
    strikes = Strikes()
    strikes.struck("k", "bad_codec", 3, 0.0)
    strikes.struck("k", "malformed", 90, 30.0)
    strikes.struck("k", "over_quota", 500, 100.0)
    assert strikes.text("k") == "refused within 10 minutes: 500 over_quota, 90 malformed, 3 bad_codec"
    strikes.struck("k", "malformed", 1, 601.0)
    assert strikes.text("k") == "refused within 10 minutes: 500 over_quota, 1 malformed"
    assert strikes.text("nobody") == "nothing was refused of it lately"


def test_a_forgiven_node_starts_anew_and_can_be_struck_again() -> None:
    strikes = Strikes()
    assert strikes.struck("k", "malformed", 100, 0.0)
    assert not strikes.struck("k", "malformed", 100, 1.0)
    strikes.forgive("k")
    strikes.forgive("nobody")
    assert not strikes.struck("k", "malformed", 99, 2.0)
    assert strikes.struck("k", "malformed", 1, 3.0)


def test_the_memory_is_bounded_and_the_one_refused_longest_ago_goes() -> None:
    strikes = Strikes()
    strikes.struck("guilty", "malformed", 99, 0.0)
    for number in range(10_000):
        strikes.struck(f"node {number}", "malformed", 1, 0.0)
        if number % 500 == 0:
            strikes.struck("guilty", "over_quota", 1, 0.0)
    assert len(strikes) == MAX_NODES
    assert strikes.struck("guilty", "malformed", 1, 0.0)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(WEIGHTS)), st.integers(1, 40), st.floats(0, 90)), max_size=60)
)
def test_a_strike_means_the_limit_within_the_window_and_nothing_less(
    refusals: list[tuple[str, int, float]],
) -> None:
    strikes, now, told = Strikes(limit=50.0, window_s=600.0), 0.0, False
    history: list[tuple[float, float]] = []
    for reason, count, step in refusals:
        now += step
        history.append((now, WEIGHTS[reason] * count))
        in_window = sum(weight for at, weight in history if now - at <= 600.0)
        surely = sum(weight for at, weight in history if now - at < 540.0)
        if strikes.struck("k", reason, count, now):
            assert not told
            assert in_window >= 50.0 - 1e-3
            told = True
        elif not told:
            assert surely < 50.0 + 1e-3
