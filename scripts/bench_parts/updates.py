"""Updates a second of a whole run, while its player plays, beside those of its learner alone.

Ours is a `p2prl host` with one player of its own: what the trainer does beside its learner's update (sampling, batches,
weights on their way, reports), and what the rest of the run takes from it on this machine. The limit is the same
learner, made by the same agent with the same settings, in a process that does nothing else: it updates on batches that
are ready in its memory, with one thread or with all, whichever is faster. Both in turn; never at the same time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from bench_parts.kinds import Bar, Case, Unavailable, attempted
from bench_parts.running import Running, sets
from p2prl.core.schema import SessionSchema
from p2prl.learn.contracts import Agent, Array, ReplaySpec
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import agent_schema, env_spec
from p2prl.registry import make_agent, make_env_factory, resolve_agent
from p2prl.replay.params import ReplayParams
from p2prl.replay.queue import QueueStore
from p2prl.replay.storage import RingStore, Store

#: Different batches that the limit updates on, one after the other.
_READY = 16
#: Updates that are not counted: within them the trainer tries how many threads are faster.
_WARM = 60


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes:
        preset, slots: of `p2prl host`, with one player.
        agent, settings: as that has them.
        bar: of ours to the limit.
    """

    preset: str
    agent: str
    slots: int
    settings: Mapping[str, Any]
    bar: Bar | None = None

    def arguments(self) -> list[str]:
        """Of `p2prl host`."""
        pairs = [f"agent.{name}={json.dumps(value)}" for name, value in self.settings.items()]
        return [self.preset, "--players", "1", "--envs", str(self.slots), *sets("play.eval_share=0", *pairs)]


_DQN = {"hidden": [256, 256], "batch": 64, "samples_per_insert": 0.0}
_VTRACE = {"ticks": 32, "batch": 64, "normalise": True}
#: The presets' other settings do not change what an update costs.
TRAININGS = {
    "dqn, 2x256 units, batches of 64": Training("cartpole", "dqn", 16, _DQN, Bar(limit=0.85)),
    "vtrace, 64 x 32 ticks": Training("cartpole-vtrace", "vtrace", 64, _VTRACE),
}


def cases(quick: bool) -> Iterator[Case]:
    """One after the other."""
    for name, what in TRAININGS.items():
        named: Case = {"case": name, "unit": "updates/s", "bar": what.bar}
        yield attempted(named, partial(_measured, what, quick))


def _measured(what: Training, quick: bool) -> Case:
    ours, limit, steps = [], [], []
    turns, seconds = (1, 0.7) if quick else (3, 4.0)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for _ in range(turns):
            updates, played = running(what, seconds)
            ours.append(updates)
            steps.append(played)
            limit.append(pool.submit(alone, what, seconds).result())
    return {
        "ours": ours,
        "limit": limit,
        "note": f"beside {np.median(steps):,.0f} env steps/s that were played",
    }


def running(what: Training, seconds: float) -> tuple[float, float]:
    """Updates and environment steps a second of a host that is started for it."""
    with Running(what.arguments()) as run:
        run.until(lambda now: now.updates >= _WARM, "the first updates")
        before, began = run.status(), time.perf_counter()
        time.sleep(seconds)
        # As many whole reports as there were: what an update takes is far less than the time between two of them.
        after = run.until(lambda now: now.updates > before.updates, "updates")
        took_s = time.perf_counter() - began
    return (after.updates - before.updates) / took_s, (after.steps - before.steps) / took_s


def alone(what: Training, seconds: float) -> float:
    """Updates a second of the learner alone, in this process.

    Raises:
        Unavailable: torch is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise Unavailable("torch is not installed: pip install 'p2prl[train]'") from error
    batches, agent = ready(what)
    learner = agent.learner("cpu", 1)
    most, rates = torch.get_num_threads(), []
    for threads in {1, most}:
        torch.set_num_threads(threads)
        for at in range(_WARM):
            learner.update(batches[at % len(batches)])
        done, began = 0, time.perf_counter()
        while (took_s := time.perf_counter() - began) < seconds / 2:
            learner.update(batches[done % len(batches)])
            done += 1
        rates.append(done / took_s)
    torch.set_num_threads(most)
    return max(rates)


def ready(what: Training) -> tuple[list[dict[str, Array]], Agent]:
    """Some batches as the trainer gives them to the learner, and the agent."""
    make = make_env_factory("CartPole-v1", {})
    env = make()
    spec = env_spec(env, "CartPole-v1")
    env.close()
    agent = make_agent(resolve_agent(what.agent), spec, what.settings)
    replay = agent.replay()
    schema = agent_schema(spec, agent, replay.ticks)
    actor = agent.actor()
    actor.load(agent.learner("cpu", 1).weights())
    rollout = Rollout(make, spec, schema, actor, slots=what.slots, ladder=agent.ladder, rank=0, seed=1)
    store = _store(schema, replay)
    try:
        for at in range(_READY * max(1, replay.batch // what.slots)):
            store.add(at * what.slots, dict(rollout.collect().columns), version=0)
    finally:
        rollout.close()
    return [_batch(store, schema, replay) for _ in range(_READY)], agent


def _store(schema: SessionSchema, replay: ReplaySpec) -> Store:
    """Large enough for all that is put in."""
    size = ReplayParams().capacity_bytes
    if replay.kind == "queue":
        return QueueStore(schema, size, 0)
    return RingStore(schema, size, replay.window, np.random.default_rng(1))


def _batch(store: Store, schema: SessionSchema, replay: ReplaySpec) -> dict[str, Array]:
    sample = store.sample(replay.batch, replay.window, 0)
    batch = {
        column.name: np.asarray(values) for column, values in zip(schema.columns, sample.columns, strict=True)
    }
    return {**batch, "version": sample.versions, "probability": np.ones(sample.count, np.float32)}
