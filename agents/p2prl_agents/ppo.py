"""PPO: clipped policy gradients, several epochs over each batch of fresh sessions. Read it from top to bottom.

Sources: Schulman et al. 2017 (arXiv:1707.06347); advantages by GAE, Schulman et al. 2016 (arXiv:1506.02438).

Sessions come with the log-probabilities under which they were played, so the ratio is to the policy that really played,
however old: the clip then bounds how far an update moves from it. Advantages are worked out once per update, with the
critic of now. What is older than `max_lag` versions is refused by the shards as stale, because the clip would leave
nothing to learn from it.

An action of many parts (MultiDiscrete, Dict, Box) has a ratio that is the product of theirs: with 15 parts almost every
tick is clipped after a step or two, for what a few parts did. With `apart` each part has its own ratio and clip, and
all share the advantage, which is independent PPO for a team of agents with one network (de Witt et al. 2020,
arXiv:2011.09533).

With `core` the policy has a memory, as in vtrace.py; minibatches are then of whole sessions.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Batch, ReplaySpec, Update
from p2prl_agents.maths import explained_variance, gae, real
from p2prl_agents.ops import Tensor
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


class PPOSettings(NetworkSettings, frozen=True, forbid_unknown_fields=True):
    """PPO's settings. The defaults solve CartPole."""

    learning_rate: Above = 1e-3
    """Adam's step size."""
    learning_rate_end: Fraction = 0.1
    """What is left of it after `learning_rate_updates`, as a fraction; it falls linearly and then stays."""
    learning_rate_updates: Positive = 400
    """Updates (batches, not minibatches) until it has fallen."""
    gamma: Fraction = 0.98
    """Discount per tick."""
    decay: Fraction = 0.8
    """GAE's lambda: 0 for one-step advantages, 1 for whole returns."""
    clip: Above = 0.2
    """How far the ratio to the policy that played may move an update; falls as the learning rate does."""
    epochs: Positive = 20
    """Passes over each batch."""
    minibatch: Positive = 256
    """Ticks per gradient step; with a core, so many ticks' whole sessions."""
    apart: bool = False
    """Clip the ratio of each part of a MultiDiscrete, Dict or Box action by itself, as if a team had drawn them."""
    target_kl: Least0 = 0.0
    """Leave the remaining epochs out once the policy is so far from the one that played; 0 for never."""
    reward_scale: Above = 1.0
    """Rewards are multiplied by this inside the learner."""
    value_weight: Above = 0.5
    """Of the critic's loss beside the policy's."""
    entropy: Least0 = 0.0
    """Bonus for a policy that stays undecided."""
    max_grad_norm: Above = 0.5
    """Gradients are scaled down to this norm."""
    ticks: Positive = 16
    """T, the length of a session."""
    batch: Positive = 16
    """Sessions per update."""
    waiting: Positive = 1
    """Batches that may wait at the shards. Few: what waits grows old."""
    max_lag: NotNegative = 8
    """Sessions older than this many weights versions are refused as stale; 0 for no limit."""


class PPO(PolicyAgent):
    """PPO bound to one environment."""

    Settings: ClassVar[type[msgspec.Struct]] = PPOSettings

    def __init__(self, env: EnvSpec, settings: PPOSettings) -> None:
        """Raises UsageError for an action that cannot be drawn, or a burn-in that leaves nothing."""
        super().__init__(env, "ppo", settings, settings.ticks, settings.apart)
        self.settings = settings

    def replay(self) -> ReplaySpec:
        """A queue of whole sessions, none older than `max_lag`."""
        s = self.settings
        return self.queue(ticks=s.ticks, batch=s.batch, waiting=s.waiting, max_lag=s.max_lag)

    def learner(self, device: str, seed: int) -> PPOLearner:
        """In torch."""
        return PPOLearner(self, device, seed)


