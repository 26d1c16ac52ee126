"""DQN: parity of actor and learner, priorities and bounds by hand, the ladder, saving; parts alone, and together."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from p2prl_agents.dqn import DQN, DQNSettings
from p2prl_agents.dqn_learner import DQNLearner
from p2prl_envs.chain import OBSERVATIONS, make_chain

from p2prl.core.schema import RESET, TERMINATED
from p2prl.core.spaces import DictSpace, EnvSpec, Leaf
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Explore
from p2prl.learn.spaces import env_spec
from p2prl.testing import check_agent
from p2prl.wire.weights import decode_weights, encode_weights

CARTPOLE = env_spec(gym.make("CartPole-v1"), "CartPole-v1")
SMALL = DQNSettings(hidden=(16, 8), batch=32)


#: Every part that can be turned on, alone and with others.
PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "single": {"double": False, "n_step": 1},
    "normalise": {"normalise": True},
    "dueling": {"dueling": True},
    "quantile": {"distribution": "quantile", "atoms": 5},
    "c51": {"distribution": "c51", "atoms": 7, "value_low": -2.0, "value_high": 2.0},
    "prioritised": {"priority_exponent": 0.6},
    "tightening": {"tightening": 0.5, "ticks": 6, "sessions": 5},
    "curiosity": {"curiosity": 0.3},
    "gru": {"core": "gru", "core_units": 6, "ticks": 6, "sessions": 5},
    "lstm": {"core": "lstm", "core_units": 6, "ticks": 6, "sessions": 5, "burn_in": 2},
}
TOGETHER = {
    "rainbow": ("dueling", "c51", "prioritised"),
    "quantiles of the rest": ("normalise", "dueling", "quantile", "prioritised", "curiosity", "tightening"),
    "r2d2": ("dueling", "prioritised", "lstm"),
    "everything": ("normalise", "dueling", "quantile", "prioritised", "curiosity", "tightening", "lstm"),
    "everything with shares": (
        "normalise",
        "dueling",
        "c51",
        "prioritised",
        "curiosity",
        "tightening",
        "gru",
    ),
}
for _name, _parts in TOGETHER.items():
    PARTS[_name] = dict(itertools.chain.from_iterable(PARTS[part].items() for part in _parts))


def dqn(part: str = "plain", **more: Any) -> DQN:
    base = {"hidden": (16, 8), "batch": 32, "n_step": 3, "normalise": False}
    return DQN(CARTPOLE, DQNSettings(**{**base, **PARTS[part], **more}))


def batch_of(agent: DQN, seed: int, flags: int = 0) -> dict[str, Array]:
    """A random sample, as the agent's replay would give it; the flags are those of each last tick."""
    rng = np.random.default_rng(seed)
    replay = agent.replay()
    n, w = replay.batch, replay.window or replay.ticks
    batch = {
        "obs": rng.normal(size=(n, w + 1, 4)).astype(np.float32),
        "action": rng.integers(2, size=(n, w)).astype(np.uint8),
        "reward": rng.normal(size=(n, w)).astype(np.float32),
        "flags": np.zeros((n, w), np.uint8),
        "version": np.zeros(n, np.int64),
    }
    batch["flags"][:, -1] = flags
    for name, field in agent.fields().items():
        batch[name] = rng.normal(size=(n, 1, *field.shape)).astype(field.dtype)
    if replay.kind == "prioritised":
        batch["probability"] = rng.uniform(0.1, 10, n).astype(np.float32)
    return batch


def trained(agent: DQN, updates: int = 30) -> DQNLearner:
    learner = agent.learner("cpu", 1)
    for seed in range(updates):
        assert not learner.update(batch_of(agent, seed)).skipped
    return learner


