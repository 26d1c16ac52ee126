"""The table of docs/performance.md, from the rows of a `scripts/bench --json FILE`.

`python -m bench_parts.page FILE` prints it; with `--into docs/performance.md` it takes the place of what stands between
the page's marks, `<!-- table -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench_parts import results

BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def main() -> int:
    """0, or 2 for a page without marks."""
    parser = argparse.ArgumentParser(prog="python -m bench_parts.page", description=__doc__)
    parser.add_argument("rows", type=Path, metavar="FILE", help="as scripts/bench --json FILE wrote it")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write it into this page")
    options = parser.parse_args()
    table = results.markdown(json.loads(options.rows.read_text(encoding="utf-8")))
    if options.into is None:
        sys.stdout.write(f"{table}\n")
        return 0
    try:
        page = replaced(options.into.read_text(encoding="utf-8"), table)
    except ValueError as error:
        parser.error(f"{options.into}: {error}")
    options.into.write_text(page, encoding="utf-8", newline="\n")
    return 0


def replaced(page: str, table: str) -> str:
    """The page with another table.

    Raises:
        ValueError: it has not both marks, in their order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"it lacks the lines {BEGIN} and {END}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
