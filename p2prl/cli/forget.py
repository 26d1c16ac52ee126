"""`p2prl forget`."""

from __future__ import annotations

from typing import Annotated

import typer

from p2prl.cli.context import Verbose


def forget(
    host: Annotated[
        str,
        typer.Argument(
            metavar="HOST", help="Its name, address, key or fingerprint, as this machine knew it."
        ),
    ],
    verbose_: Verbose = False,
) -> int:
    """Forget the key of a host that was joined before: for a host that was set up anew, and has another key."""
    from p2prl.cli.output import safe, write_line
    from p2prl.net.keys import fingerprint
    from p2prl.nodes.client import forget_host

    for known in forget_host(host):
        where = f"{known.addresses[0]}:{known.base_port}"
        write_line(
            f"{safe(known.name, 60)} (key {fingerprint(known.server_key)}, at {where}) is forgotten; "
            "to join it again takes its code"
        )
    return 0
