"""V-trace: actor-critic that stays right when sessions come late. Read it from top to bottom.

Source: IMPALA, Espeholt et al. 2018 (arXiv:1802.01561). Players draw from the policy that they have; the learner is
always some versions ahead, and weighs each tick by how likely its own policy would have done the same, clipped. With
no lag this is advantage actor-critic (A2C; Mnih et al. 2016, arXiv:1602.01783): the preset `a2c`.

Several `passes` over a batch, in minibatches, make more of it. With `clip` V-trace brings each tick from the policy
that played it to the one that the update began with, and from there PPO's clip bounds how far the passes lead. That is
IMPACT (Luo et al. 2020, arXiv:1912.00167) with a target network that is renewed at each update.

With `core` the policy has a memory. Sessions carry the state with which they began, as the player had it; it is worked
out from there anew in each update, begins at zeros after each reset, and `burn_in` ticks may warm it up first
(R2D2, Kapturowski et al. 2019).

Where policy and critic are plain perceptrons and the action is one choice, the gradient is written out on the CPU
(plain.py): it is the same, in two thirds of the time.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Array, Batch, ReplaySpec, Update
from p2prl_agents.maths import clipped, explained_variance, real, vtrace
from p2prl_agents.ops import Tensor
from p2prl_agents.plain import PlainActorCritic
from p2prl_agents.policies import (
    NetworkSettings,
    PolicyAgent,
    PolicyLearner,
    Sessions,
    annealed,
    array,
    scaled,
    surrogate,
)
from p2prl_agents.ranges import Above, Fraction, Least0, NotNegative, Positive


class VTraceSettings(NetworkSettings, frozen=True, forbid_unknown_fields=True):
    """V-trace's settings. The defaults solve CartPole."""

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
    """Over each batch. Without `clip` each weighs it anew: to V-trace a policy that has moved on is but more lag."""
    minibatch: NotNegative = 0
    """Ticks per gradient step, in whole sessions; 0 for the whole batch at once."""
    clip: Least0 = 0.0
    """How far the ratio to the policy before an update may move that update; 0 for no bound. For several steps."""
    scale_advantages: bool = False
    """Bring the advantages of each gradient step to mean 0 and deviation 1."""
    max_lag: NotNegative = 0
    """Sessions older than this many weights versions are refused as stale; 0 for no limit."""


class VTrace(PolicyAgent):
    """V-trace bound to one environment."""

    Settings: ClassVar[type[msgspec.Struct]] = VTraceSettings

    def __init__(self, env: EnvSpec, settings: VTraceSettings) -> None:
        """Raises UsageError for an action that cannot be drawn, or a burn-in that leaves nothing."""
        super().__init__(env, "vtrace", settings, settings.ticks)
        self.settings = settings

    def replay(self) -> ReplaySpec:
        """A queue of whole sessions, none older than `max_lag`."""
        s = self.settings
        return self.queue(ticks=s.ticks, batch=s.batch, waiting=s.waiting, max_lag=s.max_lag)

    def learner(self, device: str, seed: int) -> VTraceLearner:
        """In torch."""
        return VTraceLearner(self, device, seed)


