"""What is kept, and what it takes: frames in the shards, a member with a player, rings fed beyond their capacity.

Frames: a real player steps an environment that shows recorded frames of Breakout (recorded.py), and the bytes are those
that the shards themselves say they hold, of all columns. Raw is told in two ways: four frames of 84x84 bytes a tick, as
the agent sees them, and one, each picture counted once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psutil

from bench_parts import pictures
from bench_parts.ingest import CARTPOLE, QUOTAS
from bench_parts.kinds import Bar, Case, Unavailable
from bench_parts.recorded import ENV
from bench_parts.running import AGENTS, Running, Workload, sets

_FRAME, _STACK = 84 * 84, 4
_TICKS, _SLOTS = 32, 8
_CAPACITY = 40_000_000
#: How much more than its capacity a ring is fed.
_TIMES = 5
_PLAY_S = 3.0
#: Batches are not what is measured.
_LITTLE = ("agent.batch=1", "play.eval_share=0")
#: How much of its capacity a ring that was fed more than that holds, and how much its processes may grow: beside what
#: is held there are the allocator, the books of sessions and bundles, what decoding takes, the trainer's first batch.
_FILLED, _GROWN = 0.8, 1.25
_MEMBER = "import zmq, msgspec, lz4.block"
_PLAYER = "import zmq, msgspec, lz4.block, numpy, gymnasium; gymnasium.make('CartPole-v1').reset()"
_WAIT = "; import sys; sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"
_MB = 1e6


def cases(quick: bool) -> Iterator[Case]:
    """Frames, a member with a player, capacity."""
    for policy in (pictures.RANDOM,) if quick else pictures.POLICIES:
        yield from _frames(policy, 2_000 if quick else 30_000)
    yield from _volunteer(1 if quick else 3, 0.5 if quick else _PLAY_S)
    capacity = _CAPACITY // 10 if quick else _CAPACITY
    yield from _ring("numbers of CartPole", lambda: CARTPOLE, capacity)
    yield from _ring("frames of MsPacman", partial(_game, "MsPacman", pictures.RANDOM), capacity)
    yield from _ring("frames of Breakout", partial(_game, "Breakout", pictures.RANDOM), capacity)


# --- frames


def _game(game: str, policy: str) -> Workload:
    """Raises Unavailable where no frames are, and ale-py is not installed."""
    file = pictures.frames(game, policy)
    return Workload(game.lower(), ENV, slots=_SLOTS, ticks=_TICKS, args=(("file", str(file)),))


def _frames(policy: str, ticks: int) -> Iterator[Case]:
    raws = (
        ("of 4x84x84 bytes a tick, as the agent sees it", _STACK * _FRAME),
        ("of 84x84 bytes a tick, each picture once", _FRAME),
    )
    try:
        a_tick, note = _stored_bytes(policy, ticks)
    except Unavailable as error:
        a_tick, note = None, str(error)
    for text, raw in raws:
        yield {
            "case": f"Breakout, {policy}, in the shards, {text}",
            "unit": "of raw",
            "ours": None if a_tick is None else a_tick / raw,
            "bar": Bar(value=0.25, lower=True),
            "note": note,
        }


def _stored_bytes(policy: str, ticks: int) -> tuple[float, str]:
    """Bytes that the shards hold a tick, all columns together, after at least so many ticks of real play."""
    work = _game("Breakout", policy)
    arguments = [*work.arguments("Feed"), *sets(f"agent.ticks={_TICKS}", "play.eval_share=0"), *QUOTAS]
    with Running(arguments) as run:
        run.join("--agent", f"{AGENTS}:Feed")
        now = run.until(lambda now: sum(shard.ticks for shard in now.shards) >= ticks, "frames")
    held = sum(shard.ticks for shard in now.shards)
    a_tick = sum(shard.size_bytes for shard in now.shards) / held
    return a_tick, f"{a_tick:.0f} bytes a tick, over {held:,} ticks in sessions of {_TICKS}"


# --- a member with a player


def _volunteer(turns: int, play_s: float) -> Iterator[Case]:
    """Of `p2prl join` and its one CartPole player, an agent without torch, after some seconds of play."""
    kinds: dict[str, Callable[[Any], int]] = {"RSS": lambda info: info.rss}
    if hasattr(psutil.Process().memory_full_info(), "pss"):
        kinds = {"PSS": lambda info: info.pss, **kinds}
    ours: dict[str, list[float]] = {kind: [] for kind in kinds}
    limit: dict[str, list[float]] = {kind: [] for kind in kinds}
    with Running(["cartpole-cem"]) as run:
        for _ in range(turns):
            infos, bare = _member_with_player(run, play_s), _bare_memory()
            for kind, of in kinds.items():
                ours[kind].append(sum(map(of, infos)) / _MB)
                limit[kind].append(sum(map(of, bare)) / _MB)
    texts = {"PSS": "a shared page divided among those who share it", "RSS": "shared pages counted in each"}
    for kind in kinds:
        yield {
            "case": f"a member and a CartPole player, cem, {kind} ({texts[kind]})",
            "unit": "MB",
            "ours": ours[kind],
            "limit": limit[kind],
            "bar": Bar(value=90, lower=True),
            "note": "the limit is two bare processes with the packages that each cannot do without",
        }


def _member_with_player(run: Running, play_s: float) -> list[Any]:
    before = run.status().steps
    program = run.join()
    try:
        run.until(lambda now: now.steps > before, "a first bundle")
        time.sleep(play_s)
        processes = [psutil.Process(program.pid), *program.children("player")]
        assert len(processes) == 2, "a member and one player"
        return [process.memory_full_info() for process in processes]
    finally:
        program.end()


def _bare_memory() -> list[Any]:
    """One process with what a member cannot do without, one with what a player cannot do without as well."""
    processes = [
        subprocess.Popen([sys.executable, "-c", code + _WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for code in (_MEMBER, _PLAYER)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.read(1)
        return [psutil.Process(process.pid).memory_full_info() for process in processes]
    finally:
        for process in processes:
            process.communicate()


# --- capacity


def _ring(text: str, make: Callable[[], Workload], capacity: int) -> Iterator[Case]:
    """A ring of so many bytes, fed more than it can hold: what its shards say they hold, and how the host grew."""
    ring = f"a ring of {capacity / _MB:g} MB, fed {_TIMES} times as many {text}"
    rows = (
        ("the most it held", "most", Bar(limit=1, lower=True)),
        ("held in the end", "held", Bar(limit=_FILLED)),
        ("its host grew by", "grown", Bar(limit=_GROWN, lower=True)),
    )
    try:
        found, note = _fed(make(), capacity), ""
    except Unavailable as error:
        found, note = {}, str(error)
    for name, what, bar in rows:
        yield {
            "case": f"{ring}: {name}",
            "unit": "MB",
            "ours": found.get(what),
            "limit": capacity / _MB,
            "bar": bar,
            "note": note,
        }


def _fed(work: Workload, capacity: int) -> dict[str, float]:
    """`most` and `held`: what both shards said; `grown`: the memory of the host's processes since they began. In MB."""
    settings = sets(f"agent.ticks={work.ticks}", f"agent.capacity_bytes={capacity}", *_LITTLE)
    with Running([*work.arguments("Feed"), *settings, *QUOTAS]) as run:
        root = psutil.Process(run.host.pid)
        processes = [root, *root.children(recursive=True)]
        before = sum(map(own_bytes, processes))
        run.feed("Feed", work.played)
        most = 0

        def over(now: Any) -> bool:
            nonlocal most
            most = max(most, _held(now))
            return all(shard.evicted >= (_TIMES - 1) * shard.sessions > 0 for shard in now.shards)

        now = run.until(over, "a ring that is full")
        grown = sum(map(own_bytes, processes)) - before
    return {"most": most / _MB, "held": _held(now) / _MB, "grown": grown / _MB}


def _held(now: Any) -> int:
    return sum(shard.size_bytes for shard in now.shards)


def own_bytes(process: psutil.Process) -> int:
    """Bytes of its own pages, and its part of the memory that it shares with others of the run.

    PSS would also have its part of the libraries that all programs here share: it falls when another one starts.
    """
    info = process.memory_full_info()
    own = int(getattr(info, "uss", info.rss))
    if not sys.platform.startswith("linux"):
        return own
    shared = [one for one in process.memory_maps() if one.path.startswith("/memfd:")]
    return own + sum(one.pss - one.private_clean - one.private_dirty for one in shared)
