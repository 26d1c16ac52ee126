"""The bench's agents, named by file and class to `p2prl host` and `p2prl join`. None of them learns anything.

`Feed` acts at random and is never trained. `Taker` takes whole sessions as fast as it is given any, and in turns
gathers the same from arrays of its own. `Stamped` publishes weights that say when. `Heavy` acts with torch.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.errors import UsageError
from p2prl.learn.contracts import (
    Actor,
    Array,
    Batch,
    Explore,
    Field,
    Learner,
    ReplaySpec,
    State,
    Tree,
    Update,
    Weights,
)
from p2prl.learn.pacing import GROUPS_AHEAD, group_batches
from p2prl.learn.spaces import agent_schema

#: Samples of each tick: some batches in the beginning, then no more, and inserting is not held up.
_NEVER = 1e-9
#: Seconds of each turn of sampling, and of gathering.
_TURN_S = 0.5


class FeedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its settings."""

    ticks: int = 100
    """T, the length of a session."""
    capacity_bytes: int = 256_000_000
    """Of the replay buffer."""
    batch: int = 100
    """Sessions, or windows, of an update."""
    file: str = ""
    """Where figures are written, one JSON object a line."""
    held: int = 1000
    """Sessions that are gathered from."""
    numbers: int = 1
    """float32 numbers of the weights."""


class Feed:
    """Random actions, next to no training."""

    Settings: ClassVar[type[msgspec.Struct]] = FeedSettings
    ladder: ClassVar[int] = 1
    accelerated: ClassVar[bool] = False
    #: Ticks before the first update, ticks of a sample, how often each is sampled.
    _begin, _window, _each = 1, 0, _NEVER

    def __init__(self, env: EnvSpec, settings: FeedSettings) -> None:
        if not isinstance(env.action, Leaf) or env.action.kind != "discrete":
            raise UsageError("the bench's agents want one discrete action")
        self.env, self.settings = env, settings

    def fields(self) -> Mapping[str, Field]:
        """None."""
        return {}

    def replay(self) -> ReplaySpec:
        """Uniform; inserting is never held up."""
        s = self.settings
        return ReplaySpec(
            ticks=s.ticks,
            batch=s.batch,
            window=self._window,
            capacity_bytes=s.capacity_bytes,
            min_ticks=self._begin,
            samples_per_insert=self._each,
        )

    def actor(self) -> Actor:
        """Random."""
        return RandomActor(self.env)

    def learner(self, device: str, seed: int) -> Learner:
        """Idle."""
        return IdleLearner()


class RandomActor:
    """Any action."""

    def __init__(self, env: EnvSpec) -> None:
        assert isinstance(env.action, Leaf)
        self._low, self._high = int(env.action.low[0]), int(env.action.high[0])

    def load(self, weights: Weights) -> None:
        """Nothing to take."""

    def start(self, slots: int) -> State:
        """No state."""
        return {}

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """One per slot."""
        rng = explore.rng if explore is not None else np.random.default_rng(0)
        return rng.integers(self._low, self._high, size=len(obs), endpoint=True), state, {}


class IdleLearner:
    """Counts its updates, and publishes once."""

    def __init__(self) -> None:
        self._updates = 0

    def update(self, batch: Batch) -> Update:
        """One more."""
        self._updates += 1
        return Update(publish=False)

    def weights(self) -> Weights:
        """The count."""
        return {"updates": np.array(self._updates, np.int64)}

    def save(self) -> Mapping[str, Any]:
        """The count."""
        return self.weights()

    def load(self, state: Mapping[str, Array]) -> None:
        """The count."""
        self._updates = int(state["updates"])


# --- sampling


class Taker(Feed):
    """Whole sessions as fast as they come."""

    _each = 0.0

    def learner(self, device: str, seed: int) -> Learner:
        """Counts. What the sampler may have had ready while nobody took any is not counted."""
        spec = self.replay()
        schema = agent_schema(self.env, self, spec.ticks)
        return TakingLearner(self.settings, GROUPS_AHEAD * group_batches(schema, spec, shared=True))


