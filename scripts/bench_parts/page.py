"""The table of docs/performance.md, from the rows of a `scripts/bench --json FILE`.

`python -m bench_parts.page FILE` prints it; with `--into docs/performance.md` it takes the place of what stands between
the page's marks, `<!-- table -->` and `<!-- end of table -->`. Profiles stand between marks of their own (profile.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench_parts import results

#: What stands between marks.
TABLE, PROFILE = "table", "profile"


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
        put(options.into, TABLE, table)
    except ValueError as error:
        parser.error(str(error))
    return 0


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
