"""What a person sees of a run or of a member: pure functions from a status to lines that fit the terminal.

All text that came from another machine goes through `safe` and into `Text`, never through rich's markup.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.text import Text

from p2prl.cli.bars import bars
from p2prl.cli.figures import books_line, books_lines, broken, figure, fitted, state_text, whole, with_reason
from p2prl.cli.lines import OVER, playing_on, spooled, versions_text
from p2prl.cli.node_table import NodeTable, node_count
from p2prl.cli.output import count, decimal, duration, safe
from p2prl.core.messages import ShardStatus, StatusReply
from p2prl.nodes.report import Joined, MemberStatus
from p2prl.words import many, sized

#: Lines that warnings may take, and as a part of the height if that is more: how a failure ends says what to do.
_WARNING_LINES, _WARNING_PART = 7, 0.4
#: Lines that are left to the nodes.
_NODE_LINES = 3
#: Lines that warnings have at least, if there are any.
_LEAST_WARNING_LINES = 2
_MOST_NAMES = 3
#: Trainer's states whose reason is a warning.
_LOUD = ("stalled", "failed")
#: Why a run ends, in few words, for which a long name makes room in the title.
_NAME_WIDTH = 40
_STOPPING = {
    "signal": "asked to end",
    "return": "return reached",
    "steps": "steps reached",
    "time": "time is over",
    "error": "it failed",
}


def run_view(
    status: StatusReply,
    hint: str = "",
    width: int = 80,
    height: int | None = None,
    history: Sequence[float] = (),
    code: Text | None = None,
) -> RenderableType:
    """A run, in at most `height` lines of `width` columns; with no height, all of its nodes.

    Args:
        hint: how to join, shown under the title.
        history: the mean return so far, drawn as bars.
        code: the join code, shown under the hint.
    """
    head = [_title(status)]
    head += whole("join with", Text(hint), width) if hint else []
    head += whole("join code", code, width) if code is not None else []
    head.append(Text())
    figures = [*_figures(status, width, history), Text()]
    if height is None:
        table = NodeTable(status.nodes, width, None)
        return Group(*head, *figures, table.render(), *_warnings(status, table, width, None))
    if height - len(head) - len(figures) < _NODE_LINES + _LEAST_WARNING_LINES:
        figures = [line for line in figures if not line.plain.startswith(" ")]  # without the rest of reasons
    left = height - len(head) - len(figures)
    most = max(
        _LEAST_WARNING_LINES, min(max(_WARNING_LINES, int(_WARNING_PART * height)), left - _NODE_LINES)
    )
    rows = left - 1 - len(_warnings(status, NodeTable(status.nodes, width, None), width, most))
    table = NodeTable(status.nodes, width, max(2, rows))
    return Group(*head, *figures, table.render(), *_warnings(status, table, width, most))


def ended(status: StatusReply) -> StatusReply:
    """The last status as it is once the run has ended: nothing trains any more. Why it ended is told below it."""
    state = "failed" if _is_down(status) else "stopped"
    warnings = [text for text in status.warnings if not repeats_trainer(status, text)]
    return replace(status, trainer_state=state, trainer_reason="", stopping="", warnings=warnings)


def member_view(status: MemberStatus, joined: Joined | None, width: int = 80) -> RenderableType:
    """A member of somebody's run."""
    lines = [*broken(_member_title(status, joined), width), Text()]
    state = figure("state", state_text(status.state), playing_on(status))
    lines += with_reason(state, safe(status.reason), width)
    lines.append(
        figure(
            "steps",
            count(status.steps),
            "" if status.state in OVER else f"{count(status.steps_per_s)}/s",
            f"episodes {count(status.episodes)}",
        )
    )
    lines.append(figure("weights", versions_text(status)))
    lines += books_lines(status.books, width, spooled(status))
    if status.state not in OVER:
        lines += with_reason(figure("players", _players(status)), _player_trouble(status), width)
    return Group(*(fitted(line, width) for line in lines))