class PPOLearner(PolicyLearner):
    """Some epochs of minibatches per batch of sessions."""

    def __init__(self, agent: PPO, device: str, seed: int) -> None:
        super().__init__(agent.nets, device, seed)
        self._settings = agent.settings

    def update(self, batch: Batch) -> Update:
        """All epochs on whole sessions `[N, T]`; publishes once, at their end."""
        take_back = self.remember()
        self.updates += 1
        sessions = self.sessions(batch)
        data, critic = self._data(batch, sessions)
        played = sessions.played() if self.nets.recurrent else sessions.apart()
        steps: list[dict[str, float]] = []
        for rows in self.minibatches(array(data["mask"]), self._settings.minibatch, self._settings.epochs):
            values = self._minibatch(played.rows(rows), {name: part[rows] for name, part in data.items()})
            norm = values["grad_norm"]
            if not np.isfinite(norm):  # of all or nothing: half an update would be neither counted nor seen
                take_back()
                return Update(
                    skipped=f"the gradient's norm is {norm} in step {len(steps) + 1}", publish=False
                )
            steps.append(values)
            if 0 < self._settings.target_kl < values["kl"]:
                break
        if not steps:  # nothing but RESET ticks
            return Update(publish=False)
        metrics = {name: float(np.mean([values[name] for values in steps])) for name in steps[0]}
        metrics["kl"] = steps[-1]["kl"]
        return Update(metrics={**metrics, "explained_variance": critic, "steps": len(steps)}, publish=True)

    def _data(self, batch: Batch, sessions: Sessions) -> tuple[dict[str, Tensor], float]:
        """What each minibatch takes its rows of, and the critic's explained variance."""
        s = self._settings
        with self.torch.no_grad():
            values = array(self.outputs(sessions, s.burn_in)[1])
        reward = batch["reward"] * np.float32(s.reward_scale)
        advantage, target = gae(reward, batch["flags"], values, s.gamma, s.decay)
        mask = real(batch["flags"])
        mask[:, : s.burn_in] = False
        arrays = {"mask": mask, "advantage": advantage, "target": target, "log_prob": batch["log_prob"]}
        if not self.nets.recurrent:
            arrays = {name: part.reshape(-1, 1, *part.shape[2:]) for name, part in arrays.items()}
        explained = explained_variance(target[mask], values[:, :-1][mask])
        return {name: self.tensor(part) for name, part in arrays.items()}, explained

    def _minibatch(self, sessions: Sessions, data: dict[str, Tensor]) -> dict[str, float]:
        """One gradient step (the paper's equations 7 and 9)."""
        s, torch = self._settings, self.torch
        mask = data["mask"]
        outputs, values = self.outputs(sessions, s.burn_in)
        log_prob, entropy = self.judge(outputs, sessions)
        log_ratio = (log_prob - data["log_prob"])[mask]
        advantage = scaled(data["advantage"][mask])
        fallen = annealed(1.0, s.learning_rate_end, self.updates, s.learning_rate_updates)
        ratio, clip = log_ratio.exp(), s.clip * fallen
        if s.apart:
            policy_loss = -surrogate(torch, ratio, advantage[:, None], clip).sum(dim=-1).mean()
        else:
            policy_loss = -surrogate(torch, ratio, advantage, clip).mean()
        value_loss = 0.5 * (data["target"] - values)[mask].square().mean()
        bonus = entropy[mask].mean()
        loss = policy_loss + s.value_weight * value_loss - s.entropy * bonus
        norm = self.trainable.step(loss, s.learning_rate * fallen, s.max_grad_norm)
        with torch.no_grad():
            # Schulman's estimator (joschu.net/blog/kl-approx.html): unbiased, never negative.
            kl = (ratio - 1 - log_ratio).sum() / len(ratio)  # of all parts together
            outside = ((ratio - 1).abs() > clip).float().mean()
        losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": bonus}
        numbers = {name: float(value.detach()) for name, value in losses.items()}
        return {**numbers, "grad_norm": norm, "kl": float(kl), "clipped": float(outside)}
