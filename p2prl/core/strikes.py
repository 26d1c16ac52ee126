"""Repeated refusals put a node into quarantine: what no honest node does, weighed, over a sliding window."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

#: What one refusal weighs; nothing, if it is not here.
WEIGHTS: dict[str, float] = {
    # Only what was made or changed on purpose, or by broken code, looks like this.
    "malformed": 1.0,
    "oversize": 1.0,
    "wrong_schema": 1.0,
    "bad_codec": 1.0,
    "not_finite": 1.0,
    "out_of_space": 1.0,
    "out_of_bounds": 1.0,
    "future_version": 1.0,
    "not_permitted": 1.0,
    # A fast machine can do this without meaning harm, and it is held back anyway.
    "over_quota": 0.02,
    "rate_limited": 0.02,
}
#: Nodes that are remembered; the one that was refused longest ago goes first.
MAX_NODES = 1024
_SLICES = 10
_ROUNDING = 1e-6


@dataclass
class _Record:
    """One node's refusals.

    Attributes:
        slices: (number of the slice of time, refusals in it by reason), oldest first; at most _SLICES + 1.
        struck: it was reported.
    """

    slices: deque[tuple[int, Counter[str]]] = field(default_factory=deque)
    struck: bool = False

    def counts(self) -> Counter[str]:
        return sum((counts for _, counts in self.slices), Counter())


class Strikes:
    """Counts refusals by node.

    Args:
        limit: the weight within the window that is too much.
        window_s: the window's length, in seconds; it moves in tenths of it.
    """

    def __init__(self, limit: float = 100.0, window_s: float = 600.0) -> None:
        self._limit, self._window_s = limit, window_s
        #: By node, refused longest ago first; never more than MAX_NODES.
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def struck(self, key: str, reason: str, count: int, now: float) -> bool:
        """`count` more refusals of this node. True once, when they have become too many, until it is forgiven."""
        weight = WEIGHTS.get(reason, 0.0)
        if weight <= 0.0 or count <= 0:
            return False
        record = self._records.setdefault(key, _Record())
        self._records.move_to_end(key)
        if len(self._records) > MAX_NODES:
            self._records.popitem(last=False)
        self._add(record, reason, count, now)
        total = sum(WEIGHTS[reason] * count for reason, count in record.counts().items())
        if record.struck or total < self._limit - _ROUNDING:
            return False
        record.struck = True
        return True

    def text(self, key: str) -> str:
        """What was refused of this node lately, the most frequent first, in a line for its user and the owner."""
        record = self._records.get(key)
        if record is None:
            return "nothing was refused of it lately"
        counts = ", ".join(f"{count} {reason}" for reason, count in record.counts().most_common())
        return f"refused within {self._window_s / 60:g} minutes: {counts}"

    def forgive(self, key: str) -> None:
        """The owner gives this node another chance."""
        self._records.pop(key, None)

    def __len__(self) -> int:
        return len(self._records)

    def _add(self, record: _Record, reason: str, count: int, now: float) -> None:
        number = int(now // (self._window_s / _SLICES))
        while record.slices and record.slices[0][0] <= number - _SLICES:
            record.slices.popleft()
        if not record.slices or record.slices[-1][0] < number:
            record.slices.append((number, Counter()))
        record.slices[-1][1][reason] += count
