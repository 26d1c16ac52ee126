"""p2prl.nodes.guard, and FiniteSteps: what is not finite is noticed, and changes nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from p2prl_agents.adam import Adam
from p2prl_agents.finite import FiniteSteps

from p2prl.core.schema import RESET
from p2prl.errors import LearningFailed
from p2prl.learn.contracts import Batch, Learner, Update
from p2prl.learn.finite import not_finite
from p2prl.nodes import checkpoint
from p2prl.nodes.guard import MOST_IN_A_ROW, Guard, advice
from p2prl.registry import agent_names, resolve_agent
from tests import metrics_kit

SKIPPED = Update(skipped="the loss is nan")


def test_the_first_value_that_is_not_finite_is_named() -> None:
    good = {"layer": np.ones((3, 2), np.float32), "count": np.array(7), "flag": np.array(True), "plain": 1.5}
    assert not_finite(good) == ""
    assert not_finite({**good, "bias": np.array([0.0, np.inf, np.nan])}) == "bias holds inf"
    assert not_finite({**good, "bias": np.array([-np.inf, np.nan])}, infinity=False) == "bias holds nan"
    assert not_finite({"bias": np.array(-np.inf)}, infinity=False) == ""
    assert not_finite({"half": np.array(np.nan, np.float16)}) == "half holds nan"


def test_skips_are_counted_in_all_and_in_a_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(tmp_path)
    caplog.set_level(logging.WARNING, "p2prl")
    for _ in range(MOST_IN_A_ROW - 1):
        assert guard.skips(SKIPPED, 5.0)
    assert guard.hopeless == ""
    assert not guard.skips(Update(), 6.0)
    assert guard.skips(SKIPPED, 7.0)
    assert guard.hopeless == ""
    assert guard.skipped == MOST_IN_A_ROW
    assert guard.news(8.0) == "20 updates were skipped so far, the last because the loss is nan"
    assert guard.news(500.0) == ""
    for _ in range(MOST_IN_A_ROW - 1):
        guard.skips(SKIPPED, 9.0)
    assert guard.hopeless == "20 updates in a row were skipped, because the loss is nan"
    assert [record.getMessage() for record in caplog.records] == [
        "an update was skipped, because the loss is nan",
        "10 updates were skipped so far, the last because the loss is nan",
    ]


def test_updates_that_only_take_something_in_do_not_break_a_row(tmp_path: Path) -> None:
    """es skips a generation now and then, and between two of them only collects."""
    guard = Guard(tmp_path)
    for _ in range(MOST_IN_A_ROW):
        assert not guard.skips(Update(publish=False), 4.0)
        guard.skips(SKIPPED, 5.0)
    assert guard.hopeless
    assert not guard.skips(Update(metrics={"loss": 1.0}, publish=False), 6.0)
    assert guard.hopeless == ""


@pytest.mark.parametrize(
    ("agent", "settings", "tip"),
    [
        ("dqn", {}, "try a lower agent.learning_rate (it is 0.002), and look at the rewards of some-v0"),
        ("dqn", {"learning_rate": 0.5}, "try a lower agent.learning_rate (it is 0.5), and look at the"),
        ("dqn", {"reward_scale": 1e38}, "try a lower agent.reward_scale (it is 1e+38), and look at the"),
        ("es", {"sigma": 1e200}, "try a lower agent.sigma (it is 1e+200), and look at"),
        ("cem", {}, "look at the rewards of some-v0"),
    ],
)
def test_advice_names_what_is_far_up(agent: str, settings: dict[str, Any], tip: str) -> None:
    assert advice(resolve_agent(agent), settings, "some-v0").startswith(tip)


def test_what_is_given_up_names_the_last_good_checkpoint_and_what_may_help(tmp_path: Path) -> None:
    guard = Guard(tmp_path)
    weights = {"w": np.ones(3, np.float32)}
    assert guard.weights(weights) is weights
    bad = {"w": np.array([1.0, np.nan])}
    with pytest.raises(LearningFailed, match="not finite: w holds nan; there is no checkpoint yet; look at"):
        guard.weights(bad)
    assert guard.given_up
    earlier = checkpoint.save(tmp_path, checkpoint.Meta(version=1, updates=3, sampled=0), weights, weights)
    with pytest.raises(
        LearningFailed, match=r"\(3 updates\), and if that fails again, begin a new run; look"
    ):
        guard.weights(bad)
    path = checkpoint.save(tmp_path, checkpoint.Meta(version=1, updates=7, sampled=0), weights, weights)
    guard.advice = "do better"
    with pytest.raises(LearningFailed) as caught:
        guard.state(bad)
    assert str(caught.value) == (
        f"learning failed: the learner's state is not finite: w holds nan; the last good checkpoint is {path} "
        f"(7 updates), and if that fails again, {earlier} is from before it; do better"
    )
    infinite = {"best": np.array(-np.inf)}
    assert guard.state(infinite) is infinite


class Steps:
    """Five parameters, and a FiniteSteps over them."""

    def __init__(self, device: str, every: int) -> None:
        torch = pytest.importorskip("torch")
        self.torch = torch
        self.parameters, self.gradient = torch.zeros(5), torch.zeros(5)
        self.adam = Adam(self.parameters, self.gradient, eps=1e-8)
        self.steps = FiniteSteps(self.adam, device, every)

    def step(self, gradient: float, loss: float = 1.0) -> str:
        self.gradient.fill_(gradient)
        return self.steps.step(self.torch.tensor(loss), self.gradient.norm(), learning_rate=0.1)

    def state(self) -> Any:
        found = (self.parameters, self.adam.mean, self.adam.variance, self.adam.count)
        return [tensor.clone() for tensor in found]


@pytest.mark.parametrize("device", ["cpu", "as if on a GPU"])
@pytest.mark.parametrize(
    ("gradient", "loss"), [(float("nan"), 1.0), (float("inf"), 1.0), (1.0, float("inf")), (1.0, float("nan"))]
)
def test_a_step_that_is_not_finite_changes_neither_parameters_nor_moments(
    device: str, gradient: float, loss: float
) -> None:
    run = Steps(device, every=1)
    assert run.step(1.0) == ""
    before = run.state()
    why = run.step(gradient, loss)
    wrong = f"the loss is {loss}" if loss != 1.0 else f"the gradient's norm is {gradient}"
    assert why == wrong
    assert all(run.torch.equal(a, b) for a, b in zip(before, run.state(), strict=True))
    assert run.step(1.0) == ""
    assert not run.torch.equal(before[0], run.state()[0])


def test_a_device_is_looked_at_now_and_then_and_closely_when_something_was_wrong() -> None:
    run = Steps("as if on a GPU", every=4)
    nan = float("nan")
    said = [run.step(gradient) for gradient in (1.0, nan, nan, 1.0)]
    assert said == ["", "", "", "the loss or the gradient was not finite (2 of the last 4 updates)"]
    # From now on one by one, until four in a row went well.
    assert [bool(run.step(gradient)) for gradient in (nan, 1.0, nan)] == [True, False, True]
    assert [run.step(1.0) for _ in range(4)] == [""] * 4
    assert [run.step(gradient) for gradient in (nan, 1.0, 1.0)] == [""] * 3
    assert run.step(nan) == "the gradient's norm is nan (2 of the last 4 updates)"
    assert np.isfinite(run.parameters.numpy()).all()


class Spoiling:
    """A learner that gets enormous rewards from the fifth update on, which still are numbers."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.updates: list[Update] = []

    def update(self, batch: Batch) -> Update:
        if len(self.updates) >= 5:
            batch = {**batch, "reward": np.where(batch["flags"] & RESET, 0, np.float32(3e38))}
        self.updates.append(self.learner.update(batch))
        return self.updates[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)


