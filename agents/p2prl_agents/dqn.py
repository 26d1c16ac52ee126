"""DQN: deep Q-learning with a replay buffer, for one discrete action. Read it from top to bottom.

Sources: DQN, Mnih et al. 2015 (doi:10.1038/nature14236); Double DQN, van Hasselt et al. 2016 (arXiv:1509.06461);
n-step targets and an exploration ladder over many players, Ape-X, Horgan et al. 2018 (arXiv:1803.00933).

What more there is, each a setting: dueling heads and distributions of the return (q_heads.py), prioritised replay
(Schaul et al. 2016, arXiv:1511.05952), optimality tightening (He et al. 2017, arXiv:1611.01606), a memory with burn-in
(R2D2, Kapturowski et al. 2019) and curiosity (curiosity.py).

Here are the settings, the agent and its actor, which runs the network in numpy; the learner is in dqn_learner.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Explore, Field, ReplaySpec, State, Tree, Weights
from p2prl_agents.networks import Core, Network, Observations
from p2prl_agents.normaliser import normalised
from p2prl_agents.ops import NumpyOps, Tensor
from p2prl_agents.q_heads import Distribution, dueling, make_head
from p2prl_agents.ranges import Above, Fraction, Least0, NotNegative, Positive, Share

if TYPE_CHECKING:
    from p2prl_agents.dqn_learner import DQNLearner

_NUMPY = NumpyOps()


class DQNSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DQN's settings. The defaults solve CartPole quickly and robustly."""

    hidden: tuple[Positive, ...] = (128, 128)
    """Units of each hidden layer."""
    normalise: bool = True
    """Scale observations by their running mean and deviation."""
    dueling: bool = False
    """Values of states and advantages of actions apart, on the last hidden layer."""
    distribution: Distribution = "none"
    """What is learned of each action's return: `none`, its mean; `quantile`; `c51`, shares of fixed values."""
    atoms: Annotated[int, Meta(ge=2)] = 51
    """Quantiles, or fixed values."""
    value_low: float = 0.0
    """Lowest of C51's fixed values, in scaled rewards."""
    value_high: float = 10.0
    """Highest of them."""
    core: Core = "none"
    """Memory after the hidden layers: `none`, `gru` or `lstm`. Whole sessions are then learned from."""
    core_units: Positive = 64
    """Units of the core."""
    burn_in: NotNegative = 0
    """Ticks at a session's beginning that only warm the core up; they are not learned from."""
    learning_rate: Above = 2e-3
    """Adam's step size."""
    learning_rate_end: Fraction = 0.1
    """What is left of it after `learning_rate_updates`, as a fraction; it falls linearly and then stays."""
    learning_rate_updates: Positive = 8000
    """Updates until it has fallen."""
    gamma: Fraction = 0.99
    """Discount per tick."""
    reward_scale: Above = 0.1
    """Rewards are multiplied by this inside the learner; values of about 1 to 10 are learned best."""
    n_step: Positive = 10
    """Rewards summed before the target bootstraps from the network."""
    double: bool = True
    """Double DQN: the online network chooses the next action, the target network values it."""
    tightening: Least0 = 0.0
    """Weight of the penalty for values outside their bounds; 0 for none. Whole sessions are then learned from."""
    curiosity: Least0 = 0.0
    """Weight of the reward for what is new; 0 for none."""
    curiosity_learning_rate: Above = 1e-4
    """Adam's step size for what tells old from new."""
    batch: Positive = 64
    """Samples per update."""
    sessions: Positive = 8
    """Samples per update instead, where whole sessions are learned from (`core`, `tightening`)."""
    priority_exponent: Fraction = 0.0
    """How much more often ticks with large errors are sampled; 0 for all alike."""
    priority_correction: Fraction = 0.4
    """How far this is made good by weights; rises to 1, linearly."""
    priority_updates: Positive = 10_000
    """Updates until it has risen."""
    priority_mix: Fraction = 0.9
    """A session's priority: so much of its largest error, the rest of their mean."""
    target_interval: Positive = 40
    """Updates between two updates of the target network."""
    target_tau: Share = 1.0
    """How far the target network then moves to the online one; 1 copies it."""
    max_grad_norm: Above = 10.0
    """Gradients are scaled down to this norm."""
    epsilon_low: Share = 0.005
    """Final share of random actions on the ladder's lowest rung."""
    epsilon_high: Share = 0.3
    """Final share of random actions on the ladder's highest rung."""
    epsilon_updates: Positive = 500
    """Updates until exploration has fallen from 1 to its final share."""
    ticks: Positive = 32
    """T, the length of a session."""
    capacity_bytes: Positive = 64_000_000
    """Replay capacity over all shards; pictures count as they were sent, all else decoded."""
    min_ticks: Positive = 1000
    """Ticks stored before the first update."""
    samples_per_insert: Least0 = 4.0
    """How often a tick is sampled on average; 0 for as often as the trainer can."""


