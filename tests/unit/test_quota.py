"""core/quota.py: what one node may give, on a clock of our own."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from p2prl.core.quota import BURST_S, Quotas


def given_words(quotas: Quotas, count: int, now: float, node: str = "a", size: int = 1) -> Counter[str]:
    return Counter(quotas.judge(node, size, now) for _ in range(count))


def test_a_burst_passes_and_then_the_rate() -> None:
    quotas = Quotas(0, 10, answers_per_s=1000)
    assert given_words(quotas, 200, 0.0) == {"take": 50, "busy": 150}
    assert given_words(quotas, 200, 1.0) == {"take": 10, "busy": 190}
    assert given_words(quotas, 200, 1.55) == {
        "take": 6,
        "busy": 194,
    }  # five and a half: the last one on credit
    assert given_words(quotas, 200, 1000.0) == {"take": 50, "busy": 150}


def test_bytes_count_as_they_were_sent_and_one_larger_than_the_bucket_passes() -> None:
    quotas = Quotas(1000, 0, answers_per_s=1000)
    assert quotas.judge("a", 50_000, 0.0) == "take"
    assert quotas.judge("a", 1, 45.0) == "busy"
    assert quotas.judge("a", 1, 45.1) == "take"
    assert given_words(quotas, 100, 1000.0, size=100) == {"take": 50, "busy": 50}


def test_both_limits_hold() -> None:
    quotas = Quotas(1000, 10, answers_per_s=1000)
    assert given_words(quotas, 100, 0.0, size=1) == {"take": 50, "busy": 50}
    assert given_words(quotas, 100, 100.0, size=500) == {"take": 10, "busy": 90}


def test_nodes_do_not_take_from_each_other() -> None:
    quotas = Quotas(0, 1, answers_per_s=1)
    given_words(quotas, 1000, 0.0, "flood")
    assert given_words(quotas, 5, 0.0, "honest") == {"take": 5}


def test_answers_are_few_too() -> None:
    quotas = Quotas(0, 1, answers_per_s=2)
    assert given_words(quotas, 100, 0.0) == {"take": 5, "busy": 10, "drop": 85}
    assert given_words(quotas, 100, 1.0) == {"take": 1, "busy": 2, "drop": 97}


def test_no_limit_is_no_limit_and_remembers_nobody() -> None:
    quotas = Quotas(0, 0, answers_per_s=1)
    assert given_words(quotas, 10_000, 0.0, size=10**9) == {"take": 10_000}
    assert len(quotas) == 0


def test_memory_is_bounded_and_who_gives_is_remembered() -> None:
    quotas = Quotas(0, 1, answers_per_s=1, max_nodes=10)
    given_words(quotas, 5, 0.0, "flood")
    for stranger in range(1000):
        quotas.judge(f"node {stranger}", 1, 0.0)
        assert quotas.judge("flood", 1, 0.0) != "take"
        assert len(quotas) <= 10


def test_a_clock_that_jumps_an_hour_opens_no_more_than_a_burst_and_closes_nothing() -> None:
    quotas = Quotas(0, 10, answers_per_s=10_000)
    given_words(quotas, 50, 10_000.0)
    assert given_words(quotas, 999, 13_600.0)["take"] == 50
    assert given_words(quotas, 999, 10_000.0)["take"] == 0
    assert given_words(quotas, 999, 10_001.0)["take"] == 10


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 400)), max_size=60),
    st.floats(1, 500),
    st.floats(1, 20),
)
def test_never_more_than_the_rate_and_a_burst(
    steps: list[tuple[float, int]], bytes_per_s: float, bundles_per_s: float
) -> None:
    quotas = Quotas(bytes_per_s, bundles_per_s, answers_per_s=5)
    now, bundles, size = 0.0, 0, 0
    for wait_s, size_bytes in steps:
        now += wait_s
        if quotas.judge("a", size_bytes, now) == "take":
            bundles, size = bundles + 1, size + size_bytes
        assert bundles <= bundles_per_s * (now + BURST_S) + 1
        assert size <= bytes_per_s * (now + BURST_S) + 400
