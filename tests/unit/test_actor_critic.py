"""vtrace and ppo: the learner sees a session as the player played it, and moves the way its paper says."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from p2prl_agents.policies import PolicyLearner, surrogate
from p2prl_agents.ppo import PPO, PPOLearner
from p2prl_agents.vtrace import VTrace, VTraceLearner
from p2prl_envs.chain import make_chain

from p2prl.core.schema import RESET, TERMINATED
from p2prl.errors import UsageError
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import env_spec, session_schema
from p2prl.registry import make_agent
from p2prl.wire.weights import decode_weights, encode_weights


def make() -> gym.Env:
    """Episodes of at most five ticks, so that sessions hold several."""
    return make_chain(length=4, observation="box", max_steps=5, step_reward=-0.1)


SPEC = env_spec(make(), "chain")
CORES = ("none", "gru", "lstm")


def played(
    agent: Any,
    learner: PolicyLearner,
    bundles: int = 3,
    env: Any = make,
    spec: Any = SPEC,
    rounded: bool = False,
) -> dict[str, np.ndarray]:
    """A batch of sessions `[N, T]` as the trainer gets them, after a bundle whose state the others inherit."""
    actor = agent.actor()
    weights = learner.weights()
    actor.load(decode_weights(encode_weights(weights, halves=True)) if rounded else weights)
    schema = session_schema(spec, agent.fields(), agent.replay().ticks)
    rollout = Rollout(env, spec, schema, actor, slots=4, ladder=1, rank=0, seed=3)
    try:
        rollout.collect()
        columns = [rollout.collect().columns for _ in range(bundles)]
    finally:
        rollout.close()
    batch = {name: np.concatenate([c[name].swapaxes(0, 1) for c in columns]) for name in columns[0]}
    return {**batch, "version": np.zeros(len(batch["flags"]), np.int64)}


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("kind", [VTrace, PPO])
def test_unchanged_weights_give_the_probabilities_that_were_played(kind: Any, core: str) -> None:
    """Through resets inside sessions and states carried from one session into the next."""
    agent = make_agent(kind, SPEC, {"core": core, "hidden": [16], "core_units": 8, "ticks": 12})
    learner = agent.learner("cpu", 5)
    batch = played(agent, learner)
    assert (batch["flags"][:, 1:-1] & RESET).any()
    sessions = learner.sessions(batch)
    outputs, values = learner.outputs(sessions)
    log_prob, entropy = learner.judge(outputs[:, :-1], sessions)
    np.testing.assert_allclose(log_prob.detach().numpy(), batch["log_prob"], atol=1e-5)
    assert values.shape == (len(batch["flags"]), 13)
    assert (entropy > 0).all()


def test_a_memory_that_was_not_carried_over_would_be_noticed() -> None:
    """The test above can fail: without the stored state the probabilities are others."""
    agent = make_agent(VTrace, SPEC, {"core": "gru", "ticks": 3})
    learner = agent.learner("cpu", 5)
    with torch.no_grad():
        learner.trainable.flat.mul_(3)
    batch = played(agent, learner)
    batch["policy/hidden"] = np.zeros_like(batch["policy/hidden"])
    sessions = learner.sessions(batch)
    log_prob, _ = learner.judge(learner.outputs(sessions)[0][:, :-1], sessions)
    assert np.abs(log_prob.detach().numpy() - batch["log_prob"]).max() > 1e-4


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("kind", [VTrace, PPO])
def test_a_policy_that_was_rounded_for_the_wire_is_within_the_tolerance(kind: Any, core: str) -> None:
    """The probabilities that it says it had; and the learner's own of the same actions."""
    agent = make_agent(kind, SPEC, {"core": core, "hidden": [64, 64], "core_units": 8, "ticks": 12})
    learner = agent.learner("cpu", 5)
    with torch.no_grad():
        learner.trainable.tensors["policy/logits/weight"].mul_(100)  # far from even chances, as a trained one
    batch = played(agent, learner, rounded=True)
    sessions = learner.sessions(batch)
    log_prob, _ = learner.judge(learner.outputs(sessions)[0][:, :-1], sessions)
    far = np.abs(log_prob.detach().numpy() - batch["log_prob"]) / (1 + np.abs(batch["log_prob"]))
    assert 1e-5 < far.max() < kind.weights_tolerance


