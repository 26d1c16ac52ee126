"""Updates a second of a whole run, while its player plays, beside torch alone and its learner alone.

Ours is a `p2prl host` with one player of its own: what the trainer does beside its learner's update (sampling, batches,
weights on their way, reports), and what the rest of the run takes from it on this machine. The limit of DQN is the
bare loop of torch (bare_torch.py), with the machine for itself. A second row has the same loop while another process
plays with the agent's actor and does nothing else: two processors of a machine may share one core, as those of rented
machines often do, and then whoever plays takes from whoever learns. That of a third row, and V-trace's, is the same
learner, made by the same agent with the same settings, on batches that are ready in memory. Each limit runs with one
thread or with all, whichever is faster, and takes denormal numbers for 0 as the trainer does. All in turn; never at the
same time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

from bench_parts import bare_torch
from bench_parts.kinds import Bar, Case, Unavailable, Values
from bench_parts.running import Running, sets
from p2prl.core.schema import SessionSchema
from p2prl.learn.contracts import Agent, Array, ReplaySpec
from p2prl.learn.playing import Playing
from p2prl.learn.spaces import agent_schema, env_spec
from p2prl.nodes.child import ONE_THREAD
from p2prl.nodes.device import flush_denormals
from p2prl.nodes.player import rollout_of, step_back
from p2prl.packages import install_command
from p2prl.registry import make_agent, make_env_factory, resolve_agent
from p2prl.replay.params import ReplayParams
from p2prl.replay.queue import QueueStore
from p2prl.replay.storage import RingStore, Store

#: Different batches that the limit updates on, one after the other.
_READY = 16
#: Updates that are not counted: within them the trainer tries how many threads are faster.
_WARM = 60
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes:
        preset, slots: of `p2prl host`, with one player.
        agent, settings: as that has them.
        bare: makes the update of bare_torch.py that is the limit; None where the learner alone is.
        bar: of ours to that limit.
    """

    preset: str
    agent: str
    slots: int
    settings: Mapping[str, Any]
    bare: Callable[[], Callable[[], None]] | None = None
    bar: Bar | None = None

    def arguments(self) -> list[str]:
        """Of `p2prl host`."""
        pairs = [f"agent.{name}={json.dumps(value)}" for name, value in self.settings.items()]
        return [self.preset, "--players", "1", "--envs", str(self.slots), *sets("play.eval_share=0", *pairs)]


_DQN: dict[str, Any] = {"hidden": [256, 256], "batch": 64, "samples_per_insert": 0.0}
_VTRACE = {"ticks": 32, "batch": 64, "normalise": True}


def bare_dqn() -> Callable[[], None]:
    """The bare loop's update, of as many samples and units."""
    return bare_torch.dqn(_DQN["batch"], _DQN["hidden"][0])


#: The presets' other settings do not change what an update costs.
TRAININGS = {
    "dqn, 2x256 units, batches of 64": Training("cartpole", "dqn", 16, _DQN, bare_dqn, Bar(limit=0.85)),
    "vtrace, 64 x 32 ticks": Training("cartpole-vtrace", "vtrace", 64, _VTRACE),
}


def cases(quick: bool) -> Iterator[Case]:
    """One after the other."""
    for name, what in TRAININGS.items():
        yield from _measured(name, what, quick)


@dataclass(frozen=True)
class Limit:
    """Updates a second of something smaller.

    Attributes:
        measure: gets what is trained, and for how many seconds.
    """

    measure: Callable[[Training, float], float]
    beside_a_player: bool = False


def _measured(name: str, what: Training, quick: bool) -> list[Case]:
    """Against each of its limits; the first has the bar."""
    limits: dict[str, Limit] = {name: Limit(alone)}
    if what.bare is not None:
        limits = {
            name: Limit(bare),
            f"{name}, of torch beside a player": Limit(bare, beside_a_player=True),
            f"{name}, of its learner alone": Limit(alone),
        }
    bars = {name: what.bar}
    try:
        ours, found, note = _turns(what, limits, quick)
    except Unavailable as error:
        ours, found, note = None, {}, str(error)
    return [
        {
            "case": one,
            "unit": "updates/s",
            "bar": bars.get(one),
            "ours": ours,
            "limit": found.get(one),
            "note": note,
        }
        for one in limits
    ]


