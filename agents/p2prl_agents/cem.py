"""CEM: the cross-entropy method over the weights of a small policy, in numpy alone. Read it from top to bottom.

Sources: Rubinstein 1999 (doi:10.1023/A:1010091220143); for control, with noise that keeps the search from shrinking too
soon, Szita & Lorincz 2006 (doi:10.1162/neco.2006.18.12.2936).

A *candidate* is one draw of the policy's parameters, `mean + std * normal(seed)`. Each slot draws one when an episode
begins and plays the whole episode with it. The learner puts episodes together from the sessions that arrive, in any
order, some never; the best candidates of a *generation* give the next mean and std. No parameters travel back: a
candidate's number is its seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from p2prl.core.schema import RESET, TERMINATED, TRUNCATED
from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Batch, Explore, Field, ReplaySpec, State, Tree, Update, Weights
from p2prl_agents.features import Features

Positive = Annotated[int, Meta(ge=1)]

#: Generations whose mean and std the learner keeps: long episodes come in after the next generation has begun, and
#: leaving them out would favour short lives.
GENERATIONS_KEPT = 32
#: Unfinished episodes the learner keeps; some never finish, because a machine left.
EPISODES_KEPT = 20_000


class CEMSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CEM's settings."""

    population: Positive = 32
    """Episodes per generation."""
    elite: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.25
    """The share of them that the next generation is fitted to."""
    hidden: Annotated[int, Meta(ge=0)] = 0
    """Units of one hidden layer (tanh); 0 for a linear policy."""
    std: Annotated[float, Meta(gt=0.0)] = 1.0
    """The first generation's standard deviation, of every parameter."""
    noise: Annotated[float, Meta(ge=0.0)] = 0.2
    """Added to each new std at first, so that the search does not shrink too soon."""
    noise_generations: Positive = 15
    """Generations over which that noise falls linearly to 0."""
    ticks: Positive = 32
    """T, the length of a session."""
    batch: Positive = 8
    """Sessions per update; an update makes a generation only when `population` episodes are complete."""
    capacity_bytes: Positive = 64_000_000
    """What may wait at the shards, decoded."""


class CEM:
    """The cross-entropy method bound to one environment."""

    Settings: ClassVar[type[msgspec.Struct]] = CEMSettings
    ladder: ClassVar[int] = 1

    def __init__(self, env: EnvSpec, settings: CEMSettings) -> None:
        """Raises UsageError unless the action is one Discrete or one float Box."""
        self.settings = settings
        self.features = Features(env)
        self.policy = Policy(env, self.features.size, settings.hidden)

    def fields(self) -> Mapping[str, Field]:
        """Which candidate played the tick, of which generation, and which tick of its episode it was."""
        return {"candidate": Field("int64"), "generation": Field("int32"), "tick": Field("int32")}

    def replay(self) -> ReplaySpec:
        """A queue of whole sessions."""
        s = self.settings
        return ReplaySpec(
            kind="queue", ticks=s.ticks, batch=s.batch, window=0, capacity_bytes=s.capacity_bytes, min_ticks=0
        )

    def actor(self) -> CEMActor:
        """In numpy."""
        return CEMActor(self)

    def learner(self, device: str, seed: int) -> CEMLearner:
        """In numpy too; `device` does not matter."""
        return CEMLearner(self)


