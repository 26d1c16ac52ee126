"""`p2prl join`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.context import Interfaces, Json, Name, Target, Verbose, node_name, verbose
from p2prl.cli.credentials import code_asker, given_code, somebody_is_there
from p2prl.cli.units import time, whole
from p2prl.config import MAX_PLAYERS, MAX_SLOTS
from p2prl.errors import UsageError
from p2prl.settings import size_bytes


def join(
    context: typer.Context,
    target: Target = None,
    players: Annotated[
        int | None,
        typer.Option(
            "--players",
            metavar="N",
            parser=whole("--players", 1, MAX_PLAYERS, 2),
            help="Player processes; default: cores - 1, at least 1.",
        ),
    ] = None,
    envs: Annotated[
        int | None,
        typer.Option(
            "--envs",
            metavar="B",
            parser=whole("--envs", 1, MAX_SLOTS, 8),
            help="Environment slots of each player; default: the run's.",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="TIME",
            parser=time("--wait", 0.0),
            help="Give up (exit 3) when no host answers for so long: 90 (seconds), 2m; default: never.",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", metavar="FILE:CLASS", help="Your own copy of a host's path/to/file.py:Class agent."
        ),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(
            "--code",
            metavar="CODE",
            help="The host's join code; default: $P2PRL_CODE, or you are asked. Needed once for each host.",
        ),
    ] = None,
    code_file: Annotated[
        Path | None,
        typer.Option("--code-file", metavar="FILE", help="Take the join code from this file's first line."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="FILE|TOKEN",
            help="Join with a token from p2prl invite, where nobody types: it holds address, key and secret.",
        ),
    ] = None,
    spool: Annotated[
        str,
        typer.Option(
            "--spool",
            metavar="SIZE",
            help="Keep so much on disk while the host is away, as in 500MB or 2GB; 0 for nothing.",
        ),
    ] = "1GB",
    name: Name = None,
    interfaces: Interfaces = None,
    json: Json = False,
    verbose_: Verbose = False,
) -> int:
    """Join a run on this LAN and play for it."""
    from p2prl.cli.piped import for_member
    from p2prl.nodes.join import run_join
    from p2prl.nodes.options import JoinOptions

    options = JoinOptions(
        target=target or None,
        players=players,
        envs=envs,
        wait_s=wait,
        agent=agent,
        name=node_name(name),
        interfaces=tuple(interfaces or ()),
        choose=_choose if somebody_is_there(json) else None,
        code=given_code(code, code_file, token),
        token=token,
        ask_code=code_asker(json),
        spool_bytes=size_bytes("--spool", spool),
    )
    with for_member(json, verbose(context)) as reporter:
        return run_join(options, reporter)


def _choose(hosts: Sequence[str]) -> int:
    """Asks which host to join."""
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
