"""Greedy play: so many ticks at a time, and how sure its mean is."""

from __future__ import annotations

import csv
import math
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from p2prl_envs.chain import make_chain

from p2prl.cli.piped import JsonHost
from p2prl.config import Experiment
from p2prl.display import has_display
from p2prl.errors import UsageError
from p2prl.learn import environments
from p2prl.learn.contracts import Array, Explore
from p2prl.learn.environments import EnvironmentFailed, try_environment
from p2prl.learn.evaluation import Evaluation, episode_seed, evaluate, run_evaluation_seed
from p2prl.learn.spaces import env_spec
from p2prl.learn.statistics import bootstrap_interval
from p2prl.nodes.evaluate import EvalResult, check_csv, write_csv
from p2prl.nodes.host import run_host
from p2prl.nodes.options import HostOptions
from tests.samples.envs import Odd


class Rightwards:
    """Goes right for the first twelve ticks of an episode, which it counts in its state, then left and right."""

    def load(self, weights: Any) -> None:
        """Nothing."""

    def start(self, slots: int) -> dict[str, Array]:
        return {"tick": np.zeros(slots, np.int64)}

    def act(self, obs: Any, state: dict[str, Array], explore: Explore | None) -> tuple[Any, Any, Any]:
        assert explore is None
        right = (state["tick"] < 12) | (state["tick"] % 3 > 0)
        return right.astype(np.uint8), {"tick": state["tick"] + 1}, {}


def make() -> gym.Env[Any, Any]:
    return make_chain(length=30, random_start=True, observation="box", max_steps=80, step_reward=-0.01)


SPEC = env_spec(make(), "chain")


# --- so many ticks at a time


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_a_tick_at_a_time_gives_what_all_at_once_gives(slots: int) -> None:
    whole = evaluate(make, SPEC, Rightwards(), 8, seed=3)
    evaluation = Evaluation([make() for _ in range(slots)], SPEC, Rightwards(), range(8), seed=3)
    ticks, seen = 0, 0
    while evaluation.advance():
        ticks += 1
        assert len(evaluation.results()) >= seen
        seen = len(evaluation.results())
    assert evaluation.results() == whole
    assert evaluation.steps == sum(length for _, length in whole)
    assert evaluation.over
    assert not evaluation.advance(), "it stays over"
    assert ticks >= evaluation.steps / slots - 1


def test_a_part_of_the_episodes_is_that_part_of_the_whole() -> None:
    whole = evaluate(make, SPEC, Rightwards(), 10, seed=3)
    part = Evaluation([make(), make()], SPEC, Rightwards(), [4, 5, 6], seed=3)
    while part.advance():
        pass
    assert part.results() == whole[4:7]


def test_what_was_played_before_does_not_matter() -> None:
    envs = [make(), make()]
    for seed in (3, 4, 3):
        evaluation = Evaluation(envs, SPEC, Rightwards(), range(5), seed)
        while evaluation.advance():
            pass
        if seed == 3:
            assert evaluation.results() == evaluate(make, SPEC, Rightwards(), 5, seed=3)


def test_an_episode_without_end_is_cut() -> None:
    evaluation = Evaluation([make(), make()], SPEC, Rightwards(), range(3), seed=3, max_length=2)
    while evaluation.advance():
        pass
    whole = evaluate(make, SPEC, Rightwards(), 3, seed=3)
    assert [length for _, length in evaluation.results()] == [min(2, length) for _, length in whole]
    assert max(length for _, length in whole) > 2


