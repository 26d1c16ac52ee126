"""`p2prl experiments`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from p2prl.cli.context import Verbose


def experiments(
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET", help="Print this preset in full, as TOML to begin a file of your own with."
        ),
    ] = None,
    verbose_: Verbose = False,
) -> int:
    """List the presets, agents and environments that are installed here."""
    from p2prl.cli.output import write_line
    from p2prl.settings import dump_experiment, parse_experiment, preset_text

    if preset is not None:
        write_line(dump_experiment(parse_experiment(preset_text(preset), preset)).rstrip())
        return 0
    environments = (
        _environments()
    )  # first: packages that presets load register ids of their own with Gymnasium
    for line in [*_presets(), "", *_agents(), "", *environments]:
        write_line(line)
    return 0


def _presets() -> list[str]:
    from p2prl.settings import parse_experiment, preset_names, preset_text

    lines = ["presets                    p2prl host PRESET"]
    for name in preset_names():
        text = preset_text(name)
        experiment = parse_experiment(text, name)
        env, agent = experiment.env, experiment.agent
        lines.append(f"  {name:<24} {env.id} with {agent.name}. {_first_comment(text)}")
        lacking = _lacking(env.id, env.args, agent.name)
        if lacking:
            lines.append(f"  {'':<24} not usable here: {lacking}")
    return lines


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


def _agents() -> list[str]:
    from p2prl.registry import agent_names

    lines = ["agents                     p2prl host --agent NAME --set agent.SETTING=VALUE"]
    for name in agent_names():
        lines += _agent(name)
    return [*lines, f"  {'path/to/file.py:Class':<24} your own"]


def _agent(name: str) -> list[str]:
    """One agent; one that cannot be loaded is listed with the reason, and does not hide the others."""
    from p2prl.errors import P2prlError
    from p2prl.registry import resolve_agent

    try:
        agent = resolve_agent(name)
    except P2prlError as error:
        return [f"  {name:<24} not usable here: {error}"]
    lines = [f"  {name:<24} {_first_line(agent)}"]
    return lines + _settings(agent.Settings)


def _first_line(thing: object) -> str:
    text = (thing.__doc__ or "").strip()
    return text.partition("\n")[0]


def _settings(settings: type[Any]) -> list[str]:
    import json

    import msgspec

    from p2prl.cli.fields import field_docs

    values, docs = msgspec.to_builtins(settings()), field_docs(settings)
    lines = []
    for field in msgspec.structs.fields(settings):
        left = f"    agent.{field.name} = {json.dumps(values[field.encode_name])}"
        lines.append(f"{left:<40} {docs.get(field.name, '')}".rstrip())
    return lines


def _environments() -> list[str]:
    import gymnasium as gym

    from p2prl.registry import env_names

    names = env_names()
    lines = ["environments               p2prl host --env ID --set env.args.NAME=VALUE"]
    lines += [_environment(name) for name in names if name not in gym.registry]
    lines += [f"  {name}" for name in names if name in gym.registry]
    return [*lines, "  any Gymnasium id, as in CartPole-v1, or module:Id, which imports module first"]


def _environment(name: str) -> str:
    """One that an installed package announces, with its first line; what cannot be loaded is listed with the reason."""
    from p2prl.errors import P2prlError
    from p2prl.registry import make_env_factory

    try:
        return f"  {name:<24} {_first_line(make_env_factory(name, {}).source)}"
    except P2prlError as error:
        return f"  {name:<24} not usable here: {error}"
