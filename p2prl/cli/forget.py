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
    from p2prl.net.addresses import Address
    from p2prl.net.keys import fingerprint
    from p2prl.nodes.client import forget_host

    places: dict[tuple[str, str], dict[str, None]] = {}
    for known in forget_host(host):  # one for each of its runs
        where = str(Address(known.addresses[0], known.base_port))
        places.setdefault((known.name, known.server_key), {})[where] = None
    for (name, key), where_all in places.items():
        write_line(
            f"{safe(name, 60)} (key {fingerprint(key)}, at {', '.join(where_all)}) is forgotten; "
            "to join it again takes its code"
        )
    return 0
