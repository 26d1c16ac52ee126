"""Numbers with their nouns, as people write them. A leaf, and pure."""

from __future__ import annotations


def many(number: int, noun: str, nouns: str = "") -> str:
    """A number with its noun.

    Args:
        nouns: the plural, where it is not the noun with an s.

    >>> many(1, "bundle"), many(1200, "bundle"), many(2, "entry", "entries")
    ('1 bundle', '1,200 bundles', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def one_or(number: int, one: str, several: str) -> str:
    """The word that goes with so many, as in `was` and `were`."""
    return one if number == 1 else several
