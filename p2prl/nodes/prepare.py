"""From an experiment to what the host's processes need: the spaces, the schema, the replay's size, the run's folder."""

from __future__ import annotations

import dataclasses
import importlib.util
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import psutil

from p2prl.config import Experiment, ReplayConfig
from p2prl.core.messages import RunSpec
from p2prl.core.schema import SessionSchema, check_schema
from p2prl.core.spaces import EnvSpec, spaces_in_words
from p2prl.errors import LimitsForbid, P2prlError, UsageError
from p2prl.learn.contracts import Agent, ReplaySpec
from p2prl.learn.environments import try_environment
from p2prl.learn.promises import named, replay_of
from p2prl.learn.samples import check_batch
from p2prl.learn.spaces import agent_schema
from p2prl.nodes.files import write_atomically
from p2prl.nodes.named_learner import make_learner
from p2prl.places import tidy
from p2prl.registry import (
    is_accelerated,
    is_file_agent,
    make_agent,
    make_env_factory,
    provider,
    resolve_agent,
    source_hash,
)
from p2prl.replay.params import ReplayKind
from p2prl.replay.prioritised import priority_bytes
from p2prl.replay.storage import kept_bytes
from p2prl.settings import EXPERIMENT_FILE, RUN_FILE, dump_experiment, slug
from p2prl.wire.bundle import check_slots
from p2prl.wire.columns import CODECS
from p2prl.words import many, sized

#: What is left to the machine's owner beside the replay buffer.
_SPARE_BYTES = 200_000_000


class RunFile(msgspec.Struct):
    """`run.json`: what names a run for ever, and under which name and port it was hosted last.

    Attributes:
        reached_return: the mean return at which it ended, if that was what it was to stop at.
        spaces: of its environment (core/spaces.py), so that a change under the run is seen; empty in older files.
    """

    run_id: str
    name: str
    created: float
    base_port: int = 0
    host_name: str = ""
    reached_return: float | None = None
    spaces: dict[str, str] = {}


@dataclass(frozen=True)
class Prepared:
    """A run, ready to start; `warnings` are lines for the person who starts it."""

    run: RunSpec
    replay: ReplaySpec
    folder: Path
    file: RunFile
    warnings: list[str] = dataclasses.field(default_factory=list)


def prepare(
    experiment: Experiment, results: Path, resume: bool, tell: Callable[[str], None] = lambda text: None
) -> Prepared:
    """Make the environment and the agent once, judge the sizes, open the run's folder.

    If the environment is slow, `tell` takes a line for the person who waits, on another thread.

    Raises:
        UsageError, MissingPackage, AgentRaised: the environment or the agent cannot be had, or do not fit each other;
            bundles of so many slots cannot be sent.
        LimitsForbid: the replay buffer does not fit into this machine's free memory.
    """
    cls = resolve_agent(experiment.agent.name)
    make_env = make_env_factory(experiment.env.id, experiment.env.args)
    spec = try_environment(make_env, experiment.env.id, tell)
    if resume:
        check_spaces(spaces_of_run(results), spec, results)
    agent = make_agent(cls, spec, experiment.agent.settings)
    _check_torch(cls, agent, experiment)
    with named(_public_name(experiment.agent.name)):
        replay = effective_replay(agent, experiment.replay)
        schema = _schema(spec, agent, replay)
    check_memory(schema, replay)
    check_slots(schema, experiment.play.envs)
    # Only now, when nothing is known to forbid the run: what is refused leaves no folder behind.
    folder, file = open_folder(experiment, results, resume)
    file.spaces = spaces_in_words(spec)  # written with the ports
    run = RunSpec(
        run_id=file.run_id,
        seed=experiment.seed,
        env_id=experiment.env.id,
        env_args=dict(experiment.env.args),
        env=spec,
        env_package=provider(make_env.source),
        env_hash=source_hash(make_env.source),
        agent_name=_public_name(experiment.agent.name),
        agent_settings=dict(experiment.agent.settings),
        agent_package=provider(cls),
        agent_hash=source_hash(cls),
        schema=schema,
        ladder=cls.ladder,
        when_full=experiment.play.when_full,
        window_bytes=experiment.play.window_bytes,
        window_bundles=experiment.play.window_bundles,
        max_lag=replay.max_lag,
        envs=experiment.play.envs,
        fresh=replay.fresh,
        codecs=CODECS,
    )
    return Prepared(run, replay, folder, file, _warnings(experiment, make_env.source))