def test_actors_get_the_policy_without_the_critic() -> None:
    for settings in ({}, {"shared": True}, {"core": "gru"}):
        learner = make_agent(VTrace, SPEC, settings).learner("cpu", 1)
        names = set(learner.weights())
        assert "policy/logits/weight" in names
        assert not [name for name in names if "value" in name or name.startswith("critic")]


def test_normalisation_travels_with_the_weights() -> None:
    """The player divides as the learner did when it published."""
    agent = make_agent(VTrace, SPEC, {"normalise": True, "ticks": 12})
    learner = agent.learner("cpu", 5)
    learner.update(played(agent, learner))
    scale = learner.weights()
    assert scale["norm/mean"].any()
    batch = played(agent, learner)
    before = {name: values.copy() for name, values in learner.save().items()}
    learner.sessions(batch)  # takes the batch into the statistics
    assert learner.save()["norm_count"] > before["norm_count"]
    learner.load(before)
    actor = agent.actor()
    actor.load(learner.weights())
    obs = batch["obs"][:, 0]
    _, _, fields = actor.act(obs, actor.start(len(obs)), None)
    x = (obs - scale["norm/mean"]) * scale["norm/scale"]
    logits = learner.nets.policy.unroll(
        learner._ops,
        learner.trainable.tensors,
        {"features": torch.from_numpy(np.clip(x, -10, 10)[:, None].astype(np.float32))},
        {},
        torch.ones(len(obs), 1),
    )["logits"][:, 0]
    best = torch.log_softmax(logits, -1).amax(-1).detach().numpy()
    np.testing.assert_allclose(fields["log_prob"], best, atol=1e-5)


def one_tick(reward: float, flags: int = TERMINATED) -> dict[str, np.ndarray]:
    """Eight sessions of one tick each: action 1 in the same place, for the same reward."""
    count = 8
    return {
        "obs": np.tile(np.array([[1.0, 0.0], [2.0, 1.0]], np.float32), (count, 1, 1)),
        "action": np.ones((count, 1), np.uint8),
        "reward": np.full((count, 1), reward, np.float32),
        "flags": np.full((count, 1), flags, np.uint8),
        "log_prob": np.full((count, 1), np.log(0.5), np.float32),
        "version": np.zeros(count, np.int64),
    }


def chance_of_one(agent: Any, learner: PolicyLearner) -> float:
    actor = agent.actor()
    actor.load(learner.weights())
    sessions = learner.sessions(one_tick(0))
    log_prob, _ = learner.judge(learner.outputs(sessions)[0][:, :-1], sessions)
    return float(log_prob[0, 0].detach().exp())


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_vtrace_makes_what_paid_likelier(reward: float) -> None:
    agent = make_agent(VTrace, SPEC, {"ticks": 1, "entropy": 0.0, "reward_scale": 1.0})
    learner = agent.learner("cpu", 1)
    before = chance_of_one(agent, learner)
    learner.update(one_tick(reward))
    assert (chance_of_one(agent, learner) - before) * reward > 1e-4


def test_vtrace_first_update_by_hand() -> None:
    """Losses of the first update: value and policy of an agent whose heads are nearly zero are known."""
    agent = make_agent(VTrace, SPEC, {"ticks": 1, "entropy": 0.0, "reward_scale": 1.0})
    learner = agent.learner("cpu", 1)
    sessions = learner.sessions(one_tick(1.0))
    outputs, values = learner.outputs(sessions)
    value, log_prob = (
        float(values[0, 0].detach()),
        float(learner.judge(outputs[:, :-1], sessions)[0][0, 0].detach()),
    )
    metrics = learner.update(one_tick(1.0)).metrics
    rho = min(1.0, np.exp(log_prob) / 0.5)
    # Terminated: v_s - V = rho (1 - V), and so is the advantage.
    assert metrics["policy_loss"] == pytest.approx(-log_prob * rho * (1 - value), rel=1e-4)
    assert metrics["value_loss"] == pytest.approx(0.5 * (rho * (1 - value)) ** 2, rel=1e-4)
    assert metrics["entropy"] == pytest.approx(np.log(2), abs=1e-3)


