"""p2prl_envs: the chain and the real-time wrapper, on a fake clock."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from p2prl_envs.chain import OBSERVATIONS, Chain, make_chain
from p2prl_envs.realtime import RealTime, make_realtime

from p2prl.testing import check_env


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.waits.append(round(seconds, 6))
        self.now += seconds


class Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """Remembers which actions the world saw."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.actions: list[Any] = []

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return self.env.step(action)


def world(**more: Any) -> tuple[RealTime, Recorder, FakeClock]:
    clock = FakeClock()
    inner = Recorder(make_chain(length=9, step_reward=0.25, max_steps=6))
    env = RealTime(inner, 0.1, clock=clock, wait=clock.wait, **more)
    env.reset(seed=1)
    return env, inner, clock


def test_early_waits_for_the_next_tick() -> None:
    env, inner, clock = world()
    clock.now += 0.03
    _, reward, *_, info = env.step(1)
    assert clock.waits == [0.07]
    assert (reward, inner.actions, info["missed_ticks"]) == (0.25, [1], 0)


def test_late_plays_missed_ticks_with_the_last_action_and_sums_rewards() -> None:
    env, inner, clock = world()
    env.step(1)
    clock.now += 0.38  # the ticks at 0.2, 0.3 and 0.4 are gone; the next is at 0.5
    obs, reward, *_, info = env.step(0)
    assert inner.actions == [1, 1, 1, 1, 0]
    assert reward == 1.0
    assert info["missed_ticks"] == 3
    assert clock.now == pytest.approx(1000.5)
    assert obs == 3


def test_a_little_late_still_counts_for_the_tick() -> None:
    """Slots of one process are stepped one after the other."""
    env, inner, clock = world()
    env.step(1)
    clock.now += 0.13
    assert env.step(1)[4]["missed_ticks"] == 0
    assert clock.waits == [0.1]
    assert len(inner.actions) == 2


def test_slots_share_their_ticks() -> None:
    """Whenever its episode began, a slot waits for the same moments as its neighbours."""
    one, _, clock = world()
    other = RealTime(make_chain(length=9), 0.1, clock=clock, wait=clock.wait)
    clock.now += 0.04
    other.reset()
    one.step(1)
    other.step(1)
    assert clock.waits == [0.06]


def test_an_idle_action_may_be_named() -> None:
    env, inner, clock = world(idle_action=0)
    env.step(1)
    clock.now += 0.3
    env.step(1)
    assert inner.actions == [1, 0, 0, 1]


def test_an_episode_may_end_among_the_missed_ticks() -> None:
    env, inner, clock = world()
    env.step(0)
    clock.now += 5.0
    _, reward, terminated, truncated, info = env.step(1)
    assert (terminated, truncated) == (False, True)
    assert inner.actions == [0] * 6
    assert reward == 5 * 0.25
    assert info["missed_ticks"] == 5
    env.reset()
    before = len(clock.waits)
    assert env.step(1)[4]["missed_ticks"] == 0
    assert len(clock.waits) == before + 1


def test_a_long_sleep_stops_the_world() -> None:
    env, inner, clock = world(max_missed=2)
    env.step(0)
    clock.now += 3600
    info = env.step(1)[4]
    assert info["missed_ticks"] == 2
    assert info["skipped_ticks"] == pytest.approx(36000, abs=5)
    assert inner.actions == [0, 0, 0, 1]
    clock.now += 0.01
    assert env.step(1)[4]["missed_ticks"] == 0


def test_realtime_needs_a_tick() -> None:
    with pytest.raises(ValueError, match="positive"):
        make_realtime(tick_s=0)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_chain_keeps_the_contract(observation: str) -> None:
    check_env(lambda: make_chain(observation=observation, random_start=True))


def test_realtime_keeps_the_contract() -> None:
    def make() -> gym.Env[Any, Any]:
        clock = FakeClock()
        return RealTime(gym.make("CartPole-v1"), 0.01, clock=clock, wait=clock.wait)

    check_env(make)


def test_realtime_runs_on_the_real_clock() -> None:
    env = make_realtime(tick_s=0.001)
    env.reset(seed=1)
    assert env.unwrapped.spec is not None
    assert all(env.step(i % 2)[4]["missed_ticks"] >= 0 for i in range(5))
    env.close()


def test_chain_returns_are_known() -> None:
    env = Chain(length=6, step_reward=-0.1)
    env.reset(seed=1)
    steps = [env.step(1) for _ in range(5)]
    assert sum(step[1] for step in steps) == pytest.approx(1 - 4 * 0.1)
    assert [step[2] for step in steps] == [False] * 4 + [True]


def test_chain_refuses_what_it_cannot_be() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        make_chain(length=1)
    with pytest.raises(ValueError, match="discrete, box"):
        make_chain(observation="smell")
