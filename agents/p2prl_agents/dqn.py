"""DQN: deep Q-learning with a replay buffer, for one discrete action. Read it from top to bottom.

Sources: DQN, Mnih et al. 2015 (doi:10.1038/nature14236); Double DQN, van Hasselt et al. 2016 (arXiv:1509.06461);
n-step targets and an exploration ladder over many players, Ape-X, Horgan et al. 2018 (arXiv:1803.00933).

The network is a multilayer perceptron. Players run it in numpy; only the learner imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from p2prl.core.schema import TERMINATED, TRUNCATED
from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Batch, Explore, Field, ReplaySpec, State, Tree, Update, Weights
from p2prl_agents.features import Features
from p2prl_agents.finite import FiniteSteps

Positive = Annotated[int, Meta(ge=1)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]

#: Metrics are read from the device once in so many updates: each reading waits for it.
METRICS_EVERY = 50


class DQNSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DQN's settings. The defaults solve CartPole quickly and robustly."""

    hidden: tuple[Positive, ...] = (256, 256)
    """Units of each hidden layer."""
    learning_rate: Annotated[float, Meta(gt=0.0)] = 2e-3
    """Adam's step size."""
    learning_rate_end: Fraction = 0.1
    """What is left of it after `learning_rate_updates`, as a fraction; it falls linearly and then stays."""
    learning_rate_updates: Positive = 8000
    """Updates until it has fallen."""
    gamma: Fraction = 0.99
    """Discount per tick."""
    reward_scale: Annotated[float, Meta(gt=0.0)] = 0.1
    """Rewards are multiplied by this inside the learner; values of about 1 to 10 are learned best."""
    n_step: Positive = 3
    """Rewards summed before the target bootstraps from the network."""
    batch: Positive = 64
    """Samples per update."""
    double: bool = True
    """Double DQN: the online network chooses the next action, the target network values it."""
    target_interval: Positive = 40
    """Updates between two updates of the target network."""
    target_tau: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """How far the target network then moves to the online one; 1 copies it."""
    max_grad_norm: Annotated[float, Meta(gt=0.0)] = 10.0
    """Gradients are scaled down to this norm."""
    epsilon_low: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.005
    """Final share of random actions on the ladder's lowest rung."""
    epsilon_high: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.3
    """Final share of random actions on the ladder's highest rung."""
    epsilon_updates: Positive = 500
    """Updates until exploration has fallen from 1 to its final share."""
    ticks: Positive = 32
    """T, the length of a session."""
    capacity_bytes: Positive = 64_000_000
    """Replay capacity over all shards, decoded."""
    min_ticks: Positive = 2000
    """Ticks stored before the first update."""
    samples_per_insert: Annotated[float, Meta(ge=0.0)] = 2.0
    """How often a tick is sampled on average; 0 for as often as the trainer can."""


class DQN:
    """DQN bound to one environment."""

    Settings: ClassVar[type[msgspec.Struct]] = DQNSettings
    ladder: ClassVar[int] = 4

    def __init__(self, env: EnvSpec, settings: DQNSettings) -> None:
        """Raises UsageError unless the action is one Discrete."""
        if not isinstance(env.action, Leaf) or env.action.kind != "discrete":
            kind = env.action.kind if isinstance(env.action, Leaf) else type(env.action).__name__
            raise UsageError(f"dqn needs one Discrete action, {env.id} has {kind}")
        self.settings = settings
        self.features = Features(env)
        self.first_action = int(env.action.low[0])
        self.actions = int(env.action.high[0]) - self.first_action + 1
        self.action_dtype = env.action.dtype
        self.sides = (self.features.size, *settings.hidden, self.actions)

    def fields(self) -> Mapping[str, Field]:
        """None: a Q-learner needs the transition alone."""
        return {}

    def replay(self) -> ReplaySpec:
        """Uniform windows of `n_step` ticks."""
        s = self.settings
        return ReplaySpec(
            kind="uniform",
            ticks=max(s.ticks, s.n_step),
            batch=s.batch,
            window=s.n_step,
            capacity_bytes=s.capacity_bytes,
            min_ticks=s.min_ticks,
            samples_per_insert=s.samples_per_insert,
        )

    def actor(self) -> DQNActor:
        """In numpy alone."""
        return DQNActor(self)

    def learner(self, device: str, seed: int) -> DQNLearner:
        """In torch."""
        return DQNLearner(self, device, seed)