def test_a_reward_that_is_not_finite_is_a_fault_of_the_environment() -> None:
    class Broken(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, math.nan, *rest

    with pytest.raises(EnvironmentFailed, match="step gave the reward nan"):
        evaluate(lambda: Broken(make()), SPEC, Rightwards(), 2, seed=3)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            lambda obs, *rest: (obs, *rest[1:]),
            r"step\(\) must give \(observation, reward, terminated, truncated, info\)",
        ),
        (lambda obs, *rest: (np.zeros(9), *rest), "step gave what does not fit: could not broadcast"),
    ],
)
def test_an_answer_of_another_form_is_not_called_an_error_that_was_raised(answer: Any, said: str) -> None:
    class Broken(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            return answer(*super().step(action))

    with pytest.raises(EnvironmentFailed, match=said):
        evaluate(lambda: Broken(make()), SPEC, Rightwards(), 2, seed=3)


def test_a_reward_outside_its_range_counts_as_in_play_and_is_said() -> None:
    """What a player passes on, and what its broker refuses, is the same for both scores."""

    def make_odd() -> gym.Env[Any, Any]:
        return Odd(reward=50.0)

    spec, said = env_spec(make_odd(), "odd"), list[str]()
    rows = evaluate(make_odd, spec, Rightwards(), 3, seed=1, warn=said.append)
    assert rows == [(20.0, 20)] * 3
    assert said == [
        "odd: a reward of 50, and its reward_range is 0 to 1: it is taken as 1; correct one of them"
    ]


def test_each_result_is_told_when_it_is_there() -> None:
    told: list[tuple[int, float, int]] = []
    rows = evaluate(make, SPEC, Rightwards(), 5, seed=3, took=lambda *row: told.append(row), slots=2)
    assert sorted(told) == [(index, value, length) for index, (value, length) in enumerate(rows)]


# --- seeds


def test_each_episode_has_a_seed_of_its_own_which_no_player_has() -> None:
    for run_seed in (0, 1, 7):
        seed = run_evaluation_seed(run_seed)
        seeds = [episode_seed(seed, episode) for episode in range(1000)]
        assert len(set(seeds)) == 1000
        assert all(0 <= one < 2**31 for one in seeds)
        players = set()
        for seat in range(30):  # as nodes/player.py and the rollout make them
            sequence = np.random.SeedSequence((run_seed, seat, 0))
            players |= {episode_seed(int(sequence.generate_state(1)[0]), slot) for slot in range(16)}
        assert players.isdisjoint(seeds)
    assert run_evaluation_seed(1) != run_evaluation_seed(2)


# --- how sure a mean is


def test_the_interval_is_that_of_the_resampled_means() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    rng = np.random.default_rng(0)
    means = sorted(float(np.mean(rng.choice(values, len(values)))) for _ in range(20_000))
    low, high = bootstrap_interval(values, seed=1)
    assert low == pytest.approx(means[500], abs=0.08)
    assert high == pytest.approx(means[-500], abs=0.08)
    assert bootstrap_interval(values, seed=1) == (low, high)
    narrow = bootstrap_interval(values, seed=1, level=0.5)
    assert low < narrow[0] < np.mean(values) < narrow[1] < high


def test_the_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for trial in range(200):
        low, high = bootstrap_interval(rng.normal(10.0, 3.0, size=40).tolist(), seed=trial)
        held += low <= 10.0 <= high
    assert 0.88 * 200 <= held <= 0.99 * 200


@pytest.mark.parametrize("count", [1, 2, 5000])
def test_few_and_many_values(count: int) -> None:
    low, high = bootstrap_interval([2.5] * count, seed=1)
    assert (low, high) == (2.5, 2.5)


# --- files and screens


def _result(returns: list[float]) -> EvalResult:
    count = len(returns)
    return EvalResult("run", 1, "e", "a", returns, [4] * count, list(range(7, 7 + count)), 0.0, 0.0, 0.0, 0.0)


def test_the_table_has_a_row_for_each_episode(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    write_csv(_result([1.5, -2.0]), file)
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["episode"] for row in rows] == ["0", "1"]
    assert [int(row["seed"]) for row in rows] == [7, 8]
    assert [float(row["return"]) for row in rows] == [1.5, -2.0]
    assert [int(row["length"]) for row in rows] == [4, 4]


def test_where_no_table_can_be_written_is_said_before_anything_is_played(tmp_path: Path) -> None:
    check_csv(tmp_path / "new.csv")
    for bad in (tmp_path, tmp_path / "none" / "scores.csv"):
        with pytest.raises(UsageError, match="--csv"):
            check_csv(bad)


def test_where_a_window_can_open() -> None:
    assert has_display("win32", {})
    assert has_display("darwin", {})
    assert has_display("linux", {"DISPLAY": ":0"})
    assert has_display("linux", {"WAYLAND_DISPLAY": "wayland-0"})
    assert not has_display("linux", {})


@pytest.mark.parametrize(("failures", "passes"), [(2, True), (3, False)])
def test_an_environment_that_fails_now_and_then_is_tried_again(failures: int, passes: bool) -> None:
    left = iter(range(failures))

    class Shaky(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            if next(left, None) is not None:
                raise OSError("no contact")
            return super().step(action)

    if passes:
        assert try_environment(lambda: Shaky(make()), SPEC.id, pytest.fail) == SPEC
    else:
        with pytest.raises(EnvironmentFailed, match="step raised OSError: no contact"):
            try_environment(lambda: Shaky(make()), SPEC.id, pytest.fail)


class Leaving(gym.Wrapper[Any, Any, Any, Any]):
    """Its third step ends the process."""

    def __init__(self, env: gym.Env[Any, Any], steps: int) -> None:
        super().__init__(env)
        self._steps = steps

    def step(self, action: Any) -> Any:
        self._steps -= 1
        return super().step(action) if self._steps >= 0 else sys.exit(3)


def test_an_environment_that_ends_the_process_is_one_that_failed() -> None:
    place = r"step raised SystemExit: 3 \(test_evaluation.py line \d+\)$"
    with pytest.raises(EnvironmentFailed, match=place):
        try_environment(lambda: Leaving(make(), 0), SPEC.id, pytest.fail)
    with pytest.raises(EnvironmentFailed, match="cannot be made: SystemExit: 4"):
        try_environment(lambda: sys.exit(4), SPEC.id, pytest.fail)
    with pytest.raises(EnvironmentFailed, match=r"slot \d: step raised SystemExit: 3"):
        evaluate(lambda: Leaving(make(), 1), SPEC, Rightwards(), 4, 3)


def test_a_long_try_of_an_environment_is_told_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    heard = threading.Event()

    class Slow(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            assert heard.wait(30), "nothing was said during the step"
            return super().step(action)

    def tell(text: str) -> None:
        told.append(text)
        heard.set()

    monkeypatch.setattr(environments, "SLOW_S", 0.05)
    assert try_environment(lambda: Slow(make()), SPEC.id, tell) == SPEC
    assert told == [f"trying one step of {SPEC.id} …"]


def test_a_host_says_so_while_it_tries_a_slow_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = threading.Event()

    class Reporter(JsonHost):
        def log(self, level: str, source: str, text: str) -> None:
            super().log(level, source, text)
            told.set()

    def step(self: CartPoleEnv, action: Any) -> Any:
        assert told.wait(30), "nothing was said during the step"
        raise OSError("no contact")

    monkeypatch.setattr(environments, "SLOW_S", 0.05)
    monkeypatch.setattr(CartPoleEnv, "step", step)
    with pytest.raises(EnvironmentFailed, match="no contact"):
        run_host(HostOptions(Experiment(), "slow", players=0, results=tmp_path), Reporter())
    assert capsys.readouterr().err.endswith(" host: trying one step of CartPole-v1 …\n")
