"""How fast p2prl is: ours beside the limit and beside others, part by part. Without names: all but those that `--list`
calls "by name only", in 15 minutes.

Figures are medians of some turns, with their range. Ours, the limit and the peers take turns in one run on one machine,
so the ratios are what counts.
"""

# The standard library alone: scripts/bench reads its words here before it installs anything.

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_parts.rows import Part, chosen, listed


@dataclass(frozen=True)
class Options:
    """What was asked for.

    Attributes:
        json: write one row a case there, too; None for nowhere.
    """

    parts: Sequence[Part]
    json: Path | None
    quick: bool
    setup: bool


def parsed(words: Sequence[str]) -> Options:
    """What the words ask for. What is wrong with them, `--help` and `--list` end the program here."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="as --list names them")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write one row a case there, too, as one array"
    )
    parser.add_argument(
        "--list", action="store_true", help="name the parts, and how long each takes, and end"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a second or two a case, to see that all of it runs"
    )
    parser.add_argument("--setup", action="store_true", help="install the peers, and p2prl[bench], and end")
    found = parser.parse_args(words)
    try:
        parts = chosen(found.parts)
    except ValueError as error:
        parser.error(str(error))
    if found.list:
        sys.stdout.write(listed())
        parser.exit()
    if found.json is not None and not found.json.absolute().parent.is_dir():
        parser.error(f"--json {found.json}: there is no folder {found.json.parent}")
    if found.json is not None and found.json.exists() and not found.json.is_file():
        parser.error(f"--json {found.json} is no file, and it is replaced after each part: name a file")
    return Options(parts, found.json, found.quick, found.setup)


if __name__ == "__main__":
    parsed(sys.argv[1:])
