"""What an agent is. Free of torch: numpy in and out.

Observations and actions are trees: an array where the space is a leaf, a dict where it is a Dict, a tuple where it is
a Tuple. Batches and sessions use the leaves' dotted names instead (`obs`, `obs.camera`, `action`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from p2prl.core.spaces import EnvSpec

Array = npt.NDArray[Any]
#: An array, or a dict or tuple of trees.
Tree = Any
#: Named arrays of declared shape and dtype.
Weights = Mapping[str, Array]
#: Recurrent state, `[slots, ...]` per entry; `{}` if none. The rollout puts the start rows back when an episode begins.
State = dict[str, Array]
#: `[N, window, ...]` per column; observations `[N, window + 1, ...]`; fields with `once` `[N, 1, ...]`; `version` int64
#: `[N]`. With prioritised replay also `probability` float32 `[N]`: how likely this sample was, relative to uniform
#: sampling over all shards (1.0: as likely).
Batch = Mapping[str, Array]


class Field(msgspec.Struct, frozen=True):
    """One value that `act` adds to each tick: logits, a value, a log-probability.

    Attributes:
        once: only what `act` gave at a session's first tick is kept, for recurrent state before that tick. `act` gives
            it at every tick all the same, since it does not know where sessions begin. Needs whole sessions
            (`ReplaySpec.window` 0).
    """

    dtype: str
    shape: tuple[int, ...] = ()
    once: bool = False


class ReplaySpec(msgspec.Struct, frozen=True):
    """What an agent needs of the replay buffer. An experiment's `[replay]` table overrides each of these, but for
    `window`, `fresh`, `observations` and `actions`, which belong to the algorithm.

    Attributes:
        kind: `queue` (each session once, about in order), `uniform`, or `prioritised` (as likely as `Update.priorities`
            said last; Schaul et al. 2016, arXiv:1511.05952).
        ticks: T, the length of a session.
        batch: samples per update, N.
        window: ticks per sample; 0 for whole sessions. A sample of a window is one at a random offset whose first
            tick is a real one (never a RESET).
        capacity_bytes: what all shards together may hold: decoded, but for pictures in a ring.
        min_ticks: ticks stored before the first update.
        samples_per_insert: how many times a stored tick is sampled on average as a window's first tick; 0 for no
            limit. A whole session counts all its ticks. A queue has none: it is 1 by definition, and `capacity_bytes`
            is what limits it.
        max_lag: sessions older than this many weights versions are stale; 0 for no limit.
        fresh: players wait for room at the shards before they play, not after: what they play is then of the newest
            weights, at the price of a pause. For on-policy agents whose queue is short.
        observations, actions: False: these columns are neither sent nor stored, and no batch has them. The actor gets
            its observations all the same.
    """

    kind: str = "uniform"
    ticks: int = 32
    batch: int = 64
    window: int = 1
    capacity_bytes: int = 64_000_000
    min_ticks: int = 1000
    samples_per_insert: float = 0.0
    max_lag: int = 0
    fresh: bool = False
    observations: bool = True
    actions: bool = True


@dataclass(frozen=True)
class Explore:
    """How a player explores. Greedy play passes None instead.

    Attributes:
        rng: the player's own generator, seeded by the broker's rank and seed.
        level: `[slots]` float64 in [0, 1): the slot's place on the exploration ladder; 0 explores least. Slots of all
            players together fill the ladder evenly. All zeros if the agent has no ladder.
    """

    rng: np.random.Generator
    level: Array


@dataclass(frozen=True)
class Update:
    """What one update gave.

    Attributes:
        metrics: scalars for TensorBoard, by name.
        publish: True: publish the weights now. False: nothing new to publish. None: at the usual interval.
        priorities: float32 `[N]`, finite and above 0, already raised to the agent's exponent: how often each sample
            of the batch is to be drawn from now on, relative to others. New sessions get the highest seen. None:
            leave them. Of use with prioritised replay alone.
        skipped: why this update changed nothing (the loss or a gradient was not finite); else empty.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    publish: bool | None = None
    priorities: Array | None = None
    skipped: str = ""


class Actor(Protocol):
    """The light half, on every player. It needs numpy alone.

    An actor that explores more in the beginning than in the end may have an attribute `annealing`, True until then:
    such episodes do not count as those of the least exploring slots (`return_mean`, `--stop-return`).
    """

    def load(self, weights: Weights) -> None:
        """Take new weights; called between sessions, never inside one. The arrays are read-only."""

    def start(self, slots: int) -> State:
        """The state with which an episode begins, `[slots, ...]` per entry."""

    def act(
        self, obs: Tree, state: State, explore: Explore | None
    ) -> tuple[Tree, State, Mapping[str, Array]]:
        """Choose actions for all slots at once.

        Args:
            obs: the observation tree, `[slots, ...]` per leaf.
            state: from `start` or the last call.
            explore: None for greedy play.

        Returns:
            The action tree `[slots, ...]`, the next state, and the extras named by `Agent.fields`.
        """


class Learner(Protocol):
    """The heavy half, in the trainer's process."""

    def update(self, batch: Batch) -> Update:
        """One gradient step (or what the algorithm does instead) on `batch`."""

    def weights(self) -> Weights:
        """What actors need, as copies that later updates do not change."""

    def save(self) -> Mapping[str, Array]:
        """Everything needed to go on later: parameters, targets, optimiser, counters."""

    def load(self, state: Mapping[str, Array]) -> None:
        """Take back what `save` gave."""


@runtime_checkable
class Agent(Protocol):
    """One algorithm bound to one environment's spaces. Constructed as `cls(env, settings)`.

    Attributes:
        Settings: a frozen msgspec.Struct with a default for each setting; `--set agent.NAME=VALUE` fills it.
        ladder: rungs of the exploration ladder; 1 if all slots explore alike.
        accelerated: may be left out; False says that the learner computes in numpy, so that nobody looks for a GPU.
        weights_tolerance: may be left out, or 0.0: actors need the learner's weights exactly. Above 0, layers may reach
            actors rounded to float16 (float32 arrays of two and more axes; all others stay exact), and what `act` gives
            then differs from what exact weights give by no more than this: floats relative to 1 + their size, discrete
            choices by the share that are others.
    """

    Settings: ClassVar[type[msgspec.Struct]]
    ladder: ClassVar[int]

    def __init__(self, env: EnvSpec, settings: Any) -> None:
        """Raises UsageError if the algorithm cannot act in these spaces."""

    def fields(self) -> Mapping[str, Field]:
        """What `act` adds to each tick; stored with the session."""

    def replay(self) -> ReplaySpec:
        """What the algorithm needs of the replay buffer."""

    def actor(self) -> Actor:
        """A new actor. Must not import torch."""

    def learner(self, device: str, seed: int) -> Learner:
        """A new learner on `device`, its parameters drawn from `seed`."""


def weights_tolerance(cls: type[Agent]) -> float:
    """`cls.weights_tolerance`; 0.0, exact weights alone, if the class has none."""
    return float(getattr(cls, "weights_tolerance", 0.0))