class DQN:
    """DQN bound to one environment."""

    Settings: ClassVar[type[msgspec.Struct]] = DQNSettings
    ladder: ClassVar[int] = 2
    weights_tolerance: ClassVar[float] = 0.02

    def __init__(self, env: EnvSpec, settings: DQNSettings) -> None:
        """Raises UsageError unless the action is one Discrete, and for settings that contradict each other."""
        if not isinstance(env.action, Leaf) or env.action.kind != "discrete":
            kind = env.action.kind if isinstance(env.action, Leaf) else type(env.action).__name__
            raise UsageError(f"dqn needs one Discrete action, {env.id} has {kind}")
        _check(settings)
        s = self.settings = settings
        self.first_action = int(env.action.low[0])
        self.actions = int(env.action.high[0]) - self.first_action + 1
        self.action_dtype = env.action.dtype
        self.observations = Observations(env)
        self.normalise = s.normalise and self.observations.size > 0
        self.head = make_head(s.distribution, s.atoms, s.value_low, s.value_high)
        atoms = self.head.atoms
        heads = {"action": self.actions * atoms, **({"value": atoms} if s.dueling else {})}
        self.network = Network(self.observations, "q/", s.hidden, heads, core=s.core, core_units=s.core_units)
        #: Whole sessions are learned from, not windows of them.
        self.whole = s.core != "none" or s.tightening > 0

    def fields(self) -> Mapping[str, Field]:
        """Once per session the core's state, if there is one."""
        state = self.network.start(1)
        return {name: Field("float32", rows.shape[1:], once=True) for name, rows in state.items()}

    def replay(self) -> ReplaySpec:
        """Windows of `n_step` ticks or whole sessions, all alike or by priority."""
        s = self.settings
        return ReplaySpec(
            kind="prioritised" if s.priority_exponent else "uniform",
            ticks=s.ticks if self.whole else max(s.ticks, s.n_step),
            batch=s.sessions if self.whole else s.batch,
            window=0 if self.whole else s.n_step,
            capacity_bytes=s.capacity_bytes,
            min_ticks=s.min_ticks,
            samples_per_insert=s.samples_per_insert,
        )

    def actor(self) -> DQNActor:
        """In numpy alone."""
        return DQNActor(self)

    def learner(self, device: str, seed: int) -> DQNLearner:
        """In torch."""
        from p2prl_agents.dqn_learner import DQNLearner  # here, so that a player never pays for it

        return DQNLearner(self, device, seed)

    def folded(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Weights with dueling heads as one layer."""
        if not self.settings.dueling:
            return weights
        folded = {name: values for name, values in weights.items() if not name.startswith("q/value/")}
        for part in ("weight", "bias"):
            folded[f"q/action/{part}"] = dueling(weights, part, self.head.atoms)
        return folded


def _check(s: DQNSettings) -> None:
    """Raises UsageError."""
    if s.value_low >= s.value_high:
        raise UsageError(f"agent.value_low ({s.value_low}) must be below agent.value_high ({s.value_high})")
    if s.burn_in >= s.ticks:
        raise UsageError(f"agent.burn_in ({s.burn_in}) must be below agent.ticks ({s.ticks})")
    if s.burn_in and s.core == "none":
        raise UsageError("agent.burn_in warms up a memory: set agent.core too")
    if s.tightening and not s.gamma:
        raise UsageError("agent.tightening needs agent.gamma above 0")


class DQNActor:
    """Epsilon-greedy play in numpy."""

    def __init__(self, agent: DQN) -> None:
        self._agent = agent
        self._weights: Weights = {}
        self._progress = 0.0
        #: Levels of the slots, and their final epsilons: a player's never change.
        self._final: tuple[Array, Array] | None = None

    def load(self, weights: Weights) -> None:
        """Takes the network's weights, whose last layer gives values, `norm/...` if features are normalised, and
        `progress`, which anneals exploration.
        """
        self._weights = weights
        self._progress = float(weights["progress"])

    @property
    def annealing(self) -> bool:
        """True until exploration has fallen to its final share."""
        return self._progress < 1.0

    def start(self, slots: int) -> State:
        """The core's state, zeros; `{}` without a core."""
        return self._agent.network.start(slots)

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """The action of the highest value, or with a slot's own probability any; and the state before it."""
        values, following = self.values(obs, state)
        actions = values.argmax(axis=1)
        if explore is not None:
            chance = explore.rng.random(actions.shape)
            random = chance < self.epsilon(explore.level)
            if random.any():
                actions = np.where(
                    random, explore.rng.integers(self._agent.actions, size=actions.shape), actions
                )
        return (actions + self._agent.first_action).astype(self._agent.action_dtype), following, state

    def values(self, obs: Tree, state: State) -> tuple[Array, State]:
        """Q, float32 `[slots, actions]`, and the next state."""
        agent = self._agent
        inputs = agent.observations.of_tree(obs)
        if agent.normalise:
            inputs["features"] = normalised(inputs["features"], self._weights)
        outputs, following = agent.network.step(_NUMPY, self._weights, inputs, state)
        values: Array = outputs["action"]
        if not agent.head.linear:
            values = agent.head.values(_NUMPY, values)
        return values, following

    def epsilon(self, level: Array) -> Array:
        """The share of random actions per slot: geometric from rung to rung (Ape-X, section 4.1), after annealing."""
        if self._final is None or self._final[0] is not level:
            s, rungs = self._agent.settings, self._agent.ladder
            height = level * (rungs / (rungs - 1))
            self._final = level, s.epsilon_low * (s.epsilon_high / s.epsilon_low) ** height
        final = self._final[1]
        epsilon: Array = final + (1.0 - final) * (1.0 - self._progress)
        return epsilon
