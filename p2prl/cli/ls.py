"""`p2prl ls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from p2prl.cli.context import Interfaces, Json, Verbose
from p2prl.cli.units import time
from p2prl.errors import NoHostFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from p2prl.net.cards import FoundHost

#: Wider than any table of hosts.
_WIDEST = 10_000


def ls(
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="TIME",
            parser=time("--timeout", 0.1, 600.0),
            help="How long to listen: 10 (seconds), 1m.",
        ),
    ] = 2.0,
    interfaces: Interfaces = None,
    json: Json = False,
    verbose_: Verbose = False,
) -> int:
    """List the hosts on this LAN; exit 3 if there are none."""
    from p2prl.nodes.client import find_hosts

    hosts = sorted(find_hosts(timeout, tuple(interfaces or ())), key=lambda host: (host.name, host.run_id))
    if not hosts:
        raise NoHostFound(
            f"no host announced itself in {timeout:g} s; where multicast is blocked, p2prl join ADDRESS works"
        )
    if json:
        from p2prl.cli.output import write_json

        for host in hosts:
            write_json(host_object(host))
    else:
        from p2prl.cli.screen import plain_console

        console = plain_console()
        console.print(hosts_view(hosts, console.width))
    return 0


def host_object(host: FoundHost) -> dict[str, Any]:
    """A host as JSON. All of it is what the host announced: a hint, not a fact."""
    return {
        "name": host.name,
        "run_id": host.run_id,
        "addresses": list(host.addresses),
        "base_port": host.base_port,
        "env": host.env,
        "agent": host.agent,
        "protocol": host.protocol,
        "term": host.term,
        "boot_id": host.boot_id,
        "fingerprint": host.fingerprint,
    }


def hosts_view(hosts: Sequence[FoundHost], width: int) -> RenderableType:
    """The hosts for people: a table where it has room, else some lines for each, so that nothing is cut."""
    from rich.console import Console, Group
    from rich.measure import Measurement
    from rich.text import Text

    table = host_table(hosts)
    wide = Console(width=_WIDEST)
    if Measurement.get(wide, wide.options, table).maximum <= width:
        return table
    return Group(*(Text(line, overflow="fold") for host in hosts for line in _lines(host)))


def _lines(host: FoundHost) -> list[str]:
    """A host's name, what it runs, and each address as `p2prl join` takes it."""
    from p2prl.cli.output import safe

    what = f"{safe(host.env, 200)} · {safe(host.agent, 200)} · run {safe(host.run_id[:8])}"
    where = [f"[{address}]" if ":" in address else address for address in map(safe, host.addresses)]
    return [safe(host.name, 200), f"  {what}", *(f"  {address}:{host.base_port}" for address in where)]


def host_table(hosts: Sequence[FoundHost]) -> Table:
    """One row for each host; each of its addresses has a line of its own."""
    from rich.table import Table
    from rich.text import Text

    from p2prl.cli.output import safe

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("name", "address", "base port", "environment", "agent", "run"):
        table.add_column(title, no_wrap=True, overflow="fold")
    for host in hosts:
        addresses = "\n".join(safe(address, 200) for address in host.addresses)
        others = (host.base_port, host.env, host.agent, host.run_id[:8])
        table.add_row(
            Text(safe(host.name, 200)), Text(addresses), *(Text(safe(cell, 200)) for cell in others)
        )
    return table
