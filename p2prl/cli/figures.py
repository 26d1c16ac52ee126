"""Pieces of lines: a label with its figures, a state in its colour, the books."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from p2prl.cli.lines import books_parts, reasons
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
#: Where a line is broken, if it has to be: between its parts before between its words.
_GAPS = ("   ", " ")
_INDENT = 2


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


def whole(label: str, value: Text, width: int) -> list[Text]:
    """A figure of which nothing is cut, for what people type: beside its label if its longest word has room there."""
    room = width - LABEL_WIDTH - 1
    if max((len(word) for word in value.plain.split()), default=0) <= room:
        first, *more = broken(value, room)
        return [
            figure(label, Text(" ").append(first)),
            *(figure("", Text(" ").append(line)) for line in more),
        ]
    return [figure(label, ""), *(Text(" " * _INDENT).append(line) for line in broken(value, width - _INDENT))]


def broken(line: Text, width: int, gaps: Sequence[str] = _GAPS) -> list[Text]:
    """The line in pieces that fit: broken at the first of these gaps, else at the next, else anywhere."""
    width = max(1, width)
    if line.cell_len <= width:
        return [line]
    if not gaps:
        return list(line.divide(_cuts(line.plain, width)))
    pieces: list[Text] = []
    for part in line.split(gaps[0]):
        if pieces and pieces[-1].cell_len + len(gaps[0]) + part.cell_len <= width:
            pieces[-1] = Text.assemble(pieces[-1], gaps[0], part)
        else:
            pieces += broken(part, width, gaps[1:])
    return pieces


def _cuts(text: str, width: int) -> list[int]:
    """Before which characters a text is cut, so that each piece fits; a character may take two cells, or none."""
    cuts, filled = [], 0
    for index, character in enumerate(text):
        cells = cell_len(character)
        if filled + cells > width and filled:
            cuts.append(index)
            filled = 0
        filled += cells
    return cuts


def with_reason(line: Text, reason: str, width: int) -> list[Text]:
    """A figure and why it is so, whole: beside it where that fits, else below it, between words."""
    if not reason:
        return [line]
    beside = line.copy().append(f"   {reason}")
    if beside.cell_len <= width:
        return [beside]
    parts = broken(Text(reason), max(20, width - LABEL_WIDTH))
    return [line, *(figure("", part) for part in parts)]


def books_line(books: Books) -> Text:
    """Stored and pending always; what went wrong only when it did, and with its reasons."""
    return Text.assemble(*books_parts(books))


def books_lines(books: Books, width: int, spooled: str = "") -> list[Text]:
    """The books as a figure; reasons that do not fit beside the counts stand below them."""
    whole = figure("bundles", Text.assemble(*books_parts(books, spooled)))
    if whole.cell_len <= width:
        return [whole]
    told = {"refused": reasons(books.refused_reasons), "dropped": reasons(books.dropped_reasons)}
    why = "; ".join(f"{name}: {text}" for name, text in told.items() if text and getattr(books, name))
    counts = Text.assemble(*books_parts(books, spooled, with_reasons=False))
    return with_reason(figure("bundles", counts), why, width)
