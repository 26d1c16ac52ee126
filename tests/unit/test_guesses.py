"""Who may begin an exchange now, and who has to wait; the clock is fake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.core.guesses import (
    ADDRESS_BURST,
    BEGIN_BURST,
    BEGIN_PER_S,
    FORGIVEN_AFTER_S,
    GUESS_BURST,
    GUESS_PER_S,
    MAX_ADDRESSES,
    MAX_WAIT_S,
    Bucket,
    Guesses,
)


def test_an_address_waits_longer_after_each_wrong_guess() -> None:
    guesses, now, waits = Guesses(0.0), 0.0, []
    for _ in range(9):
        assert guesses.begin("10.0.0.1", now, guessable=True) == 0.0
        waits.append(guesses.wrong("10.0.0.1", now, guessable=True))
        told = guesses.begin("10.0.0.1", now + 0.25, guessable=True)
        assert told == pytest.approx(waits[-1] - 0.25)
        now += 0.25 + told
    assert waits == [1, 2, 4, 8, 16, 32, MAX_WAIT_S, MAX_WAIT_S, MAX_WAIT_S]
    assert guesses.begin("10.0.0.2", 0.3, guessable=True) == 0.0


def test_a_right_proof_and_ten_minutes_are_forgiveness() -> None:
    guesses = Guesses(0.0)
    for _ in range(5):
        guesses.wrong("a", 0.0, guessable=True)
        guesses.wrong("b", 0.0, guessable=True)
    assert guesses.barred_s("a", 1.0) == 15.0
    guesses.right("a")
    assert guesses.barred_s("a", 1.0) == 0.0
    assert guesses.wrong("a", 1.0, guessable=True) == 1.0
    assert guesses.begin("b", 20.0, guessable=True) == 0.0  # seen, but not wrong again
    assert guesses.wrong("b", FORGIVEN_AFTER_S, guessable=True) == 1.0


def test_one_address_does_not_take_everybodys_turn() -> None:
    guesses = Guesses(0.0)
    begun = sum(guesses.begin("flood", 0.0, guessable=False) == 0.0 for _ in range(1000))
    assert begun == ADDRESS_BURST
    assert guesses.begin("honest", 0.0, guessable=False) == 0.0


def test_begins_of_all_addresses_are_bounded_and_whoever_waits_as_told_gets_in() -> None:
    guesses = Guesses(0.0)
    waits = [guesses.begin(f"a{number}", 0.0, guessable=False) for number in range(200)]
    assert waits.count(0.0) == BEGIN_BURST
    assert set(waits[BEGIN_BURST:]) == {1 / BEGIN_PER_S}
    assert guesses.begin("a199", waits[-1], guessable=False) == 0.0


def test_wrong_guesses_of_all_addresses_are_bounded_and_tokens_are_not_held_up() -> None:
    guesses, now, made = Guesses(0.0), 0.0, 0
    for second in range(20_000):
        now = second / 4
        if guesses.begin(f"address {second}", now, guessable=True) == 0.0:
            guesses.wrong(f"address {second}", now, guessable=True)
            made += 1
    assert made <= GUESS_BURST + GUESS_PER_S * now + 1
    assert guesses.begin("newcomer", now, guessable=True) > 0.0
    assert guesses.begin("headless machine", now, guessable=False) == 0.0


def test_the_memory_for_addresses_is_bounded_and_empties() -> None:
    guesses = Guesses(0.0)
    for number in range(10_000):
        guesses.begin(f"address {number}", 0.0, guessable=True)
        guesses.wrong(f"address {number}", 0.0, guessable=True)
    assert len(guesses) == MAX_ADDRESSES
    assert guesses.barred_s("address 9999", 0.5) == 0.5
    guesses.ticked(FORGIVEN_AFTER_S)
    assert len(guesses) == 0


@given(
    burst=st.integers(1, 20),
    per_s=st.floats(0.01, 100),
    steps=st.lists(st.floats(0, 10), min_size=1, max_size=60),
)
def test_a_bucket_never_gives_more_than_its_burst_and_rate(
    burst: int, per_s: float, steps: list[float]
) -> None:
    bucket, now, taken = Bucket(burst, per_s, 0.0), 0.0, 0
    for step in steps:
        now += step
        wait_s = bucket.missing_s(now)
        if wait_s == 0.0:
            bucket.take()
            taken += 1
        else:
            assert bucket.missing_s(now) == wait_s  # asking costs nothing
    assert taken <= burst + per_s * now + 1e-3