def run_line(status: StatusReply) -> str:
    """A run in one plain line, for where there is no terminal. What the trainer died of is told once, elsewhere."""
    greedy = status.evaluation
    parts = [
        _plain_return(status),
        *([f"greedy {decimal(greedy.return_mean)} (v{greedy.version})"] if greedy is not None else []),
        f"steps {count(status.steps)} ({count(status.steps_per_s)}/s)",
        f"updates {_updates(status).plain}",
        f"weights v{status.weights_version}, samples {decimal(status.lag_mean)} versions old"
        if status.weights_version >= 0
        else "no weights yet",
        f"bundles {books_line(status.bundles).plain}",
        f"nodes {node_count(status.nodes)}",
        f"trainer {safe(status.trainer_state)}"
        + (f": {safe(status.trainer_reason)}" if status.trainer_reason and not _is_down(status) else ""),
    ]
    return "  ".join(parts)


def _plain_return(status: StatusReply) -> str:
    if status.return_mean is None and status.return_mean_all is not None:
        return f"return - (all slots {decimal(status.return_mean_all)})"
    return f"return {decimal(status.return_mean)} (of {status.return_episodes})"


def waiting_line(status: StatusReply) -> str:
    """Who knows the join code and waits for the owner's word; empty if nobody does."""
    names = status.waiting_nodes
    if not names:
        return ""
    told = ", ".join(safe(name, 24) for name in names[:_MOST_NAMES]) + (
        ", …" if len(names) > _MOST_NAMES else ""
    )
    return f"{many(len(names), 'node', 'waits', 'wait')} to be let in ({told}): p2prl nodes"


def repeats_trainer(status: StatusReply, warning: str) -> bool:
    """True for a warning that says again what the trainer died of, while its state says so."""
    return _is_down(status) and bool(status.trainer_reason) and status.trainer_reason in warning


def _is_down(status: StatusReply) -> bool:
    return status.trainer_state == "failed"


def _warnings(status: StatusReply, table: NodeTable, width: int, most: int | None) -> list[Text]:
    """What somebody should look at: who waits to be let in, the run's own warnings, nodes in trouble.

    Args:
        most: lines; None to cut nothing off.
    """
    waiting = waiting_line(status)
    loud = status.trainer_reason and status.trainer_state in _LOUD
    trainer = [f"trainer: {status.trainer_reason}"] if loud else []
    others = [text for text in status.warnings if not repeats_trainer(status, text)]
    stalled = [
        f"{safe(node.name, 24)}: {safe(node.reason)}" for node in status.nodes if node.state == "stalled"
    ]
    told = dict.fromkeys([*([waiting] if waiting else []), *trainer, *others, *stalled, *table.below()])
    wrapped = [
        ("  " if index else "! ") + line.plain
        for text in told
        for index, line in enumerate(broken(Text(safe(text)), max(20, width - 2)))
    ]
    if most is not None and len(wrapped) > most:
        wrapped = [*wrapped[: most - 1], "  … and more: p2prl status"]
    return [Text(line, "yellow") for line in wrapped]


# --- lines of a run -------------------------------------------------------------------------------


def _title(status: StatusReply) -> Text:
    """What changes first: a narrow terminal cuts the end."""
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(safe(status.run_name, _NAME_WIDTH if status.stopping else 0), "bold cyan")
    title.append(f"   {duration(status.uptime_s)}")
    if status.stopping:
        why = _STOPPING.get(status.stopping, safe(status.stopping))
        title.append(f" · stopping: {why}", "yellow")
    if status.term > 1:
        title.append(f" · term {status.term}")
    title.append(f" · {safe(status.env)} · {safe(status.agent)} · on {safe(status.host_name)}")
    return title


