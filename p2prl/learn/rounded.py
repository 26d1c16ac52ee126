"""How far acting differs where weights were rounded to 16 bits for the wire (`Agent.weights_tolerance`)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Agent, Array, Tree, Weights
from p2prl.learn.spaces import split
from p2prl.wire.weights import decode_weights, encode_weights


def apart_when_rounded(
    agent: Agent, env: EnvSpec, weights: Weights, observations: Iterable[Tree], rows: int
) -> dict[str, float]:
    """The largest difference of each action and field over greedy play.

    Args:
        observations: one tree `[rows, ...]` per tick; recurrent states go on from tick to tick.

    Returns:
        By name. Floats: the largest difference, relative to 1 + their size; all else: the share that are others.
    """
    actors = [agent.actor(), agent.actor()]
    actors[0].load(decode_weights(encode_weights(weights)))
    actors[1].load(decode_weights(encode_weights(weights, halves=True)))
    states = [actor.start(rows) for actor in actors]
    far: dict[str, float] = {}
    for obs in observations:
        given: list[dict[str, Array]] = []
        for at, actor in enumerate(actors):
            actions, states[at], extras = actor.act(obs, states[at], None)
            given.append({**split(env.action, "action", actions), **extras})
        for name, values in given[0].items():
            apart = _apart(np.asarray(values), np.asarray(given[1][name]))
            far[name] = max(far.get(name, 0.0), apart)
    return far


def _apart(one: Array, other: Array) -> float:
    if one.dtype.kind != "f":
        return float((one != other).mean())
    return float((np.abs(one - other) / (1 + np.abs(one))).max(initial=0.0))
