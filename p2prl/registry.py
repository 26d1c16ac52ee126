"""Finding environments and agents by name: entry points, Gymnasium's own registry, or a file. For cli and nodes."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
from gymnasium import error as gym_error
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator

from p2prl.agent_files import class_in_file
from p2prl.blame import FAULTS, raised
from p2prl.core.spaces import EnvSpec
from p2prl.display import draw_without_window
from p2prl.errors import MissingPackage, P2prlError, UsageError
from p2prl.learn.contracts import Agent
from p2prl.learn.film import with_own_frames
from p2prl.learn.vector_environments import MakeVectorEnv, vector_maker
from p2prl.packages import install_command, missing_package

AGENTS = "p2prl.agents"
ENVS = "p2prl.envs"

#: Who registers a namespace of Gymnasium ids, where the names differ.
_NAMESPACES = {
    "ALE": "ale-py",
    "minigrid": "minigrid",
    "highway": "highway-env",
    "dm_control": "shimmy[dm-control]",
    "procgen": "procgen",
}
#: Ids whose spaces or seeds cannot be taken as they are, and how to ask for them.
_ASKED_AS = (
    (re.compile(r"((?:MiniGrid|BabyAI)-.+)"), "--env minigrid --set env.args.env={}"),
    (re.compile(r"mobile-(small|medium|large)-.+"), "--env mobile --set env.args.size={}"),
)
_AGENT_PARTS = ("Settings", "ladder", "fields", "replay", "actor", "learner")


class EnvFactory:
    """Makes one environment per call. Cheap to make; it has not made one yet.

    Attributes:
        source: the class or function behind it; for `provider` and `source_hash`.
    """

    def __init__(
        self,
        env_id: str,
        source: Any,
        make: Callable[..., gym.Env[Any, Any]],
        args: Mapping[str, Any],
        registered: GymSpec | None = None,
    ) -> None:
        """`registered`: the environment's place in Gymnasium's registry, if it is from there."""
        self.source = source
        self._env_id, self._make, self._args, self._registered = env_id, make, dict(args), registered

    def __call__(self, render_mode: str | None = None) -> gym.Env[Any, Any]:
        """A new environment.

        Raises:
            UsageError: it does not take these arguments, or cannot render so.
            MissingPackage: it needs a package that is not installed.
        """
        wanted = {} if render_mode is None else {"render_mode": render_mode}
        if {**self._args, **wanted}.get("render_mode") == "rgb_array":
            draw_without_window()
        try:
            return with_own_frames(self._make(**self._args, **wanted))
        except (gym_error.DependencyNotInstalled, ImportError) as error:
            raise missing_package(self._env_id, error) from error
        except gym_error.UnregisteredEnv as error:
            raise _unknown_env(str(self._args.get("env", self._env_id)), error) from error
        except (TypeError, ValueError, gym_error.Error) as error:
            given = (
                ", ".join(f"{key}={value!r}" for key, value in {**self._args, **wanted}.items())
                or "no arguments"
            )
            raise UsageError(f"{self._env_id} cannot be made with {given}: {_line(error)}") from error

    def vector(self, spec: EnvSpec, slots: int) -> MakeVectorEnv | None:
        """What makes so many of it as one vector environment, if Gymnasium has one; see `vector_maker`."""
        return vector_maker(self._registered, self._args, spec, slots) if self._registered else None


def env_names() -> list[str]:
    """Names of installed `p2prl.envs` entry points, then the ids that Gymnasium knows."""
    return sorted(_entry_points(ENVS)) + sorted(gym.registry)


def agent_names() -> list[str]:
    """Names of installed `p2prl.agents` entry points."""
    return sorted(_entry_points(AGENTS))


def make_env_factory(env_id: str, args: Mapping[str, Any], provided_by: str = "") -> EnvFactory:
    """Look an environment up: an entry point's name, else a Gymnasium id, which may be `module:Id`.

    Args:
        args: its keyword arguments.
        provided_by: the distribution that has it elsewhere, as `name==version`; named if nothing here has it.

    Raises:
        UsageError: no such environment; the text names the nearest.
        MissingPackage: its package is not installed.
    """
    point = _entry_points(ENVS).get(env_id)
    if point is not None:
        maker = _load(point, env_id)
        return EnvFactory(env_id, maker, maker, args)
    try:
        spec = _gym_spec(env_id)
        source = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
    except (gym_error.DependencyNotInstalled, ImportError) as error:
        raise missing_package(env_id, error, provided_by) from error
    except gym_error.Error as error:
        for pattern, flags in _ASKED_AS:
            if asked := pattern.fullmatch(env_id):
                raise UsageError(f"{env_id} is to be had as {flags.format(asked[1])}") from error
        raise _unknown_env(env_id, error, provided_by) from error
    # What players and evaluations check themselves, and say once for all slots, Gymnasium need not say beside them.
    return EnvFactory(
        env_id,
        source,
        lambda **made: gym.make(env_id, disable_env_checker=True, **made),
        args,
        registered=spec,
    )


def is_accelerated(cls: type[Agent]) -> bool:
    """Whether the agent's learner may use a GPU: yes, unless its class says `accelerated = False`."""
    return bool(getattr(cls, "accelerated", True))


