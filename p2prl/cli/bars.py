"""How a figure went so far, drawn in one line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"
#: Differences below this part of the values are rounding.
_FLAT = 1e-9


def bars(values: Sequence[float], width: int) -> str:
    """The values as bars of eight heights, averaged down to `width` columns; where all are the same, of middle height.

    >>> bars([0, 1, 2, 3], 4), bars([500, 500, 500], 3)
    ('▁▃▆█', '▄▄▄')
    """
    if len(values) < 2 or width < 2:
        return ""
    columns = min(width, len(values))
    edges = [index * len(values) // columns for index in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = high - low
    if span <= _FLAT * max(abs(low), abs(high)):
        return _BARS[len(_BARS) // 2 - 1] * columns
    return "".join(_BARS[round((mean - low) / span * (len(_BARS) - 1))] for mean in means)
