"""scripts/learn runs the real commands: to a criterion, or to the line that says what is missing."""

from __future__ import annotations

import pytest
from learn_matrix import forced, ours, peers
from learn_matrix.kinds import Criterion, Forced, Host, Limits, Sb3, Unavailable

from tests.kit import BASE_PORT

LIMITS = Limits(200_000, 60)


def test_a_training_criterion_is_reached(home: object) -> None:
    run = ours.run(Host("chain"), Criterion(0.3), LIMITS, seed=1, port=BASE_PORT)
    assert run.reached, run.end
    assert run.steps is not None
    assert 0 < run.steps <= LIMITS.steps
    assert run.seconds is not None
    assert run.lag_mean is not None
    assert run.curve[-1][1] >= 0.3


def test_a_greedy_criterion_is_judged_by_checkpoints(home: object) -> None:
    settings = {"agent.epsilon_updates": 50}
    run = ours.run(Host("chain", settings=settings), Criterion(0.9, "greedy"), LIMITS, seed=1, port=BASE_PORT)
    assert run.reached, run.end
    assert run.curve[-1][0] == run.steps
    assert run.curve[-1][1] >= 0.9


def test_joiners_play_for_the_time_of_some_steps(home: object) -> None:
    crowd = Host("chain", agent="cem", players=0, joiners=2)
    run = ours.run(crowd, Criterion(3000, "steps"), LIMITS, seed=1, port=BASE_PORT)
    assert run.reached, run.end
    assert run.steps is not None
    assert run.steps >= 3000


def test_what_is_not_reached_says_why(home: object) -> None:
    run = ours.run(Host("chain"), Criterion(2.0), Limits(2000, 60), seed=1, port=BASE_PORT)
    assert not run.reached
    assert run.end.startswith("steps")


def test_what_is_missing_is_told_in_its_own_words(home: object) -> None:
    with pytest.raises(Unavailable, match="nothing-here"):
        ours.run(Host("nothing-here"), Criterion(1.0), LIMITS, seed=1, port=BASE_PORT)


def test_a_forced_lag_is_what_was_measured(home: object) -> None:
    run = forced.run(Forced("cartpole-ppo", 2, {"epochs": 1}), Criterion(30), LIMITS, seed=1)
    assert run.reached, run.end
    assert run.lag_mean is not None
    assert 1.5 < run.lag_mean <= 2.0


def test_a_forced_run_that_takes_too_long_is_a_miss(home: object) -> None:
    run = forced.run(Forced("cartpole-ppo", 2), Criterion(1e9), Limits(10**9, 5), seed=1)
    assert (run.reached, run.end) == (False, "not within 5 s")


def test_a_peer_reaches_its_criterion_too(home: object) -> None:
    peer = Sb3(
        "PPO",
        "CartPole-v1",
        20_000,
        envs=4,
        settings={"n_steps": 64, "learning_rate": 1e-3},
        falling=("learning_rate",),
    )
    run = peers.run(peer, Criterion(25), LIMITS, seed=1)
    assert run.reached, run.end
    assert run.steps is not None
    assert run.steps <= 20_000
    assert run.curve[-1][1] >= 25


def test_a_peer_that_fails_is_no_result(home: object) -> None:
    with pytest.raises(Unavailable, match="no_such_setting"):
        peers.run(
            Sb3("PPO", "CartPole-v1", 1000, settings={"no_such_setting": 1}), Criterion(25), LIMITS, seed=1
        )
