"""A run's nodes as a table, and what troubles them: beside a node where that fits, else for below the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p2prl.cli.figures import state_text
from p2prl.cli.lines import reasons, still_refused
from p2prl.cli.output import count, decimal, safe
from p2prl.core.messages import NodeStatus
from p2prl.words import many

#: A node's return is over all its slots: it is told with how much they explore.
_SCORE = ("steps", "episodes", "return (all)", "explores")
#: From these widths on, a node's address, steps, episodes, return and exploration have room; then its system too.
_WIDE, _WIDEST = 110, 150
#: What a narrow terminal does without, the first first: a node's name and state are to be whole.
_LEAST = ("players", "behind", "steps/s")
_GAP = 2
_NAME_WIDTH, _WHERE_WIDTH = 24, 16
#: How the broker begins a fault of the kind "player".
_PLAYER_ENDED = "player: "


class NodeTable:
    """Those that play first, the host's own before others, those that are gone last.

    Those of before the host's start are only counted: they would look like this lesson's.

    Args:
        rows: most rows; None for all nodes.
    """

    def __init__(self, nodes: Sequence[NodeStatus], width: int, rows: int | None) -> None:
        now = [node for node in nodes if not node.before]
        self._before = len(nodes) - len(now)
        ordered = sorted(
            now, key=lambda node: (node.state == "gone", not node.own, -node.steps_per_s, node.name)
        )
        rows = None if rows is None else rows - bool(self._before)
        self._shown = ordered if rows is None or len(ordered) <= rows else ordered[: max(1, rows - 1)]
        self._more = len(ordered) - len(self._shown)
        self._head = f"node ({node_count(nodes)})"
        self._width = width
        self._room = (width >= _WIDE) + (width >= _WIDEST)
        self._cells = [_row(node, self._room) for node in self._shown]
        self._titles = _titles(self._head, self._room)
        for title in _LEAST:
            if sum(self._widths()) >= width:  # the last column, for what troubles a node, takes one
                self._leave_out(self._titles.index(title))
        self._beside = width - sum(self._widths())

    def below(self) -> list[str]:
        """What troubles a node and does not fit beside it."""
        return [
            f"{safe(node.name, _NAME_WIDTH)}: {_trouble(node)}"
            for node in self._shown
            if not self._has_room(node)
        ]

    def _has_room(self, node: NodeStatus) -> bool:
        return Text(_trouble(node)).cell_len <= max(0, self._beside)

    def _leave_out(self, column: int) -> None:
        del self._titles[column]
        for cells in self._cells:
            del cells[column]

    def _widths(self) -> Iterator[int]:
        for index, title in enumerate(self._titles):
            widest = max([len(title), *(cells[index].cell_len for cells in self._cells)])
            yield min(widest, _most(index, self._room) or widest) + _GAP

    def render(self) -> RenderableType:
        """The table, and how many nodes it leaves out."""
        return Group(self._table() if self._shown else Text("no node is here", "yellow"), *self._left_out())

    def _left_out(self) -> list[Text]:
        told = [(f"… and {self._more} more", "p2prl status")] if self._more else []
        if self._before:
            told.append((f"{many(self._before, 'node')} of before not back", "p2prl status --json"))
        whole = [f"{what}: {where}" for what, where in told]
        return [
            Text(text if len(text) <= self._width else what, "dim")
            for text, (what, _) in zip(whole, told, strict=True)
        ]

    def _table(self) -> Table:
        table = Table(
            box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim", width=self._width
        )
        for index, title in enumerate(self._titles):
            words = index <= self._room + 1  # the name, where it is, and its state; the others are numbers
            table.add_column(
                title,
                justify="left" if words else "right",
                no_wrap=True,
                overflow="ellipsis",
                max_width=_most(index, self._room),
            )
        table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
        for cells, node in zip(self._cells, self._shown, strict=True):
            table.add_row(*cells, Text(_trouble(node) if self._has_room(node) else "", "yellow"))
        return table


def node_count(nodes: Sequence[NodeStatus]) -> str:
    """How many are here, and of how many that were since the start, if some are gone."""
    here = sum(node.state != "gone" for node in nodes)
    since = sum(not node.before for node in nodes)
    return count(here) if here == since else f"{count(here)} of {count(since)}"


def _titles(head: str, room: int) -> list[str]:
    where = ("address", "system")[:room]
    return [head, *where, "state", "players", *(_SCORE if room else ()), "steps/s", "behind"]


def _most(column: int, room: int) -> int | None:
    """Most columns of the terminal that one of the table's takes; None for any."""
    return _NAME_WIDTH if column == 0 else _WHERE_WIDTH if column <= room else None


def _row(node: NodeStatus, room: int) -> list[Text]:
    name = Text(safe(node.name, 40))
    if node.own:
        name.append(" (own)", "dim")
    where = [Text(safe(node.address, 40)), Text(safe(node.system, 40))][:room]
    low, high = (f"{level:.2g}" for level in node.levels)
    explores = low if low == high else f"{low}-{high}"
    score = [count(node.steps), count(node.episodes), decimal(node.return_mean_all), explores] if room else []
    numbers = [str(node.players), *score, count(node.steps_per_s), str(node.lag)]
    dim = "dim" if node.state == "gone" else ""
    cells = [Text(number, dim) for number in numbers]
    out = node.standing in ("removed", "quarantined")
    state = state_text(node.standing if out else node.state)
    return [name, *where, state, *cells]


def _trouble(node: NodeStatus) -> str:
    """Why it does not work, the last fault it told, or what it sent that was refused; in this order."""
    faults = _lasting(node)
    if node.reason or faults:
        return safe(node.reason or faults[-1])
    if refused := still_refused(node.refused_by_host, node.standing):
        return f"refused: {reasons(refused)}"
    return f"{many(node.bundles.refused, 'bundle')} refused" if node.bundles.refused else ""


def _lasting(node: NodeStatus) -> list[str]:
    """Its faults without a player's end, once all players are back at work."""
    at_work = node.state == "working" and all(
        player.state == "working" and not player.reason for player in node.player_reports
    )
    return [fault for fault in node.faults if not (at_work and fault.startswith(_PLAYER_ENDED))]
