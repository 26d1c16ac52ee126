"""Sessions a second through the real path: a player's codec, its member, CURVE, shards that check, log and answer.

Ours is a `p2prl host` without players of its own and one or four `p2prl join`, each with one player that hands over the
same bundles again and again (replayer.py): all is real but the playing. What is counted is what shards stored, by the
receipts. A host is started for each turn, so nothing of it runs while others are measured. The limit is bare CURVE
PUSH/PULL of the same compressed bytes, with as many senders. Left as they are: the window, two shards, CURVE, checks,
receipts and the log. Raised: the quota of one node, which is still counted, and the share of evaluation, which is 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from bench_parts import bare, peers, pictures
from bench_parts.judge import values
from bench_parts.kinds import Bar, Case, Unavailable, attempted
from bench_parts.play import Played, play
from bench_parts.recorded import ENV
from bench_parts.running import Running, Workload, sets
from p2prl.words import many

CARTPOLE = Workload("cartpole", "CartPole-v1", slots=16, ticks=100)
_MEMBERS = (1, 4)
_LARGE_BYTES = 64_000
#: Beyond what any node gives here: quotas are looked at, and hold nobody back.
QUOTAS = sets("limits.node_bytes_per_s=10_000_000_000", "limits.node_bundles_per_s=10_000_000")
#: Bundles of each member that are stored before it counts.
_WARM = 8
#: How often the broker is asked: seldom, beside a second between two words of a member.
_LOOK_S = 0.02
_PATIENCE_S = 30.0


def atari() -> Workload:
    """Sessions of ten ticks of Breakout at random, seen in the frames that were recorded.

    Raises:
        Unavailable: there are none, and ale-py is not installed.
    """
    file = pictures.frames("Breakout")
    return Workload("atari", ENV, slots=8, ticks=10, args=(("file", str(file)),), played=32)


def cases(quick: bool) -> Iterator[Case]:
    """CartPole, Atari, large bundles."""
    turns, seconds = (1, 0.7) if quick else (3, 1.5)
    works, why = workloads()
    played = {name: play(work, work.played) for name, work in works.items()}
    with peers.opened({name: one.sessions(peers.SESSIONS) for name, one in played.items()}) as others:
        for name, times in (("cartpole", 10), ("atari", 5)):
            for members in _MEMBERS:
                bar = Bar(peer=times, peers=("Reverb", "tinyverse"))
                named: Case = {"case": f"{name}, {many(members, 'member')}", "unit": "sessions/s", "bar": bar}
                if name in works:
                    measure = partial(_turns, works[name], played[name], members, turns, seconds, others)
                    yield attempted(named, measure)
                else:
                    yield {**named, "ours": None, "note": why}
    yield attempted(
        {"case": "bundles of 64 kB, 1 member", "unit": "MB/s"},
        partial(_large, played["cartpole"], turns, seconds),
    )


def workloads() -> tuple[dict[str, Workload], str]:
    """By name; Atari's is not among them where it cannot be played, and then the text says why."""
    try:
        return {"cartpole": CARTPOLE, "atari": atari()}, ""
    except Unavailable as error:
        return {"cartpole": CARTPOLE}, str(error)


def _turns(
    work: Workload, played: Played, members: int, turns: int, seconds: float, others: peers.Peers | None
) -> Case:
    ours, limit = [], []
    theirs: dict[str, list[float]] = {}
    with bare.pair(played.encoded, members) as pair:
        for _ in range(turns):
            ours.append(stored_per_s(work, members, seconds))
            limit.append(pair.messages_per_s(seconds) * work.slots)
            if others is not None:
                others.measure(lambda peer: peer.ingest(work.name, members, seconds), theirs)
    return {"ours": ours, "limit": limit, "peers": theirs, "note": "; ".join(others.why if others else ())}


def _large(small: Played, turns: int, seconds: float) -> Case:
    """Bundles of as many CartPole sessions as make 64 kB, in bytes as sent."""
    slots = round(CARTPOLE.slots * _LARGE_BYTES / small.size)
    work = replace(CARTPOLE, slots=slots, played=8)
    played = play(work, work.played)
    found = _turns(work, played, 1, turns, seconds, None)
    megabytes = played.size / slots / 1e6
    return {
        "ours": [rate * megabytes for rate in values(found["ours"])],
        "limit": [rate * megabytes for rate in values(found["limit"])],
        "bar": Bar(limit=0.4),
        "note": f"{slots} CartPole sessions in {played.size / 1000:.0f} kB",
    }


def stored_per_s(work: Workload, members: int, seconds: float) -> float:
    """Sessions that shards stored, of a host and members that are started for it."""
    arguments = [*work.arguments("Feed"), *QUOTAS, *sets(f"agent.ticks={work.ticks}", "play.eval_share=0")]
    with ExitStack() as stack:
        run = stack.enter_context(Running(arguments))
        for _ in range(members):
            run.feed("Feed", work.played)
        run.until(
            lambda now: sum(node.bundles.stored >= _WARM for node in now.nodes) >= members,
            f"bundles of {members} members",
        )
        return stored(run, seconds) * work.slots


def stored(run: Running, seconds: float) -> float:
    """Bundles that were stored in each second, as their members know it: by the receipts that reached them.

    A member says so each second. Each is watched from one such word to the first one after `seconds`, and the rates are
    added.
    """
    first: dict[str, tuple[float, int]] = {}
    rates: dict[str, float] = {}
    known = {node.name: node.bundles.stored for node in run.status().nodes}
    deadline = time.perf_counter() + seconds + _PATIENCE_S
    while len(rates) < len(known):
        if time.perf_counter() > deadline:
            raise Unavailable(f"not all members' bundles were stored: {run.status().nodes}")
        time.sleep(_LOOK_S)
        status, now = run.status(), time.perf_counter()
        if status.bundles.refused or status.bundles.dropped:
            raise Unavailable(f"bundles were refused or dropped: {status.bundles}")
        for node in status.nodes:
            if node.bundles.stored == known[node.name]:
                continue
            known[node.name] = node.bundles.stored
            since, count = first.setdefault(node.name, (now, node.bundles.stored))
            if now - since >= seconds and node.name not in rates:
                rates[node.name] = (node.bundles.stored - count) / (now - since)
        if run.host.code is not None:
            raise Unavailable(f"the host ended: {run.host.stderr[-500:]}")
    return sum(rates.values())