def resolve_agent(name: str, provided_by: str = "") -> type[Agent]:
    """Look an agent up: an entry point's name, or `path/to/file.py:Name`.

    Raises:
        UsageError: no such agent, file or class; the text names the nearest, or what is there.
        MissingPackage: the agent needs a package that is not installed here.
    """
    path, _, class_name = name.rpartition(":")
    if is_file_agent(name):
        found = class_in_file(Path(path), class_name)
    else:
        points = _entry_points(AGENTS)
        if name not in points:
            raise _unknown_agent(name, list(points), provided_by)
        found = _load(points[name], name)
    missing = [part for part in _AGENT_PARTS if not hasattr(found, part)]
    if missing or not isinstance(found, type):
        raise UsageError(
            f"{name} is no agent: it lacks {', '.join(missing) or 'a class'}; see docs/write-an-agent.md"
        )
    return found


def is_file_agent(name: str) -> bool:
    """True for `path/to/file.py:Class`, False for an entry point's name.

    >>> is_file_agent("mine.py:Agent"), is_file_agent("dqn")
    (True, False)
    """
    return name.rpartition(":")[0].endswith(".py")


def make_agent(cls: type[Agent], env: EnvSpec, settings: Mapping[str, Any]) -> Agent:
    """An agent bound to an environment, its settings checked.

    Raises:
        UsageError: an unknown setting, a bad value, or spaces that the algorithm cannot act in; then the text names the
            installed agents that can.
    """
    known = [field.encode_name for field in msgspec.structs.fields(cls.Settings)]
    for key in settings:
        if key not in known:
            raise UsageError(f"{cls.__name__} has no setting {key!r}{_nearest(key, known)}")
    try:
        converted = msgspec.convert(dict(settings), cls.Settings, strict=True)
    except msgspec.ValidationError as error:
        text, _, place = str(error).replace("`", "").partition(" - at $.")
        where = f"{cls.__name__}'s setting {place!r}" if place else f"{cls.__name__}'s settings"
        raise UsageError(f"{where}: {text[:1].lower()}{text[1:]}") from error
    _check_constructor(cls)
    try:
        return cls(env, converted)
    except UsageError as error:
        if _can_act(cls, env):
            raise  # so it is the settings that do not fit each other
        raise UsageError(f"{error}; {_agents_for(env)}") from error
    except P2prlError:
        raise
    except FAULTS as error:
        raise UsageError(f"the agent {cls.__name__} cannot be made: {raised(error)}") from error


def _check_constructor(cls: type[Agent]) -> None:
    """Raises UsageError if an agent's class cannot be called as `cls(env, settings)`."""
    try:
        takes = inspect.signature(cls)
        takes.bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"an agent is made as {cls.__name__}(env, settings), and its __init__ takes {takes}: see "
            "docs/write-an-agent.md"
        ) from error
    except ValueError:  # of a class in C, which does not say
        return


def _agents_for(env: EnvSpec) -> str:
    """Which installed agents can act in an environment's spaces, in words. They are all imported; none needs torch."""
    able = [name for name in agent_names() if _can_act(name, env)]
    return f"agents that can: {', '.join(able)}" if able else "no installed agent can"


def _can_act(agent: str | type[Agent], env: EnvSpec) -> bool:
    try:
        cls = resolve_agent(agent) if isinstance(agent, str) else agent
        cls(env, cls.Settings())
    except FAULTS:  # perhaps a broken package, which is not the one that was asked for
        return False
    return True


def provider(source: Any) -> str:
    """The distribution that a class, function or object comes from, as `name==version`; empty if none is known."""
    module = _module_of(source)
    for group in (AGENTS, ENVS):
        for point in _entry_points(group).values():
            # A package's entry points share its top level; editable installs list no files to look it up by.
            if point.dist is not None and point.module.split(".")[0] == module.split(".")[0]:
                return f"{point.dist.name}=={point.dist.version}"
    names = metadata.packages_distributions().get(module.split(".")[0], [])
    try:
        return f"{names[0]}=={metadata.version(names[0])}" if names else ""
    except metadata.PackageNotFoundError:  # installed under a folder of another name, as some systems do
        return names[0]


def source_hash(source: Any) -> str:
    """16 hex digits that name the text of the module in which `source` is defined; empty if it has none.

    Line ends and trailing blanks do not count, so that checkouts on different systems agree.
    """
    module = sys.modules.get(_module_of(source))
    file = getattr(module, "__file__", None)
    if not file or not Path(file).is_file() or not str(file).endswith(".py"):
        return ""
    lines = [line.rstrip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def _entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=group)}


