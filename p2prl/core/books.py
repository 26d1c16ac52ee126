"""Sums of books (core/messages.py has what they are)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from p2prl.core.messages import Books

_MAX_REASONS = 64


def merged(books: Sequence[Books]) -> Books:
    """The sum of several books, reasons included."""
    return Books(
        produced=sum(b.produced for b in books),
        stored=sum(b.stored for b in books),
        pending=sum(b.pending for b in books),
        refused=sum(b.refused for b in books),
        stale=sum(b.stale for b in books),
        dropped=sum(b.dropped for b in books),
        duplicate=sum(b.duplicate for b in books),
        refused_reasons=_merge(b.refused_reasons for b in books),
        dropped_reasons=_merge(b.dropped_reasons for b in books),
    )


def _merge(counters: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counter in counters:
        for key, count in counter.items():
            # Honest reasons are a handful; those that a stranger makes up must not fill the memory.
            name = key if key in total or len(total) < _MAX_REASONS else "other"
            total[name] = total.get(name, 0) + count
    return total
