"""More players or slots than a machine has room for: one line, and only then."""

from __future__ import annotations

import doctest

import psutil
import pytest

from p2prl.nodes import beyond

ROOM = 10**12


def test_what_fits_is_not_worth_a_word() -> None:
    assert beyond.in_words(2, 1024, 1000, cores=2, free_bytes=ROOM) == ""
    assert beyond.cost(1, 1, 100) == ""


def test_the_doctests_are_true() -> None:
    assert doctest.testmod(beyond).failed == 0


@pytest.mark.parametrize(
    ("players", "slots", "cores", "free", "said"),
    [
        (8, 1, 2, ROOM, ["8 players share 2 cores", "0.25 as fast"]),
        (3, 1, 1, ROOM, ["3 players share 1 core:", "0.33 as fast"]),
        (1, 1000, 2, 10**9, ["1 player of 1,000 slots", "2,045 MB", "1,000 MB are free", "fewer --envs"]),
        (8, 1000, 2, 10**9, ["8 players share 2 cores", "16,360 MB"]),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    players: int, slots: int, cores: int, free: int, said: list[str]
) -> None:
    text = beyond.in_words(players, slots, 1_000_000, cores, free)
    assert all(part in text for part in said)
    assert "\n" not in text


def test_it_asks_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    assert "share 4 cores" in beyond.cost(5, 1, 1)
    assert beyond.cost(4, 1, 1) == ""
    # A petabyte of bundles fits into no machine.
    assert "are free" in beyond.cost(1, 1024, 10**12)
