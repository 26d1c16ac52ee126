"""V-trace: actor-critic that stays right when sessions come late. Read it from top to bottom.

Source: IMPALA, Espeholt et al. 2018 (arXiv:1802.01561). Players draw from the policy that they have; the learner is
always some versions ahead, and weighs each tick by how likely its own policy would have done the same, clipped. With
no lag this is advantage actor-critic (A2C; Mnih et al. 2016, arXiv:1602.01783): the preset `a2c`.

With `core` the policy has a memory. Sessions carry the state with which they began, as the player had it; it is worked
out from there anew in each update, begins at zeros after each reset, and `burn_in` ticks may warm it up first
(R2D2, Kapturowski et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Batch, Field, ReplaySpec, Update
from p2prl_agents.maths import explained_variance, real, vtrace
from p2prl_agents.networks import Activation, Core
from p2prl_agents.ops import Tensor
from p2prl_agents.policies import (
    ActorCritic,
    PolicyActor,
    PolicyLearner,
    Sessions,
    annealed,
    array,
    check_burn_in,
    queue_spec,
)
from p2prl_agents.ranges import Above, Fraction, Least0, NotNegative, Positive


class VTraceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """V-trace's settings. The defaults solve CartPole."""

    hidden: tuple[Positive, ...] = (64, 64)
    """Units of each hidden layer."""
    activation: Activation = "tanh"
    """Between layers: `tanh` or `relu`."""
    rows: bool = False
    """Of an observation of R rows and an action of R parts: one policy network for all rows, see rows.py."""
    shared: bool = False
    """One network with two heads instead of one each for policy and critic; always so with a core."""
    core: Core = "none"
    """Memory after the hidden layers: `none`, `gru` or `lstm`."""
    core_units: Positive = 64
    """Units of the core."""
    burn_in: NotNegative = 0
    """Ticks at a session's beginning that only warm the core up; they are not learned from."""
    normalise: bool = False
    """Scale observations by their running mean and deviation."""
    learning_rate: Above = 3e-3
    """Adam's step size."""
    learning_rate_end: Fraction = 0.1
    """What is left of it after `learning_rate_updates`, as a fraction; it falls linearly and then stays."""
    learning_rate_updates: Positive = 2000
    """Updates until it has fallen."""
    gamma: Fraction = 0.99
    """Discount per tick."""
    decay: Fraction = 1.0
    """How far targets look ahead (the paper's lambda): 0 one tick, 1 as far as the session goes."""
    clip_rho: Above = 1.0
    """The paper's rho-bar: bounds the weight of each tick's own error."""
    clip_c: Above = 1.0
    """The paper's c-bar: bounds how far later errors reach back."""
    reward_scale: Above = 0.1
    """Rewards are multiplied by this inside the learner; values of about 1 to 10 are learned best."""
    value_weight: Above = 0.5
    """Of the critic's loss beside the policy's."""
    entropy: Least0 = 0.01
    """Bonus for a policy that stays undecided."""
    max_grad_norm: Above = 0.5
    """Gradients are scaled down to this norm."""
    ticks: Positive = 16
    """T, the length of a session."""
    batch: Positive = 16
    """Sessions per update."""
    waiting: Positive = 1
    """Batches that may wait at the shards. Few: what waits grows old."""
    passes: Positive = 1
    """Gradient steps per batch. Each weighs the batch anew: to V-trace a policy that has moved on is but more lag."""
    max_lag: NotNegative = 0
    """Sessions older than this many weights versions are refused as stale; 0 for no limit."""


class VTrace:
    """V-trace bound to one environment."""

    Settings: ClassVar[type[msgspec.Struct]] = VTraceSettings
    ladder: ClassVar[int] = 1

    def __init__(self, env: EnvSpec, settings: VTraceSettings) -> None:
        """Raises UsageError for an action that cannot be drawn, or a burn-in that leaves nothing."""
        s = self.settings = settings
        self._env = env
        check_burn_in("vtrace", s.core, s.burn_in, s.ticks)
        self.nets = ActorCritic(
            env,
            "vtrace",
            hidden=s.hidden,
            activation=s.activation,
            shared=s.shared,
            core=s.core,
            core_units=s.core_units,
            normalise=s.normalise,
            rows=s.rows,
        )

    def fields(self) -> Mapping[str, Field]:
        """`log_prob` of each action, what Gaussians drew, and once per session the core's state."""
        return self.nets.fields()

    def replay(self) -> ReplaySpec:
        """A queue of whole sessions."""
        s = self.settings
        return queue_spec(
            self._env, self.fields(), ticks=s.ticks, batch=s.batch, waiting=s.waiting, max_lag=s.max_lag
        )

    def actor(self) -> PolicyActor:
        """In numpy alone."""
        return PolicyActor(self.nets)

    def learner(self, device: str, seed: int) -> VTraceLearner:
        """In torch."""
        return VTraceLearner(self, device, seed)


class VTraceLearner(PolicyLearner):
    """A gradient step per batch of sessions, or some."""

    def __init__(self, agent: VTrace, device: str, seed: int) -> None:
        super().__init__(agent.nets, device, seed, agent.settings.learning_rate)
        self._settings = agent.settings

    def update(self, batch: Batch) -> Update:
        """All passes over whole sessions `[N, T]`; publishes once, at their end."""
        take_back = self.remember()
        self.updates += 1
        sessions = self.sessions(batch)
        metrics: dict[str, float] = {}
        for _ in range(self._settings.passes):
            metrics = self._pass(batch, sessions)
            if not np.isfinite(metrics["grad_norm"]):  # of all or nothing
                take_back()
                return Update(skipped=f"the gradient's norm is {metrics['grad_norm']}", publish=False)
        return Update(metrics=metrics, publish=True)

    def _pass(self, batch: Batch, sessions: Sessions) -> dict[str, float]:
        """One gradient step: policy gradient, critic and entropy bonus."""
        s = self._settings
        outputs, values = self.outputs(sessions, s.burn_in)
        log_prob, entropy = self.judge(outputs[:, :-1], sessions)
        critic, log_ratio = array(values), array(log_prob) - batch["log_prob"]
        target, advantage = vtrace(
            log_ratio,
            batch["reward"] * np.float32(s.reward_scale),
            batch["flags"],
            critic,
            s.gamma,
            decay=s.decay,
            clip_rho=s.clip_rho,
            clip_c=s.clip_c,
        )
        mask = real(batch["flags"])
        mask[:, : s.burn_in] = False
        counted = self.tensor(mask)
        policy_loss = -(log_prob * self.tensor(advantage))[counted].mean()
        value_loss = 0.5 * (self.tensor(target) - values[:, :-1]).square()[counted].mean()
        bonus = entropy[counted].mean()
        norm = self._step(policy_loss + s.value_weight * value_loss - s.entropy * bonus)
        return {
            "policy_loss": float(policy_loss.detach()),
            "value_loss": float(value_loss.detach()),
            "entropy": float(bonus.detach()),
            "grad_norm": norm,
            "explained_variance": explained_variance(target[mask], critic[:, :-1][mask]),
            "ratio_clipped": float((log_ratio[mask] > np.log(s.clip_rho)).mean()),
        }

    def _step(self, loss: Tensor) -> float:
        s = self._settings
        rate = annealed(s.learning_rate, s.learning_rate_end, self.updates, s.learning_rate_updates)
        return self.trainable.step(loss, rate, s.max_grad_norm)
