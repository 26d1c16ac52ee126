"""A ring whose sessions are sampled as likely as the learner's priorities say (Schaul et al. 2016, arXiv:1511.05952).

As in Ape-X (Horgan et al. 2018, arXiv:1803.00933) the priorities are where the sessions are, in each shard its own, and
the trainer sends them back after each update. Other than there it is not the players who give the first ones: what is
new gets the highest that was seen, in any shard, and so is drawn soon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from p2prl.core.schema import RESET, SessionSchema
from p2prl.errors import LimitsForbid, RemoteProtocolError
from p2prl.replay.storage import Drawn, RingStore, Sample, check_ask, ring_capacity
from p2prl.replay.sumtree import SumTree, draw, tree_bytes
from p2prl.wire.blocks import Array, Buffer
from p2prl.wire.bundle import Opened
from p2prl.words import sized

#: What a new session gets as long as no priority was seen.
FIRST = 1.0


class PrioritisedStore(RingStore):
    """Sessions sampled by priority; a new one overwrites the oldest, and with it its priorities.

    Each tick at which a window may begin has a priority; with window 0 each session. All others have none and are never
    drawn: RESET ticks, and those with no room for a window behind them.

    Priorities are in memory alone. After a restart all that the log holds is as new.

    Args:
        window: the only one that can be asked for.

    Raises:
        LimitsForbid: there is no memory for it.
    """

    def __init__(
        self, schema: SessionSchema, capacity_bytes: int, window: int, rng: np.random.Generator
    ) -> None:
        super().__init__(schema, capacity_bytes, window, rng)
        #: Places of one session.
        self._places = places_of(schema, window)
        try:
            self._tree = SumTree(self.capacity * self._places)
        except MemoryError as error:
            size = tree_bytes(self.capacity * self._places)
            raise LimitsForbid(
                f"no memory for {sized(size)} of priorities a shard; set replay.capacity_bytes lower"
            ) from error
        self._quarantined: frozenset[str] = frozenset()
        #: The highest priority seen in any shard; 0 for none.
        self.highest = 0.0

    def hear(self, highest: float) -> None:
        """The highest priority that the trainer knows of; 0 for none. Said with each of its questions.

        What came before it was heard of for the first time (from the log, after a restart) has no priority of its own,
        and gets it.

        Raises:
            RemoteProtocolError: it is no priority.
        """
        if not (math.isfinite(highest) and highest >= 0):
            raise RemoteProtocolError("malformed", f"a highest priority of {highest}")
        first = not self.highest
        self.highest = max(self.highest, highest)
        if first and self.highest:
            self._tree.fill(0, np.sign(self._tree.leaves) * np.float32(self.highest))

    def _write(self, at: int, start: int, count: int, arrays: Opened, node: str) -> None:
        super()._write(at, start, count, arrays, node)
        priority = np.float32(self.highest or FIRST)
        if node in self._quarantined:
            priority = -priority
        values = np.full((count, self._places), priority)
        if self._window and self._flags is not None:
            values[self._flags[at : at + count, : self._places] & RESET != 0] = 0
        self._tree.fill(at * self._places, values.ravel())

    def _clear(self, place: int) -> None:
        super()._clear(place)
        self._tree.fill(place * self._places, np.zeros(self._places, np.float32))

    def quarantine(self, nodes: frozenset[str]) -> None:
        """As in Store. What comes back has the priorities that it had."""
        super().quarantine(nodes)
        if nodes == self._quarantined:
            return  # said again with each change among members, and this is a walk over all there is
        self._quarantined = nodes
        signs = np.full(self.capacity, -1, np.float32)
        places = self._drawable()
        signs[places.at(np.arange(places.count))] = 1
        leaves = np.abs(self._tree.leaves).reshape(self.capacity, self._places)
        self._tree.fill(0, (leaves * signs[:, None]).ravel())

    def sample(self, count: int, window: int, current_version: int) -> Sample:
        """`count` windows, or whole sessions, as likely as their priorities, with replacement; or none at all.

        Raises:
            RemoteProtocolError: a count or window that cannot be.
        """
        check_ask(self._schema, count, window)
        if window != self._window:
            raise RemoteProtocolError(
                "malformed", f"windows of {window} ticks, and priorities are for {self._window}"
            )
        total = self._tree.total
        leaf = draw(self._tree, count, self._rng) if count and total > 0 else np.empty(0, np.int64)
        session, offset = np.divmod(leaf, max(1, self._places))
        ids = np.stack([self._numbers[session], leaf], axis=1)
        drawn = Drawn(ids, self._tree.leaves[leaf], total)
        return Sample(self._gather(session, offset, window), self._versions[session], drawn=drawn)

    def prioritise(self, ids: Array, priorities: Array) -> int:
        """Set the priorities of samples that were given out. Those of sessions that are gone are left out.

        Args:
            ids: int64 `[n, 2]`, as in Drawn.
            priorities: float32 `[n]`.

        Returns:
            How many were set.

        Raises:
            RemoteProtocolError: one of them cannot be; then none is set.
        """
        if not (np.isfinite(priorities) & (priorities > 0)).all():
            raise RemoteProtocolError("not_finite", "a priority that is not finite and above 0")
        numbers, leaf = ids[:, 0], ids[:, 1]
        if ((leaf < 0) | (leaf >= len(self._tree.leaves))).any():
            raise RemoteProtocolError("malformed", "a priority for a place that there is not")
        old = self._tree.leaves[leaf]
        live = (old != 0) & (self._numbers[leaf // max(1, self._places)] == numbers)
        if live.any():
            self._tree.put(leaf[live], np.copysign(priorities[live], old[live]))
        return int(np.count_nonzero(live))

    def mass(self) -> int:
        """Places with a priority: ticks at which a window may begin, or sessions."""
        return super().mass() if self._window else self.sessions

    @property
    def total(self) -> float:
        """All priorities together, without those of quarantined nodes."""
        return self._tree.total


def priorities_from_frames(count: int, payload: Sequence[Buffer]) -> tuple[Array, Array]:
    """The ids `[count, 2]` int64 and priorities `[count]` float32 that follow a Priorities message.

    Raises:
        RemoteProtocolError: the frames are not of these sizes.
    """
    try:
        ids, priorities = payload
        return np.frombuffer(ids, np.int64).reshape(count, 2), np.frombuffer(priorities, np.float32).reshape(
            count
        )
    except ValueError as error:
        raise RemoteProtocolError("malformed", f"priorities of {count} samples: {error}") from error


def places_of(schema: SessionSchema, window: int) -> int:
    """Places of one session at which a window may begin; with window 0 one, the session itself."""
    return max(0, schema.ticks - window + 1) if window else 1


def priority_bytes(schema: SessionSchema, capacity_bytes: int, window: int) -> int:
    """Memory for the priorities of a ring of so many bytes, beside it: about 4.5 bytes a place."""
    return tree_bytes(ring_capacity(schema, capacity_bytes) * places_of(schema, window))