class Policy:
    """A linear policy, or one with a hidden layer, whose parameters are one vector per slot.

    Attributes:
        size: P, the number of parameters.
    """

    def __init__(self, env: EnvSpec, inputs: int, hidden: int) -> None:
        leaf = env.action
        if not isinstance(leaf, Leaf) or not (leaf.kind == "discrete" or _is_float_box(leaf)):
            kind = f"{leaf.kind} of {leaf.dtype}" if isinstance(leaf, Leaf) else type(leaf).__name__
            raise UsageError(f"cem needs one Discrete or one float Box action, {env.id} has {kind}")
        self._leaf = leaf
        outputs = int(leaf.high[0] - leaf.low[0]) + 1 if leaf.kind == "discrete" else int(np.prod(leaf.shape))
        self._sides = (inputs, hidden, outputs) if hidden else (inputs, outputs)
        self.size = sum((a + 1) * b for a, b in zip(self._sides[:-1], self._sides[1:], strict=True))
        self._low, self._high = (np.asarray(bound, np.float32) for bound in (leaf.low, leaf.high))
        self._bounded = bool(np.isfinite(self._low).all() and np.isfinite(self._high).all())

    def act(self, parameters: Array, x: Array) -> Array:
        """Actions `[slots, ...]` of parameters float32 `[slots, P]` and features float32 `[slots, inputs]`."""
        at = 0
        for index, (a, b) in enumerate(zip(self._sides[:-1], self._sides[1:], strict=True)):
            x = np.tanh(x) if index else x
            weight = parameters[:, at : at + a * b].reshape(-1, a, b)
            bias = parameters[:, at + a * b : at + (a + 1) * b]
            x = np.matmul(x[:, None, :], weight)[:, 0] + bias
            at += (a + 1) * b
        return self._discrete(x) if self._leaf.kind == "discrete" else self._box(x)

    def _discrete(self, x: Array) -> Array:
        actions: Array = (x.argmax(axis=1) + int(self._leaf.low[0])).astype(self._leaf.dtype)
        return actions

    def _box(self, x: Array) -> Array:
        """Squashed into finite bounds; clipped to bounds that are finite on one side only."""
        if self._bounded:
            x = self._low + (self._high - self._low) * (np.tanh(x) + 1) / 2
        actions: Array = np.clip(x, self._low, self._high).astype(self._leaf.dtype)
        return actions.reshape(-1, *self._leaf.shape)


class CEMActor:
    """Plays each episode with one candidate; greedily, with the mean."""

    def __init__(self, agent: CEM) -> None:
        self._features, self._policy = agent.features, agent.policy
        self._mean = self._std = np.zeros(agent.policy.size, np.float32)
        self._generation = 0

    def load(self, weights: Weights) -> None:
        """Takes `mean`, `std` and `generation`. Episodes under way keep their candidate."""
        self._mean, self._std = weights["mean"], weights["std"]
        self._generation = int(weights["generation"])

    def start(self, slots: int) -> State:
        """`tick` 0 says that a candidate must be drawn; its parameters then stay in the state."""
        return {
            "tick": np.zeros(slots, np.int32),
            "candidate": np.zeros(slots, np.int64),
            "generation": np.zeros(slots, np.int32),
            "parameters": np.zeros((slots, self._policy.size), np.float32),
        }

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """Draws candidates where an episode begins, then acts with each slot's own."""
        begins = state["tick"] == 0
        if begins.any():
            state = {name: rows.copy() for name, rows in state.items()}
            for slot in np.flatnonzero(begins).tolist():
                self._begin(state, slot, explore)
        actions = self._policy.act(state["parameters"], self._features.of_tree(obs))
        extras = {name: state[name] for name in ("candidate", "generation", "tick")}
        return actions, {**state, "tick": state["tick"] + np.int32(1)}, extras

    def _begin(self, state: State, slot: int, explore: Explore | None) -> None:
        state["generation"][slot] = self._generation
        if explore is None:
            state["parameters"][slot] = self._mean
            return
        candidate = int(explore.rng.integers(np.iinfo(np.int64).max))
        state["candidate"][slot] = candidate
        state["parameters"][slot] = parameters_of(candidate, self._mean, self._std)


def parameters_of(candidate: int, mean: Array, std: Array) -> Array:
    """float32 `[P]`: the parameters that `candidate` names, given its generation's mean and std."""
    noise = np.random.default_rng(candidate).standard_normal(len(mean))
    return (mean + std * noise).astype(np.float32)


@dataclass
class _Episode:
    """What is known of one candidate's episode. `last` is -1 until its last tick was seen."""

    seen: int = 0
    last: int = -1
    total: float = 0.0


