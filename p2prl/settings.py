"""TOML and `key=value` to an Experiment and back. A leaf: it imports nothing of p2prl but leaves.

In TOML an agent's settings stand beside its name (`[agent]` / `name = "dqn"` / `lr = 0.001`); a table
`[agent.settings]` is read too, for an algorithm that has a setting called `name`. Keys are written with dots
on the command line: `agent.learning_rate`, `env.args.size`, `replay.batch`.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from p2prl.config import AgentConfig, EnvConfig, Experiment, ReplayConfig
from p2prl.errors import UsageError
from p2prl.places import tidy
from p2prl.words import in_words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PRESET = "cartpole"
EXPERIMENT_FILE = "experiment.toml"
RUN_FILE = "run.json"

Struct = TypeVar("Struct", bound=msgspec.Struct)
Tree = dict[str, Any]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|k|m|g|t|ki|mi|gi|ti)b?", re.IGNORECASE)
_DECIMAL = {prefix: 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))}
_BINARY = {f"{prefix}i": 1024**power for power, prefix in enumerate(("k", "m", "g", "t"), 1)}
#: Of a number of bytes: more would not even fit into a float.
_MOST_DIGITS = 30
_UNITS = {**_DECIMAL, **_BINARY}


# --- what people name: presets, files, run folders ----------------------------------------------------------


def preset_names() -> list[str]:
    """The presets that come with p2prl, sorted."""
    folder = resources.files("p2prl.experiments")
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """A preset's TOML. Raises UsageError, naming the nearest presets."""
    if name not in preset_names():
        hint = nearest(name, preset_names()) or f"presets: {', '.join(preset_names())}"
        raise UsageError(f"no preset or TOML file is called {name!r}; {hint}")
    return (resources.files("p2prl.experiments") / f"{name}.toml").read_text(encoding="utf-8")


def find_experiment(name: str) -> Experiment:
    """The experiment that `name` means: a preset, or the path of a TOML file. Raises UsageError."""
    is_path = name.endswith(".toml") or "/" in name or "\\" in name
    if is_path or (name not in preset_names() and Path(name).is_file()):
        return load_experiment(Path(name))
    return parse_experiment(preset_text(name), f"preset {name}")


def latest_run(results: Path, experiment: str | None = None) -> Path:
    """A run's folder: `results` itself, or the run in it that was started last.

    A run that has a checkpoint goes before one that has none: that one failed at once, and holds nothing.

    Args:
        experiment: only runs of the experiment of this name.

    Raises:
        UsageError: there is no such run.
    """
    if (results / EXPERIMENT_FILE).is_file():
        return results
    files = sorted(results.glob(f"*/{EXPERIMENT_FILE}"), key=lambda file: file.stat().st_mtime)
    runs = [file.parent for file in files if experiment in (None, load_experiment(file).name)]
    if not runs:
        what = f"a run of {experiment!r}" if experiment else "a run"
        raise UsageError(
            f"{results} does not hold {what}: name a run's folder, or the folder that holds runs"
        )
    return max(runs, key=lambda run: (has_checkpoint(run), runs.index(run)))


class _HostName(msgspec.Struct):
    """What is wanted of `run.json` here."""

    host_name: str = ""


def last_host_name(run: Path) -> str | None:
    """The name under which a run was hosted last, so that `p2prl join NAME` still finds it; None if not known."""
    try:
        return msgspec.json.decode((run / RUN_FILE).read_bytes(), type=_HostName).host_name or None
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def has_checkpoint(run: Path) -> bool:
    """True if a run's folder holds a finished checkpoint."""
    return any((run / "checkpoints").glob("*/DONE"))


# --- TOML ---------------------------------------------------------------------------------------------------


