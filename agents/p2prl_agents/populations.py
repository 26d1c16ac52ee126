"""What methods share that search among whole policies (cem, es): the policy, its candidates, and their episodes.

A *candidate* is a number: a seed and a sign. With its generation's mean and std it names all parameters of a policy,
`mean + sign * std * normal(seed)`. A slot draws one when an episode begins and plays the whole episode with it. What
travels is rewards, flags, and that number; no observation, action or parameter comes back.

The learner puts episodes together from sessions, which come in any order, some twice, some never.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from p2prl.core.schema import RESET, TERMINATED, TRUNCATED
from p2prl.core.spaces import EnvSpec, Leaf, leaves
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, Batch, Explore, Field, ReplaySpec, State, Tree, Weights
from p2prl.learn.spaces import join
from p2prl_agents.features import Features

#: Unfinished episodes that are kept; some never finish, because a machine left.
EPISODES_KEPT = 20_000
#: Complete ones that are remembered, so that a session that comes again does not count again.
DONE_KEPT = 100_000
#: Normalised observations are cut to this many standard deviations.
OBSERVATION_LIMIT = np.float32(5.0)
_CANDIDATES = 2**63 - 1
_DISCRETE = ("discrete", "multi_discrete", "multi_binary")


def fields(sample: int = 0) -> dict[str, Field]:
    """Which candidate played the tick, of which generation, and which tick of its episode the session's first was.

    Args:
        sample: the length of the observation at the session's first tick, which then comes along; 0 for none.
    """
    found = {"candidate": Field("int64"), "generation": Field("int64"), "tick": Field("int32", once=True)}
    return found if not sample else {**found, "sample": Field("float32", (sample,), once=True)}


def replay_spec(ticks: int, batch: int, capacity_bytes: int) -> ReplaySpec:
    """A queue of whole sessions, without observations and actions."""
    return ReplaySpec(
        kind="queue",
        ticks=ticks,
        batch=batch,
        window=0,
        capacity_bytes=capacity_bytes,
        min_ticks=0,
        observations=False,
        actions=False,
    )


def noise_of(candidate: int, size: int) -> Array:
    """float64 `[size]`: `sign * normal(seed)`; the number's lowest bit is the sign, the rest is the seed.

    Players and the learner may run different versions of numpy, and must draw alike: so RandomState and PCG64, whose
    streams never change (NEP 19), and not numpy's Generator, whose may.
    """
    noise = np.random.RandomState(np.random.PCG64(candidate >> 1)).standard_normal(size)
    return -noise if candidate & 1 else noise


def parameters_of(candidate: int, mean: Array, std: Array) -> Array:
    """float32 `[P]`: the parameters that `candidate` names, given its generation's mean and std (`[P]` or `[]`)."""
    drawn: Array = mean + std * noise_of(candidate, len(mean))
    return drawn.astype(np.float32)


def generation_id(number: int, *distribution: Array) -> int:
    """A generation's number and a fingerprint of what its candidates are drawn from.

    A run that is resumed from an older checkpoint comes to the same numbers again, with other means; candidates of the
    life that was lost must not be taken for the new one's.
    """
    fingerprint = 0
    for part in distribution:
        fingerprint = zlib.crc32(np.ascontiguousarray(part).tobytes(), fingerprint)
    return number << 32 | fingerprint


def number_of(generation: int) -> int:
    """The number in a generation's id."""
    return generation >> 32


