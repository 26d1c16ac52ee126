"""Has this bundle been stored already? A bundle's name is (node key, member's boot id, sequence number).

The memory is a window that slides, like IPsec's against replayed packets (RFC 4303, section 3.4.3): for each
boot of a node the highest number seen, and one bit for each of the WINDOW numbers below it. So it has a fixed
size whatever gaps refused bundles leave. A number that fell out of the window counts as seen: an honest
member's unsettled bundles lie within `window_bundles` of its highest, far above it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

#: Numbers below the highest that are told apart.
WINDOW = 16_384
#: Boots of one node that are remembered; the least recently used goes first.
MAX_BOOTS = 8
#: Nodes that are remembered; the least recently used goes first.
MAX_NODES = 4096
#: Sequence numbers are below this.
MAX_SEQ = 1 << 62


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of one boot, as it is written to a log.

    Attributes:
        highest: the highest number seen.
        bits: bit i, little-endian, is set if `highest - i` was seen.
    """

    node: str
    boot_id: str
    highest: int
    bits: bytes


class _Boot:
    __slots__ = ("bits", "highest")

    def __init__(self, highest: int = -1, bits: int = 0) -> None:
        #: The highest number seen, -1 before the first.
        self.highest = highest
        #: Bit i is set if `highest - i` was seen; never longer than WINDOW bits.
        self.bits = bits

    def seen(self, seq: int) -> bool:
        behind = self.highest - seq
        if behind < 0:
            return False
        return behind >= WINDOW or bool(self.bits >> behind & 1)

    def mark(self, seq: int) -> None:
        ahead = seq - self.highest
        if ahead >= WINDOW:
            self.highest, self.bits = seq, 1
        elif ahead > 0:
            self.bits = _moved(self.bits, ahead) | 1
            self.highest = seq
        elif -ahead < WINDOW:
            self.bits |= 1 << -ahead


def _moved(bits: int, ahead: int) -> int:
    """`bits` as they are with a `highest` that is higher by so much."""
    return (bits << ahead) & ((1 << WINDOW) - 1) if ahead < WINDOW else 0


class Dedup:
    """The names of the bundles that one shard has stored."""

    def __init__(self, seen: Iterable[Seen] = ()) -> None:
        #: Nodes, and each node's boots, least recently used first. Neither ever exceeds its bound.
        self._nodes: OrderedDict[str, OrderedDict[str, _Boot]] = OrderedDict()
        self.restore(seen)

    def seen(self, node: str, boot_id: str, seq: int) -> bool:
        """True if this bundle was marked before. What is still asked about is not what is forgotten first."""
        boots = self._nodes.get(node)
        boot = boots.get(boot_id) if boots else None
        if boots is None or boot is None or not boot.seen(seq):
            return False
        self._nodes.move_to_end(node)
        boots.move_to_end(boot_id)
        return True

    def mark(self, node: str, boot_id: str, seq: int) -> None:
        """Remember this bundle. `seq` lies in [0, MAX_SEQ)."""
        self._boot(node, boot_id).mark(seq)

    def snapshot(self) -> list[Seen]:
        """Everything remembered, least recently used first, as plain data."""
        return [
            Seen(node, boot_id, boot.highest, boot.bits.to_bytes((boot.bits.bit_length() + 7) // 8, "little"))
            for node, boots in self._nodes.items()
            for boot_id, boot in boots.items()
        ]

    def restore(self, seen: Iterable[Seen]) -> None:
        """Remember what a snapshot has, too."""
        for item in seen:
            boot = self._boot(item.node, item.boot_id)
            highest, bits = max(boot.highest, item.highest), int.from_bytes(item.bits, "little")
            boot.bits = _moved(bits, highest - item.highest) | _moved(boot.bits, highest - boot.highest)
            boot.highest = highest

    def _boot(self, node: str, boot_id: str) -> _Boot:
        boots = self._nodes.get(node)
        if boots is None:
            boots = self._nodes[node] = OrderedDict()
        self._nodes.move_to_end(node)
        boot = boots.get(boot_id)
        if boot is None:
            boot = boots[boot_id] = _Boot()
        boots.move_to_end(boot_id)
        if len(boots) > MAX_BOOTS:
            boots.popitem(last=False)
        if len(self._nodes) > MAX_NODES:
            self._nodes.popitem(last=False)
        return boot
