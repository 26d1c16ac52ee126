"""What became of the bundles that a shard was given, since its process opened it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

#: Nodes whose refusals are counted apart; those of any others are counted under "".
MAX_NODES = 256


@dataclass
class Counters:
    """Bundles by what became of them, and evicted sessions, since this process opened the shard."""

    stored: int = 0
    duplicate: int = 0
    stale: int = 0
    evicted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    #: Never more than MAX_NODES keys, and "" for all others.
    refused_by_node: dict[str, Counter[str]] = field(default_factory=dict)

    def refuse(self, node: str, reason: str) -> None:
        """One more of `node`."""
        self.refused[reason] += 1
        if node not in self.refused_by_node and len(self.refused_by_node) >= MAX_NODES:
            node = ""
        self.refused_by_node.setdefault(node, Counter())[reason] += 1
