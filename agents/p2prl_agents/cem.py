"""CEM: the cross-entropy method over the weights of a small policy, in numpy alone. Read it from top to bottom.

Sources: Rubinstein 1999 (doi:10.1023/A:1010091220143); for control, with noise that keeps the search from shrinking too
soon, Szita & Lorincz 2006 (doi:10.1162/neco.2006.18.12.2936).

A *candidate* is one draw of the policy's parameters, around a *generation's* mean with its std; the best candidates of
a generation give the next mean and std. Candidates, their policy and their episodes are in populations.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Array, Batch, Field, ReplaySpec, Update, Weights
from p2prl_agents.features import Features
from p2prl_agents.populations import (
    Episode,
    Episodes,
    Policy,
    PopulationActor,
    drop_oldest,
    fields,
    generation_id,
    load_episodes,
    number_of,
    parameters_of,
    replay_spec,
    save_episodes,
)
from p2prl_agents.ranges import Above, Least0, NotNegative, Positive, Share

#: Generations whose mean and std the learner keeps: long episodes come in after the next generation has begun, and
#: leaving them out would favour short lives.
GENERATIONS_KEPT = 32


class CEMSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CEM's settings."""

    population: Positive = 32
    """Episodes per generation."""
    elite: Share = 0.25
    """The share of them that the next generation is fitted to."""
    hidden: NotNegative = 0
    """Units of one hidden layer (tanh); 0 for a linear policy."""
    std: Above = 1.0
    """The first generation's standard deviation, of every parameter."""
    noise: Least0 = 0.2
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
    accelerated: ClassVar[bool] = False

    def __init__(self, env: EnvSpec, settings: CEMSettings) -> None:
        """Raises UsageError for an action that is a Box of integers."""
        self.settings = settings
        self.features = Features(env)
        self.policy = Policy("cem", env, self.features.size, (settings.hidden,) if settings.hidden else ())

    def fields(self) -> Mapping[str, Field]:
        """What names a candidate's episode."""
        return fields()

    def replay(self) -> ReplaySpec:
        """A queue of whole sessions, without observations and actions."""
        return replay_spec(self.settings.ticks, self.settings.batch, self.settings.capacity_bytes)

    def actor(self) -> PopulationActor:
        """In numpy."""
        return PopulationActor(self.features, self.policy, mirrored=False)

    def learner(self, device: str, seed: int) -> CEMLearner:
        """In numpy too; `device` does not matter."""
        return CEMLearner(self)


class CEMLearner:
    """Puts episodes together and fits generations."""

    def __init__(self, agent: CEM) -> None:
        self._settings = agent.settings
        self._episodes = Episodes()
        #: Complete since the last generation was made.
        self._complete: list[Episode] = []
        #: Mean and std, float64 `[P]`, of each generation that counts, by its id; the newest is the last.
        self._generations: dict[int, tuple[Array, Array]] = {}
        size = agent.policy.size
        self._begin(0, np.zeros(size), np.full(size, agent.settings.std))

    def _begin(self, number: int, mean: Array, std: Array) -> None:
        self._generations[generation_id(number, mean, std)] = mean, std
        drop_oldest(self._generations, GENERATIONS_KEPT)
        self._episodes.forget(self._generations)
        self._complete = []

    def update(self, batch: Batch) -> Update:
        """Take in whole sessions `[N, T]`; publishes when they complete a generation."""
        self._complete += self._episodes.take(batch, self._generations)
        if len(self._complete) < self._settings.population:
            return Update(publish=False)
        return Update(metrics=self._advance(), publish=True)

    def _advance(self) -> dict[str, float]:
        """Fit the next generation to the elite (Szita & Lorincz, equations 2-4)."""
        s = self._settings
        ranked = sorted(self._complete, key=lambda episode: episode.total, reverse=True)
        elite = ranked[: max(1, round(s.elite * len(ranked)))]
        drawn = np.stack([parameters_of(e.candidate, *self._generations[e.generation]) for e in elite])
        number = number_of(self._newest) + 1
        noise = s.noise * max(0.0, 1.0 - number / s.noise_generations)
        mean = drawn.mean(axis=0, dtype=np.float64)
        std = np.sqrt(drawn.var(axis=0, dtype=np.float64) + noise**2)
        self._begin(number, mean, std)
        return {
            "generation": float(number),
            "return_mean": float(np.mean([episode.total for episode in ranked])),
            "return_elite": float(np.mean([episode.total for episode in elite])),
            "std_mean": float(std.mean()),
        }

    @property
    def _newest(self) -> int:
        return next(reversed(self._generations))

    def weights(self) -> Weights:
        """`mean` and `std`, float32 `[P]`, and `generation`, int64 `[]`."""
        mean, std = self._generations[self._newest]
        return {
            "mean": mean.astype(np.float32),
            "std": std.astype(np.float32),
            "generation": np.array(self._newest, np.int64),
        }

    def save(self) -> Mapping[str, Array]:
        """The generations that count, unfinished episodes, and complete ones."""
        return {
            **self._episodes.save(),
            **save_episodes("complete", self._complete),
            "generations": np.array(list(self._generations), np.int64),
            "means": np.stack([mean for mean, _ in self._generations.values()]),
            "stds": np.stack([std for _, std in self._generations.values()]),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where `save` was called."""
        self._episodes.load(state)
        self._complete = load_episodes("complete", state)
        rows = zip(np.array(state["means"]), np.array(state["stds"]), strict=True)
        self._generations = dict(zip(state["generations"].tolist(), rows, strict=True))