class CEMLearner:
    """Puts episodes together and fits generations."""

    def __init__(self, agent: CEM) -> None:
        self._settings = agent.settings
        size = agent.policy.size
        self._generation = 0
        self._means = {0: np.zeros(size)}
        self._stds = {0: np.full(size, agent.settings.std)}
        self._open: dict[tuple[int, int], _Episode] = {}
        #: (generation, candidate, return) of complete episodes since the last generation was made
        self._complete: list[tuple[int, int, float]] = []

    def update(self, batch: Batch) -> Update:
        """Take in whole sessions `[N, T]`; publishes when they complete a generation."""
        for piece in _pieces(batch):
            self._take(*piece)
        while len(self._open) > EPISODES_KEPT:
            del self._open[next(iter(self._open))]
        if len(self._complete) < self._settings.population:
            return Update(publish=False)
        return Update(metrics=self._advance(), publish=True)

    def weights(self) -> Weights:
        """`mean` and `std`, float32 `[P]`, and `generation`."""
        return {
            "mean": self._means[self._generation].astype(np.float32),
            "std": self._stds[self._generation].astype(np.float32),
            "generation": np.array(self._generation, np.int32),
        }

    def save(self) -> Mapping[str, Array]:
        """The generations kept, unfinished episodes, and complete ones."""
        kept = sorted(self._means)
        parts = [(*key, e.seen, e.last) for key, e in self._open.items()]
        return {
            "kept": np.array(kept, np.int64),
            "means": np.stack([self._means[g] for g in kept]),
            "stds": np.stack([self._stds[g] for g in kept]),
            "open": np.array(parts, np.int64).reshape(-1, 4),
            "open_totals": np.array([e.total for e in self._open.values()], np.float64),
            "complete": np.array([pair[:2] for pair in self._complete], np.int64).reshape(-1, 2),
            "complete_returns": np.array([entry[2] for entry in self._complete], np.float64),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where `save` was called."""
        kept = state["kept"].tolist()
        self._generation = max(kept)
        self._means = {g: np.array(row) for g, row in zip(kept, state["means"], strict=True)}
        self._stds = {g: np.array(row) for g, row in zip(kept, state["stds"], strict=True)}
        rows = zip(state["open"].tolist(), state["open_totals"].tolist(), strict=True)
        self._open = {(g, c): _Episode(seen, last, total) for (g, c, seen, last), total in rows}
        pairs = zip(state["complete"].tolist(), state["complete_returns"].tolist(), strict=True)
        self._complete = [(g, c, total) for (g, c), total in pairs]

    def _take(self, key: tuple[int, int], ticks: int, total: float, last: int) -> None:
        if key[0] not in self._means:
            return
        episode = self._open.setdefault(key, _Episode())
        episode.seen += ticks
        episode.total += total
        episode.last = max(episode.last, last)
        if episode.seen == episode.last + 1:
            del self._open[key]
            self._complete.append((*key, episode.total))

    def _advance(self) -> dict[str, float]:
        """Fit the next generation to the elite (Szita & Lorincz, equations 2-4)."""
        s = self._settings
        usable = [entry for entry in self._complete if entry[0] in self._means]
        ranked = sorted(usable, key=lambda entry: entry[2], reverse=True)
        elite = ranked[: max(1, round(s.elite * len(ranked)))]
        drawn = np.stack([parameters_of(c, self._means[g], self._stds[g]) for g, c, _ in elite]).astype(
            np.float64
        )
        noise = s.noise * max(0.0, 1.0 - (self._generation + 1) / s.noise_generations)
        self._generation += 1
        self._means[self._generation] = drawn.mean(axis=0)
        self._stds[self._generation] = np.sqrt(drawn.var(axis=0) + noise**2)
        self._forget()
        returns = [entry[2] for entry in ranked]
        return {
            "generation": float(self._generation),
            "return_mean": float(np.mean(returns)),
            "return_elite": float(np.mean([entry[2] for entry in elite])),
            "std_mean": float(self._stds[self._generation].mean()),
        }

    def _forget(self) -> None:
        self._complete = []
        oldest = self._generation - GENERATIONS_KEPT + 1
        for generation in [g for g in self._means if g < oldest]:
            del self._means[generation], self._stds[generation]
        self._open = {key: episode for key, episode in self._open.items() if key[0] >= oldest}


def _pieces(batch: Batch) -> Iterator[tuple[tuple[int, int], int, float, int]]:
    """Each stretch of one episode in each session: (key, ticks, sum of rewards, last tick or -1 if it goes on)."""
    real = (batch["flags"] & RESET) == 0
    ended = (batch["flags"] & (TERMINATED | TRUNCATED)) != 0
    for row in range(len(real)):
        candidate = batch["candidate"][row]
        # An episode's end is always followed by a RESET, so stretches of real ticks are of one episode each.
        edges = np.flatnonzero(np.diff(np.concatenate(([0], real[row].astype(np.int8), [0]))))
        for begin, end in edges.reshape(-1, 2).tolist():
            key = (int(batch["generation"][row, begin]), int(candidate[begin]))
            total = float(batch["reward"][row, begin:end].sum(dtype=np.float64))
            last = int(batch["tick"][row, end - 1]) if ended[row, end - 1] else -1
            yield key, end - begin, total, last


def _is_float_box(leaf: Leaf) -> bool:
    return leaf.kind == "box" and leaf.dtype.startswith("float")
