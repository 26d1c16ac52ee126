"""docs/results.json, and docs/results.md made from it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learn_matrix import pictures
from learn_matrix.rows import ROWS

Result = dict[str, Any]

_HEAD = """\
# Results

What each agent here learns, beside a peer: made from [results.json](results.json) by `scripts/learn`; do not edit.

How it was measured: ours as a user runs it, `p2prl host` with one player process unless it says otherwise, its
broker, two shards and trainer beside it; the peer is one process. Both on the same machine, in turn, seed by seed,
each process with one thread for its arithmetic. Seconds are from the start of the process, imports included, to the
criterion. The criterion is a mean training return of the last 100 episodes (ours: of the least exploring slots), or,
where it says *greedy*, the mean of 100 episodes without exploration, whose time is not counted: our weights are kept
each quarter of a second and judged afterwards, the peer's each 2,048 steps. Figures are medians, with the range of
the seeds; a seed that never came there counts as later than all that did, and shows as `-`; where most of a peer's
seeds never came there, ours is held against the fastest of them, and where none did, against the steps that each had.
Peers are stable-baselines3 with rl-zoo's settings. *Lag* is how many weights versions old the sessions were that were
learned from, on average.
"""
_LAG_HEAD = """\
## How much lag each agent bears

One process, no network: players are exactly so many weights versions behind. `ppo` refuses in a run what is older than
its `max_lag` (8); here that is switched off, to see where it gives way. What is claimed: `vtrace` and `dqn` hold to 20
versions, `ppo` to its `max_lag`: at the median they need no more than 1.3 times the steps that they need without lag. A
version is what was learned from 256 ticks, of every agent: at 20 versions what players do arrives 5,000 steps later,
whatever is learned from it. The criterion itself takes about 100,000 steps of dqn: 100 episodes of 500 ticks in half of
its slots. Other measurements ran beside these, so their seconds say nothing.
"""
_PLAYERS_HEAD = """\
## More players

CartPole in real time, 100 ticks a second whether or not anyone acts, joiners of four slots each on loopback, all on one
machine. More players are to need no more steps, and less time as long as there are cores for them. With 16 players 64
episodes are under way at once: those that began with an older policy count too, which is up to 16,000 steps.
"""


def load(path: Path) -> list[Result]:
    """The rows so far."""
    if not path.exists():
        return []
    rows: list[Result] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def put(path: Path, row: Result) -> list[Result]:
    """Add a row, or replace the one of its name; all rows in the matrix's order. Whole or not at all."""
    named = {old["name"]: old for old in load(path)} | {row["name"]: row}
    order = [known.name for known in ROWS]
    rows = [named.pop(name) for name in order if name in named]
    rows += named.values()
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path = path.resolve()  # a link to the file stays one
    part = path.with_name(f".{path.name}.part")
    part.write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")
    part.replace(path)
    return rows


def made(rows: Sequence[Result], folder: Path) -> dict[Path, str]:
    """What is made from the rows alone: the page beside them, and the pictures of lag and players."""
    by_name = {row["name"]: row for row in rows}
    files = {folder / "results.md": page(rows)}
    for group, draw in (("lag", pictures.lag), ("players", pictures.players)):
        if any(name.startswith(f"{group}-") for name in by_name):
            files[folder / "pictures" / f"{group}.svg"] = draw(by_name)
    return files


