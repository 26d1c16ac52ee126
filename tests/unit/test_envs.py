"""p2prl_envs: what each environment promises; all of them, and each preset's, keep the contract of `check_env`."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import minigrid.wrappers
import numpy as np
import pytest
from mobile_env.core.channels import OkumuraHata
from p2prl_envs import mobile
from p2prl_envs.chain import OBSERVATIONS, Chain, make_chain
from p2prl_envs.masked import Masked, make_cartpole_masked
from p2prl_envs.minigrid import make_minigrid
from p2prl_envs.mobile import make_mobile
from p2prl_envs.mobile_baselines import POLICIES, closest_cell, returns_of
from p2prl_envs.realtime import RealTime, make_realtime

from p2prl.learn.spaces import env_spec
from p2prl.registry import make_env_factory
from p2prl.settings import parse_experiment, preset_names, preset_text
from p2prl.testing import check_env

#: On the wall clock, so that two runs of it never agree; it has tests of its own.
_TIMED = "realtime"


def _environments() -> dict[str, tuple[str, dict[str, Any]]]:
    """All that p2prl announces, and all that its presets play, by a name for the test."""
    points = metadata.entry_points(group="p2prl.envs")
    found = {
        name: (name, {}) for name in {point.name for point in points if point.module.startswith("p2prl_envs")}
    }
    for preset in preset_names():
        env = parse_experiment(preset_text(preset), preset).env
        found[f"preset {preset}"] = (env.id, dict(env.args))
    return {name: (env_id, args) for name, (env_id, args) in sorted(found.items()) if env_id != _TIMED}


@pytest.mark.parametrize(("env_id", "args"), _environments().values(), ids=_environments())
def test_every_environment_of_ours_keeps_the_contract(env_id: str, args: dict[str, Any]) -> None:
    # mobile's episodes have 100 steps, slow ones.
    check_env(make_env_factory(env_id, args), steps=120 if env_id == "mobile" else 300)


def test_what_is_announced_is_what_is_tested() -> None:
    assert {"cartpole-masked", "chain", "minigrid", "mobile"} <= set(_environments())
    assert {"preset mobile-large", "preset minigrid-memory", "preset lunarlander"} <= set(_environments())


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


def small_motions() -> tuple[np.ndarray, np.ndarray, float]:
    """CartPole upright: accelerations of (x, angle) by positions [2, 2] and by force [2]; seconds a step."""
    pole: Any = gym.make("CartPole-v1").unwrapped
    lever = pole.length * (4 / 3 - pole.masspole / pole.total_mass)
    coupled = pole.polemass_length / pole.total_mass
    falls, pushed = pole.gravity / lever, -1 / (pole.total_mass * lever)
    by_position = np.array([[0, -coupled * falls], [0, falls]])
    return by_position, np.array([1 / pole.total_mass - coupled * pushed, pushed]), pole.tau


def test_the_pole_steps_as_its_small_motions_say() -> None:
    by_position, by_force, tau = small_motions()
    env: Any = gym.make("CartPole-v1")
    env.reset(seed=1)
    start = np.array([0.02, 0.01, 0.005, -0.01])  # x, its speed, angle, its speed
    for action, force in ((0, -10.0), (1, 10.0)):
        env.unwrapped.state = start.copy()
        after = env.step(action)[0]
        at, speed = start[::2], start[1::2]
        wanted = np.stack([at + tau * speed, speed + tau * (by_position @ at + by_force * force)], axis=1)
        np.testing.assert_allclose(after, wanted.ravel(), atol=1e-5)


def test_no_force_by_positions_alone_calms_the_pole_and_one_by_speeds_too_does() -> None:
    """Why the masked pole takes memory, for motions that are small and forces that may be of any strength.

    Positions q go to q + tau v and speeds v to v + tau K q, if the force follows q. By each eigenvalue k of K the step
    then has the eigenvalues 1 + z and 1 - z, where z = tau sqrt(k). |1 + z|^2 + |1 - z|^2 = 2 + 2 |z|^2, so one of them
    is larger than 1 whatever the force, and what moves at all moves ever further.
    """
    by_position, by_force, tau = small_motions()

    def growth(of_position: np.ndarray, of_speed: np.ndarray) -> float:
        near = by_position + np.outer(by_force, of_position)
        step = np.block(
            [[np.eye(2), tau * np.eye(2)], [tau * near, np.eye(2) + tau * np.outer(by_force, of_speed)]]
        )
        return float(np.abs(np.linalg.eigvals(step)).max())

    rng = np.random.default_rng(1)
    tried = rng.normal(size=(5000, 4)) * np.array([10, 100, 10, 30])
    without = [growth(force[:2], np.zeros(2)) for force in tried]
    assert min(without) > 1
    assert min(growth(force[:2], force[2:]) for force in tried) < 0.99


def test_the_masked_pole_is_cartpole_without_velocities() -> None:
    masked, full = make_cartpole_masked(), gym.make("CartPole-v1")
    seen, whole = masked.reset(seed=3)[0], full.reset(seed=3)[0]
    for action in (0, 1, 1, 0):
        assert seen.tolist() == [whole[0], whole[2]]
        (seen, *_), (whole, *_) = masked.step(action), full.step(action)
    assert masked.observation_space.shape == (2,)
    assert env_spec(masked, "masked").reward_range == (1.0, 1.0)
    assert env_spec(make_cartpole_masked(sutton_barto_reward=True), "masked").reward_range == (-1.0, 0.0)


def test_only_a_flat_box_can_be_masked() -> None:
    with pytest.raises(ValueError, match="only a flat Box"):
        Masked(make_chain(), (0,))


def test_minigrid_is_seen_as_planes_of_0_and_1() -> None:
    world = "MiniGrid-DoorKey-5x5-v0"
    ours = make_minigrid(world)
    theirs = minigrid.wrappers.OneHotPartialObsWrapper(gym.make(world))
    seen, expected = ours.reset(seed=2)[0], theirs.reset(seed=2)[0]
    for action in (2, 1, 2, 3, 0, 2):
        assert np.array_equal(seen["image"], expected["image"])
        assert seen["image"].dtype == np.uint8
        assert seen["direction"] == expected["direction"]
        (seen, *_), (expected, *_) = ours.step(action), theirs.step(action)
    assert set(seen) == {"direction", "image"}
    spec = env_spec(ours, "minigrid")
    assert spec.max_episode_steps == 250
    assert spec.reward_range == (0.0, 1.0)
    assert env_spec(make_minigrid("MiniGrid-Dynamic-Obstacles-5x5-v0"), "minigrid").reward_range == (
        -1.0,
        1.0,
    )


def test_minigrid_may_have_fewer_actions() -> None:
    assert make_minigrid(actions=3).action_space == gym.spaces.Discrete(3)
    assert make_minigrid().action_space == gym.spaces.Discrete(7)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"env": "CartPole-v1"}, "CartPoleEnv is no MiniGrid"),
        ({"actions": 8}, "actions must be 1 to 7"),
        ({"agent_view_size": 4}, "must be odd"),
    ],
)
def test_minigrid_refuses_what_it_cannot_be(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_minigrid(**args)


def _told_at_once(view: int) -> int:
    """In how many places of MemoryS7 one look tells on which side the match is."""
    env = make_minigrid(agent_view_size=view)
    world: Any = env.unwrapped
    grids: dict[tuple[str, str], Any] = {}
    for seed in range(40):
        env.reset(seed=seed)
        grids[world.grid.get(1, 2).type, world.grid.get(5, 1).type] = world.grid
    assert len(grids) == 4
    empty = [(x, y) for x in range(7) for y in range(7) if world.grid.get(x, y) is None]
    return sum(_tells(world, grids, place, facing) for place in empty for facing in range(4))


def _tells(world: Any, grids: dict[tuple[str, str], Any], place: tuple[int, int], facing: int) -> bool:
    seen: dict[bytes, set[bool]] = {}
    for (hint, above), grid in grids.items():
        world.grid, world.agent_pos, world.agent_dir = grid, np.array(place), facing
        seen.setdefault(world.gen_obs()["image"].tobytes(), set()).add(hint == above)
    return all(len(answers) == 1 for answers in seen.values())


def test_minigrid_memory_needs_memory_where_the_agent_is_short_sighted() -> None:
    """The preset's view of 3 tiles never shows the first object and the two to choose from at once; 7 tiles do."""
    args = parse_experiment(preset_text("minigrid-memory"), "minigrid-memory").env.args
    assert _told_at_once(int(args["agent_view_size"])) == 0
    assert _told_at_once(7) > 0