class Policy:
    """A multilayer perceptron (tanh), linear without hidden layers, whose parameters are one vector per slot.

    Discrete actions, each element of MultiDiscrete and MultiBinary ones, are the largest of their outputs. A float Box
    is squashed into its bounds where both are finite, else clipped to them. Dict and Tuple are made of these.

    Attributes:
        size: P, the number of parameters.
    """

    def __init__(self, name: str, env: EnvSpec, inputs: int, hidden: tuple[int, ...]) -> None:
        """Raises UsageError, which names the agent `name`, for a Box of integers."""
        self._space = env.action
        self._heads: list[tuple[str, int, Callable[[Array], Array]]] = []
        for path, leaf in leaves(env.action, "action"):
            if leaf.kind not in _DISCRETE and not leaf.dtype.startswith("float"):
                raise UsageError(
                    f"{name} needs Discrete, MultiDiscrete, MultiBinary or float Box actions, "
                    f"{env.id} has {leaf.kind} of {leaf.dtype}"
                )
            self._heads.append((path, *_head(leaf)))
        self._sides = (inputs, *hidden, sum(outputs for _, outputs, _ in self._heads))
        self.size = sum((a + 1) * b for a, b in self._layers())

    def _layers(self) -> Iterator[tuple[int, int]]:
        return zip(self._sides[:-1], self._sides[1:], strict=True)

    def initial(self, rng: np.random.Generator) -> Array:
        """float64 `[P]`: hidden weights of variance 1 / inputs; the last layer and all biases 0."""
        parts = [np.concatenate((rng.normal(0.0, a**-0.5, a * b), np.zeros(b))) for a, b in self._layers()]
        return np.concatenate((*parts[:-1], np.zeros_like(parts[-1])))

    def act(self, parameters: Array, x: Array) -> Tree:
        """The action tree `[slots, ...]` of parameters float32 `[slots, P]` and features float32 `[slots, inputs]`."""
        at = 0
        for index, (a, b) in enumerate(self._layers()):
            x = np.tanh(x) if index else x
            weight = parameters[:, at : at + a * b].reshape(-1, a, b)
            bias = parameters[:, at + a * b : at + (a + 1) * b]
            x = np.matmul(x[:, None, :], weight)[:, 0] + bias
            at += (a + 1) * b
        columns: dict[str, Array] = {}
        at = 0
        for path, outputs, convert in self._heads:
            columns[path] = convert(x[:, at : at + outputs])
            at += outputs
        return join(self._space, "action", columns)


def _head(leaf: Leaf) -> tuple[int, Callable[[Array], Array]]:
    """How many outputs a leaf takes, and what makes its actions `[slots, *shape]` of them."""
    return _choice(leaf) if leaf.kind in _DISCRETE else _box(leaf)


def _choice(leaf: Leaf) -> tuple[int, Callable[[Array], Array]]:
    elements = int(np.prod(leaf.shape, dtype=np.int64))
    low, high = (np.broadcast_to(np.array(bound, np.int64), elements) for bound in (leaf.low, leaf.high))
    ends = np.cumsum(high - low + 1).tolist()
    groups = list(zip([0, *ends[:-1]], ends, strict=True))

    def convert(x: Array) -> Array:
        chosen = np.stack([x[:, a:b].argmax(axis=1) for a, b in groups], axis=1)
        return (chosen + low).astype(leaf.dtype).reshape(-1, *leaf.shape)

    return ends[-1], convert


def _box(leaf: Leaf) -> tuple[int, Callable[[Array], Array]]:
    low, high = (np.asarray(bound, np.float32) for bound in (leaf.low, leaf.high))
    bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())

    def convert(x: Array) -> Array:
        if bounded:
            x = low + (high - low) * (np.tanh(x) + 1) / 2
        return np.clip(x, low, high).astype(leaf.dtype).reshape(-1, *leaf.shape)

    return int(np.prod(leaf.shape, dtype=np.int64)), convert