class DQNActor:
    """Epsilon-greedy play in numpy."""

    def __init__(self, agent: DQN) -> None:
        self._agent = agent
        self._features = agent.features
        self._layers: list[tuple[Array, Array]] = []
        self._progress = 0.0

    def load(self, weights: Weights) -> None:
        """Takes `weight0`, `bias0`, ... and `progress`, which anneals exploration."""
        depth = len(self._agent.sides) - 1
        self._layers = [(weights[f"weight{i}"], weights[f"bias{i}"]) for i in range(depth)]
        self._progress = float(weights["progress"])

    @property
    def annealing(self) -> bool:
        """True until exploration has fallen to its final share."""
        return self._progress < 1.0

    def start(self, slots: int) -> State:
        """No state."""
        return {}

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """The action of the highest value, or with a slot's own probability any."""
        actions = self.values(self._features.of_tree(obs)).argmax(axis=1)
        if explore is not None:
            chance = explore.rng.random(actions.shape)
            random = chance < self.epsilon(explore.level)
            if random.any():
                actions = np.where(
                    random, explore.rng.integers(self._agent.actions, size=actions.shape), actions
                )
        return (actions + self._agent.first_action).astype(self._agent.action_dtype), state, {}

    def values(self, x: Array) -> Array:
        """Q, float32 `[slots, actions]`, of features `[slots, size]`."""
        *hidden, (weight, bias) = self._layers
        for w, b in hidden:
            x = x @ w
            x += b
            np.maximum(x, 0, out=x)
        values: Array = x @ weight + bias
        return values

    def epsilon(self, level: Array) -> Array:
        """The share of random actions per slot: geometric from rung to rung (Ape-X, section 4.1), after annealing."""
        s, rungs = self._agent.settings, self._agent.ladder
        height = level * (rungs / (rungs - 1))
        final = s.epsilon_low * (s.epsilon_high / s.epsilon_low) ** height
        epsilon: Array = final + (1.0 - final) * (1.0 - self._progress)
        return epsilon


def targets_parts(reward: Array, flags: Array, gamma: float) -> tuple[Array, Array, Array]:
    """What n-step targets are made of: `target = partial + discount * value(obs[row])`.

    The sum runs from a window's first tick to the episode's end or the window's. Truncation and the window's end
    bootstrap from the observation that followed (the *final* one of a truncated episode), termination from nothing.
    Ticks after the episode's end (a RESET, the next episode) count for nothing.

    Args:
        reward: `[N, n]`. flags: `[N, n]` uint8, as in core/schema.py; the first tick is no RESET.
        gamma: discount per tick.

    Returns:
        partial: float32 `[N]`, the discounted sum of the rewards.
        discount: float32 `[N]`, gamma to the number of ticks summed; 0 on termination.
        row: int64 `[N]`, which of the window's n+1 observations to bootstrap from.
    """
    steps = flags.shape[1]
    ended = (flags & (TERMINATED | TRUNCATED)) != 0
    last = np.where(ended.any(axis=1), ended.argmax(axis=1), steps - 1)
    counts = np.arange(steps) <= last[:, None]
    partial = (np.where(counts, reward, 0.0) * gamma ** np.arange(steps)).sum(axis=1)
    terminated = (flags[np.arange(len(flags)), last] & TERMINATED) != 0
    discount = np.where(terminated, 0.0, gamma ** (last + 1.0))
    return partial.astype(np.float32), discount.astype(np.float32), last + 1


