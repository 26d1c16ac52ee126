"""Sessions a second from shards to the trainer, through its sampler and its sockets, while others come in.

Ours is the trainer of a `p2prl host` with an agent that only takes (agents.py: Taker), whole sessions, Atari's stacked
as an agent wants them. In turns of half a second it gathers as many from numpy arrays in its own memory, of the same
columns and shapes, out of as many sessions as the shards hold: that is the limit. They are more than a processor's
caches hold, as a replay buffer's are. Beside both one member hands over bundles at a fixed pace. Peers have nothing
beside them, and hold few sessions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from bench_parts import ingest, peers
from bench_parts.ingest import QUOTAS
from bench_parts.kinds import Bar, Case, attempted
from bench_parts.play import play
from bench_parts.running import Running, Workload, sets


@dataclass(frozen=True)
class Sampling:
    """What is sampled.

    Attributes:
        pace: bundles that come in each second.
        filled: bundles that are stored before the first turn; the limit gathers from as many.
        bar: against Reverb.
    """

    pace: float
    filled: int
    bar: float


#: 1,600 sessions a second of CartPole are 160,000 steps; 240 of Atari are 2,400, what one core plays. What is stored
#: takes 93 MB decoded, and 99 MB.
_KINDS = {"cartpole": Sampling(100, 2000, 5), "atari": Sampling(30, 40, 3)}


def cases(quick: bool) -> Iterator[Case]:
    """CartPole, Atari."""
    works, why = ingest.workloads()
    played = {name: play(work, work.played) for name, work in works.items()}
    with peers.opened({name: one.sessions(peers.SESSIONS) for name, one in played.items()}) as others:
        for name, kind in _KINDS.items():
            text = f"{name}, batches of {peers.BATCHES[name]} sessions"
            bar = Bar(limit=0.5, peer=kind.bar, peers=("Reverb",))
            named: Case = {"case": text, "unit": "sessions/s", "bar": bar}
            if name in works:
                yield attempted(named, partial(_measured, works[name], kind, others, quick))
            else:
                yield {**named, "ours": None, "note": why}


def _measured(work: Workload, kind: Sampling, others: peers.Peers, quick: bool) -> Case:
    """Some turns of ours and the limit, then one of the peers, and so on."""
    ours: list[float] = []
    limit: list[float] = []
    came: list[float] = []
    theirs: dict[str, list[float]] = {}
    for _ in range(1 if quick else 3):
        turns, beside = _turns(work, kind, 2 if quick else 4)
        ours += [one["ours"] for one in turns]
        limit += [one["limit"] for one in turns]
        came.append(beside * work.slots)
        others.measure(lambda peer: peer.sample(work.name, 0.7 if quick else 1.5), theirs)
    asked = kind.pace * work.slots
    beside_text = f"beside {statistics.median(came):.0f} sessions/s that came in (asked for: {asked:.0f})"
    note = "; ".join([f"{beside_text}, but peers beside nothing", *others.why])
    return {"ours": ours, "limit": limit, "peers": theirs, "note": note}


def _turns(work: Workload, kind: Sampling, turns: int) -> tuple[list[dict[str, float]], float]:
    """Of one host, which is started for it; and the bundles that came in meanwhile, each second."""
    first = kind.filled * work.slots * work.ticks
    settings = [
        f"agent.ticks={work.ticks}",
        f"agent.batch={peers.BATCHES[work.name]}",
        f"agent.held={kind.filled * work.slots}",
    ]
    settings += [f"replay.min_ticks={first}", "play.eval_share=0"]
    with Running([*work.arguments("Taker"), *QUOTAS, *sets(*settings)], writes=True) as run:
        run.feed("Taker", work.played, kind.pace, kind.filled)
        run.wait_for_lines(1, "a first turn of sampling")
        before, began = run.status().bundles.stored, time.monotonic()
        found = run.wait_for_lines(turns + 1, "turns of sampling")[1 : turns + 1]
        stored, took_s = run.status().bundles.stored - before, time.monotonic() - began
    return found, stored / took_s
