"""`p2prl experiments`."""

from __future__ import annotations

import shutil
from typing import Annotated, Any

import typer

from p2prl.cli.context import Verbose

#: Where what stands beside a name begins; beside a setting.
_COLUMN, _SETTING_COLUMN = 27, 40
_NOT_USABLE = "not usable here: "


def experiments(
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET", help="Print this preset, or TOML file, in full, as TOML to begin a file with."
        ),
    ] = None,
    verbose_: Verbose = False,
) -> int:
    """List the presets, agents and environments that are installed here."""
    from p2prl.cli.output import write_line
    from p2prl.settings import dump_experiment, find_experiment

    if preset is not None:
        write_line(dump_experiment(find_experiment(preset)).rstrip())
        return 0
    width = shutil.get_terminal_size().columns
    # First: packages that presets load register ids of their own with Gymnasium.
    environments = _environments(width)
    for line in [*_presets(width), "", *_agents(width), "", *environments]:
        write_line(line)
    return 0


def _presets(width: int) -> list[str]:
    from p2prl.settings import parse_experiment, preset_names, preset_text

    lines = [_head("presets", "p2prl host PRESET, p2prl experiments PRESET")]
    for name in preset_names():
        text = preset_text(name)
        experiment = parse_experiment(text, name)
        env, agent = experiment.env, experiment.agent
        lines += _entry(name, f"{env.id} with {agent.name}. {_first_comment(text)}", width)
        lacking = _lacking(env.id, env.args, agent.name)
        if lacking:
            lines += _entry("", f"{_NOT_USABLE}{lacking}", width)
    return lines


def _head(what: str, command: str) -> str:
    return f"{what:<{_COLUMN}}{command}"


def _entry(name: str, text: str, width: int) -> list[str]:
    from p2prl.cli.catalogue import entry

    return entry(f"  {name}", text, width, _COLUMN)


def _lacking(env_id: str, args: dict[str, Any], agent: str) -> str:
    """Why it cannot be played here, as a package that is not installed; nothing if it can."""
    from p2prl.errors import P2prlError
    from p2prl.registry import make_env_factory, resolve_agent

    try:
        resolve_agent(agent)
        make_env_factory(env_id, args)
    except P2prlError as error:
        return str(error)
    return ""


def _first_comment(text: str) -> str:
    first = text.partition("\n")[0]
    return first.lstrip("# ") if first.startswith("#") else ""


def _agents(width: int) -> list[str]:
    from p2prl.registry import agent_names

    lines = [_head("agents", "p2prl host --agent NAME --set agent.SETTING=VALUE")]
    for name in agent_names():
        lines += _agent(name, width)
    return [*lines, *_entry("path/to/file.py:Class", "your own", width)]


def _agent(name: str, width: int) -> list[str]:
    """One agent; one that cannot be loaded is listed with the reason, and does not hide the others."""
    from p2prl.errors import P2prlError
    from p2prl.registry import resolve_agent

    try:
        agent = resolve_agent(name)
    except P2prlError as error:
        return _entry(name, f"{_NOT_USABLE}{error}", width)
    return _entry(name, _first_line(agent), width) + _settings(agent.Settings, width)


def _first_line(thing: object) -> str:
    text = (thing.__doc__ or "").strip()
    return text.partition("\n")[0]


def _settings(settings: type[Any], width: int) -> list[str]:
    import json

    import msgspec

    from p2prl.cli.catalogue import entry
    from p2prl.cli.fields import field_docs

    values, docs = msgspec.to_builtins(settings()), field_docs(settings)
    lines = []
    for field in msgspec.structs.fields(settings):
        left = f"    agent.{field.name} = {json.dumps(values[field.encode_name])}"
        lines += entry(left, docs.get(field.name, ""), width, _SETTING_COLUMN)
    return lines


def _environments(width: int) -> list[str]:
    import gymnasium as gym

    from p2prl.cli.catalogue import columns, usable_ids
    from p2prl.registry import env_names

    own = [name for name in env_names() if name not in gym.registry]
    ids = usable_ids(gym.registry)
    lines = [_head("environments", "p2prl host --env ID --set env.args.NAME=VALUE")]
    for name in own:
        lines += _entry(name, _environment(name), width)
    lines += ["  of Gymnasium and of packages with ids there, the newest of each:"]
    return [
        *lines,
        *columns(ids, width, 4),
        *_entry("module:Id", "any Gymnasium id of a module, which is imported first", width),
    ]


def _environment(name: str) -> str:
    """The first line of one that an installed package announces, or why it cannot be loaded."""
    from p2prl.errors import P2prlError
    from p2prl.registry import make_env_factory

    try:
        return _first_line(make_env_factory(name, {}).source)
    except P2prlError as error:
        return f"{_NOT_USABLE}{error}"