def _check_torch(cls: type[Agent], agent: Agent, experiment: Experiment) -> None:
    """Raises MissingPackage if there is no torch here, and the agent's learner needs it."""
    if is_accelerated(cls) and importlib.util.find_spec("torch") is None:
        # Perhaps it does without, as one's own may: only its learner knows. The trainer makes its own.
        make_learner(agent, _public_name(experiment.agent.name), "cpu", experiment.seed)


def _warnings(experiment: Experiment, source: Any) -> list[str]:
    if getattr(source, "wall_clock", False) and experiment.play.when_full == "wait":
        return [
            f"{experiment.env.id} does not wait for its players, and play.when_full=wait makes them wait for the "
            "trainer: say --set play.when_full=drop_oldest"
        ]
    return []


def _public_name(agent: str) -> str:
    """What other machines are told: of a file its name, not where it is here."""
    if not is_file_agent(agent):
        return agent
    path, _, class_name = agent.rpartition(":")
    return f"{Path(path).name}:{class_name}"


def effective_replay(agent: Agent, overrides: ReplayConfig) -> ReplaySpec:
    """What the agent asks for, with the experiment's `[replay]` over it. Raises UsageError for what cannot be."""
    own = replay_of(agent)
    given = {name: getattr(overrides, name, None) for name in own.__struct_fields__}
    spec = msgspec.structs.replace(own, **{name: value for name, value in given.items() if value is not None})
    if spec.kind not in get_args(ReplayKind):
        raise UsageError(f"replay.kind={spec.kind} is not one of {', '.join(get_args(ReplayKind))}")
    if min(spec.ticks, spec.batch, spec.capacity_bytes) < 1:
        raise UsageError("replay.ticks, replay.batch and replay.capacity_bytes must be at least 1")
    if spec.window < 0:
        raise UsageError(
            f"the agent's replay() asks for windows of {many(spec.window, 'tick')}; 0 is for whole sessions"
        )
    if spec.window > spec.ticks:
        raise UsageError(
            f"replay.ticks={spec.ticks} is shorter than the {many(spec.window, 'tick')} of a sample"
        )
    if min(spec.min_ticks, spec.samples_per_insert, spec.max_lag) < 0:
        raise UsageError("replay.min_ticks, replay.samples_per_insert and replay.max_lag cannot be negative")
    return spec


def _schema(spec: EnvSpec, agent: Agent, replay: ReplaySpec) -> SessionSchema:
    schema = agent_schema(spec, agent, replay.ticks)
    why = check_schema(schema)
    if why:
        raise UsageError(f"{spec.id} cannot be stored: {why}")
    if schema.needs_whole_sessions and replay.window:
        names = ", ".join(column.name for column in schema.columns if column.once)
        raise UsageError(
            f"the agent stores {names} once a session, and samples windows of {many(replay.window, 'tick')}: "
            "its replay() must say window=0, whole sessions"
        )
    return schema


