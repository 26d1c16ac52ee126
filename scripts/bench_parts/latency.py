"""How long a person waits, and how long new weights do.

The limits are what no p2prl could do without: Python itself, the imports of what a player is made of, one bare message
of the same bytes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from bench_parts import bare
from bench_parts.kinds import Bar, Case, attempted
from bench_parts.running import AGENTS, CODE, Running, sets
from p2prl.wire.weights import encode_weights

#: float32 numbers: 270 kB.
_NUMBERS = 67_500
_PLAYER = "import zmq, msgspec, lz4.block, numpy, gymnasium; gymnasium.make('CartPole-v1').reset()"
_TORCH = f"import torch; {_PLAYER}"


def cases(quick: bool) -> Iterator[Case]:
    """Help, joining, weights."""
    yield {"case": "p2prl --help", "unit": "s", **_help(2 if quick else 9), "bar": Bar(value=0.2, lower=True)}
    torch = ["--env", "CartPole-v1", "--agent", f"{AGENTS}:Heavy"]
    for text, host, join, limit, bar in (
        ("numpy agent (cem)", ["cartpole-cem"], [], _PLAYER, 1.5),
        ("agent that acts with torch", torch, torch[2:], _TORCH, 4.0),
    ):
        name = f"join to first stored bundle, {text}"
        named: Case = {"case": name, "unit": "s", "bar": Bar(value=bar, lower=True)}
        yield attempted(named, partial(_join, host, join, limit, 1 if quick else 5))
    named = {"case": "publish to loaded, 270 kB on loopback", "unit": "ms", "bar": Bar(value=20, lower=True)}
    yield attempted(named, partial(_publish, 5 if quick else 60))


def _help(turns: int) -> Case:
    ours, limit = [], []
    for _ in range(turns):
        ours.append(_took_s([sys.executable, "-m", "p2prl.cli", "--help"]))
        limit.append(_took_s([sys.executable, "-c", ""]))
    return {"ours": ours, "limit": limit}


def _took_s(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


# --- joining


def _join(host: Sequence[str], join: Sequence[str], limit: str, turns: int) -> Case:
    """From the command to the first bundle that a shard stored: a new node, with the join code, each time."""
    ours, bare_s = [], []
    with Running([*host, *sets("play.eval_share=0")], open_=False) as run:
        for _ in range(turns):
            before, began = run.status().steps, time.perf_counter()
            program = run.join("--code", CODE, *join)
            run.until(lambda now, before=before: now.steps > before, "a first bundle")  # type: ignore[misc]
            ours.append(time.perf_counter() - began)
            program.end()
            bare_s.append(_took_s([sys.executable, "-c", limit]))
    return {"ours": ours, "limit": bare_s}


# --- weights


def _publish(count: int) -> Case:
    """From the trainer asking its learner for weights to their being loaded in a player, which waits meanwhile."""
    arguments = ["--env", "CartPole-v1", "--agent", f"{AGENTS}:Stamped", "--envs", "1"]
    settings = sets("agent.ticks=16", "agent.batch=16", f"agent.numbers={_NUMBERS}", "play.eval_share=0")
    numbers = np.random.default_rng(1).standard_normal(_NUMBERS).astype(np.float32)
    payload = encode_weights({"numbers": numbers})
    with Running([*arguments, *settings], writes=True) as run:
        run.join("--agent", f"{AGENTS}:Stamped")
        run.wait_for_lines(3, "weights that are loaded")
        ours: list[float] = []
        limit: list[float] = []
        while len(ours) < count:
            skipped = len(run.lines())
            some = run.wait_for_lines(skipped + 5, "weights that are loaded")[skipped : skipped + 5]
            ours += [one["ours"] for one in some]
            limit += bare.latencies_ms(payload, 5)
    return {
        "ours": ours,
        "limit": limit,
        "note": "an update takes 20 ms, so the player mostly waits; the limit is one bare CURVE message",
    }