class TakingLearner(IdleLearner):
    """Turns of half a second: batches as the trainer's sampler gives them, then the same out of arrays in this process.

    The arrays hold sessions that came, as many as the shards do (`held`: a buffer is larger than a processor's caches),
    so both give the same columns of the same shapes, in fresh arrays. It is `take` that gathers, which is faster than
    an index. A line of the file is `{"ours": sessions/s, "limit": sessions/s}`, one for each pair of turns.

    Args:
        ahead: batches that are not counted at the beginning of a turn.
    """

    def __init__(self, settings: FeedSettings, ahead: int) -> None:
        super().__init__()
        self._ahead = ahead
        self._file, self._size, self._held = Path(settings.file), settings.batch, settings.held
        self._rng = np.random.default_rng(0)
        self._came: list[Batch] = []
        self._pool: dict[str, Array] = {}
        self._skip = self._taken = 0
        self._began = 0.0

    def update(self, batch: Batch) -> Update:
        """Take it; when its turn is over gather, and write down what both came to."""
        self._updates += 1
        if not self._pool:
            self._fill(batch)
        elif self._skip:
            self._skip -= 1
            self._taken, self._began = 0, time.perf_counter()
        else:
            self._taken += len(batch["version"])
            took_s = time.perf_counter() - self._began
            if took_s >= _TURN_S:
                self._write(self._taken / took_s, self._gather())
                self._skip = self._ahead
        return Update(publish=False)

    def _fill(self, batch: Batch) -> None:
        self._came.append(batch)
        if len(self._came) * self._size >= self._held:
            self._pool = {name: np.concatenate([one[name] for one in self._came]) for name in batch}
            self._came.clear()
            self._skip = self._ahead

    def _gather(self) -> float:
        held, taken, began = len(self._pool["version"]), 0, time.perf_counter()
        while (took_s := time.perf_counter() - began) < _TURN_S:
            index = self._rng.integers(held, size=self._size)
            gathered = {name: values.take(index, axis=0) for name, values in self._pool.items()}
            taken += len(gathered["version"])
        return taken / took_s

    def _write(self, ours: float, limit: float) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"ours": ours, "limit": limit}) + "\n")


# --- weights on their way


class Stamped(Feed):
    """Weights of so many numbers that say when they were asked for; actors write down how old they were when loaded."""

    #: The players are to wait for the trainer, and not the other way round.
    _begin, _window, _each = 1000, 1, 1.0

    def actor(self) -> Actor:
        """Writes to the file."""
        return StampedActor(self.env, self.settings)

    def learner(self, device: str, seed: int) -> Learner:
        """An update takes 20 ms, in which nothing is computed."""
        return StampedLearner(self.settings.numbers)


class StampedActor(RandomActor):
    """One line of milliseconds for each weights that it loads."""

    def __init__(self, env: EnvSpec, settings: FeedSettings) -> None:
        super().__init__(env)
        self._file = Path(settings.file)

    def load(self, weights: Weights) -> None:
        """monotonic is one clock for all processes of a machine."""
        took_ms = (time.monotonic() - float(weights["at"])) * 1000
        if float(weights["at"]) and self._file.name:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"ours": took_ms}) + "\n")


class StampedLearner(IdleLearner):
    """New random numbers each time."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self._numbers, self._rng, self._pause = numbers, np.random.default_rng(1), threading.Event()

    def update(self, batch: Batch) -> Update:
        """One more; published at the usual interval."""
        self._updates += 1
        self._pause.wait(0.02)
        return Update()

    def weights(self) -> Weights:
        """With the time of now; the first ones go without, because players start later."""
        at = time.monotonic() if self._updates else 0.0
        numbers = self._rng.standard_normal(self._numbers, np.float32)
        return {"at": np.array(at), "numbers": numbers, "updates": np.array(self._updates, np.int64)}


# --- torch on a player


class Heavy(Feed):
    """Acts with a small network of torch."""

    def actor(self) -> Actor:
        """Imports torch."""
        return HeavyActor(self.env)


class HeavyActor(RandomActor):
    """The greater output wins."""

    def __init__(self, env: EnvSpec) -> None:
        import torch

        super().__init__(env)
        assert isinstance(env.observation, Leaf)
        inputs, outputs = int(np.prod(env.observation.shape)), self._high - self._low + 1
        self._torch = torch
        self._network = torch.nn.Sequential(
            torch.nn.Linear(inputs, 64), torch.nn.Tanh(), torch.nn.Linear(64, outputs)
        )

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """Greedy."""
        with self._torch.no_grad():
            flat = self._torch.from_numpy(np.asarray(obs, np.float32).reshape(len(obs), -1))
            chosen: Array = self._network(flat).argmax(1).numpy()
        return chosen + self._low, state, {}