class PopulationActor:
    """Plays each episode with one candidate; greedily, with the mean."""

    def __init__(
        self, features: Features, policy: Policy, *, mirrored: bool, normalised: bool = False
    ) -> None:
        """
        Args:
            mirrored: each candidate's twin of the other sign is drawn right after it, under the same weights.
            normalised: the weights hold the observations' `shift` and `scale`, and a sample of them goes back.
        """
        self._features, self._policy = features, policy
        self._mirrored, self._normalised = mirrored, normalised
        self._weights: Weights = {}
        #: The twin that is owed, with the weights that its sibling was drawn under.
        self._twin: tuple[int, Weights] | None = None

    def load(self, weights: Weights) -> None:
        """Takes `mean`, `std`, `generation` (and `shift`, `scale`). Episodes under way keep their candidate."""
        self._weights = weights

    def start(self, slots: int) -> State:
        """`tick` 0 says that a candidate must be drawn; its parameters then stay in the state."""
        state: State = {
            "tick": np.zeros(slots, np.int32),
            "candidate": np.zeros(slots, np.int64),
            "generation": np.zeros(slots, np.int64),
            "parameters": np.zeros((slots, self._policy.size), np.float32),
        }
        if self._normalised:
            state["shift"] = np.zeros((slots, self._features.size), np.float32)
            state["scale"] = np.ones((slots, self._features.size), np.float32)
        return state

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """Draws candidates where an episode begins, then acts with each slot's own."""
        begins = np.flatnonzero(state["tick"] == 0).tolist()
        if begins:
            # The parameters are too many to be copied each time; nobody else reads them.
            state = {
                **state,
                "candidate": state["candidate"].copy(),
                "generation": state["generation"].copy(),
            }
        for slot in begins:
            self._begin(state, slot, explore)
        x = self._features.of_tree(obs)
        extras = {name: state[name] for name in ("candidate", "generation", "tick")}
        if self._normalised:
            extras["sample"] = x
            x = np.clip((x - state["shift"]) * state["scale"], -OBSERVATION_LIMIT, OBSERVATION_LIMIT)
        actions = self._policy.act(state["parameters"], x)
        return actions, {**state, "tick": state["tick"] + np.int32(1)}, extras

    def _begin(self, state: State, slot: int, explore: Explore | None) -> None:
        candidate, weights = self._draw(explore)
        mean, std = weights["mean"], weights["std"]
        state["candidate"][slot], state["generation"][slot] = candidate, weights["generation"]
        state["parameters"][slot] = mean if explore is None else parameters_of(candidate, mean, std)
        if self._normalised:
            state["shift"][slot], state["scale"][slot] = weights["shift"], weights["scale"]

    def _draw(self, explore: Explore | None) -> tuple[int, Weights]:
        if explore is None:
            return 0, self._weights
        if self._twin is not None:
            twin, self._twin = self._twin, None
            return twin
        candidate = int(explore.rng.integers(_CANDIDATES))
        if self._mirrored:
            self._twin = (candidate ^ 1, self._weights)
        return candidate, self._weights


class Episode(NamedTuple):
    """One candidate's episode, complete. `generation` is an id; `total` its return."""

    generation: int
    candidate: int
    total: float


def save_episodes(name: str, episodes: Collection[Episode]) -> dict[str, Array]:
    """As arrays, for a learner's `save`."""
    return {
        name: np.array([episode[:2] for episode in episodes], np.int64).reshape(-1, 2),
        f"{name}_returns": np.array([episode.total for episode in episodes], np.float64),
    }


def load_episodes(name: str, state: Mapping[str, Array]) -> list[Episode]:
    """What `save_episodes` was given."""
    rows = zip(state[name].tolist(), state[f"{name}_returns"].tolist(), strict=True)
    return [Episode(generation, candidate, total) for (generation, candidate), total in rows]


@dataclass
class _Parts:
    """What is known of an episode. `last` is -1 until its last tick was seen."""

    #: The first ticks of the stretches that came, so that none counts twice.
    begins: set[int] = field(default_factory=set)
    seen: int = 0
    last: int = -1
    total: float = 0.0


_Key = tuple[int, int]


def drop_oldest(kept: dict[Any, Any], most: int) -> None:
    """Leave the `most` newest entries."""
    while len(kept) > most:
        del kept[next(iter(kept))]