def load_experiment(path: Path) -> Experiment:
    """Read a TOML file; an agent's relative `file.py:Class` is taken from its folder. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows' editors may begin with a mark
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read the experiment {path}: {why}") from error
    experiment = parse_experiment(text, str(path))
    file, colon, name = experiment.agent.name.rpartition(":")
    if not colon or not file.endswith(".py") or Path(file).is_absolute():
        return experiment
    agent = f"{(path.parent / file).as_posix()}:{name}"
    return msgspec.structs.replace(experiment, agent=AgentConfig(agent, experiment.agent.settings))


def parse_experiment(text: str, source: str) -> Experiment:
    """TOML text to an Experiment; `source` names it in errors. Raises UsageError."""
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib's own errors are ValueErrors; numbers give others
        raise UsageError(f"{source} is not TOML: {error}") from error
    try:
        return _from_tree(tree)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def dump_experiment(experiment: Experiment) -> str:
    """The experiment as TOML, without what is None; `parse_experiment` reads it back unchanged."""
    import tomli_w

    tree = _to_tree(experiment)
    settings = tree["agent"]["settings"]
    if not {"name", "settings"} & settings.keys():
        del tree["agent"]["settings"]
        tree["agent"].update(settings)
    if not tree["env"]["args"]:
        del tree["env"]["args"]
    return tomli_w.dumps({key: value for key, value in tree.items() if value != {}})


# --- laying flags over it -----------------------------------------------------------------------------------


def with_env(experiment: Experiment, env_id: str) -> Experiment:
    """Another environment. The arguments of the old one go; so does the name, which said what it was."""
    if env_id == experiment.env.id:
        return experiment
    return msgspec.structs.replace(experiment, name=slug(env_id), env=EnvConfig(env_id))


def with_agent(experiment: Experiment, agent: str) -> Experiment:
    """Another agent. The settings and replay overrides were chosen for the old one, and go.

    A file's path is made absolute: the experiment is kept in the run's folder, where a relative one would be lost.
    """
    file, colon, class_name = agent.rpartition(":")
    if colon and file.endswith(".py"):
        agent = f"{tidy(Path(file).expanduser()).as_posix()}:{class_name}"
    if agent == experiment.agent.name:
        return experiment
    name = f"{experiment.name}-{slug(agent.rpartition(':')[2])}"
    replay = ReplayConfig(
        fsync_interval_s=experiment.replay.fsync_interval_s
    )  # of the disk, not of the agent
    return msgspec.structs.replace(experiment, name=name, agent=AgentConfig(agent), replay=replay)


def overlay(experiment: Experiment, assignments: Sequence[str], settings: Iterable[str] = ()) -> Experiment:
    """Lay `key=value` assignments over an experiment, in order.

    Args:
        assignments: as after `--set`; values are TOML, a bare word is a string, `*_bytes` may have a unit.
        settings: names of the agent's settings, for naming the nearest key only; they are not judged here.

    Raises:
        UsageError: an unknown key, or a value of the wrong type or out of bounds.
    """
    tree = _to_tree(experiment)
    hints = [f"agent.{name}" for name in settings]
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"--set wants key=value, as in seed=7, not {assignment!r}")
        _assign(tree, key.strip(), parse_value(value.strip()), hints)
    return _from_tree(tree, hints)


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself if it is not one; Python's `True` and `False` are taken as meant."""
    if text in ("True", "False"):
        return text == "True"
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return tree["value"] if len(tree) == 1 else text


def fit(kind: type[Struct], tree: Mapping[str, Any], prefix: str = "", hints: Iterable[str] = ()) -> Struct:
    """Fill the struct `kind` from plain values, each key and value judged on its own.

    Args:
        prefix: what stands before each key in an error, as in `agent.`.
        hints: more keys that exist elsewhere, to be named if one of these was meant.

    Raises:
        UsageError: one line: the key, what it wants or the nearest valid keys.
    """
    types = {field.name: field.type for field in _fields(kind)}
    values = {}
    for key, value in tree.items():
        if key not in types:
            names = dict.fromkeys([*(prefix + name for name in types), *hints])
            raise UsageError(_unknown(prefix + key, list(names)))
        values[key] = _fit_value(prefix + key, value, types[key])
    return kind(**values)


