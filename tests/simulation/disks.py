"""What all simulated runs agree on, and what survives of a host: the logs of its shards and its broker's file."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from p2prl.core import messages as m
from p2prl.core.dedup import Dedup, Seen
from p2prl.core.schema import SessionSchema
from p2prl.core.spaces import EnvSpec, Leaf

SHARDS = 2
#: T x B of every bundle here.
TICKS = 8
RUN_ID = "run-1"
#: A bundle's header here: its number among its node's, and the weights version that played it.
HEADER = struct.Struct("<qq")
#: Keys, in what looks like Z85.
HOST_KEY, OWNER, TRAINER, SHARD, OWN_MEMBER = (letter * 40 for letter in "hotsm")
#: Records of a shard's log between two snapshots.
_SEGMENT = 20
_SPACE = Leaf("discrete", "int64", (), (0.0,), (1.0,))


def run_spec(when_full: str = "wait", max_lag: int = 0, window_bundles: int = 8) -> m.RunSpec:
    """A run, as far as anybody here looks at it."""
    return m.RunSpec(
        run_id=RUN_ID, seed=0, env_id="e", env_args={}, env=EnvSpec("e", _SPACE, _SPACE), env_package="",
        env_hash="", agent_name="a", agent_settings={}, agent_package="", agent_hash="",
        schema=SessionSchema(ticks=TICKS, columns=()), ladder=1, when_full=when_full,
        window_bytes=6_000, window_bundles=window_bundles, max_lag=max_lag, envs=1,
    )  # fmt: skip


@dataclass
class ShardDisk:
    """A shard's log.

    Attributes:
        names: (node, boot id, sequence number) of all that is in it, in order.
        snapshot: Dedup.snapshot() as it is at the beginning of the last segment.
        segment: where that begins.
    """

    names: list[tuple[str, str, int]] = field(default_factory=list)
    known: set[tuple[str, str, int]] = field(default_factory=set)
    snapshot: bytes = b""
    segment: int = 0

    def dedup(self) -> Dedup:
        """What a shard knows of it after a start."""
        dedup = Dedup(msgspec.msgpack.decode(self.snapshot, type=list[Seen]) if self.snapshot else ())
        for name in self.names[self.segment :]:
            dedup.mark(*name)
        return dedup

    def append(self, name: tuple[str, str, int], dedup: Dedup) -> None:
        """Keep a bundle; a new segment begins with what all before it amount to."""
        if len(self.names) - self.segment >= _SEGMENT:
            self.segment = len(self.names)
            self.snapshot = msgspec.msgpack.encode(dedup.snapshot())
        self.names.append(name)
        self.known.add(name)


@dataclass
class Disk:
    """What survives of a host.

    Attributes:
        broker: `broker.json`.
        checkpoint: the weights version of the trainer's last checkpoint.
        stored: copies of each bundle in all shards, by (node, number).
        per_node: bundles in all shards, by node.
    """

    broker: bytes = b""
    checkpoint: int = -1
    shards: list[ShardDisk] = field(default_factory=lambda: [ShardDisk() for _ in range(SHARDS)])
    stored: Counter[tuple[str, int]] = field(default_factory=Counter)
    per_node: Counter[str] = field(default_factory=Counter)
    #: (node, number) of bundles that a shard said are stale, or refused.
    turned_away: set[tuple[str, int]] = field(default_factory=set)
