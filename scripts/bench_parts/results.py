"""The table, and the file of rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_parts._lan import table
from bench_parts.judge import Figure, Row

_TITLES = (
    "part",
    "case",
    "unit",
    "ours",
    "limit",
    "peer",
    "ratio limit",
    "ratio peer",
    "bar",
    "ok",
    "peer's name",
)


def write(path: Path, rows: Sequence[Row]) -> None:
    """One JSON array, a row a line; whole or not at all."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    part = path.with_name(f".{path.name}.part")
    part.write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")
    part.replace(path)


def text(rows: Sequence[Row], notes: Mapping[str, str]) -> str:
    """The table for people, and what there is to say about its rows.

    Args:
        notes: by "part: case".
    """
    cells = [
        [
            row["part"],
            row["case"],
            row["unit"],
            *(spread(row[name]) for name in ("ours", "limit", "peer", "ratio_limit", "ratio_peer")),
            row["bar"] or "-",
            {True: "yes", False: "NO", None: "-"}[row["ok"]],
            row["peer_name"] or "-",
        ]
        for row in rows
    ]
    said: dict[str, list[str]] = {}
    for name, note in notes.items():
        said.setdefault(note, []).append(name)
    lines = [f"{', '.join(names)}: {note}" for note, names in said.items()]
    return "\n".join([table(_TITLES, cells), *([""] if lines else []), *lines])


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
