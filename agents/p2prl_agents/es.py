"""ES: evolution strategies with mirrored candidates, in numpy alone. Read it from top to bottom.

Sources: Salimans et al. 2017 (arXiv:1703.03864), with its mirrored sampling, centred ranks and shared seeds; Adam,
Kingma & Ba 2015 (arXiv:1412.6980); weight decay apart from the gradient, Loshchilov & Hutter 2019 (arXiv:1711.05101).

A candidate is `mean + sign * sigma * normal(seed)`; each has a twin of the other sign. All that a player gives back of
an episode is the candidate's number and the rewards. A *generation* is complete when `pairs` pairs of twins are,
whoever played them; what each twin earned, ranked among all, gives the next step of the mean.

**Older candidates.** Long episodes come in after the next generation has begun. They count, in the generation in which
they come: both twins of a pair were drawn around the same mean, so their difference still estimates the gradient there,
and a whole generation's being better or worse cancels out in it. It is a gradient `age` steps old, wrong by how far the
mean went since; a pair more than `max_age` generations old is left out. Leaving all of them out would favour short
lives. Weighting them by their likelihood under the new mean would be exact, but those weights' variance is
exp(|steps / sigma|^2) - 1, which is useless for more than a few parameters.

With many machines, many older ones are always under way. Lest the mean goes far on them alone, before anyone has played
around it, the share `fresh` of `pairs` must be of the newest generation. Staleness acts like momentum (Mitliagkas et
al. 2016, arXiv:1605.09774), so that of the optimisers is less than usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import msgspec
import numpy as np

from p2prl.core.schema import RESET
from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Array, Batch, Field, ReplaySpec, Update, Weights
from p2prl_agents.features import Features
from p2prl_agents.normaliser import Normaliser
from p2prl_agents.populations import (
    EPISODES_KEPT,
    Episode,
    Episodes,
    Policy,
    PopulationActor,
    drop_oldest,
    fields,
    generation_id,
    load_episodes,
    noise_of,
    replay_spec,
    save_episodes,
)
from p2prl_agents.ranges import Above, BelowOne, Fraction, Least0, NotNegative, Positive

#: So many times `pairs` are enough, however old they are: nothing may stop a run whose weights stay on the way.
PATIENCE = 50
#: Observations are taken as they are until so many were sampled.
MIN_SAMPLES = 100


class ESSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ES's settings."""

    pairs: Positive = 8
    """Pairs of twins per generation: twice as many episodes."""
    sigma: Above = 0.1
    """The standard deviation of every parameter."""
    hidden: tuple[Positive, ...] = ()
    """Units of each hidden layer (tanh); none for a linear policy."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """`adam`, or `sgd` with momentum."""
    learning_rate: Above = 0.1
    """The step size. With `adam` no parameter moves by much more than this in a generation."""
    momentum: BelowOne = 0.5
    """Of the gradient's mean, in both optimisers."""
    weight_decay: Least0 = 0.0
    """The mean shrinks by `learning_rate` times this each generation."""
    fresh: Fraction = 0.5
    """The share of `pairs` that must be of the newest generation before the next is made."""
    max_age: NotNegative = 10
    """Pairs drawn more generations ago than this are left out; 0 counts the newest alone."""
    normalise: bool = True
    """Observations are centred and scaled by statistics of all players; one observation a session then travels too."""
    ticks: Positive = 32
    """T, the length of a session."""
    batch: Positive = 8
    """Sessions per update; an update makes a generation only when `pairs` pairs are complete."""
    capacity_bytes: Positive = 64_000_000
    """What may wait at the shards, decoded."""


class ES:
    """Evolution strategies bound to one environment."""

    Settings: ClassVar[type[msgspec.Struct]] = ESSettings
    ladder: ClassVar[int] = 1
    accelerated: ClassVar[bool] = False

    def __init__(self, env: EnvSpec, settings: ESSettings) -> None:
        """Raises UsageError for an action that is a Box of integers."""
        self.settings = settings
        self.features = Features(env)
        self.policy = Policy("es", env, self.features.size, settings.hidden)

    def fields(self) -> Mapping[str, Field]:
        """What names a candidate's episode, and with `normalise` an observation."""
        return fields(sample=self.features.size if self.settings.normalise else 0)

    def replay(self) -> ReplaySpec:
        """A queue of whole sessions."""
        return replay_spec(self.settings.ticks, self.settings.batch, self.settings.capacity_bytes)

    def actor(self) -> PopulationActor:
        """In numpy."""
        return PopulationActor(self.features, self.policy, mirrored=True, normalised=self.settings.normalise)

    def learner(self, device: str, seed: int) -> ESLearner:
        """In numpy too; `device` does not matter."""
        return ESLearner(self, seed)


