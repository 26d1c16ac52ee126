"""What the sampler knows of the shards, and of what it asked them for."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2prl.learn.contracts import Array


@dataclass
class Shard:
    """A shard, as last heard of."""

    boot_id: str = ""
    #: What could be sampled there, and how much of the samples it gets: of a prioritised replay the sum of priorities.
    mass: int = 0
    weight: float = 0.0
    ticks: int = 0
    inserted: int = 0
    #: It answered since it came up.
    heard: bool = False
    #: It was heard of since this trainer began.
    met: bool = False
    asked_at: float = -1e9
    #: It answers as soon as its queue has something, as far as known.
    stands: bool = False
    #: Asks under way: id -> (deadline, group).
    asks: dict[int, tuple[float, Group]] = field(default_factory=dict)


@dataclass
class Group:
    """Batches that are asked for together, and what came of them so far."""

    waiting: set[tuple[int, int]] = field(default_factory=set)
    #: Each shard's part of the samples as they were planned, by its index; they need not sum to 1.
    shares: dict[int, float] = field(default_factory=dict)
    #: What came, by shard.
    parts: list[tuple[int, list[Array]]] = field(default_factory=list)
    #: What the shards said is in memory that they share: what `Gatherer.columns` gave.
    shared: list[Array] = field(default_factory=list)


@dataclass(frozen=True)
class Origin:
    """Where the samples of a batch came from: `[N]` shard indices, and `[N, 2]` what the shards know them by."""

    shards: Array
    ids: Array
