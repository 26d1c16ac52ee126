"""`p2prl status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.context import AnyTarget, Interfaces, Json, Verbose, Wait

if TYPE_CHECKING:
    from collections.abc import Iterable

    from p2prl.core.messages import StatusReply


def status(
    target: AnyTarget = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, about once a second, until Ctrl-C.")] = False,
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


def _print_json(replies: Iterable[StatusReply]) -> None:
    from p2prl.cli.output import write_json
    from p2prl.cli.shapes import run_status

    for reply in replies:
        write_json(run_status(reply))


def _print_views(replies: Iterable[StatusReply]) -> None:
    from p2prl.cli.reporters import LiveHost, terminal
    from p2prl.cli.screen import plain_console
    from p2prl.cli.view import run_view

    console = None if isinstance(replies, list) else terminal()
    if console is not None:
        view = LiveHost(console)
        with view:
            for reply in replies:
                view.status(reply)
        return
    plain = plain_console()
    for reply in replies:
        plain.print(run_view(reply, width=plain.width))
