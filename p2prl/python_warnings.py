"""What libraries warn of, as lines for people: one a text, without colours and without the source line. A leaf."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import TextIO

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: Gymnasium says it itself, before each.
_GYMNASIUM = re.compile(r"^(?:WARN|ERROR): ")
_MOST_KEPT = 1000


def plain(text: str) -> str:
    """The text without the codes that colour a terminal.

    >>> plain("\\x1b[33mWARN\\x1b[0m")
    'WARN'
    """
    return _COLOUR.sub("", text)


class Once:
    """Says whether a text is new; it keeps a thousand, and what comes after those counts as told."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def first(self, text: str) -> bool:
        """True for the first time."""
        if text in self._told or len(self._told) >= _MOST_KEPT:
            return False
        self._told.add(text)
        return True


def one_line_each(say: Callable[[str], None]) -> None:
    """From now on Python's warnings of this process go to `say`, each text once."""
    once = Once()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = _GYMNASIUM.sub("", " ".join(plain(str(message)).split()))
        if once.first(text):
            say(text)

    warnings.showwarning = show
