"""What weights cost on their way: bytes of a publication, the time to encode and to decode it, and who waits for it.

Two networks of 1.7 million parameters in training, CartPole in this process, Adam with a step of 3e-4, a publication
each four updates (0.1 s of such updates): DQN's, whose units are ReLUs, many of them at rest, and V-trace's, whose
units are tanh and never rest. Each publication goes through the wire's format with and without float16. The limit of
the bytes is what lz4 alone makes of each array; that of the times is lz4 alone on the same weights, and one copy of
them. A turn of the bytes is a keyframe and all changes against it, as a share of float32's; times are each
publication's.

Forty members behind one slow link, in namespaces: from before a network of 270 kB is encoded to its being loaded at
the last one; the limit is what the bytes need at the link's rate. Updates of the large network of DQN in a run that
publishes ten times a second; the limit is the same run when it publishes once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from bench_parts import updates
from bench_parts._lan import workplace
from bench_parts.kinds import Bar, Case, Unavailable, attempted
from bench_parts.running import sets
from p2prl.learn.spaces import env_spec
from p2prl.registry import make_agent, resolve_agent
from p2prl.wire.blocks import Array, pack
from p2prl.wire.weights import KEYFRAME_EACH, WeightsDecoder, WeightsEncoder
from tests.netns import crowd_kit as crowd
from tests.netns.lab import Lab, missing

HIDDEN = [1300, 1300]
WARM, UPDATES_EACH = 100, 4
#: Keyframes with their changes.
TURNS = 4
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {"hidden": HIDDEN, "learning_rate": 3e-4, "learning_rate_end": 1.0},
    "vtrace": {"hidden": HIDDEN, "learning_rate": 3e-4, "learning_rate_end": 1.0},
}
Weights = dict[str, Array]


def make_cartpole() -> gym.Env[Any, Any]:
    """The environment."""
    return gym.make("CartPole-v1")


def training(name: str, publications: int) -> Iterator[Weights]:
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
        while published < publications:
            bare._play()
            bare._learn()
            for weights in taken[: publications - published]:
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


def by_turns(values: list[float]) -> list[float]:
    """The means over a keyframe and its changes."""
    return [statistics.fmean(values[at : at + KEYFRAME_EACH]) for at in range(0, len(values), KEYFRAME_EACH)]


class Way:
    """One way of the wire's format, and what it came to, publication by publication.

    Args:
        halves: round to float16.
    """

    def __init__(self, halves: bool) -> None:
        self.halves = halves
        self._encoder, self._decoder = WeightsEncoder(halves), WeightsDecoder()
        self.shares: list[float] = []
        self.encode_ms: list[float] = []
        self.decode_ms: list[float] = []

    def publish(self, weights: Weights) -> None:
        """Encode, and decode, one publication."""
        took_ms, encoded = timed(self._encoder.encode, weights)
        self._encoder.sent(encoded)
        self.encode_ms.append(took_ms)
        self.shares.append(len(encoded.payload) / sum(array.nbytes for array in weights.values()))
        self.decode_ms.append(timed(self._decoder.read, encoded.payload)[0])


def measured(name: str, turns: int) -> Iterator[Case]:
    """The cases of one network: the same publications, rounded and exact."""
    ways = [Way(True), Way(False)]
    plain, compress, copy = ([] for _ in range(3))  # type: ignore[var-annotated]
    for weights in training(name, turns * KEYFRAME_EACH):
        for way in ways:
            way.publish(weights)
        took_ms, blocks = timed(lambda arrays: [pack(array) for array in arrays], weights.values())
        compress.append(took_ms)
        plain.append(sum(len(block) for _, block in blocks) / sum(one.nbytes for one in weights.values()))
        copy.append(timed(lambda arrays: [np.array(array) for array in arrays], weights.values())[0])
    for way in ways:
        what = f"{name}, 1.7 M parameters, {'float16' if way.halves else 'exact'}"
        yield {
            "case": f"{what}: bytes",
            "unit": "of float32's",
            "ours": by_turns(way.shares),
            "limit": by_turns(plain),
            "bar": Bar(value=0.5, lower=True) if way.halves else Bar(limit=1.0, lower=True),
        }
        yield {"case": f"{what}: encode", "unit": "ms", "ours": way.encode_ms, "limit": compress}
        yield {"case": f"{what}: decode", "unit": "ms", "ours": way.decode_ms, "limit": copy}


def to_a_crowd(quick: bool) -> Case:
    """Publications, one after the other, each on an idle link.

    Raises:
        Unavailable: there can be no namespaces here.
    """
    if why := missing():
        raise Unavailable(why)
    with workplace() as folder, Lab(2, Path(folder)) as lan:
        found = crowd.publications(lan, crowd.WARM + (1 if quick else 3))
    found = [one for one in found if one.version >= crowd.WARM]
    return {"ours": [one.took_s for one in found], "limit": [one.least_s for one in found]}


@dataclass(frozen=True)
class Publishing(updates.Training):
    """A run that publishes each so many seconds."""

    each_s: float = 0.1

    def arguments(self) -> list[str]:
        """Of `p2prl host`."""
        return [*super().arguments(), *sets(f"train.publish_interval_s={self.each_s:g}")]


def beside_updates(quick: bool) -> Case:
    """Updates a second of either, in turns."""
    settings = {"hidden": HIDDEN, "batch": 64, "samples_per_insert": 0.0}
    often = Publishing("cartpole", "dqn", 16, settings)
    once = replace(often, each_s=1e6)
    turns, seconds = (1, 1.0) if quick else (2, 2.0)
    rates = [[updates.running(way, seconds)[0] for way in (often, once)] for _ in range(turns)]
    return {"ours": [one for one, _ in rates], "limit": [one for _, one in rates]}


def cases(quick: bool) -> Iterator[Case]:
    """Network by network; then who waits."""
    for name in list(SETTINGS)[:1] if quick else SETTINGS:
        yield from measured(name, 1 if quick else TURNS)
    bar = Bar(limit=1.5, lower=True)
    named: Case = {"case": "publish to loaded at the last of 40 members, 50 Mbit/s", "unit": "s", "bar": bar}
    yield attempted(named, partial(to_a_crowd, quick))
    named = {"case": "dqn, 1.7 M parameters: learning while publishing", "unit": "updates/s"}
    yield attempted(named, partial(beside_updates, quick))