@pytest.mark.parametrize("agent", agent_names())
def test_no_agent_lets_enormous_rewards_into_its_weights(agent: str) -> None:
    """What overflows is skipped, and said; weights stay numbers, and so does what is saved."""
    if agent not in ("cem", "es"):
        pytest.importorskip("torch")
    bare = metrics_kit.bare(agent, next(metrics_kit.variants(resolve_agent(agent).Settings)))
    spoiling: Any = Spoiling(bare.learner)
    bare.learner = spoiling
    with np.errstate(over="ignore", invalid="ignore"):
        bare.run(target=float("inf"), max_updates=40, max_steps=20_000)
    assert len(spoiling.updates) >= 40
    assert not not_finite(spoiling.weights())
    assert not not_finite(spoiling.save(), infinity=False)
    good, spoilt = spoiling.updates[:5], spoiling.updates[5:]
    assert not [update.skipped for update in good if update.skipped]
    for update in spoilt:
        numbers = all(np.isfinite(value) for value in update.metrics.values())
        assert update.skipped or numbers, f"{update.metrics} and not skipped"


def test_what_a_gpu_left_out_has_no_priorities() -> None:
    """It tells of it later; the shards would refuse them at once."""
    pytest.importorskip("torch")
    small = next(metrics_kit.variants(resolve_agent("dqn").Settings))
    settings = {**small, "priority_exponent": 0.6, "reward_scale": 1000.0}
    bare = metrics_kit.bare("dqn", settings)
    steps = bare.learner._trainable._steps  # type: ignore[attr-defined]
    steps._look_first = False
    spoiling: Any = Spoiling(bare.learner)
    bare.learner = spoiling
    with np.errstate(over="ignore", invalid="ignore"):
        bare.run(target=float("inf"), max_updates=20, max_steps=20_000)
    assert all(update.priorities is not None for update in spoiling.updates[:5])
    assert any(update.skipped == "a temporal difference is not finite" for update in spoiling.updates[5:])
    assert not not_finite(spoiling.weights())
