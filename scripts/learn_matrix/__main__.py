"""Learn what the matrix says, judge it, and write it down. Without names: all rows, which takes hours.

A row that was measured before is replaced; rows that are not run stay. Ctrl-C keeps the rows that are done.
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path

from learn_matrix import forced, judge, ours, peers, pictures, results
from learn_matrix.child import ROOT
from learn_matrix.kinds import Criterion, Forced, Host, Limits, Policies, Row, Run, Sb3, Unavailable
from learn_matrix.rows import ROWS, chosen


def main() -> int:
    """0 if no bar was missed."""
    parser = argparse.ArgumentParser(prog="scripts/learn", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a row, or what a row's name begins with")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    parser.add_argument("--short", action="store_true", help="only rows that CI's learning tests show, too")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="instead of each row's own")
    parser.add_argument(
        "--no-peer", action="store_true", help="ours alone; bars that need the peer stay open"
    )
    parser.add_argument(
        "--port", type=int, metavar="BASE", help="our hosts' base port; default: a free block"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results.json", metavar="FILE")
    parser.add_argument("--render", action="store_true", help="run nothing; make results.md from FILE anew")
    parser.add_argument(
        "--check", action="store_true", help="with --render: write nothing, fail if it is stale"
    )
    options = parser.parse_args()
    if options.out.exists() and not options.out.is_file():
        parser.error(f"--out {options.out} is no file, and it is read and replaced: name a file")
    try:
        rows = chosen(options.names, options.short)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        lines = [
            f"{row.name:<20} {row.agent} on {row.env} to {row.criterion.text}; bar: {row.bar.text}"
            for row in rows
        ]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return 0
    if options.render:
        return _render(options.out, options.check)
    rows = [replace(row, seeds=tuple(options.seeds)) if options.seeds else row for row in rows]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it, too, ends the children first
    try:
        return max([_measure(row, options) for row in rows], default=0)
    except KeyboardInterrupt:
        _say("stopped; the rows that are done are kept")
        return 130


def _measure(row: Row, options: argparse.Namespace) -> int:
    """Run one row and write it down; 1 if it missed its bar."""
    circumstances = judge.circumstances()
    try:
        found = _result(row, options)
    except Unavailable as error:
        found = judge.unavailable(row, str(error))
    rows = results.put(options.out, {**found, **circumstances})
    _write(results.made(rows, options.out.parent))
    verdict = {True: "ok", False: "NOT ok", None: "open"}[found["ok"]]
    _say(f"{row.name}: {verdict}" + (f" ({found['reason']})" if found["reason"] else ""))
    return int(found["ok"] is False)


def _result(row: Row, options: argparse.Namespace) -> judge.Result:
    criterion, label, reason = row.criterion, None, ""
    if isinstance(row.peer, Policies):
        means = peers.means(row.peer)
        criterion, label = Criterion(max(means.values())), judge.policies_label(row.peer, means)
    elif row.peer is not None:
        label = row.peer.label
    theirs: list[Run] | None = [] if isinstance(row.peer, Sb3 | Host) and not options.no_peer else None
    mine: list[Run] = []
    limits = row.peer_limits or row.limits
    for seed in row.seeds:
        mine.append(_said(row.name, seed, _run(row.ours, criterion, row.limits, seed, options.port)))
        if theirs is not None:
            assert row.peer is not None
            try:
                theirs.append(_said(label or "", seed, _run(row.peer, criterion, limits, seed, options.port)))
            except Unavailable as error:
                theirs, reason = None, str(error)
    others = {one["name"]: one for one in results.load(options.out)}
    found = judge.result(row, mine, theirs, criterion, label, reason, others)
    if isinstance(row.ours, Host) and criterion.kind != "steps":
        found["picture"] = f"pictures/{row.name}.svg"
        title = f"{row.agent} on {row.env}, {len(mine)} seeds"
        drawn = pictures.curves(
            title, criterion.goal, mine, theirs or [], (f"p2prl {row.agent}", label or "")
        )
        _write({options.out.parent / found["picture"]: drawn})
    return found


def _run(
    what: Sb3 | Host | Forced | Policies, criterion: Criterion, limits: Limits, seed: int, port: int | None
) -> Run:
    if isinstance(what, Host):
        return ours.run(what, criterion, limits, seed, port)
    if isinstance(what, Forced):
        return forced.run(what, criterion, limits, seed)
    assert isinstance(what, Sb3)
    return peers.run(what, criterion, limits, seed)


def _said(name: str, seed: int, run: Run) -> Run:
    lag = "" if run.lag_mean is None else f", lag {run.lag_mean:.1f}"
    came = f"{run.steps:,} steps, {run.seconds:.1f} s{lag}" if run.reached else f"not reached: {run.end}{lag}"
    _say(f"{name}, seed {seed}: {came}")
    return run


def _render(path: Path, check: bool) -> int:
    """Make what comes from the rows; with `check` compare it, and look for each row's picture."""
    rows = results.load(path)
    files = results.made(rows, path.parent)
    if not check:
        _write(files)
        return 0
    stale = [
        file for file, text in files.items() if not file.is_file() or file.read_text(encoding="utf-8") != text
    ]
    missing = [
        row["picture"] for row in rows if row.get("picture") and not (path.parent / row["picture"]).is_file()
    ]
    unknown = [row["name"] for row in rows if row["name"] not in {known.name for known in ROWS}]
    for words, things in (("stale", stale), ("missing", missing), ("no longer a row", unknown)):
        if things:
            _say(f"{words}: {', '.join(map(_name, things))}; run scripts/learn --render, or the row again")
    return int(bool(stale or missing or unknown))


def _name(thing: Path | str) -> str:
    return thing if isinstance(thing, str) else thing.name


def _write(files: dict[Path, str]) -> None:
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
