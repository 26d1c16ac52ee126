"""Measures the parts that were asked for, as arguments.py reads them, and prints and writes their rows."""

from __future__ import annotations

import shutil
import signal
import sys
import time

from bench_parts import judge, results
from bench_parts.arguments import parsed
from bench_parts.judge import Row
from bench_parts.kinds import Unavailable
from bench_parts.rows import Part

_WIDTH = 120


def main() -> int:
    """0 if no bar was missed, or with --quick, which says nothing of bars."""
    options = parsed(sys.argv[1:])
    if options.setup:
        from bench_parts.peers import set_up

        return set_up(_say)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it, too, ends the children first
    rows: list[Row] = []
    notes: dict[str, str] = {}
    began = time.monotonic()
    try:
        for part in options.parts:
            _measure(part, options.quick, rows, notes)
            if options.json is not None:
                results.write(options.json, rows)
    except KeyboardInterrupt:
        _say("stopped; what was measured until then:")
    finally:
        if options.json is not None:
            results.write(options.json, rows)
        sys.stdout.write(f"{results.text(rows, notes, _width())}\n")
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


def _width() -> int:
    """Columns of the table: as many as the terminal has, but no more than are easy to read."""
    return min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
