"""A player's credit: two bundles, or what is played within some milliseconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.core.credit import AHEAD_BYTES, AHEAD_S, LEAST, MOST, Credit


def played(credit: Credit, each_s: float, size_bytes: int, rounds: int = 20, now: float = 0.0) -> int:
    """Bundles at this pace; returns the last credit."""
    given_last = credit.bundles
    for _ in range(rounds):
        while not credit.due:
            now += each_s
            credit.took(size_bytes)
        given_last = credit.give(now)
    return given_last


@pytest.mark.parametrize(
    ("each_s", "size_bytes", "bundles"),
    [
        (0.1, 1_000, LEAST),
        (0.0025, 1_000, 8),
        (0.0001, 1_000, MOST),
        (0.0001, 64_000, MOST),
        (0.0001, AHEAD_BYTES // 4, 4),
        (0.0001, 50 * AHEAD_BYTES, LEAST),
    ],
)
def test_it_is_for_what_is_played_in_a_moment_and_no_more_bytes_than_a_few(
    each_s: float, size_bytes: int, bundles: int
) -> None:
    assert abs(played(Credit(), each_s, size_bytes) - bundles) <= 1


def test_fresh_players_hand_over_one_at_a_time() -> None:
    credit = Credit(fresh=True)
    assert not credit.due
    credit.took(10)
    assert credit.due
    assert credit.give(0.0001) == 1
    assert played(credit, 0.0001, 10) == 1
    assert not credit.gathers


def test_a_fresh_player_that_is_quick_may_be_told_of_the_next_bundle_while_it_plays_one() -> None:
    credit, now = Credit(fresh=True), 100.0
    assert not credit.early, "nobody knows yet how quick it is"
    for _ in range(2):
        credit.took(10)
        assert not credit.early, "it plays nothing: what it is told of now is due"
        now += AHEAD_S / 2
        assert credit.give(now) == 1
    assert credit.early
    assert credit.give(now) == 2
    assert not credit.early
    assert not credit.due
    credit.took(10)
    assert not credit.due, "it plays the second"
    assert credit.early
    credit.took(10)
    assert credit.give(now + 2 * AHEAD_S) == 1
    assert not credit.early, "what it waits for is nothing beside what it plays"


def test_a_fast_player_is_told_when_half_of_it_is_used() -> None:
    credit = Credit()
    assert played(credit, 0.0001, 1_000) == MOST
    for _ in range(MOST // 2 - 1):
        credit.took(1_000)
    assert not credit.due
    credit.took(1_000)
    assert credit.due


def test_after_a_wait_it_is_small_again() -> None:
    credit = Credit()
    assert played(credit, 0.0001, 1_000) == MOST
    assert credit.gathers
    while not credit.due:
        credit.took(1_000)
    assert credit.give(60.0) == LEAST  # the window was full for a minute
    assert not credit.gathers


def test_one_fast_moment_doubles_it_at_most() -> None:
    credit = Credit()
    for _ in range(LEAST):
        credit.took(1)
    assert credit.give(0.0) <= 2 * LEAST


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1 << 26)), min_size=1, max_size=200),
    st.booleans(),
)
def test_a_player_that_used_its_credit_is_always_owed_the_next(
    bundles: list[tuple[float, int]], fresh: bool
) -> None:
    """Else both would wait for each other without end."""
    credit, now = Credit(fresh), 0.0
    under_way = 0
    for wait_s, size_bytes in bundles:
        now += wait_s
        credit.took(size_bytes)
        under_way += 1
        assert under_way <= credit.bundles
        if credit.due:
            assert credit.give(now) <= (1 if fresh else MOST)
            under_way = 0
    assert credit.due or under_way < credit.bundles
    assert AHEAD_S < 0.1
