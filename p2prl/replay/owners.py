"""Whose each place of a ring is, so that one node's sessions can be left out of the samples, and taken in again."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from p2prl.replay.samplers import Places

#: Names that are kept before those that hold nothing any more are looked for.
_MIN_NAMES = 1024


class Owners:
    """One number per place, and the names behind the numbers.

    Args:
        capacity: places.
    """

    def __init__(self, capacity: int) -> None:
        self._of = np.zeros(capacity, np.int32)
        #: The name behind each number; 0 stands for nobody.
        self._names = [""]
        self._numbers = {"": 0}
        self._max_names = _MIN_NAMES
        self._barred: frozenset[str] = frozenset()
        #: What `allowed` was asked last, and what it found; None if it is to be looked for again.
        self._found: tuple[Places, Places] | None = None

    def put(self, block: slice, node: str) -> None:
        """These places are `node`'s now."""
        self._of[block] = self._number(node)
        self._found = None

    def bar(self, nodes: Collection[str]) -> None:
        """The places of these nodes, and of no others, are not allowed from now on."""
        self._barred = frozenset(nodes)
        self._found = None

    def allowed(self, places: Places) -> Places:
        """Of some places those that are allowed; the same if all are."""
        barred = [self._numbers[node] for node in self._barred if node in self._numbers]
        if not barred:
            return places
        if self._found is None or self._found[0] != places:
            out = np.zeros(len(self._names), bool)
            out[barred] = True
            every = places.at(np.arange(places.count))
            listed = every[~out[self._of[every]]]
            self._found = places, Places(len(listed), listed)
        return self._found[1]

    def _number(self, node: str) -> int:
        if node not in self._numbers:
            if len(self._names) >= self._max_names:
                self._forget()
            self._numbers[node] = len(self._names)
            self._names.append(node)
        return self._numbers[node]

    def _forget(self) -> None:
        """Names of which no place is left go, so that passing nodes do not fill the memory."""
        live = np.unique(np.append(self._of, np.int32(0)))
        names = [self._names[number] for number in live]
        new = np.zeros(len(self._names), np.int32)
        new[live] = np.arange(len(live))
        self._of[:] = new[self._of]
        self._names, self._numbers = names, {name: number for number, name in enumerate(names)}
        self._max_names = max(_MIN_NAMES, 2 * len(names))
