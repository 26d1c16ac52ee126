"""`p2prl code` and `p2prl invite`: what the owner gives to those who are to join."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from p2prl.cli.context import Json, OwnTarget, Verbose, Wait
from p2prl.cli.units import seconds, whole
from p2prl.errors import UsageError
from p2prl.words import many

if TYPE_CHECKING:
    from p2prl.core.messages import CodeNews


def code(
    target: OwnTarget = None,
    new: Annotated[
        bool, typer.Option("--new", help="Make a new one; the old one lets in nobody any more.")
    ] = False,
    wait: Wait = 5.0,
    json: Json = False,
    verbose_: Verbose = False,
) -> int:
    """Show your host's join code, or make a new one: the code alone on stdout, its limits on stderr."""
    from p2prl.cli.joincode import limits
    from p2prl.cli.output import safe, write_json, write_line, write_log
    from p2prl.nodes.owner import open_owner

    with open_owner(target, wait, "p2prl code") as owner:
        news = owner.new_code() if new else owner.code()
    if json:
        write_json(code_object(news))
    elif not news.code:
        write_log("there is no join code now; p2prl code --new makes one")
    else:
        write_line(safe(news.code))
        if told := limits(news.uses, news.ttl_s):
            write_log(f"valid {told}")
    return 0


def code_object(news: CodeNews) -> dict[str, Any]:
    """`p2prl code --json`."""
    return {"code": news.code, "uses": news.uses, "ttl_s": news.ttl_s}


def invite(
    target: OwnTarget = None,
    uses: Annotated[
        int,
        typer.Option(
            "--uses",
            metavar="N",
            parser=whole("--uses", 1, 1000, 30),
            help="How many nodes it lets in.",
        ),
    ] = 1,
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="TIME", help="How long it is valid: 90 (seconds), 15m, 2h, 1d.")
    ] = "1d",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write it there, readable by you alone; not over a file. Default: stdout.",
        ),
    ] = None,
    wait: Wait = 5.0,
    verbose_: Verbose = False,
) -> int:
    """Make a token, for machines where nobody types: the host's address, its key, and a secret, in one text."""
    from p2prl.cli.output import duration, write_line, write_log
    from p2prl.nodes.owner import open_owner

    ttl_s = seconds("--ttl", ttl)
    if out is not None and out.is_file() and out.stat().st_size:
        raise UsageError(
            f"{out} is there already, and may hold a token that is still valid: name another file, or delete that one"
        )
    with open_owner(target, wait, "p2prl invite") as owner:
        text, made = owner.invite(uses, ttl_s)
    if out is None:
        write_line(text)
    else:
        _write(out, text)
    limits = f"for {many(made.uses, 'node')}, for {duration(made.ttl_s)}"
    where = "'TEXT'" if out is None else str(out)
    write_log(f"a token {limits}; on the other machine: p2prl join --token {where}")
    return 0


def _write(file: Path, text: str) -> None:
    from p2prl.net.keys import write_private
    from p2prl.nodes.files import write_where_named

    try:
        write_where_named(file, text.encode() + b"\n", write_private)
    except OSError as error:
        raise UsageError(f"--out {file} cannot be written: {error.strerror}") from error
