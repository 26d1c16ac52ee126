"""What was typed wrongly, in one line that says what is wanted: typer's own texts are for those who know it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_EXTRA = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)")


def mistake(error: BaseException, args: Sequence[str], commands: Callable[[], Mapping[str, Any]]) -> str:
    """The line for one of typer's own errors; a wrong value is told by the flag's parser, see units.py.

    Args:
        args: what was typed after `p2prl`.
        commands: all of them, by name.
    """
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    known = commands()
    name = next((word for word in args if word in known), "")
    command = context.command if context is not None else known.get(name)
    path = context.command_path if context is not None else f"p2prl {name}".rstrip()
    told = _misplaced(error, path, known) or _retold(error, text, command, path)
    return f"{(told or text).rstrip('.')} (see {path} --help)"


def _retold(error: BaseException, text: str, command: Any, path: str) -> str:
    """In our words; nothing for what has none."""
    option = getattr(error, "option_name", "") or ""
    parameter = getattr(error, "param", None)
    if text.startswith("No such command"):
        return _unknown_command(text, command)
    if option and (near := getattr(error, "possibilities", None)):
        return f"no such option {option}; did you mean {' or '.join(sorted(near))}?"
    if option and "requires an argument" in text:
        return f"{option} wants a value{_of(_parameter(command, option))}"
    if option and "does not take a value" in text:
        return f"{option} takes no value: leave out what follows it"
    if text.startswith("Missing argument") and parameter is not None:
        return f"{path} wants a {parameter.metavar}{_of(parameter)}"
    if extra := _EXTRA.match(text):
        return f"{path} takes {_arguments(command)}; too much: {extra[1]}"
    return ""


def _misplaced(error: BaseException, path: str, commands: Mapping[str, Any]) -> str:
    """A command's flag that stands before the command."""
    option = getattr(error, "option_name", "") or ""
    having = [f"p2prl {name}" for name, command in commands.items() if _parameter(command, option)]
    if path != "p2prl" or not having or type(error).__name__ != "NoSuchOption":
        return ""
    return f"{option} is a flag of {', '.join(having[:3])}: write it after the command"


def _of(parameter: Any) -> str:
    """How a value is written, and what it is."""
    if parameter is None:
        return ""
    shown = parameter.opts[0] if parameter.opts[0].startswith("-") else ""
    how = f", as in {shown} {parameter.metavar}" if shown else ""
    what = (getattr(parameter, "help", "") or "").rstrip(".")
    what = what[:1].lower() + what[1:]
    return f"{how}: {what}" if what else how


def _parameter(command: Any, option: str) -> Any:
    parameters = command.params if command is not None else []
    return next((one for one in parameters if option in one.opts), None)


def _arguments(command: Any) -> str:
    names = [one.metavar for one in command.params if getattr(one, "param_type_name", "") == "argument"]
    return f"one {' and one '.join(names)}, and flags" if names else "flags alone"


def _unknown_command(text: str, command: Any) -> str:
    """Says which command was meant; older typers do not."""
    from p2prl.settings import nearest

    commands = getattr(command, "commands", {})
    word = text.removeprefix("No such command ").partition(". Did you mean")[0].strip(".'\"")
    return f"no such command {word}; {nearest(word, commands) or 'there are: ' + ', '.join(commands)}"
