"""`p2prl join`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from p2prl.cli.context import Interfaces, Json, Name, Target, Verbose, node_name, verbose
from p2prl.config import MAX_PLAYERS, MAX_SLOTS
from p2prl.errors import UsageError


def join(
    context: typer.Context,
    target: Target = None,
    players: Annotated[
        int | None,
        typer.Option(
            "--players",
            metavar="N",
            min=1,
            max=MAX_PLAYERS,
            help="Player processes; default: cores - 1, at least 1.",
        ),
    ] = None,
    envs: Annotated[
        int | None,
        typer.Option(
            "--envs",
            metavar="B",
            min=1,
            max=MAX_SLOTS,
            help="Environment slots of each player; default: the run's.",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="Give up (exit 3) when no host answers; default: never."
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", metavar="FILE:CLASS", help="Your own copy of a host's path/to/file.py:Class agent."
        ),
    ] = None,
    name: Name = None,
    interfaces: Interfaces = None,
    json: Json = False,
    verbose_: Verbose = False,
) -> int:
    """Join a run on this LAN and play for it."""
    from p2prl.cli.reporters import for_member
    from p2prl.nodes.join import run_join
    from p2prl.nodes.options import JoinOptions

    options = JoinOptions(
        target=target,
        players=players,
        envs=envs,
        wait_s=wait,
        agent=agent,
        name=node_name(name),
        interfaces=tuple(interfaces or ()),
        choose=_chooser(json),
    )
    with for_member(json, verbose(context)) as reporter:
        return run_join(options, reporter)


def _chooser(json: bool) -> Callable[[Sequence[str]], int] | None:
    """Asks which host to join, where there is somebody to ask."""
    return None if json or not (sys.stdin.isatty() and sys.stdout.isatty()) else _choose


def _choose(hosts: Sequence[str]) -> int:
    from p2prl.cli.output import safe, write_line

    write_line("More than one host is on this LAN:")
    for index, text in enumerate(hosts, 1):
        write_line(f"  {index}  {safe(text)}")
    try:
        answer = input(f"Which one? [1-{len(hosts)}] ")
    except EOFError:
        answer = ""
    if not answer.strip().isdecimal() or not 1 <= int(answer) <= len(hosts):
        raise UsageError(f"no host chosen; name it: p2prl join NAME, with one of {', '.join(hosts)}")
    return int(answer) - 1
