"""`p2prl status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.context import AnyTarget, Interfaces, Json, Verbose, Wait

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from p2prl.core.messages import StatusReply
    from p2prl.nodes.report import Silence


def status(
    target: AnyTarget = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Go on, about once a second, until Ctrl-C; a host that does not answer is waited for.",
        ),
    ] = False,
    wait: Wait = 5.0,
    interfaces: Interfaces = None,
    json: Json = False,
    verbose_: Verbose = False,
) -> int:
    """Show how a run is doing: its totals, every node, every shard."""
    from p2prl.nodes.client import fetch_status, watch_status

    where = (target, wait, tuple(interfaces or ()))
    replies = watch_status(*where) if watch else [fetch_status(*where)]
    show = _print_json if json else _print_views
    try:
        show(replies)
    except KeyboardInterrupt:
        if not watch:
            raise
    return 0


def _print_json(replies: Iterable[StatusReply | Silence]) -> None:
    from p2prl.cli.output import write_json
    from p2prl.cli.shapes import run_status

    for reply in _answers(replies):
        write_json(run_status(reply))


def _print_views(replies: Iterable[StatusReply | Silence]) -> None:
    from p2prl.cli.reporters import LiveHost, terminal
    from p2prl.cli.screen import plain_console
    from p2prl.cli.view import run_view
    from p2prl.nodes.report import Silence

    console = None if isinstance(replies, list) else terminal()
    if console is not None:
        view = LiveHost(console)
        with view:
            for reply in replies:
                if isinstance(reply, Silence):
                    view.silent(reply)
                else:
                    view.status(reply)
        return
    plain = plain_console()
    for reply in _answers(replies):
        plain.print(run_view(reply, width=plain.width))


def _answers(replies: Iterable[StatusReply | Silence]) -> Iterator[StatusReply]:
    """The answers; where a silence begins and ends, a line on stderr."""
    from p2prl.cli.lines import silence_line
    from p2prl.cli.output import complain, safe
    from p2prl.nodes.report import Silence

    silent = False
    for reply in replies:
        if isinstance(reply, Silence):
            if not silent:
                complain(silence_line(reply))
            silent = True
            continue
        if silent:
            complain(f"{safe(reply.host_name)} answers again")
        silent = False
        yield reply
