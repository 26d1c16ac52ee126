"""What weights cost on their way: bytes of a publication, and the time to encode and to decode it.

Two networks of 1.7 million parameters in training, CartPole in this process, Adam with a step of 3e-4, a publication
each four updates (0.1 s of such updates): DQN's, whose units are ReLUs, many of them at rest, and V-trace's, whose
units are tanh and never rest. Each publication goes through the wire's format with and without float16. The limit of
the bytes is the bar, half of float32's; without float16 it is what lz4 alone makes of each array, which is what was
sent before. The limit of the times is lz4 alone on the same weights, and one copy of them. A case is the median over
the publications, with the 10th and 90th of a hundred; bytes are the mean, as a broadcast is one after another.

    PYTHONPATH=. python scripts/bench_weights.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from p2prl.learn.spaces import env_spec
from p2prl.registry import make_agent, resolve_agent
from p2prl.wire.blocks import Array, pack
from p2prl.wire.weights import WeightsDecoder, WeightsEncoder

HIDDEN = [1300, 1300]
WARM, PUBLICATIONS, UPDATES_EACH = 100, 60, 4
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {"hidden": HIDDEN, "learning_rate": 3e-4, "learning_rate_end": 1.0},
    "vtrace": {"hidden": HIDDEN, "learning_rate": 3e-4, "learning_rate_end": 1.0},
}
Weights = dict[str, Array]
Case = dict[str, Any]


def make_cartpole() -> gym.Env[Any, Any]:
    """The environment."""
    return gym.make("CartPole-v1")


def training(name: str) -> Iterator[Weights]:
    """The weights of a network that learns, as they would be published."""
    from tests.learning.bare import Bare  # the loop that the learning tests have

    spec = env_spec(make_cartpole(), "CartPole-v1")
    agent = make_agent(resolve_agent(name), spec, SETTINGS[name])
    bare = Bare(agent, make_cartpole, spec, slots=16, seed=1)
    published, updates = 0, 0

    def update(batch: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates > WARM and updates % UPDATES_EACH == 0:
            taken.append(dict(bare.learner.weights()))
        return learn(batch)

    taken: list[Weights] = []
    learn, bare.learner.update = bare.learner.update, update  # type: ignore[method-assign]
    try:
        while published < PUBLICATIONS:
            bare._play()
            bare._learn()
            for weights in taken[: PUBLICATIONS - published]:
                published += 1
                yield weights
            taken.clear()
    finally:
        bare.rollout.close()


def timed(work: Callable[[Any], Any], on: Any) -> tuple[float, Any]:
    """Milliseconds of this thread, and what came of it: other programs are not to be in it."""
    began = time.thread_time()
    result = work(on)
    return 1e3 * (time.thread_time() - began), result


def figure(values: list[float], mean: bool = False) -> dict[str, float]:
    """The middle and the range."""
    tenths = statistics.quantiles(values, n=10)
    middle = statistics.fmean(values) if mean else statistics.median(values)
    return {"median": middle, "low": tenths[0], "high": tenths[-1]}


def measured(name: str, halves: bool) -> Iterator[Case]:
    """The cases of one network."""
    encoder, decoder = WeightsEncoder(halves), WeightsDecoder()
    shares, plain, encode, decode, compress, copy = ([] for _ in range(6))  # type: ignore[var-annotated]
    for weights in training(name):
        size = sum(array.nbytes for array in weights.values())
        took, encoded = timed(encoder.encode, weights)
        encoder.sent(encoded)
        encode.append(took)
        shares.append(len(encoded.payload) / size)
        decode.append(timed(decoder.read, encoded.payload)[0])
        took, blocks = timed(lambda arrays: [pack(array) for array in arrays], weights.values())
        compress.append(took)
        plain.append(sum(len(block) for _, block in blocks) / size)
        copy.append(timed(lambda arrays: [np.array(array) for array in arrays], weights.values())[0])
    what = f"{name}, 1.7 M parameters, {'float16' if halves else 'exact'}"
    bar = {"median": 0.5, "low": 0.5, "high": 0.5} if halves else figure(plain, mean=True)
    yield {"case": f"{what}: bytes", "unit": "of float32's", "ours": figure(shares, mean=True), "limit": bar}
    yield {"case": f"{what}: encode", "unit": "ms", "ours": figure(encode), "limit": figure(compress)}
    yield {"case": f"{what}: decode", "unit": "ms", "ours": figure(decode), "limit": figure(copy)}


def cases() -> Iterator[Case]:
    """Each {case, unit, ours, limit}; `ours` and `limit` are {median, low, high}."""
    for name in SETTINGS:
        for halves in (True, False):
            yield from measured(name, halves)


def main() -> None:
    """Print a table; `--json FILE` writes the cases, too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for case in cases():
        found.append(case)
        ours, limit = case["ours"], case["limit"]
        rows = (f"{one['median']:8.3f} ({one['low']:.3f} to {one['high']:.3f})" for one in (ours, limit))
        sys.stdout.write(f"{case['case']:52} {'  limit '.join(rows)} {case['unit']}\n")
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
