"""What the actor-critic algorithms share: networks for policy and critic, the numpy actor, sessions as tensors.

An algorithm (vtrace.py, ppo.py) is then its settings, its replay and its loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
import numpy as np

from p2prl.core.spaces import EnvSpec
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Batch, Explore, Field, ReplaySpec, State, Tree, Weights
from p2prl.learn.spaces import session_schema
from p2prl_agents.distributions import Actions
from p2prl_agents.maths import real
from p2prl_agents.networks import Activation, Core, Network, Observations
from p2prl_agents.normaliser import Normaliser, normalised
from p2prl_agents.ops import NumpyOps, Tensor, TorchOps
from p2prl_agents.ranges import NotNegative, Positive
from p2prl_agents.rows import RowNetwork, rows_of
from p2prl_agents.trainable import Trainable

_NUMPY = NumpyOps()
#: Before the names of what only the critic has.
_CRITIC = ("critic/", "policy/value/")


class NetworkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the networks of policy and critic are made of."""

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


class ActorCritic:
    """Policy and critic of one environment: two networks, or (`shared`, and always with a core) one with two heads.

    Args:
        agent: the algorithm's name, for errors.
        apart: keep the log-probabilities of an action's parts apart.

    Raises:
        UsageError: the action space has something that cannot be drawn, or none of the rows that it is to have.
    """

    def __init__(self, env: EnvSpec, agent: str, settings: NetworkSettings, apart: bool = False) -> None:
        s = settings
        self.observations = Observations(env)
        self.actions = Actions(env, agent, apart)
        self.recurrent = s.core != "none"
        self.normalise = s.normalise and self.observations.size > 0
        together = s.shared or self.recurrent
        if s.rows and together:
            raise UsageError(f"{agent}: rows goes with neither a core nor shared; leave one of them out")
        self.policy = self._of_rows(env, agent, s) if s.rows else self._of_all(s, together)
        self.critic = (
            None
            if together
            else Network(self.observations, "critic/", s.hidden, {"value": 1}, activation=s.activation)
        )

    def _of_all(self, s: NetworkSettings, together: bool) -> Network:
        return Network(
            self.observations,
            "policy/",
            s.hidden,
            {"logits": self.actions.outputs, **({"value": 1} if together else {})},
            activation=s.activation,
            core=s.core,
            core_units=s.core_units,
            after=s.core_units,
        )

    def _of_rows(self, env: EnvSpec, agent: str, s: NetworkSettings) -> Network:
        parts = self.actions.categories
        if self.actions.gaussians or len(set(parts)) != 1:
            raise UsageError(
                f"{agent}: rows needs an action of like parts (MultiDiscrete); {env.id} has others"
            )
        count, heads = rows_of(env, agent, len(parts)), {"logits": parts[0]}
        return RowNetwork(self.observations, "policy/", s.hidden, heads, rows=count, activation=s.activation)

    def fields(self) -> dict[str, Field]:
        """What `act` adds: of the draw, and once per session the core's state."""
        state = self.policy.start(1)
        return {
            **self.actions.fields(),
            **{name: Field("float32", rows.shape[1:], once=True) for name, rows in state.items()},
        }

    def initial(self, seed: int) -> dict[str, Array]:
        """All weights: orthogonal, the policy's head small so that it begins near uniform."""
        gains = {"logits": 0.01, "value": 1.0}
        weights = self.policy.initial(seed, gains, orthogonal=True)
        if self.critic is not None:
            weights.update(self.critic.initial(seed + 1, gains, orthogonal=True))
        if self.actions.gaussians:
            weights["log_std"] = np.zeros(self.actions.gaussians, np.float32)
        return weights


class PolicyAgent:
    """What an agent with a policy and a critic is, but for its learner: networks, fields, actor, queue."""

    ladder: ClassVar[int] = 1
    weights_tolerance: ClassVar[float] = 0.01

    def __init__(
        self, env: EnvSpec, name: str, settings: NetworkSettings, ticks: int, apart: bool = False
    ) -> None:
        _check_burn_in(name, settings, ticks)
        self._env = env
        self.nets = ActorCritic(env, name, settings, apart)

    def fields(self) -> Mapping[str, Field]:
        """`log_prob` of each action, what Gaussians drew, and once per session the core's state."""
        return self.nets.fields()

    def actor(self) -> PolicyActor:
        """In numpy alone."""
        return PolicyActor(self.nets)

    def queue(self, *, ticks: int, batch: int, waiting: int, max_lag: int) -> ReplaySpec:
        """A queue of whole sessions, of which `waiting` batches may wait at the shards."""
        size_bytes = session_schema(self._env, self.fields(), ticks).session_bytes()
        return ReplaySpec(
            kind="queue",
            ticks=ticks,
            batch=batch,
            window=0,
            capacity_bytes=waiting * batch * size_bytes,
            min_ticks=0,
            max_lag=max_lag,
            fresh=True,
        )


