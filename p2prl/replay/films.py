"""Where a ring keeps a column of pictures: as it was sent, which is a small part of what it would be decoded."""

from __future__ import annotations

from p2prl.wire.blocks import Array
from p2prl.wire.pictures import Slots
from p2prl.wire.stills import Still


class Films:
    """The blocks of a ring's sessions.

    Args:
        capacity: places.

    Attributes:
        size_bytes: of all blocks.
    """

    def __init__(self, capacity: int) -> None:
        self._kept: list[tuple[str, bytes] | None] = [None] * capacity
        self.size_bytes = 0

    def put(self, at: int, start: int, count: int, slots: Slots) -> None:
        """Keep `count` slots of a bundle, from slot `start`, in the places from `at`."""
        for place, block in enumerate(slots.blocks[start : start + count], at):
            self._set(place, (slots.codec, block))

    def clear(self, place: int) -> None:
        """Let go of what a place holds."""
        self._set(place, None)

    def _set(self, place: int, film: tuple[str, bytes] | None) -> None:
        old = self._kept[place]
        self.size_bytes += (len(film[1]) if film else 0) - (len(old[1]) if old else 0)
        self._kept[place] = film

    def take(self, places: Array, rows: Array) -> list[Still]:
        """What these places hold, from these rows on."""
        stills = []
        for place, row in zip(places.tolist(), rows.tolist(), strict=True):
            film = self._kept[place]
            assert film is not None, "a place is sampled only while it holds a session"
            stills.append(Still(film[0], film[1], row))
        return stills
