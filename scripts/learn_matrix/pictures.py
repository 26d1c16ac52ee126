"""The pictures: learning curves of a row, and where each agent gives way to lag or to a crowd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learn_matrix.kinds import Run
from learn_matrix.rows import CROWDS, HOLDS_TO, LAGS
from learn_matrix.svg import COLOURS, Line, chart

_POINTS = 150
_AGENT_COLOURS = dict(zip(HOLDS_TO, (COLOURS["ours"], COLOURS["third"], COLOURS["peer"]), strict=True))


def curves(
    title: str, threshold: float, ours: Sequence[Run], peer: Sequence[Run], labels: tuple[str, str]
) -> str:
    """Mean return over steps, a line a seed."""
    lines = [
        Line(_thinned(run.curve), COLOURS[key], label)
        for key, runs, label in (("ours", ours, labels[0]), ("peer", peer, labels[1]))
        for run in runs
        if run.curve
    ]
    furthest = max((line.points[-1][0] for line in lines), default=1.0)
    goal = Line([(0, threshold), (furthest, threshold)], COLOURS["mark"], "criterion", dashed=True)
    return chart(title, "environment steps", "mean return", [*lines, goal])


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most so many, the last one among them."""
    every = -(-len(points) // _POINTS)
    kept = list(points[::every])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def lag(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Steps to the criterion over forced lag."""
    return _ranges(
        results,
        "CartPole to 475, players some weights versions behind",
        "lag (versions)",
        {agent: [f"lag-{agent}-{lag}" for lag in LAGS] for agent in HOLDS_TO},
        [str(lag) for lag in LAGS],
    )


def players(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Steps to the criterion over real-time players."""
    return _ranges(
        results,
        "CartPole in real time to 475, more and more players",
        "players",
        {agent: [f"players-{agent}-{count}" for count in CROWDS] for agent in HOLDS_TO},
        [str(count) for count in CROWDS],
    )


def _ranges(
    results: Mapping[str, Mapping[str, Any]],
    title: str,
    x_title: str,
    names: Mapping[str, Sequence[str]],
    places: Sequence[str],
) -> str:
    """A line of medians per agent, a bar of the seeds' range at each; a ring at the top where a seed never came."""
    ranges = [
        results[name]["steps_range"] or [] for rows in names.values() for name in rows if name in results
    ]
    top = max((value for pair in ranges for value in pair if value is not None), default=1) * 1.15
    lines: list[Line] = []
    for agent, rows in names.items():
        points: list[tuple[float, float]] = []
        bars: list[tuple[float, float]] = []
        hollow: set[int] = set()
        for place, name in enumerate(rows):
            row = results.get(name)
            if row is None or not row["steps_range"]:
                continue
            low, high = (top if value is None else value for value in row["steps_range"])
            median = row["steps_median"]
            if high == top:
                hollow.add(len(points))
            points.append((place + 0.08 * (len(lines) - 1), top if median is None else median))
            bars.append((low, high))
        if points:
            colour = _AGENT_COLOURS[agent]
            lines.append(Line(points, colour, agent, dots=True, bars=bars, hollow=frozenset(hollow)))
    return chart(title, x_title, "steps (ring: not all seeds came there)", lines, places, floor=0)
