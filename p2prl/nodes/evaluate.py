"""`p2prl eval` and `p2prl test`: greedy play with a run's weights, from a live host or from the run's folder."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from p2prl.blame import FAULTS, raised
from p2prl.core.spaces import EnvSpec, spaces_in_words
from p2prl.display import has_display
from p2prl.errors import MissingPackage, NoHostFound, P2prlError, UsageError
from p2prl.learn.contracts import Actor, Weights
from p2prl.learn.evaluation import TakeResult, episode_seed, evaluate
from p2prl.learn.promises import named
from p2prl.learn.spaces import env_spec
from p2prl.learn.statistics import bootstrap_interval
from p2prl.nodes import checkpoint
from p2prl.nodes.client import open_client
from p2prl.nodes.prepare import check_spaces, spaces_of_run
from p2prl.nodes.video import VideoFolder, check_encoder, check_folder
from p2prl.places import existing_folder, looks_like_path, tidy
from p2prl.registry import is_file_agent, make_agent, make_env_factory, resolve_agent
from p2prl.settings import EXPERIMENT_FILE, latest_run, load_experiment
from p2prl.wire.weights import decode_weights

log = logging.getLogger("p2prl")


@dataclass(frozen=True)
class EvalResult:
    """What the episodes gave.

    Attributes:
        source: where the weights came from, for people.
        version: the weights' version.
        returns, lengths, seeds: one per episode, in order; a seed is what the environment's `reset` was given.
        mean: of the returns; `low` and `high` are its 95 % confidence interval (learn/statistics.py).
        std: the returns' standard deviation.
    """

    source: str
    version: int
    env: str
    agent: str
    returns: list[float]
    lengths: list[int]
    seeds: list[int]
    mean: float
    low: float
    high: float
    std: float
    videos: list[Path] = field(default_factory=list)


@dataclass
class Played:
    """How far an evaluation is: how many `episodes` are to be played, and the returns of those that are over."""

    episodes: int
    steps: int = 0
    returns: list[float] = field(default_factory=list)


TakePlayed = Callable[[Played], None]


@dataclass(frozen=True)
class _Policy:
    source: str
    version: int
    env_id: str
    env_args: dict[str, Any]
    agent_name: str
    settings: dict[str, Any]
    weights: Weights
    #: Where a run's own videos of these weights go; None without a run's folder.
    videos: Path | None = None
    #: What its environment's spaces were; empty if that is not known.
    spaces: dict[str, str] = field(default_factory=dict)

    def spec(self, make_env: Callable[..., gym.Env[Any, Any]]) -> EnvSpec:
        """Raises UsageError if the environment has changed since."""
        spec = _spec_of(make_env, self.env_id)
        check_spaces(self.spaces, spec, Path(self.source.partition(",")[0]))
        return spec

    def make_env(self) -> Callable[..., gym.Env[Any, Any]]:
        return make_env_factory(self.env_id, self.env_args)

    def actor(self, spec: EnvSpec) -> Actor:
        """With these weights."""
        actor = make_agent(resolve_agent(self.agent_name), spec, self.settings).actor()
        actor.load(self.weights)
        return actor

    def result(self, rows: list[tuple[float, int]], seed: int, videos: list[Path]) -> EvalResult:
        returns = [value for value, _ in rows]
        low, high = bootstrap_interval(returns, seed)
        return EvalResult(
            source=self.source,
            version=self.version,
            env=self.env_id,
            agent=self.agent_name,
            returns=returns,
            lengths=[length for _, length in rows],
            seeds=[episode_seed(seed, episode) for episode in range(len(rows))],
            mean=float(np.mean(returns)),
            low=low,
            high=high,
            std=float(np.std(returns)),
            videos=videos,
        )


def evaluate_target(
    target: str | None,
    episodes: int,
    seed: int,
    record: Path | None,
    progress: TakePlayed,
    video: bool = False,
    wait_s: float = 5.0,
    interfaces: Sequence[str] = (),
) -> EvalResult:
    """Play `episodes` greedily.

    Args:
        target: a run's folder (or one checkpoint's), a host's name or address; None for the host on this LAN.
        record: a folder for one mp4 per episode, or None.
        progress: gets what was played so far, before the first step and after each.
        video: record into the run's own folder, `videos/CHECKPOINT/`.
        wait_s, interfaces: how long, and where, a host is looked for.

    Raises:
        P2prlError: no such run or host, no weights yet, or something is not installed.
    """
    flag = "--video" if video else "--record"
    if video or record is not None:
        check_encoder(flag)
    if record is not None:
        check_folder(record, flag)
    is_folder = target is not None and (looks_like_path(target) or Path(target).is_dir())
    policy = (
        _from_folder(existing_folder(target))
        if target and is_folder
        else _from_host(target, wait_s, interfaces)
    )
    if video:
        if policy.videos is None:
            raise UsageError("--video writes into a run's folder: name one, or say --record DIR")
        record = policy.videos
    make_env = policy.make_env()
    spec = policy.spec(make_env)
    actor = policy.actor(spec)
    with named(policy.agent_name):
        if record is None:
            rows = _play(make_env, spec, actor, episodes, seed, progress)
            videos: list[Path] = []
        else:
            open_folder = partial(VideoFolder, tidy(record), flag=flag)
            rows, videos = _play_and_record(make_env, spec, actor, episodes, seed, open_folder, progress)
    return policy.result(rows, seed, videos)


def check_csv(path: Path) -> None:
    """Raises UsageError if no file can be written there: better before the episodes than after them."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--csv {path}: name a file in a folder that exists")


