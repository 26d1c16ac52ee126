"""DQN's learner, in torch. Read dqn.py first: settings, sources and the actor are there.

An update makes `Ticks` of a batch (of windows, or of whole sessions), and of them a loss and priorities. Of windows and
a network that is a plain perceptron with one value an action, the gradient is written out where there is no GPU
(perceptron.py): it is the same, in three quarters of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from p2prl.learn.contracts import Array, Batch, Update, Weights
from p2prl_agents.curiosity import Curiosity
from p2prl_agents.dqn import DQN
from p2prl_agents.maths import (
    NStep,
    huber,
    importance_weights,
    n_step,
    n_step_of_first,
    priorities,
    real,
    tightening_bounds,
)
from p2prl_agents.normaliser import Normaliser, normalised
from p2prl_agents.ops import Tensor, TorchOps
from p2prl_agents.perceptron import Perceptron
from p2prl_agents.policies import annealed, array
from p2prl_agents.q_heads import Values, make_head, means, of_actions
from p2prl_agents.trainable import Trainable

#: Metrics are read from the device once in so many updates: each reading waits for it.
METRICS_EVERY = 50
#: Observations of one batch in so many are taken into the running mean and deviation: batches are alike.
NORMALISE_EVERY = 10


@dataclass(frozen=True)
class Ticks:
    """What the loss is made of: M ticks, on the device.

    Attributes:
        outputs: `[M, Z]`, of the actions that were done.
        following: `[M, Z]`, the target network's, where the target bootstraps.
        partial, discount: `[M, 1]`, see `maths.n_step`.
        weights: `[M, 1]`, of each tick in the loss; None for 1/M each.
        bounds: `[M, 1]` each, lower and upper, see `maths.tightening_bounds`; None without.
    """

    outputs: Tensor
    following: Tensor
    partial: Tensor
    discount: Tensor
    weights: Tensor | None = None
    bounds: tuple[Tensor, Tensor] | None = None


class DQNLearner:
    """Gradient steps on batches of experience."""

    def __init__(self, agent: DQN, device: str, seed: int) -> None:
        import torch  # here, as in all agents

        s = agent.settings
        self._torch, self._ops, self._device = torch, TorchOps(), torch.device(device)
        self._agent = agent
        self._head = make_head(s.distribution, s.atoms, s.value_low, s.value_high, self._tensor)
        self._trainable = Trainable(agent.network.initial(seed), device)
        self._target_flat = self._trainable.flat.clone()
        self._target = self._trainable.views(self._target_flat)
        self._plain = self._perceptrons()
        self._curiosity: Curiosity | None = None
        if s.curiosity:
            self._curiosity = Curiosity(agent.observations, device, s.curiosity_learning_rate, seed + 1)
        self._normaliser = Normaliser(agent.observations.size) if agent.normalise else None
        self._scale: dict[str, Array] = {}
        self._updates = 0

    def update(self, batch: Batch) -> Update:
        """One step of Adam on windows of n ticks, or on whole sessions."""
        s = self._agent.settings
        self._updates += 1
        self._see(batch)
        reward: Array = batch["reward"] * np.float32(s.reward_scale)
        if self._curiosity is not None:
            new, norm = self._curiosity.rewards(batch)
            if not np.isfinite(norm):
                return self._skipped(f"the norm of curiosity's gradient is {norm}")
            reward = reward + np.float32(s.curiosity) * new
        if self._plain is not None:
            ticks, loss = self._by_hand(batch, reward, *self._plain)
        else:
            ticks = self._of_sessions(batch, reward) if self._agent.whole else self._of_windows(batch, reward)
            loss = self._differentiated(ticks)
        skipped = self._step(loss)
        if skipped:
            return self._skipped(skipped)
        priorities = self._priorities(batch, ticks)
        if priorities is not None and not np.isfinite(priorities).all():
            # Of a step that a GPU left out, and will tell us of later.
            return self._skipped("a temporal difference is not finite")
        metrics = self._metrics(loss, ticks) if self._updates % METRICS_EVERY == 0 else {}
        return Update(metrics=metrics, priorities=priorities)

    # --- from batches to ticks

    def _of_windows(self, batch: Batch, reward: Array) -> Ticks:
        """The first tick of each window."""
        s = self._agent.settings
        steps, pairs = self._pairs(batch, reward)
        here, there = ({name: self._tensor(pair[at]) for name, pair in pairs.items()} for at in (0, 1))
        online, target = self._agent.folded(self._trainable.tensors), self._agent.folded(self._target)
        with self._torch.no_grad():
            valued = self._outputs(target, there)
            following = self._best(valued, self._outputs(online, there) if s.double else valued)
        return Ticks(
            of_actions(self._outputs(online, here), self._actions(batch["action"][:, :1]), self._head.atoms),
            following,
            self._tensor(steps.partial),
            self._tensor(steps.discount),
            weights=self._placed(self._weights(batch, None)),
        )

    def _pairs(self, batch: Batch, reward: Array) -> tuple[NStep, dict[str, Array]]:
        """Of each window's first tick: what its target is made of, and inputs `[2, N, ...]`, here and there."""
        s = self._agent.settings
        steps = n_step_of_first(reward, batch["flags"], s.gamma, s.n_step)
        rows = np.zeros((2, len(reward)), np.int64)
        rows[1] = steps.row[:, 0]
        samples = np.arange(len(reward))
        return steps, self._scaled({name: values[samples, rows] for name, values in _observed(batch).items()})

    def _perceptrons(self) -> tuple[Perceptron, Perceptron] | None:
        """The online and the target network, where an update's gradient can be written out; see `_by_hand`."""
        layers, tensors = self._agent.network.chain(), self._trainable.tensors
        by_autograd = self._agent.whole or not layers or not isinstance(self._head, Values)
        if by_autograd or self._device.type != "cpu":
            return None
        weights = {name: tensor.detach() for name, tensor in tensors.items()}
        gradients = {name: tensor.grad for name, tensor in tensors.items()}
        return Perceptron(layers, weights, gradients), Perceptron(layers, self._target)

    def _by_hand(
        self, batch: Batch, reward: Array, online: Perceptron, target: Perceptron
    ) -> tuple[Ticks, Array]:
        """The first tick of each window, and the loss, whose gradient is where the optimiser wants it."""
        put, double, each = self._torch.from_numpy, self._agent.settings.double, np.arange(len(reward))
        count = len(each)
        steps, pairs = self._pairs(batch, reward)
        # Both observations at once: the product takes as long as two, but what is around it does not.
        both = pairs["features"].reshape(2 * count, -1)
        outputs = online.forward(put(both if double else both[:count])).numpy()
        valued = target.forward(put(both[count:])).numpy()
        best = (outputs[count:] if double else valued).argmax(axis=1)
        done = batch["action"][:, 0].astype(np.int64) - self._agent.first_action
        chosen, following = outputs[each, done, None], valued[each, best, None]
        losses, slopes = huber(chosen - (steps.partial + steps.discount * following))
        weights = self._weights(batch, None)
        weighing = np.float32(1 / count) if weights is None else weights
        gradient = np.zeros((count, outputs.shape[1]), np.float32)
        gradient[each, done, None] = slopes * weighing
        online.backward(put(gradient))
        ticks = Ticks(put(chosen), put(following), put(steps.partial), put(steps.discount))
        return ticks, (losses * weighing).sum()

    def _differentiated(self, ticks: Ticks) -> Tensor:
        """The loss, whose gradient is where the optimiser wants it."""
        each = self._head.loss(self._torch, ticks.outputs, ticks.partial, ticks.discount, ticks.following)
        if ticks.bounds is not None:
            each = each + self._agent.settings.tightening * self._penalty(ticks.outputs, *ticks.bounds)
        loss = each.mean() if ticks.weights is None else (each * ticks.weights).sum()
        self._trainable.differentiate(loss)
        return loss.detach()

    def _of_sessions(self, batch: Batch, reward: Array) -> Ticks:
        """Every tick of whole sessions; RESET and burn-in ticks weigh nothing."""
        s, flags, torch = self._agent.settings, batch["flags"], self._torch
        steps = n_step(reward, flags, s.gamma, s.n_step)
        inputs = self._inputs(_observed(batch))
        state = {name: self._tensor(batch[name][:, 0]) for name in self._agent.fields()}
        keep = self._tensor(real(flags).astype(np.float32))
        online = self._unrolled(self._agent.folded(self._trainable.tensors), inputs, state, keep)
        with torch.no_grad():
            target = self._unrolled(self._agent.folded(self._target), inputs, state, keep)
        where = (torch.arange(len(reward), device=self._device)[:, None], self._tensor(steps.row))
        valued, choosing = target[where], (online if s.double else target).detach()[where]
        actions = self._actions(batch["action"])
        return Ticks(
            of_actions(online[:, :-1].flatten(0, 1), actions.reshape(-1, 1), self._head.atoms),
            self._best(valued.flatten(0, 1), choosing.flatten(0, 1)),
            self._tensor(steps.partial.reshape(-1, 1)),
            self._tensor(steps.discount.reshape(-1, 1)),
            weights=self._placed(self._weights(batch, self._counted(flags))),
            bounds=self._bounds(reward, flags, target, actions) if s.tightening else None,
        )

    def _best(self, outputs: Tensor, choosing: Tensor) -> Tensor:
        """`[M, Z]` of the action that is best by `choosing`; both `[M, actions * Z]`."""
        best = self._head.values(self._ops, choosing).argmax(dim=1, keepdim=True)
        return of_actions(outputs, best, self._head.atoms)

    def _bounds(self, reward: Array, flags: Array, target: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Of every tick, `[N * T, 1]`, by the target network's outputs `[N, T+1, actions * Z]`."""
        values = self._head.values(self._ops, target)
        chosen = values[:, :-1].gather(2, actions[..., None]).squeeze(2)
        gamma = self._agent.settings.gamma
        bounds = tightening_bounds(reward, flags, array(values.amax(dim=2)), array(chosen), gamma)
        return self._tensor(bounds[0].reshape(-1, 1)), self._tensor(bounds[1].reshape(-1, 1))

    def _weights(self, batch: Batch, counted: Array | None) -> Array | None:
        """`[M, 1]`, of each tick in the loss: for how it was sampled, and 0 where it does not count."""
        s = self._agent.settings
        if counted is None and not s.priority_exponent:
            return None
        weights = np.ones(len(batch["flags"]), np.float32)
        if s.priority_exponent:
            risen = min(1.0, self._updates / s.priority_updates)
            beta = s.priority_correction + (1.0 - s.priority_correction) * risen
            weights = importance_weights(batch["probability"], beta)
        if counted is None:
            return weights[:, None] / np.float32(len(weights))
        each: Array = weights[:, None] * counted / np.float32(max(1, counted.sum()))
        return each.reshape(-1, 1)

    def _placed(self, weights: Array | None) -> Tensor | None:
        return None if weights is None else self._tensor(weights)

    def _counted(self, flags: Array) -> Array:
        """bool `[N, T]`: the ticks of whole sessions that are learned from."""
        counted = real(flags)
        counted[:, : self._agent.settings.burn_in] = False
        return counted

    def _see(self, batch: Batch) -> None:
        """Take what real ticks began with into the running normalisation, now and then."""
        if self._normaliser is None or (self._scale and self._updates % NORMALISE_EVERY):
            return
        counts = real(batch["flags"])
        columns = {name: values[:, :-1][counts] for name, values in _observed(batch).items()}
        self._normaliser.see(self._agent.observations.of_columns(columns)["features"])
        self._scale = self._normaliser.scale()

    def _inputs(self, columns: Mapping[str, Array]) -> dict[str, Tensor]:
        return {name: self._tensor(values) for name, values in self._scaled(columns).items()}

    def _scaled(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        inputs = self._agent.observations.of_columns(columns)
        if self._normaliser is not None:
            inputs["features"] = normalised(inputs["features"], self._scale)
        return inputs

    def _actions(self, actions: Array) -> Tensor:
        """int64, from 0."""
        return self._tensor(actions.astype(np.int64) - self._agent.first_action)

    def _tensor(self, values: Array) -> Tensor:
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    # --- networks, loss, step

    def _outputs(self, weights: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
        """`[rows, actions * Z]` of single observations."""
        outputs: Tensor = self._agent.network.step(self._ops, weights, inputs, {})[0]["action"]
        return outputs

    def _unrolled(
        self,
        weights: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
        state: dict[str, Tensor],
        keep: Tensor,
    ) -> Tensor:
        """`[N, T+1, actions * Z]` of whole sessions."""
        burn_in = self._agent.settings.burn_in
        return self._agent.network.unroll(self._ops, weights, inputs, state, keep, burn_in)["action"]

    def _penalty(self, outputs: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """How far values are outside their bounds, `[M, 1]`, under the same Huber loss as errors."""
        values = self._head.values(self._ops, outputs)
        outside = (lower - values).relu() + (values - upper).relu()
        return self._torch.nn.functional.smooth_l1_loss(
            outside, self._torch.zeros_like(outside), reduction="none"
        )

    def _step(self, loss: Tensor | Array) -> str:
        """Move the weights, and when it is time the target. Returns why nothing was changed, if so."""
        s = self._agent.settings
        rate = annealed(s.learning_rate, s.learning_rate_end, self._updates, s.learning_rate_updates)
        skipped = self._trainable.step_ahead(loss, rate, s.max_grad_norm)
        if not skipped and self._updates % s.target_interval == 0:
            self._target_flat.lerp_(self._trainable.flat, s.target_tau)
        return skipped

    def _skipped(self, why: str) -> Update:
        self._updates -= 1
        return Update(skipped=why)

    def _priorities(self, batch: Batch, ticks: Ticks) -> Array | None:
        """By how far values were from their targets."""
        s = self._agent.settings
        if not s.priority_exponent:
            return None
        with self._torch.no_grad():
            target = ticks.partial + ticks.discount * self._head.values(self._ops, ticks.following)
            errors = array(target - self._head.values(self._ops, ticks.outputs))
        flags = batch["flags"]
        counted = self._counted(flags) if self._agent.whole else np.ones((len(flags), 1), bool)
        return priorities(errors.reshape(counted.shape), counted, s.priority_exponent, s.priority_mix)

    def _metrics(self, loss: Tensor | Array, ticks: Ticks) -> dict[str, float]:
        values = self._head.values(self._ops, ticks.outputs.detach())
        return {
            "loss": float(loss),
            "q_mean": float(values.mean()),
            "progress": self._progress(),
        }

    def _progress(self) -> float:
        return min(1.0, self._updates / self._agent.settings.epsilon_updates)

    # --- what players and checkpoints get

    def weights(self) -> Weights:
        """The network, its last layer giving values (of C51, logits), and `progress` of exploration in [0, 1]."""
        named: dict[str, Array] = dict(self._agent.folded(self._trainable.arrays()))
        if self._head.linear:
            for part in ("q/action/weight", "q/action/bias"):
                named[part] = means(named[part], self._head.atoms)
        if self._normaliser is not None:
            named.update(self._normaliser.scale())
        named["progress"] = np.array(self._progress(), np.float32)
        return named

    def save(self) -> Mapping[str, Array]:
        """Weights, target, optimiser, normalisation, the number of updates, and what curiosity has."""
        curiosity = self._curiosity.save() if self._curiosity is not None else {}
        target = self._target_flat.to("cpu", copy=True).numpy()
        return {
            **self._trainable.save(),
            **curiosity,
            **(self._normaliser.save() if self._normaliser is not None else {}),
            "target": target,
            "updates": np.array(self._updates, np.int64),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where `save` was called."""
        self._trainable.load(state)
        self._target_flat.copy_(self._tensor(state["target"]))
        self._updates = int(state["updates"])
        if self._normaliser is not None:
            self._normaliser.load(state)
            self._scale = self._normaliser.scale() if self._normaliser.seen else {}
        if self._curiosity is not None:
            self._curiosity.load(state)


def _observed(batch: Batch) -> dict[str, Array]:
    """The columns of observations."""
    return {name: values for name, values in batch.items() if name.partition(".")[0] == "obs"}
