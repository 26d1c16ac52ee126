"""Sessions a second from shards to the trainer, through its sampler and its sockets, while others come in.

Ours is the trainer of a `p2prl host` with an agent that only takes (agents.py: Taker), whole sessions, Atari's stacked
as an agent wants them. In turns of half a second it gathers as many from numpy arrays in its own memory, of the same
columns and shapes: that is the limit. Beside both one member hands over bundles at a fixed pace. Peers have nothing
beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench_parts import ingest, peers
from bench_parts.ingest import CARTPOLE, QUOTAS
from bench_parts.kinds import Bar, Case, Unavailable
from bench_parts.play import play
from bench_parts.running import Running, Workload, sets


@dataclass(frozen=True)
class Sampling:
    """What is sampled.

    Attributes:
        pace: bundles that come in each second.
        filled: bundles that are stored before the first turn counts. held: sessions that the limit gathers from.
        bar: against Reverb.
    """

    pace: float
    filled: int
    held: int
    bar: float


#: 1,600 sessions a second of CartPole are 160,000 steps; 240 of Atari are 2,400, what one core plays.
_KINDS = {"cartpole": Sampling(100, 100, 2000, 5), "atari": Sampling(30, 40, 320, 3)}


def cases(quick: bool) -> Iterator[Case]:
    """CartPole, Atari."""
    works: dict[str, Workload | str] = {"cartpole": CARTPOLE}
    try:
        works["atari"] = ingest.atari()
    except Unavailable as error:
        works["atari"] = str(error)
    played = {name: play(work, work.played) for name, work in works.items() if isinstance(work, Workload)}
    with peers.opened({name: one.sessions(peers.SESSIONS) for name, one in played.items()}) as others:
        for name, work in works.items():
            kind, batch = _KINDS[name], peers.BATCHES[name]
            named: Case = {"case": f"{name}, batches of {batch} sessions", "unit": "sessions/s"}
            if isinstance(work, str):
                yield {**named, "ours": None, "note": work}
                continue
            yield {**_measured(work, kind, others, quick), **named, "bar": Bar(limit=0.5, peer=kind.bar)}


def _measured(work: Workload, kind: Sampling, others: peers.Peers, quick: bool) -> Case:
    """Some turns of ours and the limit, then some of the peers, and so on."""
    ours: list[float] = []
    limit: list[float] = []
    theirs: dict[str, list[float]] = {}
    for _ in range(1 if quick else 3):
        mine, bare = _turns(work, kind, 2 if quick else 4)
        ours += mine
        limit += bare
        others.measure(lambda peer: peer.sample(work.name, 0.7 if quick else 2.5), theirs)
    pace = f"beside {kind.pace * work.slots:.0f} sessions/s that come in, but the peers: beside nothing"
    note = "; ".join([pace, *others.why])
    return {"case": "", "unit": "", "ours": ours, "limit": limit, "peers": theirs, "note": note}


def _turns(work: Workload, kind: Sampling, turns: int) -> tuple[list[float], list[float]]:
    """Of one host, which is started for it."""
    first = kind.filled * work.slots * work.ticks
    settings = [
        f"agent.ticks={work.ticks}",
        f"agent.batch={peers.BATCHES[work.name]}",
        f"agent.held={kind.held}",
    ]
    settings += [f"replay.min_ticks={first}", "play.eval_share=0"]
    with Running([*work.arguments("Taker"), *QUOTAS, *sets(*settings)], writes=True) as run:
        run.feed("Taker", work.played, kind.pace)
        found = run.wait_for_lines(turns + 1, "turns of sampling")[1 : turns + 1]
    return [one["ours"] for one in found], [one["limit"] for one in found]
