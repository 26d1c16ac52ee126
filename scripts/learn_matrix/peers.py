"""Runs what ours is held against."""

from __future__ import annotations

import importlib
import importlib.util
import json
import statistics
from dataclasses import asdict

from learn_matrix.child import Child
from learn_matrix.kinds import Criterion, Limits, Policies, Run, Sb3, Unavailable
from p2prl.packages import install_command

_SPARE_S = 600.0


def run(peer: Sb3, criterion: Criterion, limits: Limits, seed: int) -> Run:
    """One seed with stable-baselines3, in a process of its own, start-up included.

    Raises:
        Unavailable: it is not installed, or ended with an error.
    """
    if importlib.util.find_spec("stable_baselines3") is None:
        raise Unavailable(f"stable-baselines3 is not installed: {install_command('p2prl[peers]')}")
    config = {
        **asdict(peer),
        "seed": seed,
        "kind": criterion.kind,
        "threshold": criterion.goal,
        "seconds": limits.seconds,
        "max_steps": min(limits.steps, peer.steps),
    }
    result = Run(seed, end=f"not within {config['max_steps']:,} steps")
    arguments = ["learn_matrix.sb3_child", json.dumps(config)]
    with Child(arguments, kill_after_s=limits.seconds + _SPARE_S) as child:
        for at, event in child.events():
            if event["event"] == "point":
                result.curve.append((event["steps"], event["mean"]))
            elif not result.reached:
                result.steps, result.seconds, result.end = event["steps"], at - event["apart_s"], ""
        if child.late and not result.reached:
            result.end = f"not within {limits.seconds + _SPARE_S:g} s"
        elif child.code and not child.late:
            raise Unavailable(f"the peer ended with {child.code}: {child.last_words}")
    return result


def means(policies: Policies) -> dict[str, float]:
    """Mean return of each policy.

    Raises:
        Unavailable: mobile-env is not installed.
    """
    try:
        module = importlib.import_module("p2prl_envs.mobile_baselines")
    except ImportError as error:
        raise Unavailable(f"its baselines cannot be imported: {error}") from error
    return {
        name: statistics.fmean(
            module.returns_of(module.POLICIES[name], policies.size, range(policies.episodes))
        )
        for name in policies.names
    }