@pytest.mark.parametrize("part", PARTS)
def test_the_numpy_actor_and_the_torch_learner_agree(part: str) -> None:
    """Tick by tick with the players' weights, against one pass of the learner's own, with a reset on the way."""
    import torch

    agent = dqn(part)
    learner = trained(agent, 10)
    actor = agent.actor()
    actor.load(learner.weights())
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(8, 4, 4)).astype(np.float32)
    keep = np.ones((8, 4), np.float32)
    keep[3, 1] = 0
    state = {name: rng.normal(size=rows.shape).astype(np.float32) for name, rows in actor.start(8).items()}
    with torch.no_grad():
        given = {name: torch.from_numpy(rows.copy()) for name, rows in state.items()}
        weights, inputs = agent.folded(learner._trainable.tensors), learner._inputs({"obs": obs})
        outputs = learner._unrolled(weights, inputs, given, torch.from_numpy(keep))
        theirs = learner._head.values(learner._ops, outputs).numpy()
    for tick in range(4):
        values, state = actor.values(obs[:, tick], state)
        np.testing.assert_allclose(values, theirs[:, tick], rtol=1e-4, atol=1e-5)
        state = {name: rows * keep[:, tick, None] for name, rows in state.items()}
    assert np.ptp(theirs) > 0


@pytest.mark.parametrize("part", PARTS)
def test_values_from_weights_that_were_rounded_for_the_wire_are_within_the_tolerance(part: str) -> None:
    agent = dqn(part)
    weights = trained(agent, 10).weights()
    exact, rounded = agent.actor(), agent.actor()
    exact.load(weights)
    rounded.load(decode_weights(encode_weights(weights, halves=True)))
    rng = np.random.default_rng(0)
    states = [exact.start(500), rounded.start(500)]
    for _ in range(4):
        obs = rng.normal(size=(500, 4)).astype(np.float32)
        one, states[0] = exact.values(obs, states[0])
        other, states[1] = rounded.values(obs, states[1])
        assert 0 < np.abs(one - other).max() < DQN.weights_tolerance * np.ptp(one)
        assert (one.argmax(1) != other.argmax(1)).mean() <= DQN.weights_tolerance


@pytest.mark.parametrize("part", ["plain", "single", "dueling", "quantile", "c51", "prioritised", "rainbow"])
def test_updates_move_the_value_to_the_target(part: str) -> None:
    """Terminal transitions of reward 1: the value of what was done goes to 1."""
    agent = dqn(part, hidden=(32,), batch=64, n_step=1, learning_rate=0.01)
    learner = agent.learner("cpu", 1)
    batch = batch_of(agent, 0, TERMINATED)
    batch["reward"][:] = 1 / agent.settings.reward_scale
    for _ in range(200):
        learner.update(batch)
    actor = agent.actor()
    actor.load(learner.weights())
    values = actor.values(batch["obs"][:, 0], {})[0][np.arange(64), batch["action"][:, 0]]
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


@pytest.mark.parametrize("part", PARTS)
def test_saving_and_loading_goes_on_bit_for_bit(part: str) -> None:
    agent = dqn(part)
    straight = trained(agent, 12)
    resumed = agent.learner("cpu", 99)
    resumed.load({name: values.copy() for name, values in straight.save().items()})
    for seed in range(100, 112):
        one, other = (learner.update(batch_of(agent, seed)) for learner in (straight, resumed))
        assert (one.priorities is None) == ("priority_exponent" not in PARTS[part])
        assert one.priorities is None or np.array_equal(one.priorities, other.priorities)
    for name, values in straight.save().items():
        assert np.array_equal(values, resumed.save()[name]), name


@pytest.mark.parametrize("part", PARTS)
def test_an_update_that_is_not_finite_changes_nothing_and_says_why(part: str) -> None:
    agent = dqn(part)
    learner = trained(agent, 5)
    before = learner.save()
    bad = batch_of(agent, 6)
    bad["reward"][1, -1] = np.nan
    update = learner.update(bad)
    assert update.skipped == "the loss is nan"
    assert update.priorities is None
    for name, values in learner.save().items():
        if not name.startswith("curiosity/"):  # that is a network of its own, and what it saw was sound
            assert np.array_equal(values, before[name]), name
    assert not learner.update(batch_of(agent, 7)).skipped