def write_csv(result: EvalResult, path: Path) -> None:
    """One row per episode: its number, its seed, return and length.

    Raises:
        P2prlError: the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("episode", "seed", "return", "length"))
    writer.writerows(
        zip(range(len(result.returns)), result.seeds, result.returns, result.lengths, strict=True)
    )
    try:
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
    except OSError as error:
        raise P2prlError(f"cannot write {path}: {error.strerror}") from error


# --- p2prl test -------------------------------------------------------------------------------------------------


def watch_run(
    folder: Path, episodes: int, seed: int, render: bool, say: Callable[[str], None], took: TakeResult
) -> EvalResult:
    """Play a run's best weights greedily, one episode after the other, on the screen where there is one.

    Args:
        folder: a folder of runs, a run's, or one checkpoint's.
        say: gets one line about how it is shown, before the first episode.
        took: gets each episode's index, return and length, when it is over.

    Raises:
        P2prlError: there is no such run or checkpoint, or something is not installed.
    """
    policy = _from_folder(existing_folder(folder))
    make_env = policy.make_env()
    spec = policy.spec(make_env)
    env, why_not = _shown(make_env, spec.id) if render else (None, "not shown, as asked")
    say(why_not or f"showing {spec.id}")
    make_one = make_env if env is None else lambda: env
    actor = policy.actor(spec)
    with named(policy.agent_name):
        rows = evaluate(make_one, spec, actor, episodes, seed, took=took, slots=1, warn=log.warning)
    return policy.result(rows, seed, [])


def _shown(make_env: Callable[..., gym.Env[Any, Any]], env_id: str) -> tuple[gym.Env[Any, Any] | None, str]:
    """An environment with a window; or None, and for people why there is none."""
    if not has_display():
        return None, "not shown: there is no display here (p2prl eval --record DIR makes videos)"
    plain = _made(make_env, env_id)
    modes = plain.metadata.get("render_modes", ())
    plain.close()
    if "human" not in modes:
        return None, f"not shown: {env_id} cannot draw itself on a screen"
    try:
        env = make_env(render_mode="human")
        env.reset(seed=0)
    except Exception as error:  # noqa: BLE001 - a window system may refuse in any way; the numbers come all the same
        return None, f"not shown: {env_id} cannot open a window: {' '.join(str(error).split())}"
    return env, ""


# --- inside -----------------------------------------------------------------------------------------------------


def _play(
    make_env: Callable[..., gym.Env[Any, Any]],
    spec: EnvSpec,
    actor: Actor,
    episodes: int,
    seed: int,
    progress: TakePlayed,
) -> list[tuple[float, int]]:
    return _counted(partial(evaluate, make_env, spec, actor, episodes, seed), episodes, progress)


def _play_and_record(
    make_env: Callable[..., gym.Env[Any, Any]],
    spec: EnvSpec,
    actor: Actor,
    episodes: int,
    seed: int,
    open_folder: Callable[[int], VideoFolder],
    progress: TakePlayed,
) -> tuple[list[tuple[float, int]], list[Path]]:
    make_seen = partial(make_env, render_mode="rgb_array")
    env = _made(make_seen, spec.id)
    fps = int(env.metadata.get("render_fps", 30))
    env.close()
    with open_folder(fps) as videos:
        play = partial(evaluate, make_seen, spec, actor, episodes, seed, frames=videos.add)
        rows = _counted(play, episodes, progress)
    return rows, videos.paths


def _counted(
    play: Callable[..., list[tuple[float, int]]], episodes: int, progress: TakePlayed
) -> list[tuple[float, int]]:
    """What `play` gives, which is `evaluate` with all that it plays."""
    played = Played(episodes)

    def took(episode: int, value: float, length: int) -> None:
        played.returns.append(value)

    def stepped() -> None:
        played.steps += 1
        progress(played)

    progress(played)
    return play(took=took, stepped=stepped, warn=log.warning)


def _spec_of(make_env: Callable[..., gym.Env[Any, Any]], env_id: str) -> EnvSpec:
    env = _made(make_env, env_id)
    try:
        return env_spec(env, env_id)
    finally:
        env.close()


def _made(make_env: Callable[..., gym.Env[Any, Any]], env_id: str) -> gym.Env[Any, Any]:
    try:
        return make_env()
    except P2prlError:
        raise
    except gym.error.DependencyNotInstalled as error:
        raise MissingPackage(f"{env_id} needs a package that is not installed here: {error}") from error
    except (TypeError, ValueError, gym.error.Error) as error:
        raise P2prlError(f"{env_id} cannot be made: {error}") from error
    except FAULTS as error:
        raise P2prlError(f"{env_id} cannot be made: {raised(error)}") from error


def _from_folder(folder: Path) -> _Policy:
    chosen: checkpoint.Checkpoint
    one, aside = checkpoint.of_run(folder), checkpoint.run_of_aside(folder)
    if one is not None:
        chosen = checkpoint.load(one)
        run = one.parent.parent
    elif aside is not None:
        run, there = aside
        one_of_them = folder.absolute().parent == there
        chosen = checkpoint.load(folder) if one_of_them else checkpoint.require(there, prefer_best=True)
    else:
        run = latest_run(folder)
        chosen = checkpoint.require(run / "checkpoints", prefer_best=True)
    if not (run / EXPERIMENT_FILE).is_file():
        raise UsageError(f"{folder} is not a run's folder: it has no {EXPERIMENT_FILE}")
    if chosen.meta.updates == 0:
        raise P2prlError(f"{run.name} has learned nothing yet: its checkpoint is the untrained network")
    experiment = load_experiment(run / EXPERIMENT_FILE)
    return _Policy(
        source=f"{run.name}, checkpoint {chosen.path.name}",
        version=chosen.meta.version,
        env_id=experiment.env.id,
        env_args=dict(experiment.env.args),
        agent_name=experiment.agent.name,
        settings=dict(experiment.agent.settings),
        weights=chosen.weights,
        videos=run / "videos" / chosen.path.name,
        spaces=spaces_of_run(run),
    )


def _from_host(target: str | None, wait_s: float, interfaces: Sequence[str]) -> _Policy:
    try:
        client = open_client(target, wait_s, "p2prl eval", interfaces)
    except NoHostFound as error:
        text = f"there is no folder {target}, and {error}" if target else f"{error} (or: p2prl eval RUN_DIR)"
        raise NoHostFound(text) from error
    with client:
        welcome = client.welcome()
        header, payload = client.weights()
    run = welcome.run
    if is_file_agent(run.agent_name):
        # What a host names must not decide which file of this machine is run.
        advice = "evaluate it where it is: p2prl eval RUN_DIR on the host"
        raise UsageError(f"the agent of {welcome.host_name} is a file, {run.agent_name}; {advice}")
    return _Policy(
        source=f"live host {welcome.host_name}",
        version=header.version,
        env_id=run.env_id,
        env_args=dict(run.env_args),
        agent_name=run.agent_name,
        settings=dict(run.agent_settings),
        weights=decode_weights(payload),
        spaces=spaces_in_words(run.env),
    )
