"""Learning with a lag that is forced: the bare loop of the learning tests, in one process of its own."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from learn_matrix.child import Child
from learn_matrix.kinds import Criterion, Forced, Limits, Run, Unavailable
from p2prl.learn.spaces import env_spec
from p2prl.registry import make_agent, make_env_factory, resolve_agent
from p2prl.settings import find_experiment


def run(ours: Forced, criterion: Criterion, limits: Limits, seed: int) -> Run:
    """One seed.

    Raises:
        Unavailable: the process ended with an error.
    """
    config = json.dumps({**asdict(ours), "goal": criterion.goal, "max_steps": limits.steps, "seed": seed})
    with Child(["learn_matrix.forced", config], kill_after_s=limits.seconds) as child:
        found = [event for _, event in child.events()]
        if child.late:
            return Run(seed, end=f"not within {limits.seconds:g} s")
        if not found:
            raise Unavailable(child.last_words)
    return Run(**{**found[-1], "curve": [tuple(point) for point in found[-1]["curve"]]})


def main() -> int:
    """The run that the one argument describes, as one JSON line. `lag_mean` is what was measured, not asked for."""
    config = json.loads(sys.argv[1])
    began = time.monotonic()
    bare = _bare(config)
    progress = bare.run(config["goal"], max_updates=10**9, max_steps=config["max_steps"])
    result = Run(config["seed"], curve=progress.curve[:: max(1, len(progress.curve) // 300)])
    result.lag_mean = sum(progress.lags) / len(progress.lags) if progress.lags else None
    if progress.solved_at is not None:
        result.steps, result.seconds = progress.steps, time.monotonic() - began
    else:
        result.end = f"not within {progress.steps:,} steps; {progress.stale:,} sessions were stale"
    sys.stdout.write(json.dumps(asdict(result)) + "\n")
    return 0


def _bare(config: dict[str, Any]) -> Any:
    from tests.learning.bare import Bare  # here: the parent needs none of what it brings

    experiment = find_experiment(config["experiment"])
    make_env = make_env_factory(experiment.env.id, experiment.env.args)
    env = make_env()
    spec = env_spec(env, experiment.env.id)
    env.close()
    settings = {**experiment.agent.settings, **config["settings"]}
    agent = make_agent(resolve_agent(experiment.agent.name), spec, settings)
    return Bare(agent, make_env, spec, slots=config["slots"], seed=config["seed"], lag=config["lag"])


if __name__ == "__main__":
    sys.exit(main())
