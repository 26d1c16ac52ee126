"""From a case to one row of `--json FILE`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from bench_parts.kinds import Bar, Case, Values

#: A median and the range of the turns.
Figure = dict[str, float]
Row = dict[str, Any]
FIELDS = (
    "part",
    "case",
    "unit",
    "ours",
    "limit",
    "peer",
    "peer_name",
    "ratio_limit",
    "ratio_peer",
    "bar",
    "ok",
)
_DIGITS = 4


def row(part: str, case: Case) -> Row:
    """One row; figures have `median`, `low` and `high`, or are None."""
    bar = _bar(case.get("bar"))
    ours, limit = values(case.get("ours")), values(case.get("limit"))
    peers = case.get("peers") or {}
    name, peer = best(peers, bar.lower)
    return {
        "part": part,
        "case": case["case"],
        "unit": case["unit"],
        "ours": figure(ours),
        "limit": figure(limit),
        "peer": figure(peer),
        "peer_name": name,
        "ratio_limit": ratio(ours, limit),
        "ratio_peer": ratio(ours, peer),
        "bar": bar.text(case["unit"]),
        "ok": verdict(bar, ours, limit, asked(bar, peers, peer)),
    }


def _bar(bar: Bar | Mapping[str, Any] | None) -> Bar:
    if bar is None:
        return Bar()
    return bar if isinstance(bar, Bar) else Bar(**bar)


def values(given: Values) -> list[float]:
    """One number for each turn."""
    if given is None:
        return []
    return [float(given)] if isinstance(given, int | float) else [float(value) for value in given]


def figure(of: list[float]) -> Figure | None:
    """Median and range, to four digits."""
    if not of:
        return None
    return {"median": _short(statistics.median(of)), "low": _short(min(of)), "high": _short(max(of))}


def ratio(ours: list[float], other: list[float]) -> Figure | None:
    """Ours divided by the other: the medians', and the range of the turns', or all that could be of unequal ones."""
    if not ours or not other:
        return None
    if len(ours) == len(other):
        turns = [mine / theirs for mine, theirs in zip(ours, other, strict=True)]
        low, high = min(turns), max(turns)
    else:
        low, high = min(ours) / max(other), max(ours) / min(other)
    return {"median": _short(middle(ours, other)), "low": _short(low), "high": _short(high)}


def middle(ours: list[float], other: list[float]) -> float:
    """The median of ours divided by that of the other."""
    return statistics.median(ours) / statistics.median(other)


def best(peers: Mapping[str, Values], lower: bool) -> tuple[str | None, list[float]]:
    """The best of those that were measured; its name also says who was absent. No name without any peer."""
    there = {name: found for name, given in peers.items() if (found := values(given))}
    absent = [f"{name}: absent" for name in peers if name not in there]
    if not there:
        return "; ".join(absent) or None, []
    medians = {name: statistics.median(found) for name, found in there.items()}
    name = (min if lower else max)(medians, key=lambda one: medians[one])
    others = [f"{other}: {_short(medians[other]):g}" for other in there if other != name]
    return "; ".join([name, *others, *absent]), there[name]


def asked(bar: Bar, peers: Mapping[str, Values], best: list[float]) -> list[list[float]]:
    """Of each peer that the bar names what it came to, nothing where it is absent; of a bar without names the best."""
    if not bar.peers:
        return [best]
    return [
        next((values(given) for name, given in peers.items() if name.startswith(one)), [])
        for one in bar.peers
    ]


def verdict(bar: Bar, ours: list[float], limit: list[float], peers: list[list[float]]) -> bool | None:
    """Whether the bar was cleared; None if nothing is asked, or not all that it asks for was measured."""
    all_asked = [(bar.limit, limit), *((bar.peer, peer) for peer in peers), (bar.value, [1.0])]
    found = [
        None if not ours or not other else _clears(middle(ours, other), wanted, bar.lower)
        for wanted, other in all_asked
        if wanted is not None
    ]
    if False in found:
        return False
    return None if None in found or not found else True


def _clears(found: float, wanted: float, lower: bool) -> bool:
    return found <= wanted if lower else found >= wanted


def _short(value: float) -> float:
    """Four digits that count; whole numbers stay whole."""
    if value == 0 or not math.isfinite(value):
        return value
    digits = _DIGITS - 1 - math.floor(math.log10(abs(value)))
    return round(value, digits) if digits > 0 else float(round(value))
