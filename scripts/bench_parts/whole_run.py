"""A whole run: `p2prl host` with a player of its own, on CartPole. What is counted is what the trainer learned from.

A host is started for each turn, with all that belongs to it, so that nothing of it runs while the limit is measured.
Env steps a second are those of the ticks that were learned from: updates times the ticks of one, less the RESET ticks,
one for each episode that ended. The limit is the lesser of two loops, each alone on a core: acting and stepping
without a bundle (as in `playing`), and the same update by torch on tensors that lie ready (bare_torch.py).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial

from bench_parts import bare_torch, playing
from bench_parts.kinds import Bar, Case, attempted
from bench_parts.running import Running, sets
from p2prl.core.messages import StatusReply

_SLOTS, _TICKS, _BATCH = 64, 32, 64
VTRACE = (
    *("cartpole-vtrace", "--players", "1", "--envs", str(_SLOTS)),
    *sets(f"agent.ticks={_TICKS}", f"agent.batch={_BATCH}"),
)
#: Constants, not measured here: the issue's, taken on a like machine of two cores by ../shared/baselines.
_PEERS = {
    "sample-factory APPO (a constant, taken on a like machine)": 10_300.0,
    "RLlib 2.60 IMPALA (a constant, taken on a like machine)": 5_800.0,
}
#: Updates before anything is counted: the trainer has chosen its threads, and most of CartPole is learned.
WARM_UPDATES, _WARM_S = 100, 4.0


def cases(quick: bool) -> Iterator[Case]:
    """On-policy, every step consumed. (Updates off-policy are the part `updates`.)"""
    turns, warm_s, seconds = (1, 0.0, 0.5) if quick else (3, _WARM_S, 6.0)
    steps: Case = {
        "case": f"vtrace, {_SLOTS} slots: env steps learned from",
        "unit": "env steps/s",
        "bar": Bar(value=250_000),
    }
    yield attempted(steps, partial(_vtrace, turns, warm_s, seconds))


def _vtrace(turns: int, warm_s: float, seconds: float) -> Case:
    ours, plays, learns = [], [], []
    alone = playing.alone(playing.setting("CartPole-v1", "vtrace", _SLOTS), together=True)
    update = bare_torch.vtrace(_BATCH, _TICKS)
    for _ in range(turns):
        before, after, span_s = _watched(VTRACE, warm_s, seconds)
        ours.append(learned_from(before, after, _BATCH * _TICKS) / span_s)
        plays.append(alone(seconds / 3))
        learns.append(bare_torch.updates_per_s(update, seconds / 3) * _BATCH * _TICKS)
    which = "playing" if statistics.median(plays) < statistics.median(learns) else "learning"
    return {
        "ours": ours,
        "limit": [min(pair) for pair in zip(plays, learns, strict=True)],
        "peers": _PEERS,
        "note": f"the limit is the lesser of bare playing ({statistics.median(plays):,.0f}) and bare learning "
        f"({statistics.median(learns):,.0f}): {which} binds; peers' figures are constants, not measured here",
    }


def _watched(
    arguments: Sequence[str], warm_s: float, seconds: float
) -> tuple[StatusReply, StatusReply, float]:
    """A run, warm, at two moments at which an update had just been told of, and the seconds between them."""
    with Running(arguments) as run:
        run.until(lambda now: now.updates >= WARM_UPDATES, "the first updates")
        time.sleep(warm_s)
        before, began = _just_updated(run)
        time.sleep(seconds)  # the broker is not asked meanwhile: each answer costs it more than a bundle
        after, ended = _just_updated(run)
        return before, after, ended - began


def _just_updated(run: Running) -> tuple[StatusReply, float]:
    known = run.status().updates
    return run.until(lambda now: now.updates > known, "another update"), time.perf_counter()


def learned_from(before: StatusReply, after: StatusReply, ticks: int) -> float:
    """Env steps of which the updates between two moments were made, each of so many ticks.

    A queue gives each stored tick to one update, and each episode's end costs one tick that is no step.
    """
    steps, resets = after.steps - before.steps, after.episodes - before.episodes
    return (after.updates - before.updates) * ticks * (steps / (steps + resets) if steps else 1.0)
