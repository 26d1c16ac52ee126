"""More players or slots than a machine has room for: one line, and only then."""

from __future__ import annotations

import doctest

import psutil
import pytest

from p2prl.core.schema import Column, SessionSchema
from p2prl.nodes import beyond
from tests.unit.replay_kit import CARTPOLE

ROOM = 10**12


def test_what_fits_is_not_worth_a_word() -> None:
    assert beyond.in_words(2, 1024, 16, 1000, cores=2, free_bytes=ROOM) == ""
    assert beyond.cost(1, 1, CARTPOLE) == ""


def test_the_doctests_are_true() -> None:
    assert doctest.testmod(beyond).failed == 0


@pytest.mark.parametrize(
    ("players", "slots", "cores", "free", "said"),
    [
        (1, 1024, 2, ROOM, ["a bundle of 1,024 slots is 32,768 steps", "fewer --envs come sooner"]),
        (8, 1, 2, ROOM, ["8 players share 2 cores", "0.25 as fast"]),
        (3, 1, 1, ROOM, ["3 players share 1 core:", "0.33 as fast"]),
        (1, 1000, 2, 10**9, ["1 player of 1,000 slots", "2 GB", "1 GB are free", "fewer --envs"]),
        (8, 1000, 2, 10**9, ["8 players share 2 cores", "16.4 GB"]),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    players: int, slots: int, cores: int, free: int, said: list[str]
) -> None:
    text = beyond.in_words(players, slots, 32, 1_000_000, cores, free)
    assert all(part in text for part in said)
    assert "\n" not in text


def test_it_asks_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    assert "share 4 cores" in beyond.cost(5, 1, CARTPOLE)
    assert beyond.cost(4, 1, CARTPOLE) == ""
    # A petabyte of bundles fits into no machine.
    large = SessionSchema(1, (Column("obs", "uint8", (10**12,)),))
    assert "are free" in beyond.cost(1, 1024, large)
