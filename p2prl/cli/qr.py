"""A QR code on a terminal: two modules in one character cell, black on white whatever the terminal's colours are."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

#: White all around, in modules: scanners find the code by it.
QUIET = 2
#: By whether the upper and the lower module of a cell are dark.
_CELLS = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
_STYLE = "#000000 on #ffffff"
#: Lines that a small view needs below the code: else it would push the code off the screen at once.
_VIEW_LINES = 13


def drawing(text: str, console: Console) -> Text | None:
    """`text` as a QR code, or None where it would not fit, or could not be scanned: no colours, no block characters."""
    if not _can_draw(console):
        return None
    rows = cells(modules(text))
    if len(rows[0]) > console.width or len(rows) + _VIEW_LINES > console.height:
        return None
    return Text("\n", no_wrap=True, overflow="crop").join(Text(row, _STYLE) for row in rows)


def modules(text: str) -> list[list[bool]]:
    """The QR code's modules with its quiet zone, row by row; True is dark."""
    import segno

    code = segno.make(text, micro=False, error="l")
    return [[bool(module) for module in row] for row in code.matrix_iter(border=QUIET)]


def cells(matrix: list[list[bool]]) -> list[str]:
    """Two rows of modules in one line of characters; an odd last row gets a light one below it."""
    padded = [*matrix, [False] * len(matrix[0])] if len(matrix) % 2 else matrix
    pairs = zip(padded[0::2], padded[1::2], strict=True)
    return ["".join(_CELLS[pair] for pair in zip(upper, lower, strict=True)) for upper, lower in pairs]


def _can_draw(console: Console) -> bool:
    colours = console.is_terminal and not console.no_color and console.color_system is not None
    blocks = console.encoding.lower().startswith("utf") and not console.legacy_windows
    return colours and blocks and not console.is_dumb_terminal
