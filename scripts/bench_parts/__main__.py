"""How fast p2prl is: ours beside the limit and beside others, part by part. Without names: all but those that `--list`
calls "by name only", in 15 minutes.

Figures are medians of some turns, with their range. Ours, the limit and the peers take turns in one run on one machine,
so the ratios are what counts.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from bench_parts import judge, results
from bench_parts.judge import Row
from bench_parts.kinds import Unavailable
from bench_parts.rows import Part, chosen, listed


def main() -> int:
    """0 if no bar was missed, or with --quick, which says nothing of bars."""
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
    options = parser.parse_args()
    if options.setup:
        from bench_parts.peers import set_up

        return set_up(_say)
    try:
        parts = chosen(options.parts)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        sys.stdout.write(listed())
        return 0
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it, too, ends the children first
    rows: list[Row] = []
    notes: dict[str, str] = {}
    began = time.monotonic()
    try:
        for part in parts:
            _measure(part, options.quick, rows, notes)
            if options.json is not None:
                results.write(options.json, rows)
    except KeyboardInterrupt:
        _say("stopped; what was measured until then:")
    finally:
        if options.json is not None:
            results.write(options.json, rows)
        sys.stdout.write(f"{results.text(rows, notes)}\n")
    _say(
        f"{time.monotonic() - began:.0f} s" + (", quick: these figures say nothing" if options.quick else "")
    )
    return int(not options.quick and any(row["ok"] is False for row in rows))


def _measure(part: Part, quick: bool, rows: list[Row], notes: dict[str, str]) -> None:
    """One part's cases; they are kept as they come, so that Ctrl-C loses none."""
    began = time.monotonic()
    try:
        for case in part.cases(quick):
            row = judge.row(part.name, case)
            rows.append(row)
            if case.get("note"):
                notes[f"{part.name}: {case['case']}"] = case["note"]
            verdict = ", bar missed" if row["ok"] is False and not quick else ""
            _say(f"{part.name}: {case['case']}: {results.spread(row['ours'])} {case['unit']}{verdict}")
    except Unavailable as error:
        _say(f"{part.name}: {error}")
        notes[part.name] = str(error)
    _say(f"{part.name}: {time.monotonic() - began:.0f} s")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