class PolicyActor:
    """Draws actions in numpy; greedily, the likeliest."""

    def __init__(self, nets: ActorCritic) -> None:
        self._nets = nets
        self._weights: Weights = {}

    def load(self, weights: Weights) -> None:
        """Takes the policy's weights, and `norm/...` if features are normalised."""
        self._weights = weights

    def start(self, slots: int) -> State:
        """The core's state, zeros; `{}` without a core."""
        return self._nets.policy.start(slots)

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """One draw per slot, with its log-probability and the state before it."""
        nets = self._nets
        inputs = nets.observations.of_tree(obs)
        if nets.normalise:
            inputs["features"] = normalised(inputs["features"], self._weights)
        outputs, following = nets.policy.step(_NUMPY, self._weights, inputs, state)
        rng = None if explore is None else explore.rng
        actions, fields = nets.actions.draw(outputs["logits"], self._weights.get("log_std"), rng)
        return actions, following, {**fields, **state}


@dataclass(frozen=True)
class Sessions:
    """A batch on the device, `[N, L, ...]`, L ticks (one more of inputs if the last observation is kept).

    Attributes:
        inputs: of the networks, by name.
        state: of the core before the first tick, `[N, H]` per entry.
        keep: float32, 0 at RESET ticks.
        picked, drawn: what was taken; see `Actions.taken`.
    """

    inputs: dict[str, Tensor]
    state: dict[str, Tensor]
    keep: Tensor
    picked: Tensor
    drawn: Tensor

    def rows(self, index: Tensor) -> Sessions:
        """Some of the N."""
        return Sessions(
            {name: values[index] for name, values in self.inputs.items()},
            {name: values[index] for name, values in self.state.items()},
            self.keep[index],
            self.picked[index],
            self.drawn[index],
        )

    def played(self) -> Sessions:
        """Without the last observation, from which nothing was done."""
        ticks = self.keep.shape[1]
        return replace(self, inputs={name: values[:, :ticks] for name, values in self.inputs.items()})

    def apart(self) -> Sessions:
        """Each tick a session of its own, `[N*L, 1, ...]`: for networks without a core."""
        return Sessions(
            {name: _apart(values) for name, values in self.played().inputs.items()},
            {},
            _apart(self.keep),
            _apart(self.picked),
            _apart(self.drawn),
        )


def _apart(values: Tensor) -> Tensor:
    return values.flatten(0, 1).unsqueeze(1)


