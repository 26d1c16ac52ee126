"""Pieces of lines: a label with its figures, a state in its colour, the books."""

from __future__ import annotations

import textwrap

from rich.text import Text

from p2prl.cli.lines import books_parts
from p2prl.cli.output import safe
from p2prl.core.messages import Books

_STATE_STYLES = {
    "working": "green",
    "training": "green",
    "starting": "yellow",
    "paused": "yellow",
    "waiting": "yellow",
    "searching": "yellow",
    "connecting": "yellow",
    "away": "red",
    "stalled": "red",
    "failed": "red",
    "stopped": "dim",
    "gone": "dim",
    "removed": "red",
    "quarantined": "red",
}
LABEL_WIDTH = 9


def figure(label: str, value: Text | str, *more: str) -> Text:
    """A line: the label, the value, and what else there is to say."""
    text = Text(label.ljust(LABEL_WIDTH), "dim", no_wrap=True, overflow="ellipsis", end="")
    line = Text("", no_wrap=True, overflow="ellipsis").append(text)
    line.append(value if isinstance(value, Text) else Text(value, "bold"))
    for part in more:
        if part:
            line.append(f"   {part}")
    return line


def state_text(state: str) -> Text:
    """A state in its colour."""
    return Text(safe(state, 20), _STATE_STYLES.get(state, ""))


def fitted(line: Text, width: int) -> Text:
    """The line, cut to the width."""
    line.truncate(width, overflow="ellipsis")
    return line


def with_reason(line: Text, reason: str, width: int, most: int = 3) -> list[Text]:
    """A figure and why it is so: beside it where that fits, else below it, between words, on at most so many lines."""
    if not reason:
        return [line]
    beside = line.copy().append(f"   {reason}")
    if beside.cell_len <= width:
        return [beside]
    room = max(20, width - LABEL_WIDTH)
    parts = textwrap.wrap(reason, room, max_lines=most, placeholder=" …", break_on_hyphens=False)
    return [line, *(figure("", Text(part)) for part in parts)]


def books_line(books: Books, width: int = 0, spooled: str = "") -> Text:
    """Stored and pending always; what went wrong only when it did, and with its reasons if `width` allows."""
    text = Text.assemble(*books_parts(books, spooled))
    if not width or text.cell_len <= width:
        return text
    return Text.assemble(*books_parts(books, spooled, with_reasons=False))
