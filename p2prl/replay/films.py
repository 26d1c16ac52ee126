"""Where a ring keeps a column of pictures: as it was sent, which is a small part of what it would be decoded."""

from __future__ import annotations

from p2prl.wire.blocks import Array
from p2prl.wire.pictures import Slots
from p2prl.wire.stills import Still

#: What Python takes to keep one block, beside its bytes: a place in a list, a tuple, an object.
FILM_BYTES = 100


class Films:
    """The blocks of a ring's sessions.

    Args:
        capacity: places.

    Attributes:
        size_bytes: of all blocks, and of keeping them.
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
        self.size_bytes += _size(film) - _size(old)
        self._kept[place] = film

    def take(self, places: Array, rows: Array) -> list[Still]:
        """What these places hold, from these rows on."""
        stills = []
        for place, row in zip(places.tolist(), rows.tolist(), strict=True):
            film = self._kept[place]
            assert film is not None, "a place is sampled only while it holds a session"
            stills.append(Still(film[0], film[1], row))
        return stills


def _size(film: tuple[str, bytes] | None) -> int:
    return len(film[1]) + FILM_BYTES if film else 0
