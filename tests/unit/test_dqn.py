"""DQN: targets on hand-computed numbers, parity of actor and learner, the ladder, saving."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from p2prl_agents.dqn import DQN, DQNLearner, DQNSettings, targets_parts
from p2prl_envs.chain import OBSERVATIONS, make_chain

from p2prl.core.schema import RESET, TERMINATED, TRUNCATED
from p2prl.core.spaces import DictSpace, EnvSpec, Leaf
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Explore
from p2prl.learn.spaces import env_spec
from p2prl.testing import check_agent

CARTPOLE = env_spec(gym.make("CartPole-v1"), "CartPole-v1")
SMALL = DQNSettings(hidden=(16, 8), batch=32)


def parts(reward: list[float], flags: list[int], gamma: float = 0.5) -> tuple[float, float, int]:
    partial, discount, row = targets_parts(np.array([reward], np.float32), np.array([flags], np.uint8), gamma)
    return float(partial[0]), float(discount[0]), int(row[0])


@pytest.mark.parametrize(
    ("reward", "flags", "expected"),
    [
        # to the window's end: 1 + 2/2 + 4/4, then gamma^3 of the last row
        ([1, 2, 4], [0, 0, 0], (3.0, 0.125, 3)),
        # terminated on the last tick: nothing follows
        ([1, 2, 4], [0, 0, TERMINATED], (3.0, 0.0, 3)),
        # truncated on the last tick: bootstraps from the final observation all the same
        ([1, 2, 4], [0, 0, TRUNCATED], (3.0, 0.125, 3)),
        # terminated inside: the RESET tick and the next episode count for nothing
        ([1, 2, 9], [0, TERMINATED, RESET], (2.0, 0.0, 2)),
        ([1, 0, 9], [TERMINATED, RESET, 0], (1.0, 0.0, 1)),
        # truncated inside: bootstraps from row 2, the final observation, with gamma^2
        ([1, 2, 9], [0, TRUNCATED, RESET], (2.0, 0.25, 2)),
        ([1, 0, 9], [TRUNCATED, RESET, 0], (1.0, 0.5, 1)),
        # episodes of one step: the second end is not ours
        ([1, 0, 9], [TRUNCATED, RESET, TERMINATED], (1.0, 0.5, 1)),
        # both at once: termination counts
        ([1, 2, 9], [0, TERMINATED | TRUNCATED, RESET], (2.0, 0.0, 2)),
        ([7], [0], (7.0, 0.5, 1)),
        ([7], [TERMINATED], (7.0, 0.0, 1)),
    ],
)
def test_targets_by_hand(reward: list[float], flags: list[int], expected: tuple[float, float, int]) -> None:
    assert parts(reward, flags) == expected


def batch_of(agent: DQN, seed: int, flags: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    n, w = agent.settings.batch, agent.settings.n_step
    return {
        "obs": rng.normal(size=(n, w + 1, 4)).astype(np.float32),
        "action": rng.integers(2, size=(n, w)).astype(np.uint8),
        "reward": rng.normal(size=(n, w)).astype(np.float32),
        "flags": np.full((n, w), flags, np.uint8),
    }


def trained(agent: DQN, updates: int = 30) -> DQNLearner:
    learner = agent.learner("cpu", 1)
    for seed in range(updates):
        learner.update(batch_of(agent, seed))
    return learner


def test_the_numpy_actor_and_the_torch_learner_agree() -> None:
    import torch

    agent = DQN(CARTPOLE, SMALL)
    learner = trained(agent)
    actor = agent.actor()
    actor.load(learner.weights())
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    with torch.no_grad():
        theirs = learner._forward(learner._layers, torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(actor.values(obs), theirs, rtol=1e-5, atol=1e-6)
    assert np.ptp(theirs) > 0


def test_one_update_moves_the_value_towards_the_target() -> None:
    """Terminal transitions of reward 1: the value of what was done goes to 1."""
    agent = DQN(CARTPOLE, DQNSettings(hidden=(32,), batch=64, n_step=1, learning_rate=0.01))
    learner = agent.learner("cpu", 1)
    batch = batch_of(agent, 0, TERMINATED)
    batch["reward"][:] = 1 / agent.settings.reward_scale
    for _ in range(200):
        learner.update(batch)
    actor = agent.actor()
    actor.load(learner.weights())
    values = actor.values(batch["obs"][:, 0])[np.arange(64), batch["action"][:, 0]]
    assert np.abs(values - 1).max() < 0.1


@pytest.mark.parametrize(("interval", "tau"), [(4, 1.0), (1, 0.25)])
def test_the_target_network_follows(interval: int, tau: float) -> None:
    agent = DQN(CARTPOLE, DQNSettings(hidden=(8,), batch=8, target_interval=interval, target_tau=tau))
    learner = agent.learner("cpu", 1)
    before = learner.save()["target"]
    for update in range(1, 9):
        learner.update(batch_of(agent, update))
        saved = learner.save()
        due = update % interval == 0
        expected = before + tau * (saved["parameters"] - before) if due else before
        np.testing.assert_allclose(saved["target"], expected, atol=1e-6)
        before = saved["target"]


def test_saving_and_loading_goes_on_bit_for_bit() -> None:
    agent = DQN(CARTPOLE, SMALL)
    straight = trained(agent, 20)
    resumed = agent.learner("cpu", 99)
    resumed.load({name: values.copy() for name, values in straight.save().items()})
    for seed in range(100, 130):
        for learner in (straight, resumed):
            learner.update(batch_of(agent, seed))
    for name, values in straight.save().items():
        assert np.array_equal(values, resumed.save()[name]), name


def test_the_ladder_anneals_from_all_random_to_its_rungs() -> None:
    agent = DQN(CARTPOLE, DQNSettings(hidden=(8,), batch=8, epsilon_updates=10))
    learner, actor = agent.learner("cpu", 1), agent.actor()
    level = np.array([0.0, 0.25, 0.5, 0.75])
    actor.load(learner.weights())
    assert actor.epsilon(level).tolist() == [1.0] * 4
    for seed in range(12):
        learner.update(batch_of(agent, seed))
    actor.load(learner.weights())
    epsilon = actor.epsilon(level)
    assert epsilon[0] <= 0.01
    assert epsilon[-1] == pytest.approx(agent.settings.epsilon_high)
    ratios = epsilon[1:] / epsilon[:-1]
    assert np.allclose(ratios, ratios[0])


def test_shares_of_random_actions_are_what_epsilon_says() -> None:
    agent = DQN(CARTPOLE, DQNSettings(hidden=(8,), epsilon_low=0.1, epsilon_high=0.8))
    actor = agent.actor()
    actor.load({**agent.learner("cpu", 1).weights(), "progress": np.array(1.0, np.float32)})
    slots = 4000
    obs = np.tile(np.array([[0.1, 0.2, -0.3, 0.4]], np.float32), (slots, 1))
    level = np.repeat([0.0, 0.75], slots // 2)
    greedy = actor.act(obs, {}, None)[0]
    played = actor.act(obs, {}, Explore(np.random.default_rng(1), level))[0]
    share = (played != greedy).reshape(2, -1).mean(axis=1)
    assert np.allclose(share, [0.05, 0.4], atol=0.03)


def test_actions_begin_where_the_space_does() -> None:
    env = EnvSpec("Odd-v0", CARTPOLE.observation, Leaf("discrete", "int8", (), (-3.0,), (1.0,)))
    agent = DQN(env, SMALL)
    actor = agent.actor()
    actor.load(agent.learner("cpu", 1).weights())
    explore = Explore(np.random.default_rng(1), np.zeros(500))
    actions = actor.act(np.zeros((500, 4), np.float32), {}, explore)[0]
    assert set(actions.tolist()) == {-3, -2, -1, 0, 1}
    assert actions.dtype == np.int8


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (Leaf("box", "float32", (2,), (-1.0,), (1.0,)), "box"),
        (Leaf("multi_discrete", "uint8", (2,), (0.0,), (1.0,)), "multi_discrete"),
        (DictSpace({"a": Leaf("discrete", "uint8", (), (0.0,), (1.0,))}), "DictSpace"),
    ],
)
def test_other_actions_are_refused_with_an_agent_that_can(action: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"Test-v0 has {said}$"):
        DQN(EnvSpec("Test-v0", CARTPOLE.observation, action), SMALL)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_contract_in_the_chain(observation: str) -> None:
    check_agent(DQN, env_spec(make_chain(observation=observation), "chain"), {"hidden": [8], "batch": 16})


def test_contract_in_cartpole_and_with_images() -> None:
    check_agent(DQN, CARTPOLE, {"hidden": [8], "batch": 16, "n_step": 1, "double": False})
    camera = EnvSpec("Camera-v0", Leaf("box", "uint8", (4, 4, 3), (0.0,), (255.0,)), CARTPOLE.action)
    check_agent(DQN, camera, {"hidden": [8], "batch": 16})


def test_a_player_imports_no_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from p2prl_agents.dqn import DQN, DQNSettings\n"
        "from p2prl_agents.cem import CEM\n"
        "from p2prl.core.spaces import EnvSpec, Leaf\n"
        "box = Leaf('box', 'float32', (2,), (0.0,), (1.0,))\n"
        "env = EnvSpec('x', box, Leaf('discrete', 'uint8', (), (0.0,), (1.0,)))\n"
        "actor = DQN(env, DQNSettings(hidden=())).actor()\n"
        "actor.load({'weight0': np.ones((2, 2), 'f4'), 'bias0': np.zeros(2, 'f4'), 'progress': np.array(1.0)})\n"
        "actor.act(np.ones((3, 2), 'f4'), {}, None)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    paths = [path for path in sys.path if path]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
