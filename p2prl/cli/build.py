"""From flags to the effective experiment, judged before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from p2prl.config import Experiment, StopConfig
from p2prl.errors import P2prlError, UsageError
from p2prl.places import existing_folder
from p2prl.settings import (
    DEFAULT_PRESET,
    EXPERIMENT_FILE,
    find_experiment,
    fit,
    latest_run,
    load_experiment,
    nearest,
    overlay,
    with_agent,
    with_env,
)
from p2prl.words import many

_DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class ExperimentFlags:
    """The flags of `p2prl host` that make or change an experiment; None where not given."""

    experiment: str | None = None
    env: str | None = None
    agent: str | None = None
    assignments: Sequence[str] = ()
    envs: int | None = None
    shards: int | None = None
    seed: int | None = None
    device: str | None = None
    gpu: bool = False
    stop_steps: int | None = None
    stop_return: float | None = None
    stop_time: float | None = None
    no_stop: bool = False


def effective_experiment(flags: ExperimentFlags) -> Experiment:
    """A new run's experiment. Raises UsageError.

    With an environment but no experiment, the default preset's settings do not apply: they suit another one.
    """
    base = find_experiment(flags.experiment or DEFAULT_PRESET)
    if flags.no_stop:
        base = msgspec.structs.replace(base, stop=StopConfig())
    if flags.env is not None and flags.experiment is None and flags.env != base.env.id:
        base = with_env(Experiment(), flags.env)
    if flags.env is not None:
        base = with_env(base, flags.env)
    if flags.agent is not None:
        base = with_agent(base, flags.agent)
    elif flags.experiment is not None:
        _check_settings(base, flags.experiment)
    return lay_flags(base, flags)


def resumed_experiment(flags: ExperimentFlags, results: Path) -> tuple[Path, Path | None, Experiment]:
    """The folder of the run to go on with, the checkpoint to go back to, if one is named, and the run's experiment.

    Flags are laid over what it was started with; its stop conditions hold on, unless `no_stop` lifts them.

    Raises:
        UsageError: there is no such run, or the flags ask for another experiment, environment or agent than it has.
    """
    from p2prl.nodes import checkpoint

    results = existing_folder(results)
    wanted = _named(flags)
    one = checkpoint.of_run(results)
    if one is None and (aside := checkpoint.run_of_aside(results)) is not None:
        raise UsageError(
            f"{results} is what a host that went back took out of {aside[0]}: p2prl eval takes it; to go on from one "
            f"of its checkpoints, copy that into {aside[0] / 'checkpoints'} and resume from there"
        )
    folder = latest_run(results if one is None else one.parent.parent, wanted)
    base = load_experiment(folder / EXPERIMENT_FILE)
    if flags.no_stop:
        base = msgspec.structs.replace(base, stop=StopConfig())
    _check_settings(base, str(folder / EXPERIMENT_FILE))
    asked_agent = None if flags.agent is None else with_agent(base, flags.agent).agent.name
    for flag, asked, has in (("--env", flags.env, base.env.id), ("--agent", asked_agent, base.agent.name)):
        if asked not in (None, has):
            raise UsageError(f"{folder} was started with {flag} {has}; start a new run for {flag} {asked}")
    if wanted not in (None, base.name):
        raise UsageError(
            f"{folder} is a run of {base.name}, not of {wanted}: leave that name out, or start a new run"
        )
    if flags.shards not in (None, base.shards):
        raise UsageError(
            f"{folder} keeps its sessions in {many(base.shards, 'shard')}; --shards cannot change that"
        )
    return folder, one, lay_flags(base, flags)


def _named(flags: ExperimentFlags) -> str | None:
    """The name of a run of the experiment that the flags name; None if they name none."""
    if flags.experiment is None:
        return None
    base = find_experiment(flags.experiment)
    base = base if flags.env is None else with_env(base, flags.env)
    return (base if flags.agent is None else with_agent(base, flags.agent)).name


def lay_flags(base: Experiment, flags: ExperimentFlags) -> Experiment:
    """`--set` first, then the flags that have names of their own, all judged as if they stood in TOML."""
    experiment = overlay(base, flags.assignments, _setting_names(base.agent.name))
    named = {
        "play.envs": flags.envs,
        "shards": flags.shards,
        "seed": flags.seed,
        "train.device": chosen_device(flags.device, flags.gpu),
        "stop.steps": flags.stop_steps,
        "stop.mean_return": flags.stop_return,
        "stop.time_s": flags.stop_time,
    }
    given = [f"{key}={value}" for key, value in named.items() if value is not None]
    return overlay(experiment, given)


def chosen_device(device: str | None, gpu: bool) -> str | None:
    """`--gpu` and `--device` as one; None if neither was given. Raises UsageError if they contradict."""
    if device is not None and device not in _DEVICES:
        near = nearest(device, _DEVICES)
        raise UsageError(
            f"--device {device!r}: must be one of {', '.join(_DEVICES)}" + (f"; {near}" if near else "")
        )
    if gpu and device not in (None, "cuda", "mps"):
        raise UsageError(f"--gpu and --device {device} contradict each other; give one of them")
    return device or ("gpu" if gpu else None)


def check_installed(experiment: Experiment) -> Experiment:
    """Everything that is known to be wrong before a process is started.

    Returns:
        The experiment with its agent's settings as the agent wants them: 1e6 and 1MB are whole numbers.

    Raises:
        UsageError: an unknown environment, agent or agent's setting; the text names the nearest valid ones.
        MissingPackage: it is known, and its package is not installed here.
    """
    from p2prl.registry import make_env_factory, resolve_agent

    agent = resolve_agent(experiment.agent.name)
    given = experiment.agent.settings
    fitted = fit(agent.Settings, given, "agent.")
    make_env_factory(experiment.env.id, experiment.env.args)
    settings = {key: found if isinstance(found := getattr(fitted, key), int) else given[key] for key in given}
    return msgspec.structs.replace(
        experiment, agent=msgspec.structs.replace(experiment.agent, settings=settings)
    )


def _check_settings(experiment: Experiment, source: str) -> None:
    """Raises UsageError, naming `source`, if the agent has no such settings; one that cannot be had is told later."""
    from p2prl.registry import resolve_agent

    try:
        settings = resolve_agent(experiment.agent.name).Settings
    except P2prlError:
        return
    try:
        fit(settings, experiment.agent.settings, "agent.")
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def _setting_names(agent: str) -> list[str]:
    """The agent's settings, so that an error can name them; none if it cannot be loaded: told later."""
    from p2prl.registry import resolve_agent

    try:
        settings = resolve_agent(agent).Settings
    except P2prlError:
        return []
    return [field.name for field in msgspec.structs.fields(settings)]