def check_memory(schema: SessionSchema, replay: ReplaySpec) -> None:
    """Raises LimitsForbid if the buffer would not fit, UsageError if it could never work."""
    # A ring keeps pictures as they were sent; what waits in a queue is counted decoded.
    session = schema.session_bytes() if replay.kind == "queue" else sum(kept_bytes(schema))
    need_ticks = replay.batch * replay.ticks if replay.kind == "queue" else replay.min_ticks
    room_ticks = replay.capacity_bytes // session * replay.ticks
    if room_ticks < need_ticks:
        least = -(-need_ticks // replay.ticks) * session
        raise UsageError(
            f"replay.capacity_bytes={replay.capacity_bytes} holds {many(room_ticks, 'tick')}, and training needs "
            f"{need_ticks} to begin: give it at least {least} bytes"
        )
    if too_much := check_batch(schema, replay):
        raise UsageError(too_much)
    free = psutil.virtual_memory().available
    beside = (
        priority_bytes(schema, replay.capacity_bytes, replay.window) if replay.kind == "prioritised" else 0
    )
    taken = replay.capacity_bytes + beside
    if taken + _SPARE_BYTES > free:
        with_them = f", {sized(beside)} of it for priorities" if beside else ""
        least = int((free - _SPARE_BYTES) * replay.capacity_bytes / taken) // 2
        raise LimitsForbid(
            f"the replay buffer may take {sized(taken)} ({many(room_ticks, 'tick')}{with_them}) and "
            f"{sized(free)} are free: use --set replay.capacity_bytes={max(0, least)}"
        )


def open_folder(experiment: Experiment, results: Path, resume: bool) -> tuple[Path, RunFile]:
    """The run's folder and what `run.json` says: found, or made with `experiment.toml` beside it.

    In one that is found nothing is changed: `keep` does that, once the start is known to work.
    """
    if resume:
        folder = results
        try:
            file = msgspec.json.decode((folder / RUN_FILE).read_bytes(), type=RunFile)
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise UsageError(f"{folder} cannot be resumed: {RUN_FILE} is missing or unreadable") from error
        _check_room(folder, experiment)
        return folder, file
    if (results / RUN_FILE).exists():
        raise UsageError(
            f"{results} is itself a run's folder: add --resume, or name another folder with --results"
        )
    name, folder = _new_folder(experiment, results)
    file = RunFile(run_id=secrets.token_hex(8), name=name, created=time.time())
    save_run_file(folder, file)
    _write_experiment(folder, experiment)
    return folder, file


def _check_room(folder: Path, experiment: Experiment) -> None:
    """Raises OSError if the disk would not take what `keep` writes: better now than when all is up."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{EXPERIMENT_FILE}.") as probe:
        probe.write(dump_experiment(experiment).encode())


def keep(prepared: Prepared, experiment: Experiment) -> None:
    """Write what this start changed into the run's folder. Raises OSError."""
    save_run_file(prepared.folder, prepared.file)
    _write_experiment(prepared.folder, experiment)


def check_spaces(before: Mapping[str, str], spec: EnvSpec, run: Path) -> None:
    """Raises UsageError if the environment is another one than that with which a run began."""
    now = spaces_in_words(spec)
    for name in dict.fromkeys((*before, *now)) if before else ():
        if before.get(name) != now.get(name):
            raise UsageError(
                f"{spec.id} has changed since {run.name} began: {name} was {before.get(name, 'not there')}, and is "
                f"{now.get(name, 'not there')} now; put it back as it was, or start a new run"
            )


def spaces_of_run(run: Path) -> dict[str, str]:
    """What a run's `run.json` says of its environment's spaces; empty if it says nothing."""
    try:
        return msgspec.json.decode((run / RUN_FILE).read_bytes(), type=RunFile).spaces
    except (OSError, msgspec.DecodeError, RecursionError):
        return {}


def save_run_file(folder: Path, file: RunFile) -> None:
    """Write `run.json`. Raises OSError."""
    write_atomically(folder / RUN_FILE, msgspec.json.encode(file), durable=True)


def _write_experiment(folder: Path, experiment: Experiment) -> None:
    write_atomically(folder / EXPERIMENT_FILE, dump_experiment(experiment).encode())


def _new_folder(experiment: Experiment, results: Path) -> tuple[str, Path]:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = f"{slug(experiment.name)}-{stamp}"
    for attempt in range(1, 100):
        name = base if attempt == 1 else f"{base}-{attempt}"
        folder = tidy(results / name)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise P2prlError(f"cannot make {folder}: {error.strerror}") from error
        return name, folder
    raise P2prlError(f"cannot find a free name for the run in {results}")
