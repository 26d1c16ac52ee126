"""The table, and the file of rows."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from bench_parts.judge import Figure, Row

_TITLES = ("ours", "limit", "peer", "of limit", "x peer", "bar", "ok")
#: The narrowest table that can be read.
_LEAST_WIDTH = 60


def write(path: Path, rows: Sequence[Row]) -> None:
    """One JSON array, a row a line; whole or not at all."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path = path.resolve()  # a link to the file stays one
    part = path.with_name(f".{path.name}.part")
    part.write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")
    part.replace(path)


def text(rows: Sequence[Row], notes: Mapping[str, str], width: int) -> str:
    """The table for people, and below it, numbered, what there is to say about its rows: who the peers were, and notes.

    Args:
        notes: by "part: case"; of a part that gave no row by "part".
        width: columns; what does not fit into one goes on in the next line.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    table.add_column("case", min_width=width // 4, overflow="fold")
    for title in _TITLES:
        table.add_column(title, justify="right", overflow="fold")
    said: dict[str, int] = {}
    left, part = dict(notes), ""
    for row in rows:
        told = [note for note in (row["peer_name"], left.pop(f"{row['part']}: {row['case']}", None)) if note]
        numbers = [said.setdefault(note, len(said) + 1) for note in told]
        if row["part"] != part:
            part = row["part"]
            table.add_row(Text(part))
        table.add_row(*(Text(cell) for cell in _cells(row, numbers)))
    lines = [f"{number}: {note}" for note, number in said.items()]
    lines += [f"{name}: {note}" for name, note in left.items()]
    return _drawn([table, *(Text(line) for line in ["", *lines] if lines)], max(_LEAST_WIDTH, width))


def _cells(row: Row, numbers: Sequence[int]) -> list[str]:
    marks = "".join(f" [{number}]" for number in numbers)
    return [
        f"  {row['case']}{marks}",
        _with_unit(row["ours"], row["unit"]),
        spread(row["limit"]),
        spread(row["peer"]),
        _middle(row["ratio_limit"]),
        _middle(row["ratio_peer"]),
        row["bar"] or "-",
        {True: "yes", False: "NO", None: "-"}[row["ok"]],
    ]


def _drawn(parts: Sequence[RenderableType], width: int) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, highlight=False)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown, part by part: what docs/performance.md has between its marks."""
    lines = [
        "| part | case | ours | the limit | of the limit | the peer | times the peer | bar | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    part = ""
    for row in rows:
        cells = [
            f"`{row['part']}`" if row["part"] != part else "",
            row["case"],
            _with_unit(row["ours"], row["unit"]),
            spread(row["limit"]),
            _middle(row["ratio_limit"]),
            f"{spread(row['peer'])} {row['peer_name']}" if row["peer"] else row["peer_name"] or "-",
            _middle(row["ratio_peer"]),
            row["bar"] or "-",
            {True: "yes", False: "**no**", None: ""}[row["ok"]],
        ]
        part = row["part"]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def _with_unit(figure: Figure | None, unit: str) -> str:
    return "-" if figure is None else f"{spread(figure)} {unit}"


def _middle(figure: Figure | None) -> str:
    return "-" if figure is None else _plain(figure["median"])


def spread(figure: Figure | None) -> str:
    """Median, and the range where there is one."""
    if figure is None:
        return "-"
    low, middle, high = (_plain(figure[name]) for name in ("low", "median", "high"))
    return middle if low == high else f"{middle} ({low}-{high})"


def _plain(value: Any) -> str:
    """Thousands with commas, small numbers as they are."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
