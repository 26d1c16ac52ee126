"""`p2prl nodes`, and the owner's orders about one: `admit`, `remove`, `quarantine`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from p2prl.cli.context import Json, OwnHost, OwnTarget, Verbose, Wait
from p2prl.errors import P2prlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from p2prl.core.messages import AdmitAsk, NodeEntry, NodesReply, QuarantineAsk, RemoveAsk

Node = Annotated[
    str, typer.Argument(metavar="NODE", help="A node's name, fingerprint or key, or the beginning of one.")
]
#: Who needs the owner's word stands first.
_ORDER = ("waiting", "admitted", "quarantined", "removed")
#: Columns, in order.
_COLUMNS = ("name", "fingerprint", "standing", "how", "since", "state", "address", "refused")
#: What a narrow terminal does without, the first first.
_LEAST = ("how", "address", "refused", "since", "state")
_GAP = 2
#: Of a name in a row: at most, as many as other columns make room for, and at least.
_NAME_WIDTH, _WANTED_NAME_WIDTH, _LEAST_NAME_WIDTH = 24, 12, 6
_STYLES = {"waiting": "yellow", "admitted": "green", "quarantined": "red", "removed": "red"}


def nodes(target: OwnTarget = None, wait: Wait = 5.0, json: Json = False, verbose_: Verbose = False) -> int:
    """List every node that your host knows: who is let in, who waits for your word, who is kept out."""
    from p2prl.nodes.owner import open_owner

    with open_owner(target, wait, "p2prl nodes") as owner:
        reply, fingerprint = owner.nodes(), owner.fingerprint
    if json:
        from p2prl.cli.output import write_json

        write_json(nodes_object(reply, fingerprint))
    else:
        from p2prl.cli.screen import plain_console

        console = plain_console()
        console.print(nodes_view(reply, fingerprint, time.time(), console.width))
    return 0


def admit(node: Node, host: OwnHost = None, wait: Wait = 5.0, verbose_: Verbose = False) -> int:
    """Let a node in that waits for your word, or that you had removed."""
    from p2prl.core.messages import AdmitAsk

    return _order("admit", node, host, wait, "admitted", lambda entry: AdmitAsk(key=entry.key))


def remove(node: Node, host: OwnHost = None, wait: Wait = 5.0, verbose_: Verbose = False) -> int:
    """Put a node out at once, and keep it out: the join code does not bring it back, p2prl admit does."""
    from p2prl.core.messages import RemoveAsk

    return _order("remove", node, host, wait, "removed", lambda entry: RemoveAsk(key=entry.key))


def quarantine(
    node: Node,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let it in again, and use its sessions again.")
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; the node is told, and p2prl nodes shows it.")
    ] = "",
    host: OwnHost = None,
    wait: Wait = 5.0,
    verbose_: Verbose = False,
) -> int:
    """Keep a node out of this run, and train no more on the sessions that it gave."""
    from p2prl.core.messages import QuarantineAsk

    if undo and reason:
        raise UsageError("--reason says why a node is kept out; it has no use with --undo")

    def ask(entry: NodeEntry) -> QuarantineAsk:
        if undo and entry.standing != "quarantined":
            raise UsageError(f"{_named(entry)} is not quarantined, it is {entry.standing}")
        return QuarantineAsk(key=entry.key, reason=reason, undo=undo)

    return _order("quarantine", node, host, wait, "admitted" if undo else "quarantined", ask)


def _order(
    order: str,
    node: str,
    host: str | None,
    wait: float,
    wanted: str,
    ask: Callable[[NodeEntry], AdmitAsk | RemoveAsk | QuarantineAsk],
) -> int:
    """Find the node, give the order, and say how the node stands now."""
    from p2prl.cli.output import write_line
    from p2prl.nodes.owner import open_owner

    with open_owner(host, wait, f"p2prl {order} {node} --host") as owner:
        before = owner.find(node)
        if before.how == "own":
            raise UsageError(
                f"{_named(before)} is the host's own; for a host without any: p2prl host --players 0"
            )
        after = owner.order(ask(before))
    if after.standing != wanted:
        raise P2prlError(f"{_named(before)} is not {wanted}: it is {after.standing}")
    write_line(f"{_named(before)} is {wanted}" + _consequence(wanted, before))
    return 0


def _consequence(standing: str, before: NodeEntry) -> str:
    from p2prl.net.keys import fingerprint

    name = fingerprint(before.key)
    return {
        "removed": f": its connections are cut; p2prl admit {name} lets it in again",
        "quarantined": f": its sessions are not trained on; p2prl quarantine {name} --undo ends that",
    }.get(standing, "")


def _named(entry: NodeEntry) -> str:
    from p2prl.cli.output import safe
    from p2prl.net.keys import fingerprint

    return f"{safe(entry.name, 40)} ({fingerprint(entry.key)})"


# --- the table --------------------------------------------------------------------------------------


def nodes_object(reply: NodesReply, host_fingerprint: str) -> dict[str, Any]:
    """`p2prl nodes --json`."""
    import msgspec

    from p2prl.net.keys import fingerprint

    rows = [
        {**msgspec.to_builtins(entry), "fingerprint": fingerprint(entry.key)}
        for entry in _sorted(reply.nodes)
    ]
    code = {"code": reply.code, "uses": reply.uses, "ttl_s": reply.ttl_s}
    return {
        "host": reply.host_name,
        "fingerprint": host_fingerprint,
        "open": reply.open,
        **code,
        "nodes": rows,
    }


def nodes_view(reply: NodesReply, host_fingerprint: str, now: float, width: int = 80) -> RenderableType:
    """The nodes for people, with the join code below; who waits stands first.

    Args:
        now: seconds since the epoch.
    """
    from rich.console import Group
    from rich.text import Text

    from p2prl.cli.output import safe
    from p2prl.net.keys import fingerprint

    entries = _sorted(reply.nodes)
    lines: list[RenderableType] = [
        _table(entries, now, width) if entries else Text("no node has come yet", "yellow")
    ]
    lines += [
        Text(f"! {safe(entry.name, 40)}: {_trouble(entry)}", "yellow") for entry in entries if _trouble(entry)
    ]
    lines.append(Text())
    if entries and entries[0].standing == "waiting":
        lines.append(Text(f"to let in   p2prl admit {fingerprint(entries[0].key)}", "yellow"))
    lines.append(_code_line(reply))
    lines.append(Text(f"host        {safe(reply.host_name, 60)}, key {host_fingerprint}"))
    return Group(*lines)


def _trouble(entry: NodeEntry) -> str:
    """Why a node is kept out, and what was refused of it."""
    from p2prl.cli.lines import reasons, still_refused
    from p2prl.cli.output import safe

    counts = still_refused(entry.refused, entry.standing)
    refused = f"refused: {reasons(counts)}" if counts else ""
    return "; ".join(part for part in (safe(entry.reason), refused) if part)


def _code_line(reply: NodesReply) -> RenderableType:
    from rich.text import Text

    from p2prl.cli.joincode import code_text

    if reply.open:
        return Text("join code   not needed: the host is open to any machine")
    if not reply.code:
        return Text("join code   none now; p2prl code --new makes one", "yellow")
    return Text("join code   ").append(code_text(reply.code, reply.uses, reply.ttl_s))


def _table(entries: Sequence[NodeEntry], now: float, width: int) -> Table:
    """One row each; on a narrow terminal without what matters least, so that the others stay whole."""
    from rich.table import Table

    rows = [_cells(entry, now) for entry in entries]
    widest = {title: max(len(title), *(row[title].cell_len for row in rows)) for title in _COLUMNS}
    wanted = min(widest["name"], _WANTED_NAME_WIDTH)
    kept = list(_COLUMNS)
    for title in _LEAST:
        if wanted + sum(_GAP + widest[other] for other in kept[1:]) > width:
            kept.remove(title)
    room = width - sum(_GAP + widest[title] for title in kept[1:])
    widest["name"] = max(_LEAST_NAME_WIDTH, min(widest["name"], _NAME_WIDTH, room))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for title in kept:
        table.add_column(title, width=widest[title], overflow="fold")
    for row in rows:
        table.add_row(*(row[title] for title in kept))
    return table


def _cells(entry: NodeEntry, now: float) -> dict[str, Text]:
    from rich.text import Text

    from p2prl.cli.lines import still_refused
    from p2prl.cli.output import count, safe
    from p2prl.net.keys import fingerprint

    refused = sum(still_refused(entry.refused, entry.standing).values())
    away = "-" if entry.standing == "waiting" else "not here"
    return {
        "name": Text(safe(entry.name, 40)),
        "fingerprint": Text(fingerprint(entry.key)),
        "standing": Text(safe(entry.standing), _STYLES.get(entry.standing, "")),
        "how": Text(safe(entry.how, 10)),
        "since": Text(_ago(now - entry.since) if entry.since else "-"),
        "state": Text(safe(entry.state, 20) or away),
        "address": Text(safe(entry.address, 45) or "-"),
        "refused": Text(count(refused) if refused else "-"),
    }


def _sorted(entries: Sequence[NodeEntry]) -> list[NodeEntry]:
    return sorted(
        entries,
        key=lambda entry: (
            _ORDER.index(entry.standing) if entry.standing in _ORDER else len(_ORDER),
            entry.name,
            entry.key,
        ),
    )


def _ago(seconds: float) -> str:
    """`12 s`, `5 m`, `3 h`, `4 d`: one unit is enough to tell today's class from last week's."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