class VTraceLearner(PolicyLearner):
    """A gradient step per batch of sessions, or several."""

    def __init__(self, agent: VTrace, device: str, seed: int) -> None:
        super().__init__(agent.nets, device, seed)
        self._settings = agent.settings
        fits = PlainActorCritic.fits(agent.nets, device)
        self._plain = PlainActorCritic(agent.nets, self.trainable) if fits else None

    def update(self, batch: Batch) -> Update:
        """All passes over whole sessions `[N, T]`; publishes once, at their end."""
        s = self._settings
        take_back = self.remember()
        self.updates += 1
        sessions = self.sessions(batch)
        mask = real(batch["flags"])
        mask[:, : s.burn_in] = False
        numbers = {**{name: batch[name] for name in ("log_prob", "reward", "flags")}, "mask": mask}
        before = self._log_prob(sessions) if s.clip else None
        steps: list[dict[str, float]] = []
        for rows in self.minibatches(mask, s.minibatch, s.passes):
            some = {name: values[array(rows)] for name, values in numbers.items()}
            values = self._minibatch(sessions.rows(rows), some, None if before is None else before[rows])
            if not np.isfinite(values["grad_norm"]):  # of all or nothing
                take_back()
                where = f" in step {len(steps) + 1}" if steps else ""
                return Update(skipped=f"the gradient's norm is {values['grad_norm']}{where}", publish=False)
            steps.append(values)
        if not steps:  # nothing but RESET ticks
            return Update(publish=False)
        metrics = {name: float(np.mean([values[name] for values in steps])) for name in steps[0]}
        return Update(metrics=metrics, publish=True)

    def _log_prob(self, sessions: Sessions) -> Tensor:
        """Of what was done, under the policy as it is, `[N, T]`."""
        with self.torch.no_grad():
            outputs, _ = self.outputs(sessions.played(), self._settings.burn_in)
            return self.judge(outputs, sessions)[0]

    def _minibatch(
        self, sessions: Sessions, numbers: dict[str, Array], before: Tensor | None
    ) -> dict[str, float]:
        """One gradient step: policy gradient, critic and entropy bonus.

        Args:
            numbers: of the batch, `[N, T]` each, and which ticks count.
            before: log-probabilities under the policy that the update began with, if it is to stay near that.
        """
        if self._plain is not None:
            return self._by_hand(self._plain, sessions, numbers, None if before is None else array(before))
        s = self._settings
        outputs, values = self.outputs(sessions, s.burn_in)
        log_prob, entropy = self.judge(outputs[:, :-1], sessions)
        weighed = array(log_prob if before is None else before)
        target, advantage, metrics = self._targets(weighed, array(values), numbers)
        counted = self.tensor(numbers["mask"])
        policy_loss = -self._gain(log_prob, before, self.tensor(advantage), counted).mean()
        value_loss = 0.5 * (self.tensor(target) - values[:, :-1]).square()[counted].mean()
        bonus = entropy[counted].mean()
        loss = policy_loss + s.value_weight * value_loss - s.entropy * bonus
        norm = self.trainable.step(loss, self._rate(), s.max_grad_norm)
        losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": bonus}
        return {**{name: float(each.detach()) for name, each in losses.items()}, "grad_norm": norm, **metrics}

    def _by_hand(
        self, plain: PlainActorCritic, sessions: Sessions, numbers: dict[str, Array], before: Array | None
    ) -> dict[str, float]:
        """The same step without autograd, for policy and critic that are plain perceptrons."""
        s, mask = self._settings, numbers["mask"]
        log_prob, entropy, values = plain.forward(sessions)
        target, advantage, metrics = self._targets(log_prob if before is None else before, values, numbers)
        weight = mask * np.float32(1 / mask.sum())  # of each tick in a mean
        if s.scale_advantages:
            advantage = (advantage - advantage[mask].mean()) / (advantage[mask].std() + np.float32(1e-8))
        gain, slope = log_prob * advantage, advantage
        if before is not None:
            gain, slope = clipped(np.exp(log_prob - before), advantage, s.clip)
        errors = values[:, :-1] - target
        policy_loss, bonus = -float((weight * gain).sum()), float((weight * entropy).sum())
        value_loss = 0.5 * float((weight * errors * errors).sum())
        norm = float("nan")
        if np.isfinite(policy_loss + s.value_weight * value_loss - s.entropy * bonus):
            plain.backward(-weight * slope, -s.entropy * weight, s.value_weight * weight * errors)
            norm = self.trainable.descend(self._rate(), s.max_grad_norm)
        losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": bonus}
        return {**losses, "grad_norm": norm, **metrics}

    def _targets(
        self, log_prob: Array, values: Array, numbers: dict[str, Array]
    ) -> tuple[Array, Array, dict[str, float]]:
        """The critic's targets, the policy's advantages, `[N, T]` each, and what to tell of them.

        Args:
            log_prob: `[N, T]`, of the policy that each tick's own is held against. values: `[N, T+1]`.
        """
        s, mask = self._settings, numbers["mask"]
        log_ratio = log_prob - numbers["log_prob"]
        target, advantage = vtrace(
            log_ratio,
            numbers["reward"] * np.float32(s.reward_scale),
            numbers["flags"],
            values,
            s.gamma,
            decay=s.decay,
            clip_rho=s.clip_rho,
            clip_c=s.clip_c,
        )
        metrics = {
            "explained_variance": explained_variance(target[mask], values[:, :-1][mask]),
            "ratio_clipped": float((log_ratio[mask] > np.log(s.clip_rho)).mean()),
        }
        return target, advantage, metrics

    def _gain(self, log_prob: Tensor, before: Tensor | None, advantage: Tensor, counted: Tensor) -> Tensor:
        """What the policy's step raises, of each tick that counts."""
        s = self._settings
        advantage = scaled(advantage[counted]) if s.scale_advantages else advantage[counted]
        if before is None:
            return log_prob[counted] * advantage
        return surrogate(self.torch, (log_prob - before)[counted].exp(), advantage, s.clip)

    def _rate(self) -> float:
        s = self._settings
        return annealed(s.learning_rate, s.learning_rate_end, self.updates, s.learning_rate_updates)