def _figures(status: StatusReply, width: int, history: Sequence[float]) -> list[Text]:
    episodes = f"episodes {count(status.episodes)}"
    weights = f"weights v{count(status.weights_version)}" if status.weights_version >= 0 else "no weights yet"
    device = f"on {safe(status.device)}" if status.device else ""
    why = (
        "" if status.trainer_state in _LOUD else safe(status.trainer_reason)
    )  # that is a warning, and whole there
    lines = [
        _return(status, width, history),
        *_greedy(status),
        figure("steps", count(status.steps), f"{count(status.steps_per_s)}/s", episodes),
        figure("updates", _updates(status), weights, f"samples {decimal(status.lag_mean)} versions old"),
        *books_lines(status.bundles, width),
        figure("shards", _shards(status.shards)),
        *with_reason(figure("trainer", state_text(status.trainer_state), device), why, width),
    ]
    return [fitted(line, width) for line in lines]


def _return(status: StatusReply, width: int, history: Sequence[float]) -> Text:
    """The mean of the least exploring slots, and beside it that of all."""
    every = status.return_mean_all
    if status.return_mean is None:
        if every is None:
            return figure("return", "-", "no episode ended yet")
        # Beside the score that there is none of: agents may explore more at first than they will later.
        return figure("return", "-", f"all slots {decimal(every)}", "none yet of the least exploring")
    over = f"over {many(status.return_episodes, 'episode')}"
    all_slots = "" if every is None else f"all slots {decimal(every)}"
    score = figure("return", Text(decimal(status.return_mean), "bold"), over, all_slots)
    return score.append("   " + bars(history, min(40, width - score.cell_len - 4)), "cyan")


def _greedy(status: StatusReply) -> list[Text]:
    """What greedy episodes gave last; nothing before the first."""
    last, now = status.evaluation, status.evaluating
    next_one = f"v{count(now.version)}: {now.done} of {now.episodes}" if now.version >= 0 else ""
    if last is None:
        return [figure("greedy", "-", next_one)] if next_one else []
    mean = Text(decimal(last.return_mean), "bold")
    sure = f"{decimal(last.return_low)} to {decimal(last.return_high)}"
    return [
        figure(
            "greedy",
            mean,
            sure,
            f"over {many(last.episodes, 'episode')}, weights v{count(last.version)}",
            next_one,
        )
    ]


def _updates(status: StatusReply) -> Text:
    text = Text(count(status.updates), "bold")
    if status.updates_skipped:
        text.append(f", {count(status.updates_skipped)} skipped", "yellow")
    return text


def _shards(shards: Sequence[ShardStatus]) -> Text:
    if not shards:
        return Text("none yet", "yellow")
    text = Text(f"{len(shards)}   {many(sum(shard.ticks for shard in shards), 'tick')}")
    text.append(f"   {sized(sum(shard.size_bytes for shard in shards))}")
    for shard in shards:
        restarts = f", restarted {shard.starts - 1}x" if shard.starts > 1 else ""
        if restarts or shard.state != "working":
            text.append(f"   #{shard.index} ").append(state_text(shard.state)).append(restarts, "yellow")
    return text


# --- lines of a member ----------------------------------------------------------------------------


def _member_title(status: MemberStatus, joined: Joined | None) -> Text:
    if joined is None:
        return Text(f"p2prl member   {safe(status.host_name) or 'no host yet'}", "bold cyan")
    title = Text("playing for ", no_wrap=True, overflow="ellipsis")
    title.append(safe(joined.host_name), "bold cyan")
    title.append(f"   {safe(joined.env)} · {safe(joined.agent)} · {safe(joined.address)}:{joined.base_port}")
    return title


def _players(status: MemberStatus) -> Text:
    text = Text(str(len(status.players)))
    for state in dict.fromkeys(player.state for player in status.players):
        number = sum(player.state == state for player in status.players)
        text.append(f"   {number} ").append(state_text(state))
    return text


def _player_trouble(status: MemberStatus) -> str:
    """Why the first player in trouble does not play."""
    trouble = next((player for player in status.players if player.reason), None)
    return "" if trouble is None else f"#{trouble.rank}: {safe(trouble.reason)}"
