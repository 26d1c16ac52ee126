"""How many threads the trainer's arithmetic gets."""

from __future__ import annotations

import pytest

from p2prl.nodes.threads import Threads


def trial(most: int, seconds: dict[int, float], updates: int = 40) -> tuple[Threads, list[int]]:
    """What was used at each update, whose time depends on the number of threads."""
    used: list[int] = []
    threads = Threads(most, lambda count: None)
    for update in range(updates):
        used.append(threads.count)
        # The first one does what later ones need not; and now and then something else has the machine.
        threads.updated(seconds[threads.count] * (50 if update == 0 or update % 9 == 0 else 1))
    return threads, used


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        ({1: 0.001, 4: 0.009}, 1),
        ({1: 0.4, 4: 0.15}, 4),
        ({1: 0.1, 4: 0.09}, 1),  # not worth three cores
    ],
)
def test_what_is_faster_is_kept(seconds: dict[int, float], kept: int) -> None:
    threads, used = trial(4, seconds)
    assert threads.settled
    assert used[:5] == [1] * 5
    assert used[5:25] == [1] * 5 + [4] * 5 + [1] * 5 + [4] * 5
    assert used[25:] == [kept] * 15


def test_where_there_is_but_one_nothing_is_tried() -> None:
    threads, used = trial(1, {1: 0.1})
    assert threads.settled
    assert used == [1] * 40


def test_each_change_is_made_once() -> None:
    made: list[int] = []
    threads = Threads(2, made.append)
    for _ in range(40):
        threads.updated(0.1)
    assert made == [1, 2, 1, 2, 1]


def test_torch_is_what_is_told() -> None:
    import torch

    from p2prl.nodes.device import most_threads, use_threads

    before = torch.get_num_threads()
    try:
        use_threads(2)
        assert torch.get_num_threads() == most_threads("cpu") == 2
        assert most_threads("cuda") == 1
    finally:
        use_threads(before)
