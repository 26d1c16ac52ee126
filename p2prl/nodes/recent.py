"""Means of the last values of some names."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

#: Values that a mean is over.
_WINDOW = 100


class Recent:
    """Takes values as they come, by name."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {}

    def add(self, values: Mapping[str, float]) -> None:
        """One of each; a name may be new."""
        for name, value in values.items():
            self._values.setdefault(name, deque(maxlen=_WINDOW)).append(value)

    def means(self) -> dict[str, float]:
        """Of each name. In plain Python: an on-policy agent's are told before each update, and numpy takes longer."""
        return {name: float(sum(values)) / len(values) for name, values in self._values.items()}