def two_ticks(log_prob: tuple[float, float]) -> dict[str, np.ndarray]:
    """One episode of two ticks that ends, with the rewards 1 and 3, played with these log-probabilities."""
    return {
        "obs": np.array([[[1.0, 0.0], [2.0, 1.0], [3.0, 1.0]]], np.float32),
        "action": np.ones((1, 2), np.uint8),
        "reward": np.array([[1.0, 3.0]], np.float32),
        "flags": np.array([[0, TERMINATED]], np.uint8),
        "log_prob": np.array([log_prob], np.float32),
        "version": np.zeros(1, np.int64),
    }


def seen_by(learner: PolicyLearner, batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Values `[3]` and log-probabilities `[2]` as the learner has them."""
    sessions = learner.sessions(batch)
    outputs, values = learner.outputs(sessions)
    log_prob = learner.judge(outputs[:, :-1], sessions)[0]
    return values[0].detach().numpy(), log_prob[0].detach().numpy()


def test_vtrace_of_two_ticks_by_hand() -> None:
    """Each of lambda, rho-bar, c-bar and the rewards' scale is where the paper has it; the ratios are about 2 and 4."""
    settings = {"ticks": 2, "entropy": 0.5, "reward_scale": 0.5, "gamma": 0.9, "decay": 0.7, "clip_rho": 1.5}
    agent = make_agent(VTrace, SPEC, {**settings, "clip_c": 0.8})
    learner = agent.learner("cpu", 1)
    batch = two_ticks((np.log(0.25), np.log(0.125)))
    values, log_prob = seen_by(learner, batch)
    metrics = learner.update(batch).metrics
    second = 1.5 * (0.5 * 3 - values[1])  # terminated: nothing comes after
    first = 1.5 * (0.5 * 1 + 0.9 * values[1] - values[0]) + 0.9 * 0.7 * 0.8 * second
    ahead = 1.5 * (0.5 * 1 + 0.9 * (values[1] + second) - values[0])
    assert metrics["value_loss"] == pytest.approx(0.5 * (first**2 + second**2) / 2, rel=1e-4)
    assert metrics["policy_loss"] == pytest.approx(
        -(log_prob[0] * ahead + log_prob[1] * second) / 2, rel=1e-4
    )
    assert metrics["ratio_clipped"] == 1.0


@pytest.mark.parametrize(("ahead", "fallen"), [(0.0, 1.0), (1.0, 1.0), (1.0, 0.5)])
def test_ppo_of_two_ticks_by_hand(ahead: float, fallen: float) -> None:
    """Advantages by GAE with gamma and lambda, critic fitted to the returns, ratios to what was played, clipped."""
    settings = {
        "ticks": 2,
        "reward_scale": 0.5,
        "gamma": 0.9,
        "decay": 0.7 * ahead,
        "epochs": 1,
        "minibatch": 2,
    }
    falling = {"clip": 0.3 / fallen, "learning_rate_end": fallen, "learning_rate_updates": 1}  # 0.3 by now
    agent = make_agent(PPO, SPEC, {**settings, **falling})
    learner = agent.learner("cpu", 1)
    batch = two_ticks((np.log(0.25), np.log(0.48)))
    values, log_prob = seen_by(learner, batch)
    metrics = learner.update(batch).metrics
    second = 0.5 * 3 - values[1]
    first = 0.5 * 1 + 0.9 * values[1] - values[0] + 0.9 * 0.7 * ahead * second
    assert metrics["value_loss"] == pytest.approx(0.5 * (first**2 + second**2) / 2, rel=1e-4)
    scaled = np.array([1.0, -1.0]) * np.sign(
        first - second
    )  # two numbers have mean 0 and deviation 1 like this
    ratio = np.exp(log_prob) / np.array([0.25, 0.48])  # about 2, clipped at 1.3, and within
    assert ratio[0] > 1.3 > ratio[1]
    gain = np.minimum(ratio * scaled, np.clip(ratio, 0.7, 1.3) * scaled)
    assert metrics["policy_loss"] == pytest.approx(-gain.mean(), rel=1e-3)
    assert metrics["clipped"] == 0.5


@pytest.mark.parametrize("kind", [VTrace, PPO])
def test_the_bonus_makes_policies_undecided(kind: Any) -> None:
    """Nothing else to learn: no reward, and a critic that says nothing matters little beside it."""
    entropies = []
    for bonus in (0.0, 10.0):
        settings = {"ticks": 2, "entropy": bonus, "learning_rate": 0.003, "learning_rate_end": 1.0}
        agent = make_agent(kind, SPEC, settings)
        learner = agent.learner("cpu", 1)
        learner.trainable.tensors["policy/logits/bias"].data[0] = 2.0  # decided for one
        batch = two_ticks((np.log(0.5), np.log(0.5)))
        metrics = [learner.update(batch).metrics["entropy"] for _ in range(10)]
        entropies.append(metrics[-1] - metrics[0])
    assert entropies[1] > 0.01
    assert entropies[1] > entropies[0]


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_a_clipped_second_pass_by_hand(reward: float) -> None:
    """It weighs the tick as the first did, by the policy before both, and adds the ratio to that policy, clipped."""
    settings = {"ticks": 1, "entropy": 0.0, "reward_scale": 1.0, "clip": 0.02, "learning_rate": 0.02}
    settings["value_weight"] = 1e-9  # or the critic's step would turn the advantage over
    chances, values, losses = [], [], []
    for passes in (1, 2):
        agent = make_agent(VTrace, SPEC, {**settings, "passes": passes})
        learner = agent.learner("cpu", 1)
        for step in (0, 1):
            if passes == 1:
                chances.append(chance_of_one(agent, learner))
                values.append(float(learner.outputs(learner.sessions(one_tick(0)))[1][0, 0].detach()))
            if step == 0:
                losses.append(learner.update(one_tick(reward)).metrics["policy_loss"])
    rho = min(1.0, chances[0] / 0.5)
    ratio, advantage = chances[1] / chances[0], rho * (reward - values[1])
    assert abs(ratio - 1) > 0.02  # so that the clip has something to bound
    second = -(1.02 if reward > 0 else 0.98) * advantage
    assert losses[0] == pytest.approx(-rho * (reward - values[0]), rel=1e-4)
    assert losses[1] == pytest.approx((losses[0] + second) / 2, rel=1e-4)


@pytest.mark.parametrize("core", CORES)
def test_two_passes_are_two_updates_on_one_batch(core: str) -> None:
    ends = []
    for passes, updates in ((2, 1), (1, 2)):
        settings = {"ticks": 12, "core": core, "passes": passes, "learning_rate_end": 1.0}
        agent = make_agent(VTrace, SPEC, settings)
        learner = agent.learner("cpu", 5)
        batch = played(agent, learner)
        for _ in range(updates):
            learner.update(batch)
        ends.append(learner.weights())
        assert learner.updates == updates
    for name, values in ends[0].items():
        np.testing.assert_allclose(values, ends[1][name], atol=1e-6)


def moved(learner: PolicyLearner, batch: dict[str, np.ndarray]) -> float:
    """How far from what it was an update brings the policy, as the mean of |log ratio| on the batch."""
    sessions = learner.sessions(batch)
    odds = []
    for update in (False, True):
        if update:
            assert learner.update(batch).skipped == ""
        outputs, _ = learner.outputs(sessions)
        odds.append(learner.judge(outputs[:, :-1], sessions)[0].detach().numpy())
    return float(np.abs(odds[1] - odds[0])[batch["flags"] != RESET].mean())


@pytest.mark.parametrize("core", CORES)
def test_the_clip_bounds_how_far_the_passes_of_one_update_lead(core: str) -> None:
    """At the first step the ratio is 1 and both are the policy gradient; what follows goes on without end, or not."""
    settings = {"ticks": 12, "core": core, "learning_rate": 0.02, "minibatch": 48}
    far = {}
    for passes in (1, 20):
        for clip in (0.0, 0.2):
            minibatch = 0 if passes == 1 else 48
            some = {**settings, "passes": passes, "clip": clip, "minibatch": minibatch}
            agent = make_agent(VTrace, SPEC, some)
            learner = agent.learner("cpu", 5)
            far[passes, clip] = moved(learner, played(agent, learner))
    assert far[1, 0.2] == pytest.approx(far[1, 0.0], rel=1e-3)
    assert far[20, 0.2] < 0.5 * far[20, 0.0]


@pytest.mark.parametrize("core", CORES)
def test_vtrace_takes_minibatches_of_whole_sessions(core: str) -> None:
    """12 sessions of 12 ticks: three minibatches of 48 a pass, whose steps are what a trainer shows the mean of."""
    agent = make_agent(VTrace, SPEC, {"ticks": 12, "core": core, "minibatch": 48, "passes": 2})
    learner = agent.learner("cpu", 5)
    batch = played(agent, learner)
    rows = [rows.numpy() for rows in learner.minibatches(batch["flags"] != RESET, 48, 2)]
    assert [len(some) for some in rows] == [4] * 6
    assert sorted(np.concatenate(rows[:3])) == sorted(np.concatenate(rows[3:])) == list(range(12))
    assert np.concatenate(rows[:3]).tolist() != np.concatenate(rows[3:]).tolist()
    before = learner.trainable.save()["parameters"].copy()
    learner.update(batch)
    assert learner.updates == 1
    assert not np.array_equal(before, learner.trainable.save()["parameters"])


def test_advantages_brought_to_one_scale_do_not_ask_how_large_rewards_are() -> None:
    """Without, ten times the rewards are another step; with, the policy's step is the same."""
    losses = []
    for scale in (1.0, 10.0):
        for together in (False, True):
            settings = {
                "ticks": 12,
                "reward_scale": scale,
                "scale_advantages": together,
                "decay": 0.0,
                "gamma": 0.0,
            }
            agent = make_agent(VTrace, SPEC, settings)
            learner = agent.learner("cpu", 5)
            batch = played(agent, learner)
            learner.trainable.tensors[
                "critic/value/weight"
            ].data.zero_()  # so that the advantage is the reward
            losses.append(learner.update(batch).metrics["policy_loss"])
    assert losses[2] == pytest.approx(10 * losses[0], rel=1e-3)
    assert losses[3] == pytest.approx(losses[1], abs=1e-5)


def test_the_clipped_objective_by_hand() -> None:
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    values = surrogate(torch, ratio, advantage, 0.2)
    torch.testing.assert_close(values, torch.tensor([1.2, -1.5, 0.5, -0.8, 2.2]))


def test_ppo_begins_each_update_at_the_policy_that_played() -> None:
    """One epoch, one minibatch: the ratio is 1 everywhere, nothing is clipped, and the loss is -mean advantage = 0."""
    agent = make_agent(PPO, SPEC, {"epochs": 1, "minibatch": 10_000, "ticks": 12})
    learner = agent.learner("cpu", 5)
    metrics = learner.update(played(agent, learner)).metrics
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["clipped"] == 0
    assert metrics["policy_loss"] == pytest.approx(0, abs=1e-5)
    assert metrics["steps"] == 1


def test_ppo_leaves_epochs_out_once_the_policy_has_moved() -> None:
    settings = {"epochs": 50, "minibatch": 10_000, "ticks": 12, "learning_rate": 0.05}
    far = make_agent(PPO, SPEC, settings)
    learner = far.learner("cpu", 5)
    assert learner.update(played(far, learner)).metrics["steps"] == 50
    near = make_agent(PPO, SPEC, {**settings, "target_kl": 0.01})
    learner = near.learner("cpu", 5)
    assert learner.update(played(near, learner)).metrics["steps"] < 50


class Team(gym.Env[Any, Any]):
    """Three parts, each right or wrong by itself, for five ticks."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.MultiDiscrete([2, 2, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._tick, self._wanted = 0, self.np_random.integers(2, size=3)
        return self._wanted.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float((action == self._wanted).mean())
        self._tick, self._wanted = self._tick + 1, self.np_random.integers(2, size=3)
        return self._wanted.astype(np.float32), reward, self._tick == 5, False, {}


@pytest.mark.parametrize("epochs", [1, 10])
@pytest.mark.parametrize(("env", "differs"), [(make, False), (Team, True)], ids=["chain", "team"])
def test_parts_with_ratios_of_their_own_begin_alike_and_then_go_their_own_way(
    env: Any, differs: bool, epochs: int
) -> None:
    """Where all ratios are 1 the gradient is the same; later it is not, unless there is but one part."""
    spec, ends = env_spec(env(), "some"), []
    for apart in (False, True):
        settings = {"epochs": epochs, "minibatch": 10_000, "ticks": 12, "learning_rate": 0.02, "apart": apart}
        agent = make_agent(PPO, spec, settings)
        learner = agent.learner("cpu", 5)
        metrics = learner.update(played(agent, learner, env=env, spec=spec)).metrics
        assert metrics["steps"] == epochs
        ends.append(np.concatenate([part.ravel() for part in learner.weights().values()]))
    assert np.allclose(*ends, atol=1e-4) is not (differs and epochs > 1)


@pytest.mark.parametrize("core", CORES)
def test_ppo_takes_each_tick_once_an_epoch(core: str) -> None:
    """With a core by whole sessions, without one by ticks; RESET ticks and the burn-in are no part of it."""
    agent = make_agent(PPO, SPEC, {"core": core, "epochs": 2, "minibatch": 24, "ticks": 12})
    learner = agent.learner("cpu", 5)
    assert isinstance(learner, PPOLearner)
    batch = played(agent, learner)
    data, _ = learner._data(batch, learner.sessions(batch))
    seen = np.zeros(data["mask"].shape[0], int)
    for rows in learner.minibatches(data["mask"].numpy(), 24, 2):
        assert len(rows) * data["mask"].shape[1] <= 28  # as even as rows allow
        np.add.at(seen, rows.numpy(), 1)
    useful = data["mask"].numpy().any(axis=1)
    assert (seen[useful] == 2).all()
    assert (seen[~useful] == 0).all()
    assert useful.all() == (core != "none")


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("kind", [VTrace, PPO])
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("spoilt", [np.inf, 3e38])
def test_an_update_that_is_not_finite_changes_nothing_and_says_so(
    kind: Any, core: str, spoilt: float
) -> None:
    small = {"minibatch": 12, **({"clip": 0.2} if kind is VTrace else {})}
    agent = make_agent(kind, SPEC, {"core": core, "ticks": 12, "normalise": True, **small})
    learner = agent.learner("cpu", 5)
    batch = played(agent, learner)
    learner.update(batch)
    before = {name: values.copy() for name, values in learner.save().items()}
    # One session alone: some steps are made by the time that it comes.
    reward = batch["reward"].copy()
    reward[0] = spoilt
    update = learner.update({**batch, "reward": reward})
    assert "norm is" in update.skipped
    assert update.publish is False
    after = learner.save()
    for name, values in before.items():
        assert np.array_equal(values, after[name]), name
    assert learner.update(batch).skipped == ""


@pytest.mark.parametrize("kind", [VTrace, PPO])
def test_burnt_in_ticks_are_not_learned_from(kind: Any) -> None:
    """Rewards there change nothing: V-trace and GAE look forward only."""
    agent = make_agent(kind, SPEC, {"core": "gru", "ticks": 12, "burn_in": 4})
    learners = [agent.learner("cpu", 5) for _ in range(2)]
    batch = played(agent, learners[0])
    assert isinstance(learners[0], (VTraceLearner, PPOLearner))
    other = {**batch, "reward": batch["reward"].copy()}
    other["reward"][:, :4] += 7
    for learner, data in zip(learners, (batch, other), strict=True):
        learner.update(data)
    assert np.array_equal(learners[0].save()["parameters"], learners[1].save()["parameters"])


@pytest.mark.parametrize("kind", [VTrace, PPO])
def test_a_session_must_be_longer_than_its_burn_in(kind: Any) -> None:
    with pytest.raises(UsageError, match="burn_in 12 leaves nothing of sessions of 12 ticks"):
        make_agent(kind, SPEC, {"core": "gru", "ticks": 12, "burn_in": 12})
    with pytest.raises(UsageError, match="burn_in needs a core"):
        make_agent(kind, SPEC, {"burn_in": 1})