@pytest.mark.parametrize("part", ["plain", "single", "normalise", "prioritised", "curiosity"])
@pytest.mark.parametrize("hidden", [(), (16, 8)])
def test_a_gradient_that_is_written_out_is_that_of_autograd(part: str, hidden: tuple[int, ...]) -> None:
    """Weights, moments and priorities, over some updates of which a few move the target network."""
    agent = dqn(part, hidden=hidden, target_interval=3)
    by_hand, by_autograd = (agent.learner("cpu", 1) for _ in range(2))
    assert by_hand._plain is not None
    by_autograd._plain = None
    for seed in range(8):
        batch = batch_of(agent, seed, flags=TERMINATED if seed % 2 else 0)
        batch["reward"] *= 30  # some errors are above 1
        ours, theirs = by_hand.update(batch), by_autograd.update(batch)
        if theirs.priorities is not None:
            np.testing.assert_allclose(ours.priorities, theirs.priorities, rtol=1e-3)
    theirs_saved = by_autograd.save()
    for name, values in by_hand.save().items():
        np.testing.assert_allclose(values, theirs_saved[name], rtol=2e-3, atol=2e-5, err_msg=name)
    last = batch_of(agent, 9)
    ticks, loss = by_hand._by_hand(last, last["reward"], *by_hand._plain)
    theirs_ticks = by_autograd._of_windows(last, last["reward"])
    theirs_loss = by_autograd._differentiated(theirs_ticks)
    metrics = by_autograd._metrics(theirs_loss, theirs_ticks)
    assert by_hand._metrics(loss, ticks) == pytest.approx(metrics, rel=1e-3)