def centred_ranks(returns: Array) -> Array:
    """float64 of the same shape, in [-0.5, 0.5]: the ranks of at least two returns; equal ones share theirs.

    Sharing keeps a generation whose candidates are all alike from stepping anywhere.
    """
    _, place, counts = np.unique(returns.ravel(), return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts + 1) / 2
    return (ranks[place.ravel()] / (returns.size - 1) - 0.5).reshape(returns.shape)


def gradient_of(seeds: list[int], utilities: Array, sigma: float, size: int) -> Array:
    """float64 `[size]`: which way the expected utility grows (Salimans et al., algorithm 1, for mirrored candidates).

    Args:
        seeds: N candidates' numbers without their sign.
        utilities: float64 `[N, 2]`, of the twin with the sign + and of the one with -.
    """
    gradient = np.zeros(size)
    for seed, difference in zip(seeds, utilities[:, 0] - utilities[:, 1], strict=True):
        if difference:
            gradient += difference * noise_of(seed << 1, size)
    return gradient / (utilities.size * sigma)


class Optimiser:
    """Adam, or SGD with momentum; it climbs.

    Attributes:
        mean: float64 `[P]`, what is optimised.
    """

    def __init__(self, settings: ESSettings, mean: Array) -> None:
        self.mean = mean
        self._settings = settings
        self._steps = 0
        self._first, self._second = np.zeros_like(mean), np.zeros_like(mean)

    def step(self, gradient: Array) -> bool:
        """False if it would leave the finite numbers, and was not taken."""
        s = self._settings
        with np.errstate(over="ignore", invalid="ignore"):
            first = s.momentum * self._first + (1 - s.momentum) * gradient
            second = 0.999 * self._second + 0.001 * gradient**2
            step = first
            if s.optimiser == "adam":
                unbiased = second / (1 - 0.999 ** (self._steps + 1))
                step = first / (1 - s.momentum ** (self._steps + 1)) / (np.sqrt(unbiased) + 1e-8)
            mean = self.mean + s.learning_rate * (step - s.weight_decay * self.mean)
            if not np.isfinite(mean.astype(np.float32)).all():
                return False
        self.mean, self._first, self._second = mean, first, second
        self._steps += 1
        return True

    def save(self) -> dict[str, Array]:
        """As arrays, for a learner's `save`."""
        return {
            "mean": self.mean.copy(),
            "first": self._first.copy(),
            "second": self._second.copy(),
            "steps": np.array(self._steps, np.int64),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Take back what `save` gave."""
        self.mean, self._first, self._second = (np.array(state[n]) for n in ("mean", "first", "second"))
        self._steps = int(state["steps"])


class Statistics(Normaliser):
    """Mean and variance of all observations that were sampled, feature by feature.

    A session's first observation is one in T of those that were acted on, at a tick that no policy chose: a fair
    sample. An episode's first is left out: all slots begin with one.
    """

    def take(self, batch: Batch) -> None:
        """`sample` `[N, 1 or T, size]` of those sessions that begin inside an episode."""
        inside = ((batch["flags"][:, 0] & RESET) == 0) & (batch["tick"][:, 0] > 0)
        self.see(batch["sample"][inside, 0])

    def weights(self) -> dict[str, Array]:
        """`shift` and `scale`, float32 `[size]`: normalised is `(observation - shift) * scale`."""
        known = self if self.count >= MIN_SAMPLES else Normaliser(len(self._mean))
        scale = known.scale()
        return {"shift": scale["norm/mean"], "scale": scale["norm/scale"]}


class Pair(NamedTuple):
    """Two twins' returns. `seed` is their number without its sign."""

    generation: int
    seed: int
    plus: float
    minus: float


class ESLearner:
    """Puts episodes and pairs together, and steps the mean once a generation."""

    def __init__(self, agent: ES, seed: int) -> None:
        self._settings, self._size = agent.settings, agent.policy.size
        self._optimiser = Optimiser(agent.settings, agent.policy.initial(np.random.default_rng(seed)))
        self._statistics = Statistics(agent.features.size if agent.settings.normalise else 0)
        self._episodes = Episodes()
        #: (generation, seed) -> the twin whose sibling is still out
        self._halves: dict[tuple[int, int], Episode] = {}
        #: Complete since the last generation was made.
        self._pairs: list[Pair] = []
        #: The ids of the generations that count -> their numbers; the newest is the last.
        self._known: dict[int, int] = {}
        self._unknown_before = 0
        self._begin(0)

    def _begin(self, number: int) -> None:
        """A new generation, around the mean as it is now."""
        self._weights: dict[str, Array] = {
            "mean": self._optimiser.mean.astype(np.float32),
            "std": np.array(self._settings.sigma, np.float32),
            **(self._statistics.weights() if self._settings.normalise else {}),
        }
        generation = generation_id(number, *self._weights.values())
        self._weights["generation"] = np.array(generation, np.int64)
        self._known[generation] = number
        self._known = {g: n for g, n in self._known.items() if number - n <= self._settings.max_age}
        self._episodes.forget(self._known)
        self._halves = {key: half for key, half in self._halves.items() if key[0] in self._known}
        self._pairs = []

    def update(self, batch: Batch) -> Update:
        """Take in whole sessions `[N, T]`; publishes when they complete a generation."""
        if self._settings.normalise:
            self._statistics.take(batch)
        for episode in self._episodes.take(batch, self._known):
            self._pair(episode)
        drop_oldest(self._halves, EPISODES_KEPT)
        return self._advance() if self._enough() else Update(publish=False)

    def _enough(self) -> bool:
        s, newest = self._settings, next(reversed(self._known))
        fresh = sum(pair.generation == newest for pair in self._pairs)
        patient = len(self._pairs) < PATIENCE * s.pairs
        return len(self._pairs) >= s.pairs and (fresh >= s.fresh * s.pairs or not patient)

    def _pair(self, episode: Episode) -> None:
        key = (episode.generation, episode.candidate >> 1)
        twin = self._halves.pop(key, None)
        if twin is None:
            self._halves[key] = episode
            return
        plus, minus = (twin, episode) if episode.candidate & 1 else (episode, twin)
        self._pairs.append(Pair(*key, plus.total, minus.total))

    def _advance(self) -> Update:
        """One step of the mean, by all pairs that are complete."""
        number = self._number
        returns = np.array([(pair.plus, pair.minus) for pair in self._pairs])
        utilities = centred_ranks(returns)
        gradient = gradient_of([p.seed for p in self._pairs], utilities, self._settings.sigma, self._size)
        if not self._optimiser.step(gradient):
            self._pairs = []
            return Update(publish=False, skipped="the step would leave the finite numbers")
        unknown, self._unknown_before = self._episodes.unknown - self._unknown_before, self._episodes.unknown
        metrics = {
            "generation": float(number + 1),
            "return_mean": float(returns.mean()),
            "return_best": float(returns.max()),
            "gradient_norm": float(np.linalg.norm(gradient)),
            "mean_norm": float(np.linalg.norm(self._optimiser.mean)),
            "age_mean": float(np.mean([number - self._known[pair.generation] for pair in self._pairs])),
            "left_out": float(unknown),
            "unfinished": float(len(self._episodes) + len(self._halves)),
        }
        self._begin(number + 1)
        return Update(metrics=metrics, publish=True)

    @property
    def _number(self) -> int:
        return next(reversed(self._known.values()))

    def weights(self) -> Weights:
        """`mean` float32 `[P]`, `std` float32 `[]`, `generation` int64 `[]`; perhaps `shift` and `scale`."""
        return {name: values.copy() for name, values in self._weights.items()}

    def save(self) -> Mapping[str, Array]:
        """The optimiser, the generations that count, unfinished episodes, halves of pairs, and pairs."""
        pairs = self._pairs
        return {
            **self._optimiser.save(),
            **self._statistics.save(),
            **self._episodes.save(),
            **{f"weights.{name}": values.copy() for name, values in self._weights.items()},
            "known": np.array(list(self._known.items()), np.int64),
            "unknown_before": np.array(self._unknown_before, np.int64),
            **save_episodes("halves", self._halves.values()),
            "pairs": np.array([pair[:2] for pair in pairs], np.int64).reshape(-1, 2),
            "pairs_returns": np.array([pair[2:] for pair in pairs], np.float64).reshape(-1, 2),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where `save` was called."""
        for part in (self._optimiser, self._statistics, self._episodes):
            part.load(state)
        self._weights = {name: np.array(state[f"weights.{name}"]) for name in self._weights}
        self._known = dict(state["known"].tolist())
        self._unknown_before = int(state["unknown_before"])
        halves = load_episodes("halves", state)
        self._halves = {(half.generation, half.candidate >> 1): half for half in halves}
        pairs = zip(state["pairs"].tolist(), state["pairs_returns"].tolist(), strict=True)
        self._pairs = [Pair(g, s, *returns) for (g, s), returns in pairs]
