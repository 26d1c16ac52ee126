"""Numbers with their nouns, as people write them. A leaf, and pure."""

from __future__ import annotations


def many(number: int, noun: str, does: str = "", do: str = "") -> str:
    """A number with its noun, and with the verb that goes with it.

    Args:
        does, do: the verb for one, and for any other number.

    >>> many(1, "bundle"), many(1200, "bundle"), many(1, "node", "waits", "wait"), many(0, "node", "waits", "wait")
    ('1 bundle', '1,200 bundles', '1 node waits', '0 nodes wait')
    """
    text = f"{number:,} {noun}{'' if number == 1 else 's'}"
    return f"{text} {does if number == 1 else do}" if does else text
