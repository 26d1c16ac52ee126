"""Numbers and sizes as people write them, why a run ended, and how often a line was told. A leaf, and pure."""

from __future__ import annotations

import re

_KINDS = {
    "int": "a whole number, as in 3",
    "float": "a number, as in 0.5",
    "bool": "true or false",
    "str": "text",
    "array": "a list, as in [64, 64]",
    "object": "a table",
}
_BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
#: Different lines that are counted, at most: they may hold a stranger's words.
_MOST_LINES = 1000
_ENDS = {
    "return": "the run reached its mean return",
    "steps": "the run reached its steps",
    "time": "the run's time is over",
    "signal": "the host was stopped",
    "error": "the host failed",
}


def many(number: int, noun: str, does: str = "", do: str = "") -> str:
    """A number with its noun, and with the verb that goes with it.

    Args:
        does, do: the verb for one, and for any other number.

    >>> many(1, "bundle"), many(1200, "bundle"), many(1, "node", "waits", "wait"), many(0, "node", "waits", "wait")
    ('1 bundle', '1,200 bundles', '1 node waits', '0 nodes wait')
    """
    text = f"{number:,} {noun}{'' if number == 1 else 's'}"
    return f"{text} {does if number == 1 else do}" if does else text


def sized(size_bytes: float) -> str:
    """Bytes with a decimal unit, as `--set` reads them.

    >>> [sized(size) for size in (999, 299_900, 64e6, 1e15)]
    ['999 B', '299.9 kB', '64 MB', '1,000 TB']
    """
    number, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:,.1f}".removesuffix(".0") + f" {units[0]}"


def in_words(told: str) -> str:
    """What msgspec says of a value, for people who do not know Python's types.

    >>> in_words("Expected `int` >= 1"), in_words("Expected `float | null`, got `str`")
    ('expected a whole number of at least 1', 'expected a number, as in 0.5')
    """
    text = told.replace("`", "").replace(" | null", "")
    match = re.fullmatch(r"Expected (\w+)(?: ([<>]=?) (\S+)|, got \w+)?(.*)", text)
    if match is None or match[1] not in _KINDS:
        return text[:1].lower() + text[1:]
    kind = _KINDS[match[1]]
    if match[2]:
        kind = f"{kind.partition(',')[0]} {_BOUNDS[match[2]]} {match[3]}"
    return f"expected {kind}{match[4]}"


def why_ended(reason: str) -> str:
    """Why a run ended, for people; what is none of the known reasons stays as it is.

    >>> why_ended("return"), why_ended("a full disk")
    ('the run reached its mean return', 'a full disk')
    """
    return _ENDS.get(reason, reason)


class Repeats:
    """Lines that may come a thousand times a second: the first, tenth, hundredth ... of each is told."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def told(self, text: str) -> str:
        """The line to say now, or an empty string.

        >>> repeats = Repeats()
        >>> [line for _ in range(20) if (line := repeats.told("refused"))]
        ['refused', 'refused (10 times so far)']
        """
        if text not in self._counts and len(self._counts) >= _MOST_LINES:
            return ""
        self._counts[text] = count = self._counts.get(text, 0) + 1
        if str(count).strip("0") != "1":
            return ""
        return text if count == 1 else f"{text} ({count:,} times so far)"