class PolicyLearner:
    """The torch half that the algorithms' learners build on."""

    def __init__(self, nets: ActorCritic, device: str, seed: int) -> None:
        import torch  # here, so that a player never pays for it

        self.torch = torch
        self.nets = nets
        self._ops = TorchOps()
        self._device = torch.device(device)
        self.trainable = Trainable(nets.initial(seed), device)
        self._normaliser = Normaliser(nets.observations.size) if nets.normalise else None
        self.updates, self._seed = 0, seed

    def remember(self) -> Callable[[], None]:
        """Note all that an update changes; what is returned takes the update back, for one that went wrong."""
        weights, updates = self.trainable.snapshot(), self.updates
        norm = self._normaliser.save() if self._normaliser is not None else {}

        def take_back() -> None:
            self.trainable.restore(weights)
            self.updates = updates
            if self._normaliser is not None:
                self._normaliser.load(norm)

        return take_back

    def sessions(self, batch: Batch) -> Sessions:
        """Tensors of whole sessions; what is seen here is taken into the running normalisation first."""
        inputs = self.nets.observations.of_columns(batch)
        if self._normaliser is not None:
            features = inputs["features"]
            begun = features[:, :-1].reshape(-1, features.shape[-1])
            # A fifth of what an index of two axes costs.
            self._normaliser.see(np.compress(real(batch["flags"]).ravel(), begun, axis=0))
            inputs["features"] = normalised(features, self._normaliser.scale())
        picked, drawn = self.nets.actions.taken(batch)
        state = {name: batch[name][:, 0] for name in self.nets.policy.start(1)}
        return Sessions(
            {name: self.tensor(values) for name, values in inputs.items()},
            {name: self.tensor(values) for name, values in state.items()},
            self.tensor(real(batch["flags"]).astype(np.float32)),
            self.tensor(picked),
            self.tensor(drawn),
        )

    def outputs(self, sessions: Sessions, burn_in: int = 0) -> tuple[Tensor, Tensor]:
        """The policy's outputs `[N, L, K]` and the critic's values `[N, L]`."""
        nets, weights = self.nets, self.trainable.tensors
        out = nets.policy.unroll(self._ops, weights, sessions.inputs, sessions.state, sessions.keep, burn_in)
        if nets.critic is not None:
            out = {**out, **nets.critic.unroll(self._ops, weights, sessions.inputs, {}, sessions.keep)}
        return out["logits"], out["value"].squeeze(-1)

    def judge(self, outputs: Tensor, sessions: Sessions) -> tuple[Tensor, Tensor]:
        """Log-probabilities of what was taken, `[N, L, *log_probs]`, and entropies, `[N, L]`; outputs `[N, L, K]`."""
        shape = outputs.shape[:2]
        log_prob, entropy = self.nets.actions.judge(
            self.torch,
            outputs.flatten(0, 1),
            self.trainable.tensors.get("log_std"),
            sessions.picked.flatten(0, 1),
            sessions.drawn.flatten(0, 1),
        )
        return log_prob.reshape(*shape, *log_prob.shape[1:]), entropy.reshape(shape)

    def minibatches(self, mask: Array, size: int, passes: int) -> Iterator[Any]:
        """Row numbers of each minibatch, in an order that the seed and the count of updates decide.

        Args:
            mask: `[N, L]`, true where a tick is learned from. Rows without one are left out.
            size: ticks of a minibatch, rounded to whole rows; 0 for all in one.
            passes: over all rows.
        """
        rng = np.random.default_rng((self._seed, self.updates))
        useful = np.flatnonzero(mask.any(axis=1))
        rows = max(1, size // mask.shape[1]) if size else len(useful)
        for _ in range(passes if len(useful) else 0):
            order = rng.permutation(useful)
            for some in np.array_split(order, max(1, round(len(order) / rows))):
                yield self.tensor(some)

    def tensor(self, values: Array) -> Tensor:
        """On the device."""
        return self.torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def weights(self) -> dict[str, Array]:
        """What actors need: the policy, not the critic; and the normalisation."""
        named = {
            name: values for name, values in self.trainable.arrays().items() if not name.startswith(_CRITIC)
        }
        return {**named, **(self._normaliser.scale() if self._normaliser is not None else {})}

    def save(self) -> Mapping[str, Array]:
        """Weights, optimiser, normalisation, the number of updates, and the seed of the minibatches' order."""
        norm = self._normaliser.save() if self._normaliser is not None else {}
        counts = {"updates": np.array(self.updates, np.int64), "seed": np.array(self._seed, np.int64)}
        return {**self.trainable.save(), **norm, **counts}

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where `save` was called."""
        self.trainable.load(state)
        if self._normaliser is not None:
            self._normaliser.load(state)
        self.updates = int(state["updates"])
        self._seed = int(state.get("seed", self._seed))  # vtrace's older checkpoints have none


def surrogate(torch: Any, ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The clipped objective of each tick, or part of one (PPO, arXiv:1707.06347, equation 7)."""
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def scaled(advantage: Tensor) -> Tensor:
    """Advantages `[K]` brought to mean 0 and deviation 1."""
    return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)


def annealed(start: float, end: float, updates: int, over: int) -> float:
    """`start`, falling linearly to its fraction `end` over `over` updates; then it stays."""
    return start * (1.0 - min(1.0, updates / over) * (1.0 - end))


def array(tensor: Tensor) -> Array:
    """A tensor's values in numpy."""
    values: Array = tensor.detach().cpu().numpy()
    return values


def _check_burn_in(agent: str, s: NetworkSettings, ticks: int) -> None:
    """Raises UsageError for a burn-in without a core, or one that leaves no tick of a session."""
    if s.burn_in and s.core == "none":
        raise UsageError(f"{agent}: burn_in needs a core; set core to gru or lstm, or burn_in to 0")
    if s.burn_in >= ticks:
        raise UsageError(f"{agent}: burn_in {s.burn_in} leaves nothing of sessions of {ticks} ticks")