def _turns(
    what: Training, limits: Mapping[str, Limit], quick: bool
) -> tuple[Values, dict[str, list[float]], str]:
    """Ours, what each limit came to, and what was played beside ours."""
    ours, steps = [], []
    found: dict[str, list[float]] = {name: [] for name in limits}
    turns, seconds = (1, 0.7) if quick else (3, 4.0)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for _ in range(turns):
            updates, played = running(what, seconds)
            ours.append(updates)
            steps.append(played)
            for name, limit in limits.items():
                with playing(what) if limit.beside_a_player else nullcontext():
                    found[name].append(pool.submit(limit.measure, what, seconds).result())
    return ours, found, f"beside {np.median(steps):,.0f} env steps/s that were played"


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


@contextmanager
def playing(what: Training) -> Iterator[None]:
    """Another process plays meanwhile, as far behind as players are."""
    context = get_context("spawn")
    begun, ended = context.Event(), context.Event()
    player = context.Process(target=_play, args=(what, begun, ended))
    ours = dict(os.environ)
    os.environ.update(ONE_THREAD)  # as a member starts its players
    try:
        player.start()
    finally:
        os.environ.clear()
        os.environ.update(ours)
    try:
        if not begun.wait(_PATIENCE_S):
            raise Unavailable("the player beside torch did not begin")
        yield
    finally:
        ended.set()
        player.join()


def _play(what: Training, begun: Event, ended: Event) -> None:
    step_back()
    rollout, *_ = _rollout(what)
    try:
        while not ended.is_set():
            rollout.collect()
            begun.set()
    finally:
        rollout.close()


def bare(what: Training, seconds: float) -> float:
    """Updates a second of the bare loop, in this process. Raises Unavailable as `alone` does."""
    assert what.bare is not None
    return _fastest(what.bare, seconds)


def alone(what: Training, seconds: float) -> float:
    """Updates a second of the learner alone, in this process.

    Raises:
        Unavailable: torch is not installed.
    """

    def make() -> Callable[[], None]:
        batches, agent = ready(what)
        learner, order = agent.learner("cpu", 1), cycle(batches)

        def update() -> None:
            learner.update(next(order))

        return update

    return _fastest(make, seconds)


def _fastest(make: Callable[[], Callable[[], None]], seconds: float) -> float:
    """With one thread, or with all. Raises Unavailable as `alone` does."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise Unavailable(f"torch is not installed: {install_command('p2prl[train]')}") from error
    most = torch.get_num_threads()
    flush_denormals()
    try:
        update, rates = make(), []
        for threads in {1, most}:
            torch.set_num_threads(threads)
            rates.append(bare_torch.updates_per_s(update, seconds / 2))
    finally:
        torch.set_num_threads(most)
    return max(rates)


def ready(what: Training) -> tuple[list[dict[str, Array]], Agent]:
    """Some batches as the trainer gives them to the learner, and the agent."""
    rollout, agent, schema = _rollout(what)
    replay = agent.replay()
    store = _store(schema, replay)
    try:
        for at in range(_READY * max(1, replay.batch // what.slots)):
            store.add(at * what.slots, dict(rollout.collect().columns), version=0)
    finally:
        rollout.close()
    return [_batch(store, schema, replay) for _ in range(_READY)], agent


def _rollout(what: Training) -> tuple[Playing, Agent, SessionSchema]:
    """A player's, as a player makes it, of an actor that has learnt nothing."""
    make = make_env_factory("CartPole-v1", {})
    env = make()
    spec = env_spec(env, "CartPole-v1")
    env.close()
    agent = make_agent(resolve_agent(what.agent), spec, what.settings)
    schema = agent_schema(spec, agent, agent.replay().ticks)
    actor = agent.actor()
    actor.load(agent.learner("cpu", 1).weights())
    places = {"slots": what.slots, "ladder": agent.ladder, "rank": 0, "seed": 1}
    return rollout_of(make, spec, schema, actor, **places), agent, schema


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