class DQNLearner:
    """Gradient steps in torch. All parameters live in one flat tensor, so that optimiser and target cost one kernel."""

    def __init__(self, agent: DQN, device: str, seed: int) -> None:
        import torch  # here, so that a player never pays for it

        self._torch = torch
        self._agent = agent
        self._device = torch.device(device)
        self._flat = torch.from_numpy(_initial_parameters(agent.sides, seed)).to(self._device)
        self._target_flat = self._flat.clone()
        self._flat.grad = self._grad = torch.zeros_like(self._flat)
        self._layers = self._views(self._flat, learn=True)
        self._target = self._views(self._target_flat, learn=False)
        self._adam = self._new_adam()
        self._steps = FiniteSteps(self._adam, self._device.type, METRICS_EVERY)
        self._updates = 0

    def update(self, batch: Batch) -> Update:
        """One step of Adam on the Huber loss of `batch`, windows of n ticks."""
        torch, s = self._torch, self._agent.settings
        self._updates += 1
        obs, following, action, partial, discount = self._inputs(batch)
        with torch.no_grad():
            values = self._forward(self._target, following)
            if s.double:
                choice = self._forward(self._layers, following).argmax(dim=1, keepdim=True)
                best = values.gather(1, choice).squeeze(1)
            else:
                best = values.amax(dim=1)
            target = torch.addcmul(partial, discount, best)
        chosen = self._forward(self._layers, obs).gather(1, action).squeeze(1)
        loss = torch.nn.functional.smooth_l1_loss(chosen, target)
        skipped = self._step(loss)
        if skipped:
            self._updates -= 1
            return Update(skipped=skipped)
        if self._updates % METRICS_EVERY:
            return Update()
        return Update(
            metrics={"loss": loss.item(), "q_mean": chosen.mean().item(), "progress": self._progress()}
        )

    def weights(self) -> Weights:
        """The layers, and `progress` of exploration in [0, 1]."""
        flat = self._flat.detach().to("cpu", copy=True).numpy()
        named: dict[str, Array] = {}
        for i, (weight, bias) in enumerate(_layers_of(flat, self._agent.sides)):
            named[f"weight{i}"], named[f"bias{i}"] = weight, bias
        named["progress"] = np.array(self._progress(), np.float32)
        return named

    def save(self) -> Mapping[str, Array]:
        """Parameters, target, Adam's moments and the number of updates."""
        moments = self._adam.state[self._flat]
        zeros = self._torch.zeros_like(self._flat)
        tensors = {
            "parameters": self._flat,
            "target": self._target_flat,
            "adam_mean": moments.get("exp_avg", zeros),
            "adam_variance": moments.get("exp_avg_sq", zeros),
        }
        arrays = {name: tensor.detach().to("cpu", copy=True).numpy() for name, tensor in tensors.items()}
        return {**arrays, "updates": np.array(self._updates, np.int64)}

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where `save` was called."""
        torch = self._torch
        tensors = {name: torch.from_numpy(np.array(state[name])).to(self._device) for name in _SAVED}
        with torch.no_grad():
            self._flat.copy_(tensors["parameters"])
            self._target_flat.copy_(tensors["target"])
        self._updates = int(state["updates"])
        self._adam.state[self._flat] = {
            "step": torch.tensor(float(self._updates), device=self._device if self._fused else "cpu"),
            "exp_avg": tensors["adam_mean"],
            "exp_avg_sq": tensors["adam_variance"],
        }

    def _new_adam(self) -> Any:
        """Fused (one kernel) where this torch has it for the device; it halves Adam's cost."""
        adam, lr = self._torch.optim.Adam, self._agent.settings.learning_rate
        try:
            self._fused = True
            return adam([self._flat], lr=lr, eps=1e-5, fused=True)
        except RuntimeError:
            self._fused = False
            return adam([self._flat], lr=lr, eps=1e-5)

    def _inputs(self, batch: Batch) -> tuple[Any, Any, Any, Any, Any]:
        """Tensors on the device: features now and where the target bootstraps, action index, partial, discount."""
        s = self._agent.settings
        partial, discount, row = targets_parts(batch["reward"] * s.reward_scale, batch["flags"], s.gamma)
        samples = np.arange(len(row))
        columns = {name: values for name, values in batch.items() if name.split(".")[0] == "obs"}
        obs = self._agent.features.of_columns({name: values[:, 0] for name, values in columns.items()})
        following = self._agent.features.of_columns(
            {name: values[samples, row] for name, values in columns.items()}
        )
        action = batch["action"][:, :1].astype(np.int64) - self._agent.first_action
        arrays = (obs, following, action, partial, discount)
        return tuple(self._torch.from_numpy(np.ascontiguousarray(a)).to(self._device) for a in arrays)  # type: ignore[return-value]

    def _forward(self, layers: list[tuple[Any, Any]], x: Any) -> Any:
        *hidden, (weight, bias) = layers
        for w, b in hidden:
            x = self._torch.addmm(b, x, w).relu_()
        return self._torch.addmm(bias, x, weight)

    def _step(self, loss: Any) -> str:
        """Why it was left out, or an empty string."""
        s = self._agent.settings
        self._grad.zero_()
        loss.backward()
        norm = self._grad.norm()
        self._grad.mul_((s.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        fallen = min(1.0, self._updates / s.learning_rate_updates) * (1.0 - s.learning_rate_end)
        self._adam.param_groups[0]["lr"] = s.learning_rate * (1.0 - fallen)
        skipped = self._steps.step(loss.detach(), norm)
        if self._updates % s.target_interval == 0:
            self._target_flat.lerp_(self._flat.detach(), s.target_tau)
        return skipped

    def _progress(self) -> float:
        return min(1.0, self._updates / self._agent.settings.epsilon_updates)

    def _views(self, flat: Any, *, learn: bool) -> list[tuple[Any, Any]]:
        """Each layer's (weight `[in, out]`, bias `[out]`) as views into `flat`; gradients gather in `flat.grad`."""
        layers = []
        for weight, bias in _layers_of(flat, self._agent.sides):
            layers.append((weight.detach(), bias.detach()))
        if learn:
            for pair, grads in zip(layers, _layers_of(self._grad, self._agent.sides), strict=True):
                for view, grad in zip(pair, grads, strict=True):
                    view.requires_grad_(True)
                    view.grad = grad
        return layers


_SAVED = ("parameters", "target", "adam_mean", "adam_variance")


def _layers_of(flat: Any, sides: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """Views of (weight `[in, out]`, bias `[out]`) into a flat array or tensor."""
    layers, at = [], 0
    for fan_in, fan_out in pairwise(sides):
        weight = flat[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
        at += fan_in * fan_out
        layers.append((weight, flat[at : at + fan_out]))
        at += fan_out
    return layers


def _initial_parameters(sides: tuple[int, ...], seed: int) -> Array:
    """float32, uniform within 1/sqrt(fan_in), as torch's Linear; drawn in numpy, so alike on every device."""
    rng = np.random.default_rng(seed)
    parts = []
    for fan_in, fan_out in pairwise(sides):
        bound = 1.0 / np.sqrt(fan_in)
        parts.append(rng.uniform(-bound, bound, (fan_in + 1) * fan_out))
    return np.concatenate(parts).astype(np.float32)