def size_bytes(key: str, text: str) -> int:
    """Bytes, as in `64000000`, `64MB` or `64MiB`. Raises UsageError, naming `key`.

    >>> size_bytes("x", "64MB"), size_bytes("x", "0")
    (64000000, 0)
    """
    match = _SIZE.fullmatch(text.strip())
    if not match or len(match[1]) > _MOST_DIGITS:
        raise UsageError(f"{key} = {text!r}: expected bytes, as in 64000000, 64MB or 64MiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def nearest(word: str, candidates: Iterable[str], count: int = 3) -> str:
    """`did you mean a or b?` for a mistyped word, or an empty string."""
    lower = {name.lower(): name for name in candidates}
    close = [lower[near] for near in difflib.get_close_matches(word.lower(), lower, count)]
    return f"did you mean {' or '.join(close)}?" if close else ""


def slug(text: str) -> str:
    """A piece of a file name: `ALE/Pong-v5` is `ale-pong-v5`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "run"


# --- inside -------------------------------------------------------------------------------------------------


def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _sections() -> dict[str, type[msgspec.Struct]]:
    return {
        f.name: f.type
        for f in _fields(Experiment)
        if isinstance(f.type, type) and issubclass(f.type, msgspec.Struct)
    }


def all_keys() -> list[str]:
    """Each key of an experiment, dotted; `env.args.NAME` and `agent.NAME` stand for the free ones."""
    sections = _sections()
    keys = [field.name for field in _fields(Experiment) if field.name not in sections]
    for name, kind in sections.items():
        keys += [f"{name}.{field.name}" for field in _fields(kind)]
    free = {"env.args": "env.args.NAME", "agent.settings": "agent.NAME"}
    return [free.get(key, key) for key in keys]


def _from_tree(tree: Tree, hints: Sequence[str] = ()) -> Experiment:
    known = [*all_keys(), *hints]
    values: dict[str, Any] = {}
    for name, kind in _sections().items():
        section = tree.get(name, {})
        if not isinstance(section, dict):
            raise UsageError(
                f"{name} is a table; its keys are {', '.join(k for k in known if k.startswith(name + '.'))}"
            )
        values[name] = fit(kind, _gathered(section) if name == "agent" else section, f"{name}.", known)
    plain = {key: value for key, value in tree.items() if key not in values}
    top = fit(Experiment, plain, "", known)
    experiment = msgspec.structs.replace(top, **values)
    try:
        msgspec.msgpack.encode(experiment)  # as every joiner is to be told it
    except (OverflowError, RecursionError) as error:
        raise UsageError(
            f"a value is too large, or nested too deeply, to be sent to others: {error}"
        ) from error
    return experiment


def _gathered(agent: Tree) -> Tree:
    """`[agent]` with the settings that stand beside the name put into `settings`."""
    table = agent.get("settings", {})
    if not isinstance(table, dict):
        raise UsageError("agent.settings is a table; one setting of it is written agent.NAME")
    beside = {key: value for key, value in agent.items() if key not in ("name", "settings")}
    named = {"name": agent["name"]} if "name" in agent else {}
    return {**named, "settings": {**beside, **table}}


def _to_tree(experiment: Experiment) -> Tree:
    return _without_none(msgspec.to_builtins(experiment))


def _without_none(tree: Tree) -> Tree:
    """TOML has no null; an absent key has its default, which is None wherever None is allowed."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def _assign(tree: Tree, key: str, value: Any, hints: Sequence[str]) -> None:
    *path, last = key.split(".")
    if path == ["agent"] and last not in ("name", "settings"):
        path = ["agent", "settings"]
    if not (last and (len(path) < 2 or path[:2] in (["env", "args"], ["agent", "settings"]))):
        raise UsageError(_unknown(key, [*all_keys(), *hints]))
    for name in path:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise UsageError(_unknown(key, [*all_keys(), *hints]))
    tree[last] = value


def _unknown(key: str, known: Sequence[str]) -> str:
    near = _nearest_keys(key, known)
    if near:
        return f"unknown key {key!r}; did you mean {' or '.join(near)}?"
    if key.startswith("env."):
        return f"unknown key {key!r}; an argument of the environment is written env.args.{key[4:]}"
    section = key.rpartition(".")[0]
    valid = [name for name in known if section and name.rpartition(".")[0] == section]
    return f"unknown key {key!r}; valid: {', '.join(valid or [field.name for field in _fields(Experiment)])}"


def _nearest_keys(key: str, known: Sequence[str]) -> list[str]:
    """At most three: the same last part under another table, else a mistyped one, else a mistyped table."""
    section, _, tail = key.rpartition(".")
    same = [name for name in known if name.rpartition(".")[2] == tail]
    if same:
        return same[:3]
    tails = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
    close = [tails[near] for near in difflib.get_close_matches(tail, tails, 3)]
    every = {name.rpartition(".")[2]: name for name in known}
    return close or [every[near] for near in difflib.get_close_matches(tail, every, 3, cutoff=0.75)]


def _fit_value(key: str, value: Any, kind: Any) -> Any:
    if key.endswith(("_bytes", "_bytes_per_s")) and isinstance(value, str):
        value = size_bytes(key, value)
    if isinstance(value, float) and value.is_integer() and not _converts(value, kind):
        value = int(value)  # 1e6 is a float in TOML, and how people write a million
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{key} = {value}: must be finite")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{key} = {value!r}: {_why(error, value, kind)}") from error


def _converts(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _why(error: msgspec.ValidationError, value: Any, kind: Any) -> str:
    choices = [choice for choice in _choices(kind) if choice is not None]
    if choices:
        near = nearest(value, choices) if isinstance(value, str) else ""
        return f"must be one of {', '.join(choices)}" + (f"; {near}" if near else "")
    return in_words(str(error))


def _choices(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [choice for part in get_args(kind) for choice in _choices(part)]
