"""How much one node may give: two token buckets for each key, of bytes and of bundles, and one of answers.

A bucket fills at its rate up to BURST_S seconds' worth. Whatever is in it, if it is not empty, admits one more bundle
of any size, and the rest is owed: so a bundle larger than a bucket passes too, only later. What comes while something
is owed is answered with `busy`, and comes again; an honest member loses nothing by it. Of these answers no more are
given than an honest member asks for: what is beyond them is a flood, and is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

Word = Literal["take", "busy", "drop"]

BURST_S = 5.0
#: Keys that are remembered; the one that gave something longest ago goes first, and would begin with full buckets.
MAX_NODES = 4096


class Bucket:
    """One token bucket. `rate` per second; 0 for no limit."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._tokens = rate * BURST_S
        self._at = now

    def open(self, now: float) -> bool:
        """True if nothing is owed. A clock that jumps ahead fills the bucket, one that jumps back does nothing."""
        elapsed = max(0.0, now - self._at)
        self._at = now
        self._tokens = min(self._rate * BURST_S, self._tokens + elapsed * self._rate)
        return self._rate <= 0 or self._tokens > 0

    def take(self, amount: float) -> None:
        """Take from an open bucket; it may owe the rest."""
        self._tokens -= amount


class Quotas:
    """The buckets of all nodes of one shard.

    Args:
        bytes_per_s, bundles_per_s: what each node may give here; 0 for no limit.
        answers_per_s: how many `busy` each node is told; at least 1.
    """

    def __init__(
        self, bytes_per_s: float, bundles_per_s: float, answers_per_s: float, max_nodes: int = MAX_NODES
    ) -> None:
        self._rates = (bytes_per_s, bundles_per_s, max(1.0, answers_per_s))
        self._unlimited = bytes_per_s <= 0 and bundles_per_s <= 0
        self._max_nodes = max_nodes
        #: By node, the one that gave something longest ago first.
        self._nodes: OrderedDict[str, tuple[Bucket, Bucket, Bucket]] = OrderedDict()

    def judge(self, node: str, size_bytes: int, now: float) -> Word:
        """A bundle of `size_bytes`, as it was sent, arrived from `node`.

        Args:
            now: in seconds, any clock.
        """
        if self._unlimited:
            return "take"
        size, bundles, answers = self._buckets(node, now)
        # Both are asked: each has to be told of the time.
        if size.open(now) & bundles.open(now):
            size.take(size_bytes)
            bundles.take(1.0)
            return "take"
        if answers.open(now):
            answers.take(1.0)
            return "busy"
        return "drop"

    def __len__(self) -> int:
        return len(self._nodes)

    def _buckets(self, node: str, now: float) -> tuple[Bucket, Bucket, Bucket]:
        found = self._nodes.get(node)
        if found is None:
            size, bundles, answers = self._rates
            found = self._nodes[node] = (Bucket(size, now), Bucket(bundles, now), Bucket(answers, now))
            if len(self._nodes) > self._max_nodes:
                self._nodes.popitem(last=False)
        self._nodes.move_to_end(node)
        return found