def _episode(env: gym.Env[Any, Any], seed: int | None) -> list[bytes]:
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=seed)
    seen, over = [obs.tobytes()], False
    space: Any = env.action_space
    while not over:
        obs, reward, terminated, truncated, _ = env.step(rng.integers(space.nvec))
        seen.append(obs.tobytes() + np.float64(reward).tobytes())
        over = terminated or truncated
    return seen


def test_mobiles_seed_gives_its_episodes() -> None:
    """mobile-env itself ignores `reset(seed=)`, and begins every time with the seed of its config."""
    env, other = make_mobile("small"), make_mobile("small")
    first, second, third = _episode(env, 5), _episode(env, None), _episode(env, 6)
    assert len({first[0], second[0], third[0]}) == 3
    assert [_episode(other, 5), _episode(other, None)] == [first, second]
    assert len(first) == 101


@pytest.mark.parametrize("size", mobile.SIZES)
def test_mobiles_channel_is_the_packages_own(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = _episode(make_mobile(size), 4)
    monkeypatch.setattr(mobile, "RememberedChannel", OkumuraHata)
    assert _episode(make_mobile(size), 4) == ours


def test_mobile_has_no_such_size() -> None:
    with pytest.raises(ValueError, match="small, medium, large"):
        make_mobile("tiny")


def test_the_closest_cell_is_joined_and_the_others_are_left() -> None:
    """Three stations: out of reach or not, joined to none, to the best, to another, to two."""
    seen = np.array(
        [
            [0, 0, 0, 0.1, 1, 0.2, -1],
            [0, 1, 0, 0.1, 1, 0.2, 0],
            [1, 0, 0, 0.1, 1, 0.2, 0],
            [1, 1, 0, 0.1, 1, 0.2, 0],
        ],
        np.float32,
    )
    action = closest_cell(seen, 4, 3, np.random.default_rng(0))
    assert action.tolist() == [2, 0, 2, 1]


def test_the_baselines_play_and_repeat_themselves() -> None:
    returns = {name: returns_of(policy, "small", range(1, 6)) for name, policy in POLICIES.items()}
    assert np.mean(returns["closest"]) > np.mean(returns["random"]) + 15
    assert returns_of(POLICIES["random"], "small", [2, 1]) == returns["random"][1::-1]


def test_an_evaluation_is_compared_episode_by_episode(tmp_path: Path) -> None:
    """A policy that earns 3 more in each episode earns 3 more for sure, however hard each one is."""
    closest = returns_of(closest_cell, "small", [7, 8, 9])
    rows = [f"{episode},{seed},{closest[episode] + 3},100" for episode, seed in enumerate([7, 8, 9])]
    found = tmp_path / "eval.csv"
    found.write_text("episode,seed,return,length\n" + "\n".join(rows) + "\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "p2prl_envs.mobile_baselines", str(found), "small"]
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    first, random, second = told.splitlines()
    assert first.split()[:2] == ["policy", f"{np.mean(closest) + 3:.1f}"]
    assert random.startswith("random ")
    assert second.endswith("the policy earns 3.0 (3.0 to 3.0) more")
    found.write_text("nothing\n1\n")
    wrong = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    assert "is not what p2prl eval --csv writes" in wrong.stderr