def _load(point: metadata.EntryPoint, name: str) -> Any:
    try:
        module = importlib.import_module(point.module)
    except ImportError as error:
        raise missing_package(name, error) from error
    except FAULTS as error:
        raise UsageError(f"{name} ({point.module}) cannot be imported: {raised(error)}") from error
    try:
        return functools.reduce(getattr, point.attr.split("."), module)
    except AttributeError as error:
        raise P2prlError(
            f"{name} is announced by {point.value}, which does not exist: {_line(error)}"
        ) from error


def _gym_spec(env_id: str) -> GymSpec:
    """Like gymnasium.spec, with `module:Id`, and `Id` without a version."""
    module, _, plain = env_id.rpartition(":")
    _check_no_file(module, plain)
    if module:
        _import_beside_us(module)
    versions = [key for key in gym.registry if key.rpartition("-v")[0] == plain]
    spec = gym.spec(max(versions, key=lambda key: int(key.rpartition("-v")[2])) if versions else plain)
    if spec.entry_point is None:
        raise gym_error.UnregisteredEnv(f"{env_id} exists as a vector environment only")
    return spec


def _check_no_file(module: str, plain: str) -> None:
    """Raises UsageError for `file.py:Id`, as agents are written, and `file:file.py`; it says what to write."""
    for part in (module, plain):
        path = Path(part)
        if part.endswith(".py") and path.stem.isidentifier():
            where = "" if path.parent == Path() else f", with p2prl started in {path.parent}"
            raise UsageError(
                f"an environment is not named by its file: write {path.stem}:ID{where}; ID is what {path.name} "
                f"registers with Gymnasium, as in {path.stem}:MyGame-v0"
            )


def _import_beside_us(module: str) -> None:
    """Import an environment's module: an installed one, or a file in the folder that p2prl was started in.

    That folder comes last on the path, so that nothing in it can stand in for an installed package.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    if not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"{module!r} is no Python module; write --env module:Id, as in mygame:MyGame-v0")
    try:
        importlib.import_module(module)
    except (ImportError, gym_error.Error):
        raise
    except FAULTS as error:
        raise UsageError(f"the module {module} cannot be imported: {raised(error)}") from error


def _unknown_env(env_id: str, error: Exception, provided_by: str = "") -> P2prlError:
    namespace = env_id.rpartition("/")[0].rpartition(":")[2]
    package = provided_by or _NAMESPACES.get(namespace, "")
    if package:
        return MissingPackage(
            f"{env_id} needs a package that is missing here: {install_command(package)}", package
        )
    bare = _newest(env_names())
    close = difflib.get_close_matches(env_id, list(bare.values()), 3, 0.6)
    close += [bare[key] for key in difflib.get_close_matches(env_id.lower(), list(bare), 3, 0.6)]
    if not close and isinstance(error, gym_error.NamespaceNotFound):
        return UsageError(
            f"no installed package registers {namespace}/...; install the one that does, or --env module:Id"
        )
    return UsageError(
        f"no environment {env_id!r}{_listed(list(dict.fromkeys(close))[:3], 'p2prl experiments lists them')}"
    )


def _newest(names: Iterable[str]) -> dict[str, str]:
    """Of ids that differ in their version alone the newest, by the id without it, in lower case."""
    newest: dict[str, tuple[int, str]] = {}
    for name in names:
        base, _, version = name.rpartition("-v")
        key, number = (base, int(version)) if base and version.isdecimal() else (name, 0)
        newest[key.lower()] = max(newest.get(key.lower(), (-1, "")), (number, name))
    return {key: name for key, (_, name) in newest.items()}


def _unknown_agent(name: str, known: list[str], provided_by: str) -> P2prlError:
    if provided_by:
        return MissingPackage(f"agent {name!r} is missing here: {install_command(provided_by)}", provided_by)
    if not known:
        return UsageError(
            f"no agent {name!r}: no agents are installed at all; install p2prl itself (pip install -e .)"
        )
    if name.endswith(".py"):
        return UsageError(f"agent {name!r} is a file: say which class in it, as in {name}:Class")
    return UsageError(f"no agent {name!r}{_nearest(name, known)} (one of your own: path/to/file.py:Class)")


def _nearest(word: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(word, names, 3, 0.5)
    return _listed(close, f"there are {', '.join(names)}" if names else "there are none")


def _listed(close: list[str], otherwise: str) -> str:
    return f"; did you mean {' or '.join(close)}?" if close else f"; {otherwise}"


def _module_of(source: Any) -> str:
    if isinstance(source, gym.Env):
        source = type(source.unwrapped)
    if not inspect.isclass(source) and not inspect.isroutine(source):
        source = type(source)
    return str(source.__module__)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
