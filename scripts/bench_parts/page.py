"""The table of docs/performance.md, from the rows of a `scripts/bench --json FILE`.

`python -m bench_parts.page FILE` prints it; with `--into docs/performance.md` it takes the place of what stands between
the page's marks, `<!-- table -->` and `<!-- end of table -->`, if it is of a whole run; of what runs by name alone, and
was not measured now, the page's rows stay. Profiles stand between marks of their own (profile.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Container, Sequence
from pathlib import Path

from bench_parts import results
from bench_parts.judge import Row
from bench_parts.rows import PARTS

#: What stands between marks.
TABLE, PROFILE = "table", "profile"
#: Parts whose cases take several turns, which never come to the same.
_TURNED = ("ingest", "sample", "run", "updates")


def main() -> int:
    """0, or 2 for a page without marks."""
    parser = argparse.ArgumentParser(prog="python -m bench_parts.page", description=__doc__)
    parser.add_argument("rows", type=Path, metavar="FILE", help="as scripts/bench --json FILE wrote it")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write it into this page")
    parser.add_argument(
        "--anyway", action="store_true", help="also rows of a quick run, or of some parts alone"
    )
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text(encoding="utf-8"))
    table = results.markdown(rows)
    if options.into is None:
        sys.stdout.write(f"{table}\n")
        return 0
    try:
        old = between(options.into.read_text(encoding="utf-8"), TABLE)
        if not options.anyway and (why := doubts(rows)):
            parser.error(f"{options.rows}: {why}; {options.into} stays as it was, unless you say --anyway")
        kept = [] if options.anyway else kept_lines(old, {row["part"] for row in rows})
        put(options.into, TABLE, "\n".join([table, *kept]))
    except ValueError as error:
        parser.error(str(error))
    return 0


def doubts(rows: Sequence[Row]) -> str:
    """Why these rows should not take the place of a whole table; empty if they may."""
    there = {row["part"] for row in rows}
    if missing := [part.name for part in PARTS if not part.by_name and part.name not in there]:
        return f"there is no row of {', '.join(missing)}"
    figures = [row["ours"] for row in rows if row["part"] in _TURNED and row["ours"] is not None]
    if any(figure["low"] == figure["high"] for figure in figures):
        return "its figures are of one turn, as --quick takes them"
    return ""


def kept_lines(table: str, parts: Container[str]) -> list[str]:
    """The old table's rows of parts that run by name alone, and were not measured this time."""
    alone = {f"`{part.name}`" for part in PARTS if part.by_name and part.name not in parts}
    kept, of = [], ""
    for line in table.strip().splitlines()[2:]:
        of = line.split("|")[1].strip() or of
        if of in alone:
            kept.append(line)
    return kept


def put(page: Path, what: str, text: str) -> None:
    """Write it between the page's marks.

    Raises:
        ValueError: the page has not both marks, in their order.
    """
    try:
        changed = replaced(page.read_text(encoding="utf-8"), what, text)
    except ValueError as error:
        raise ValueError(f"{page}: {error}") from error
    page.write_text(changed, encoding="utf-8", newline="\n")


def between(page: str, what: str) -> str:
    """What stands between the page's marks; nothing if it lacks them."""
    return page.partition(f"<!-- {what} -->")[2].partition(f"<!-- end of {what} -->")[0]


def replaced(page: str, what: str, text: str) -> str:
    """The page with other text between its marks. Raises ValueError as `put` does."""
    first, last = f"<!-- {what} -->", f"<!-- end of {what} -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"it lacks the lines {first} and {last}")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
