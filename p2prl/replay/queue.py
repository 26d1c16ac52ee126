"""A queue of sessions: each is taken once, in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2prl.core.schema import SessionSchema
from p2prl.replay.storage import Sample, check_ask, slots_in
from p2prl.wire.blocks import Array
from p2prl.wire.bundle import Opened
from p2prl.wire.pictures import Slots
from p2prl.wire.stills import Still


@dataclass
class _Waiting:
    """A bundle in the queue: sessions `[slots, rows, *shape]` per column, of which `taken` are gone."""

    first: int
    node: str
    version: int
    columns: list[Array | list[Still]]
    slots: int
    taken: int = 0


class QueueStore:
    """Sessions that are each taken once, first in first out.

    It is full once it holds `capacity_bytes`, so the last bundle may overshoot: whatever the sizes of
    bundles, one can always come in when the queue is empty.

    Sessions of a quarantined node wait like others, and are left out when it is their turn: what a queue holds
    is only of use to the policy that played it, so there is no later for them.
    """

    def __init__(self, schema: SessionSchema, capacity_bytes: int, max_lag: int) -> None:
        self._schema = schema
        self._capacity_bytes = capacity_bytes
        self._max_lag = max_lag
        self._bundles: deque[_Waiting] = deque()
        #: Sessions that wait.
        self._held = 0
        self._quarantined: frozenset[str] = frozenset()

    def full(self) -> bool:
        """True once the capacity is reached."""
        return self._held > 0 and self.size_bytes >= self._capacity_bytes

    def add(self, first: int, arrays: Opened, version: int, node: str = "") -> int:
        """As in Store; nothing ever goes for it."""
        columns = [_waiting(arrays[column.name]) for column in self._schema.columns]
        slots = slots_in(arrays)
        self._bundles.append(_Waiting(first, node, version, columns, slots))
        self._held += slots
        return 0

    def quarantine(self, nodes: frozenset[str]) -> None:
        """As in Store. What has not had its turn comes back when its node is no longer named."""
        self._quarantined = nodes

    def skip(self, before: int) -> None:
        """Forget the sessions numbered below `before`: they were consumed in an earlier life."""
        while self._bundles and self._bundles[0].first + self._bundles[0].taken < before:
            front = self._bundles[0]
            self._take(min(before - front.first, front.slots) - front.taken)

    def sample(self, count: int, window: int, current_version: int) -> Sample:
        """The oldest sessions, up to `count`, whole whatever the window. Stale and quarantined ones are dropped.

        Also for a count of 0: where nothing but quarantined ones wait, there is no mass, and none is asked for.
        """
        check_ask(self._schema, min(count, self._held), 0)
        parts: list[list[Array | list[Still]]] = []
        versions: list[int] = []
        stale = 0
        while self._bundles:
            front = self._bundles[0]
            wanted = count - len(versions)
            if front.node in self._quarantined or (wanted > 0 and self._stale(front, current_version)):
                stale += front.slots - front.taken
                self._take(front.slots - front.taken)
                continue
            if wanted == 0:
                break
            taken = min(wanted, front.slots - front.taken)
            parts.append([column[front.taken : front.taken + taken] for column in front.columns])
            versions.extend([front.version] * taken)
            self._take(taken)
        return Sample(self._joined(parts), np.array(versions, np.int64), stale)

    def _stale(self, bundle: _Waiting, current_version: int) -> bool:
        return self._max_lag > 0 and current_version - bundle.version > self._max_lag

    def _take(self, count: int) -> None:
        """`count` sessions of the front bundle are gone."""
        front = self._bundles[0]
        front.taken += count
        self._held -= count
        if front.taken == front.slots:
            self._bundles.popleft()

    def _joined(self, parts: list[list[Array | list[Still]]]) -> list[Array | list[Still]]:
        if not parts:
            return [
                np.empty((0, self._schema.rows(column), *column.shape), column.dtype)
                for column in self._schema.columns
            ]
        return [_one_after_another(pieces) for pieces in zip(*parts, strict=True)]

    def mass(self) -> int:
        """Sessions that wait, without those of quarantined nodes."""
        if not self._quarantined:
            return self._held
        return sum(b.slots - b.taken for b in self._bundles if b.node not in self._quarantined)

    def first_live(self, next_session: int) -> int:
        """As in Store."""
        if not self._bundles:
            return next_session
        return self._bundles[0].first + self._bundles[0].taken

    @property
    def sessions(self) -> int:
        """As in Store, and those of quarantined nodes: they wait for their turn."""
        return self._held

    @property
    def size_bytes(self) -> int:
        """As in Store, but decoded: pictures, too."""
        return self._held * self._schema.session_bytes()


def _waiting(values: Array | Slots) -> Array | list[Still]:
    """A copy, in the order in which it will be sent, that does not keep the payload alive."""
    if isinstance(values, Slots):
        return [Still(values.codec, block, 0) for block in values.blocks]
    return np.array(values.swapaxes(0, 1), order="C")


def _one_after_another(pieces: Sequence[Array | list[Still]]) -> Array | list[Still]:
    stills = [still for piece in pieces if isinstance(piece, list) for still in piece]
    return stills or np.concatenate([piece for piece in pieces if not isinstance(piece, list)])