@pytest.mark.parametrize("start", [-1, 3])
def test_a_gradient_that_is_written_out_counts_actions_from_where_the_space_does(start: int) -> None:
    action = Leaf("discrete", "int8", (), (float(start),), (start + 1.0,))
    agent = DQN(EnvSpec("Odd-v0", CARTPOLE.observation, action), dqn().settings)
    by_hand, by_autograd = (agent.learner("cpu", 1) for _ in range(2))
    assert by_hand._plain is not None
    by_autograd._plain = None
    batch = batch_of(agent, 1)
    batch["action"] = batch["action"].astype(np.int8) + np.int8(start)
    by_hand.update(batch)
    by_autograd.update(batch)
    theirs = by_autograd.save()
    for name, values in by_hand.save().items():
        np.testing.assert_allclose(values, theirs[name], rtol=2e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("part", ["dueling", "quantile", "c51", "tightening", "gru"])
def test_what_is_more_than_a_perceptron_is_left_to_autograd(part: str) -> None:
    assert dqn(part).learner("cpu", 1)._plain is None


def test_priorities_are_errors_to_the_exponent() -> None:
    """Of a network that says 0 everywhere and rewards 2 with nothing after: (2 * reward_scale + eps)^alpha."""
    agent = dqn("prioritised", n_step=1, reward_scale=1.0)
    learner = agent.learner("cpu", 1)
    state = dict(learner.save())
    state["parameters"], state["target"] = np.zeros_like(state["parameters"]), np.zeros_like(state["target"])
    learner.load(state)
    batch = batch_of(agent, 1, TERMINATED)
    batch["reward"][:] = 2.0
    batch["reward"][0] = -0.5
    priorities = learner.update(batch).priorities
    assert priorities is not None
    np.testing.assert_allclose(priorities[:2], [0.501**0.6, 2.001**0.6], rtol=1e-5)


def test_of_a_session_the_largest_and_the_mean_error_make_the_priority_and_burn_in_and_resets_count_not() -> (
    None
):
    agent = dqn("r2d2", n_step=1, reward_scale=1.0, priority_exponent=1.0)
    learner = agent.learner("cpu", 1)
    state = dict(learner.save())
    state["parameters"], state["target"] = np.zeros_like(state["parameters"]), np.zeros_like(state["target"])
    learner.load(state)
    batch = batch_of(agent, 1)
    batch["reward"][:] = [50, 60, 1, 3, 0, 2]
    batch["flags"][:] = [0, 0, 0, TERMINATED, RESET, 0]
    priorities = learner.update(batch).priorities
    assert priorities is not None
    np.testing.assert_allclose(priorities, np.full(5, 0.9 * 3 + 0.1 * (1 + 3 + 2) / 3 + 1e-3), rtol=1e-5)


def test_importance_weights_scale_what_is_learned_from_each_sample() -> None:
    """A sample drawn a thousand times too often moves the weights a thousandth as far as it would."""
    agent = dqn("prioritised", batch=2, n_step=1, priority_correction=1.0)
    plain = dqn("plain", batch=1, n_step=1)
    batch = batch_of(agent, 1)
    batch["probability"][:] = [1000.0, 1.0]
    learner, alone = agent.learner("cpu", 1), plain.learner("cpu", 1)
    learner.update(batch)
    alone.update({name: values[1:] for name, values in batch.items()})
    ours, theirs = learner.save()["adam_mean"], alone.save()["adam_mean"]
    np.testing.assert_allclose(ours, theirs / 2, atol=2e-3 * np.abs(theirs).max())


def test_the_correction_rises_to_all_of_it() -> None:
    agent = dqn("prioritised", priority_correction=0.5, priority_updates=10)
    learner = agent.learner("cpu", 1)
    batch = {**batch_of(agent, 1), "probability": np.linspace(1, 4, 32).astype(np.float32)}
    lightest = []
    for _ in range(12):
        learner.update(batch)
        weights = learner._weights(batch, None)
        lightest.append(float(weights.min() / weights.max()))
    assert lightest[4] == pytest.approx(0.25**0.75)
    assert lightest[9:] == [pytest.approx(0.25)] * 3


@pytest.mark.parametrize(("reward", "bound"), [(1.0, "lower"), (-1.0, "upper")])
def test_tightening_brings_values_inside_their_bounds(reward: float, bound: str) -> None:
    """One update from a network that says 0: a good end pulls early ticks up, a bad start pushes late ones down.

    Only the penalty can: one-step targets of the ticks that we look at are 0.
    """
    settings = {"n_step": 1, "reward_scale": 1.0, "hidden": (), "sessions": 1, "ticks": 4, "gamma": 0.9}
    at = 3 if bound == "lower" else 0
    moved = {}
    for part in ("tightening", "plain"):
        agent = dqn(part, **{**settings, "tightening": 1.0 if part == "tightening" else 1e-9})
        learner = agent.learner("cpu", 1)
        state = {name: np.zeros_like(values) for name, values in learner.save().items()}
        learner.load(state)
        batch = batch_of(agent, 1, TERMINATED)
        batch["obs"][:] = np.eye(5, 4)  # each tick's value is a weight of its own
        batch["action"][:] = 0
        batch["reward"][:] = 0
        batch["reward"][:, at] = reward if bound == "lower" else -reward
        learner.update(batch)
        moved[part] = learner.weights()["q/action/weight"][:, 0]
    # 1 and 2: two and three ticks ahead of the reward, or after it
    looked_at = slice(0, 2) if bound == "lower" else slice(2, 4)
    assert (np.sign(moved["tightening"][looked_at]) == np.sign(reward)).all()
    assert np.abs(moved["plain"][looked_at]).max() < 1e-5


def told_apart(agent: DQN) -> DQNLearner:
    """A learner whose own network and target network would choose different actions."""
    learner = trained(agent)
    learner._trainable.flat.data.mul_(-1.0)
    return learner


def values_of(learner: DQNLearner, weights: Any, obs: Array, state: dict[str, Array] | None = None) -> Array:
    """`[N, L, actions]` of observations `[N, L, 4]`, in numpy, tick by tick, as a player would have them."""
    agent = learner._agent
    actor = agent.actor()
    named = {name: values.detach().numpy() for name, values in agent.folded(weights).items()}
    actor.load({**learner.weights(), **named})
    state = dict(state or {})
    columns = []
    for tick in range(obs.shape[1]):
        values, state = actor.values(obs[:, tick], state)
        columns.append(values)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("part", ["plain", "written out", "gru"])
def test_one_network_chooses_and_the_other_values(part: str, double: bool) -> None:
    """Double DQN (van Hasselt et al. 2016, arXiv:1509.06461, equation 4), from the state that sessions began with."""
    agent = dqn("gru" if part == "gru" else "plain", n_step=1, double=double)
    learner = told_apart(agent)
    batch = batch_of(agent, 5)
    state = {name: batch[name][:, 0] for name in agent.fields()}
    own = values_of(learner, learner._trainable.tensors, batch["obs"], state)
    target = values_of(learner, learner._target, batch["obs"], state)
    if part == "written out":
        assert learner._plain is not None
        ticks, _ = learner._by_hand(batch, batch["reward"], *learner._plain)
    else:
        ticks = (learner._of_sessions if state else learner._of_windows)(batch, batch["reward"])
    choosing = own if double else target
    best = choosing.argmax(axis=2)
    assert (own.argmax(axis=2) != target.argmax(axis=2)).any()
    wanted = np.take_along_axis(target, best[..., None], axis=2)[:, 1:, 0]
    np.testing.assert_allclose(ticks.following.detach().numpy().ravel(), wanted.ravel(), rtol=1e-4, atol=1e-5)


def test_whole_sessions_weigh_as_they_were_sampled() -> None:
    """Each tick that counts by its session's importance weight, over all ticks that count."""
    agent = dqn("r2d2", n_step=1, burn_in=2, priority_correction=1.0)
    learner = agent.learner("cpu", 1)
    batch = batch_of(agent, 1)
    batch["probability"][:] = 1.0
    batch["probability"][0] = 4.0
    batch["flags"][1, 3] = RESET
    weights = learner._of_sessions(batch, batch["reward"]).weights.numpy().reshape(batch["flags"].shape)
    counted = batch["flags"].size - 2 * len(weights) - 1
    assert (weights[:, :2] == 0).all()
    assert weights[1, 3] == 0
    np.testing.assert_allclose(weights[0, 2:], 0.25 / counted, rtol=1e-5)
    np.testing.assert_allclose(weights[2:, 2:], 1.0 / counted, rtol=1e-5)


def test_bounds_come_from_the_best_value_and_the_value_of_what_was_done() -> None:
    """One session of three ticks, worked out by hand from the target network's own values."""
    agent = dqn("tightening", sessions=1, ticks=3, n_step=1, gamma=0.5)
    learner = told_apart(agent)
    batch = batch_of(agent, 3)
    batch["reward"][:] = [[1.0, 2.0, 4.0]]
    target = values_of(learner, learner._target, batch["obs"])[0]
    ticks = learner._of_sessions(batch, batch["reward"])
    lower, upper = (bound.numpy().ravel() for bound in ticks.bounds)
    done = target[np.arange(3), batch["action"][0]]
    last = 0.125 * target[3].max()
    assert lower[0] == pytest.approx(max(1 + 1 + 0.25 * target[2].max(), 1 + 1 + 1 + last), rel=1e-4)
    assert lower[1] == pytest.approx(2 + 2 + 2 * last, rel=1e-4)
    assert upper[2] == pytest.approx((done[0] - 1 - 1) / 0.25, rel=1e-4)
    assert lower[2] == -np.inf
    assert upper[0] == upper[1] == np.inf


def test_burn_in_ticks_and_resets_are_not_learned_from() -> None:
    agent = dqn("lstm", n_step=1)
    one, other = (agent.learner("cpu", 1) for _ in range(2))
    batch = batch_of(agent, 1)
    batch["flags"][:] = [0, 0, 0, TERMINATED, RESET, 0]
    changed = {name: values.copy() for name, values in batch.items()}
    changed["reward"][:, [0, 1, 4]] = 77.0
    changed["action"][:, [0, 1, 4]] = 1 - changed["action"][:, [0, 1, 4]]
    one.update(batch)
    other.update(changed)
    assert np.array_equal(one.save()["parameters"], other.save()["parameters"])
    changed["reward"][:, 2] = 77.0
    other.update(changed)
    one.update(batch)
    assert not np.array_equal(one.save()["parameters"], other.save()["parameters"])


def test_curiosity_is_part_of_the_target() -> None:
    """Rewards of 0, nothing after: plain DQN learns 0, with curiosity the value is what was new."""
    agent = dqn("curiosity", n_step=1, curiosity=1.0, learning_rate=0.01, curiosity_learning_rate=1e-9)
    learner = agent.learner("cpu", 1)
    batch = batch_of(agent, 1, TERMINATED)
    batch["reward"][:] = 0
    for _ in range(300):
        learner.update(batch)
    actor = agent.actor()
    actor.load(learner.weights())
    values = actor.values(batch["obs"][:, 0], {})[0][np.arange(32), batch["action"][:, 0]]
    assert learner._curiosity is not None
    new, _ = learner._curiosity.rewards(batch)
    assert new.min() > 0
    assert np.abs(values - new[:, 0]).max() < 0.25 * new.max()


def test_observations_are_scaled_by_what_real_ticks_began_with() -> None:
    """Mean and deviation of each feature, RESET ticks and the last observation left out; one batch in ten is enough."""
    agent = dqn("tightening", normalise=True)
    learner = agent.learner("cpu", 1)
    batch = batch_of(agent, 1)
    batch["obs"] = batch["obs"] * np.float32(10) + np.arange(4, dtype=np.float32)
    batch["flags"][:] = [0, 0, 0, TERMINATED, RESET, 0]
    first = {name: values.copy() for name, values in batch.items()}
    batch["obs"][:, [4, 6]] = 1e6
    learner.update(batch)
    for _ in range(8):
        learner.update(batch_of(agent, 2))
    weights = learner.weights()
    seen = first["obs"][:, [0, 1, 2, 3, 5]].reshape(-1, 4)
    np.testing.assert_allclose(weights["norm/mean"], seen.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(weights["norm/scale"], 1 / seen.std(axis=0), rtol=1e-4)
    learner.update(batch_of(agent, 2))
    assert not np.allclose(learner.weights()["norm/mean"], weights["norm/mean"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"burn_in": 3}, "set agent.core too"),
        ({"burn_in": 8, "core": "gru", "ticks": 8}, r"burn_in \(8\) must be below agent.ticks \(8\)"),
        ({"value_low": 2.0, "value_high": 2.0, "distribution": "c51"}, "value_low"),
        ({"tightening": 1.0, "gamma": 0.0}, "needs agent.gamma above 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        DQN(CARTPOLE, DQNSettings(**settings))


def test_the_ladder_anneals_from_all_random_to_its_rungs() -> None:
    """Two rungs; what is between them (no slot is) is geometric."""
    agent = dqn(epsilon_updates=10)
    learner, actor = agent.learner("cpu", 1), agent.actor()
    level = np.array([0.0, 0.25, 0.5])
    actor.load(learner.weights())
    assert actor.epsilon(level).tolist() == [1.0] * 3
    for seed in range(12):
        learner.update(batch_of(agent, seed))
    actor.load(learner.weights())
    epsilon = actor.epsilon(level)
    assert epsilon[0] <= 0.01
    assert epsilon[-1] == pytest.approx(agent.settings.epsilon_high)
    ratios = epsilon[1:] / epsilon[:-1]
    assert np.allclose(ratios, ratios[0])


def test_shares_of_random_actions_are_what_epsilon_says() -> None:
    agent = dqn(epsilon_low=0.1, epsilon_high=0.8)
    actor = agent.actor()
    actor.load({**agent.learner("cpu", 1).weights(), "progress": np.array(1.0, np.float32)})
    slots = 4000
    obs = np.tile(np.array([[0.1, 0.2, -0.3, 0.4]], np.float32), (slots, 1))
    level = np.repeat([0.0, 0.5], slots // 2)
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
@pytest.mark.parametrize("part", ["plain", "rainbow", "everything"])
def test_contract_in_the_chain(observation: str, part: str) -> None:
    env = env_spec(make_chain(observation=observation), "chain")
    check_agent(DQN, env, {"hidden": [8], "batch": 16, **PARTS[part]}, updates=10)


@pytest.mark.parametrize("part", PARTS)
def test_contract_with_every_part_on_vectors_pictures_and_both(part: str) -> None:
    picture = Leaf("box", "uint8", (24, 24, 1), (0.0,), (255.0,))
    both = DictSpace({"eye": picture, "place": CARTPOLE.observation})
    for observation in (CARTPOLE.observation, picture, both):
        env = EnvSpec("Test-v0", observation, CARTPOLE.action)
        check_agent(DQN, env, {"hidden": [8], "batch": 16, **PARTS[part]}, updates=5)


def test_a_player_imports_no_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from p2prl_agents.dqn import DQN, DQNSettings\n"
        "from p2prl_agents.cem import CEM\n"
        "from p2prl.core.spaces import EnvSpec, Leaf\n"
        "box = Leaf('box', 'float32', (2,), (0.0,), (1.0,))\n"
        "env = EnvSpec('x', box, Leaf('discrete', 'uint8', (), (0.0,), (1.0,)))\n"
        "actor = DQN(env, DQNSettings(hidden=())).actor()\n"
        "actor.load({'q/action/weight': np.ones((2, 2), 'f4'), 'q/action/bias': np.zeros(2, 'f4'),"
        " 'progress': np.array(1.0)})\n"
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