def page(rows: Sequence[Result]) -> str:
    """docs/results.md."""
    parts = [_HEAD]
    lag = [row for row in rows if row["name"].startswith("lag-")]
    crowds = [row for row in rows if row["name"].startswith("players-")]
    parts.append(_table([row for row in rows if row not in lag and row not in crowds]))
    if lag:
        parts += [_LAG_HEAD, _picture("lag"), _table(lag, peers=False), _outside(lag)]
    if crowds:
        parts += [_PLAYERS_HEAD, _picture("players"), _table(crowds, peers=False), _outside(crowds)]
    shown = [row for row in rows if row.get("picture")]
    if shown:
        parts.append("## Curves\n")
        parts += [f"### {row['name']}\n\n![{row['name']}]({row['picture']})\n" for row in shown]
    missing = [row.name for row in ROWS if row.name not in {one["name"] for one in rows}]
    if missing:
        text = f"Rows of `scripts/learn` without figures here: {', '.join(missing)}."
        parts.append(textwrap.fill(text, 120, break_on_hyphens=False) + "\n")
    parts.append(_circumstances(rows))
    return "\n".join(parts)


def _outside(rows: Sequence[Result]) -> str:
    """Which medians lie above the range of the row that theirs are held against: the bar is wider than chance."""
    highest = {row["agent"]: (row["steps_range"] or [None])[-1] for row in reversed(rows)}
    above = [
        row["name"]
        for row in rows
        if None not in (row["steps_median"], most := highest[row["agent"]]) and row["steps_median"] > most
    ]
    text = f"Medians above the range of their agent's first row: {', '.join(above) or 'none'}."
    return textwrap.fill(text, 120, break_on_hyphens=False) + "\n"


def _picture(name: str) -> str:
    return f"![{name}](pictures/{name}.svg)\n"


def _table(rows: Sequence[Result], peers: bool = True) -> str:
    titles = ["row", "agent", "environment", "criterion", "seeds", "steps", "seconds", "lag"]
    titles += ["peer", "peer's steps", "peer's seconds"] if peers else []
    titles += ["bar", "ok"]
    lines = [_cells(titles), _cells(["---"] * len(titles))]
    for row in rows:
        cells = [row["name"], row["agent"], row["env"], _criterion(row), row["reached"] or "-"]
        cells += [_spread(row, "steps"), _spread(row, "seconds"), _plain(row["lag_mean"])]
        if peers:
            seeds = f" ({row['peer_reached']})" if row["peer_reached"] else ""
            cells += [
                f"{row['peer'] or '-'}{seeds}",
                _spread(row, "peer_steps"),
                _spread(row, "peer_seconds"),
            ]
        lines.append(_cells([*cells, row["bar"], _verdict(row)]))
    return "\n".join(lines) + "\n"


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _criterion(row: Mapping[str, Any]) -> str:
    if row["threshold"] is None:
        return "-"
    word = {"greedy": " greedy", "steps": " steps"}.get(row["criterion"], "")
    return f"{row['threshold']:,g}{word}"


def _spread(row: Mapping[str, Any], name: str) -> str:
    """Median and range."""
    values = row[f"{name}_range"] or [None]
    if values == [None] * len(values):  # no seed came there
        return "-"
    low, high = map(_plain, values)
    return f"{_plain(row[f'{name}_median'])} ({low} to {high})"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _verdict(row: Mapping[str, Any]) -> str:
    word = {True: "yes", False: "**no**", None: "-"}[row["ok"]]
    return word + (f": {row['reason']}" if row["reason"] else "")


def _circumstances(rows: Sequence[Result]) -> str:
    """On what each row was measured, said once for all rows that share it."""
    groups: dict[str, list[str]] = {}
    loads: dict[str, list[float]] = {}
    for row in rows:
        if "machine" not in row:
            continue
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        what = f"{row['date']}, {row['machine']}; {versions}"
        groups.setdefault(what, []).append(row["name"])
        loads.setdefault(what, []).append(row["load"])
    lines = [
        f"* {what}; load beforehand {_between(loads[what])}: {', '.join(f'`{name}`' for name in names)}"
        for what, names in groups.items()
    ]
    return "\n".join(["## Measured on\n", *(_wrapped(line) for line in lines)]) + "\n"


def _between(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _wrapped(line: str, width: int = 118) -> str:
    """A list's entry in lines of a page's width."""
    words, lines = line.split(" "), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(" ")
        lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return "\n".join(lines)
