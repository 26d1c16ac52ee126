"""From runs to one row of docs/results.json."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from learn_matrix.kinds import ALIKE, Bar, Criterion, Policies, Row, Run, Sb3

Result = dict[str, Any]
_PACKAGES = ("p2prl", "torch", "gymnasium", "numpy", "stable-baselines3")


def result(
    row: Row,
    ours: Sequence[Run],
    peer: Sequence[Run] | None,
    criterion: Criterion,
    peer_label: str | None,
    reason: str,
    others: Mapping[str, Result],
) -> Result:
    """One row.

    Args:
        peer: None if it was not run; `reason` then says why.
        criterion: the row's, its threshold known.
        others: rows that a bar may name.
    """
    mine = figures(ours)
    theirs = figures(peer or [])
    lags = [run.lag_mean for run in ours if run.lag_mean is not None]
    ok, why = verdict(row.bar, ours, mine, None if peer is None else theirs, others, _tried(row))
    return {
        "name": row.name,
        "agent": row.agent,
        "env": row.env,
        "criterion": criterion.kind,
        "seeds": [run.seed for run in ours],
        "threshold": None if criterion.threshold is None else round(criterion.threshold, 3),
        "reached": reached(ours),
        "steps_median": mine["steps_median"],
        "steps_range": mine["steps_range"],
        "seconds_median": mine["seconds_median"],
        "seconds_range": mine["seconds_range"],
        "lag_mean": round(statistics.fmean(lags), 2) if lags else None,
        "peer": peer_label,
        "peer_reached": None if peer is None else reached(peer),
        "peer_steps_median": theirs["steps_median"],
        "peer_steps_range": theirs["steps_range"],
        "peer_seconds_median": theirs["seconds_median"],
        "peer_seconds_range": theirs["seconds_range"],
        "bar": row.bar.text,
        "ok": ok,
        "reason": reason or why,
    }


def unavailable(row: Row, reason: str) -> Result:
    """A row without a result."""
    missing = result(row, [], None, row.criterion, None, reason, {})
    return {**missing, "ok": None, "reached": None}


def reached(runs: Sequence[Run]) -> str:
    """As in 3/3."""
    return f"{sum(run.reached for run in runs)}/{len(runs)}"


def figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Median and range of steps and seconds. A seed that never came there counts as later than all that did."""
    found: dict[str, Any] = {}
    for name, digits in (("steps", 0), ("seconds", 1)):
        values = sorted(math.inf if (value := getattr(run, name)) is None else value for run in runs)
        found[f"{name}_median"] = _finite(statistics.median(values), digits) if values else None
        found[f"{name}_range"] = [_finite(values[0], digits), _finite(values[-1], digits)] if values else None
    return found


def _finite(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    return round(value, digits) if digits else round(value)


def _tried(row: Row) -> int | None:
    """How many steps a seed of the peer has."""
    limits = row.peer_limits or row.limits
    return min(limits.steps, row.peer.steps) if isinstance(row.peer, Sb3) else None


def verdict(
    bar: Bar,
    ours: Sequence[Run],
    mine: Result,
    theirs: Result | None,
    others: Mapping[str, Result],
    tried: int | None = None,
) -> tuple[bool | None, str]:
    """Whether the bar was cleared, or None where that cannot be said; and why not.

    Args:
        tried: steps after which a seed of the peer was given up.
    """
    if bar.none:
        return None, "no claim is made"
    late = [run for run in ours if not run.reached]
    if late:
        return False, "; ".join(f"seed {run.seed}: {run.end}" for run in late)
    if bar.needs_peer and theirs is None:
        return None, "without its peer"
    if bar.needs_peer and not bar.alone and theirs is not None and theirs["steps_median"] is None:
        # Then its median is not known, but it is no less than the fastest of its seeds, or than what all had.
        fastest = {f"{name}_median": theirs[f"{name}_range"][0] for name in ("steps", "seconds")}
        fastest["steps_median"] = fastest["steps_median"] or tried
        if fastest["steps_median"] is None or _missed(bar, mine, fastest, others):
            return None, "most seeds of the peer never came there"
        theirs = fastest
    if bar.like and None in (others.get(bar.like, {}).get("steps_range") or [None]):
        return None, f"without {bar.like}, all seeds of it"
    failed = _missed(bar, mine, theirs or {}, others)
    return not failed, "; ".join(failed)


def _missed(bar: Bar, mine: Result, theirs: Result, others: Mapping[str, Result]) -> list[str]:
    failed = []
    for name, times in (("steps", bar.steps), ("seconds", bar.seconds)):
        other = theirs.get(f"{name}_median")
        if times is not None and other is not None and mine[f"{name}_median"] > times * other:
            failed.append(f"{name}: {mine[f'{name}_median'] / other:.2f} x the peer's")
    if bar.alone and theirs["steps_range"][0] is not None:
        failed.append("the peer reached it, too")
    if bar.like:
        other = others[bar.like]
        if mine["steps_median"] > ALIKE * other["steps_median"]:
            failed.append(f"steps: {mine['steps_median'] / other['steps_median']:.2f} x {bar.like}'s")
        if bar.faster and mine["seconds_median"] > other["seconds_median"]:
            failed.append(f"slower than {bar.like}")
    return failed


def policies_label(policies: Policies, means: Mapping[str, float]) -> str:
    """What they came to."""
    return ", ".join(f"{name} {means[name]:.1f}" for name in policies.names)


def circumstances() -> Result:
    """When and on what: no name of a machine, no path."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": f"{psutil.cpu_count()} cores, {_cpu()}",
        "load": round(psutil.getloadavg()[0], 1),
        "versions": {"python": platform.python_version(), **versions},
    }


def _cpu() -> str:
    """The processor's model."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