class Episodes:
    """Episodes put together from sessions that come in any order, some twice, some never.

    Each episode is given out once, when all its ticks came. One that lost a session never is: it goes with its
    generation, or when EPISODES_KEPT newer ones are unfinished.

    Attributes:
        unknown: episodes that ended in a generation which is not known (any more), so far.
    """

    def __init__(self) -> None:
        self.unknown = 0
        self._open: dict[_Key, _Parts] = {}
        self._done: dict[_Key, None] = {}

    def __len__(self) -> int:
        """Unfinished ones."""
        return len(self._open)

    def take(self, batch: Batch, known: Container[int]) -> list[Episode]:
        """Those that whole sessions `[N, T]` complete; of generations that are `known` alone."""
        found = []
        for key, begin, ticks, total, ended in _stretches(batch):
            if key[0] not in known:
                self.unknown += ended
            elif key not in self._done and (episode := self._add(key, begin, ticks, total, ended)):
                found.append(episode)
        drop_oldest(self._open, EPISODES_KEPT)
        drop_oldest(self._done, DONE_KEPT)
        return found

    def _add(self, key: _Key, begin: int, ticks: int, total: float, ended: bool) -> Episode | None:
        parts = self._open.setdefault(key, _Parts())
        if begin in parts.begins:
            return None
        parts.begins.add(begin)
        parts.seen += ticks
        parts.total += total
        if ended:
            parts.last = begin + ticks - 1
        if parts.seen != parts.last + 1:
            return None
        del self._open[key]
        self._done[key] = None
        return Episode(*key, parts.total)

    def forget(self, known: Container[int]) -> None:
        """Of generations that are no longer known, everything."""
        self._open = {key: parts for key, parts in self._open.items() if key[0] in known}
        self._done = {key: None for key in self._done if key[0] in known}

    def save(self) -> dict[str, Array]:
        """As arrays, for a learner's `save`."""
        rows = [(*key, parts.seen, parts.last) for key, parts in self._open.items()]
        begins = [(i, b) for i, parts in enumerate(self._open.values()) for b in sorted(parts.begins)]
        return {
            "open": np.array(rows, np.int64).reshape(-1, 4),
            "open_begins": np.array(begins, np.int64).reshape(-1, 2),
            "open_totals": np.array([parts.total for parts in self._open.values()], np.float64),
            "done": np.array(list(self._done), np.int64).reshape(-1, 2),
            "unknown": np.array(self.unknown, np.int64),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Take back what `save` gave."""
        rows = zip(state["open"].tolist(), state["open_totals"].tolist(), strict=True)
        found = [((g, c), _Parts(set(), seen, last, total)) for (g, c, seen, last), total in rows]
        for index, begin in state["open_begins"].tolist():
            found[index][1].begins.add(begin)
        self._open = dict(found)
        self._done = dict.fromkeys((g, c) for g, c in state["done"].tolist())
        self.unknown = int(state["unknown"])


def _stretches(batch: Batch) -> Iterator[tuple[_Key, int, int, float, bool]]:
    """Each stretch of one episode in each session: (key, first tick, ticks, sum of rewards, whether it ends there)."""
    real = (batch["flags"] & RESET) == 0
    ended = (batch["flags"] & (TERMINATED | TRUNCATED)) != 0
    for row in range(len(real)):
        # An episode's end is always followed by a RESET, so stretches of real ticks are of one episode each, and
        # only the one that begins with the session may go on with an older one.
        edges = np.flatnonzero(np.diff(np.concatenate(([0], real[row].astype(np.int8), [0]))))
        for begin, end in edges.reshape(-1, 2).tolist():
            key = (int(batch["generation"][row, begin]), int(batch["candidate"][row, begin]))
            total = float(batch["reward"][row, begin:end].sum(dtype=np.float64))
            first = 0 if begin else int(batch["tick"][row, 0])
            yield key, first, end - begin, total, bool(ended[row, end - 1])
