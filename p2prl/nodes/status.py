"""The broker's picture of the run, put together for `p2prl status`, the live view and the files of the run's folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

import msgspec

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.books import merged
from p2prl.core.ledger import Ledger
from p2prl.core.membership import STALL_AFTER_S, Member
from p2prl.net.addresses import endpoint
from p2prl.wire import frames
from p2prl.words import many

if TYPE_CHECKING:
    from p2prl.nodes.broker import Broker

TRAINER_SILENT_S = 10.0
#: A working node further behind than this is named.
_LATE_VERSIONS = 100
#: How often a player's failure had come when it was told (words.py): another count than the line's own would confuse.
_COUNT = re.compile(r" \([\d,]+ times so far\)$")
#: So many failures of environments, one in fewer steps than this, are more than bad luck.
_MANY_FAILURES, _SELDOM_STEPS = 5, 1000
#: Without an episode's end for so many steps, something is amiss.
_ENDLESS_STEPS = 100_000
_GRACE_S = 8.0
#: What a trainer is at while it starts.
LOADING = "loading the agent"
_TERSE_CHARS = 40


@dataclass(frozen=True)
class StatusView:
    """A broker at a moment. `now` in seconds of the broker's loop."""

    broker: Broker
    now: float


def build_status(view: StatusView) -> m.StatusReply:
    """One consistent picture: the totals are the sums of the rows."""
    broker = view.broker
    nodes = node_rows(view)
    totals = merged([node.bundles for node in nodes])
    trainer, trainer_reason = trainer_state(broker.trainer, view.now - broker.trainer_heard, nodes)
    return m.StatusReply(
        run_id=broker.run.run_id,
        run_name=broker.config.run_name,
        host_name=broker.host_name,
        version=__version__,
        term=broker.saved.term,
        env=broker.run.env_id,
        agent=broker.run.agent_name,
        uptime_s=broker.config.up_s + view.now - broker.started,
        steps=broker.desk.steps,
        steps_per_s=broker.steps_per_s,
        episodes=broker.episodes.count,
        return_mean=broker.episodes.mean,
        return_episodes=broker.episodes.mean_count,
        return_mean_all=broker.episodes.mean_all,
        updates=broker.trainer.updates,
        weights_version=broker.saved.weights_version,
        lag_mean=broker.trainer.lag_mean or 0.0,
        bundles=totals,
        nodes=nodes,
        shards=[broker.desk.row(index, view.now) for index in range(broker.config.shards)],
        trainer_state=trainer,
        trainer_reason=trainer_reason,
        device=broker.trainer.device,
        metrics=dict(broker.trainer.metrics),
        refused_frames=dict(broker.refused),
        warnings=_warnings(view, nodes),
        members_waiting=not any(n.players and n.state != "gone" for n in nodes),
        stopping=broker.stopping,
        open=broker.config.open,
        waiting_nodes=broker.admissions.waiting(),
        evaluation=broker.saved.evaluation,
        evaluating=broker.evaluation.state(),
        updates_skipped=broker.trainer.updates_skipped,
        sessions_lost=broker.trainer.sessions_lost,
    )


def bounded_status(status: m.StatusReply, limit: int) -> m.StatusReply:
    """The same in at most `limit` bytes: first without what nodes say about their players, then without their texts.

    The second is enough for any two thousand nodes, whatever they say.
    """
    if len(frames.encode(status)) <= limit:
        return status
    nodes = [msgspec.structs.replace(node, player_reports=[], faults=[]) for node in status.nodes]
    short = msgspec.structs.replace(status, nodes=nodes)
    if len(frames.encode(short)) <= limit:
        return short
    return msgspec.structs.replace(short, nodes=[_terse(node) for node in nodes])


def _terse(node: m.NodeStatus) -> m.NodeStatus:
    return msgspec.structs.replace(
        node,
        reason=node.reason[:_TERSE_CHARS],
        version=node.version[:_TERSE_CHARS],
        system="",
        bundles=msgspec.structs.replace(node.bundles, refused_reasons={}, dropped_reasons={}),
        refused_by_host={},
    )


def trainer_state(report: m.TrainerReport, silent_s: float, nodes: Sequence[m.NodeStatus]) -> tuple[str, str]:
    """The trainer's state, and why it does not train.

    Args:
        report: its last word.
        silent_s: seconds since then.
        nodes: it knows that nothing comes; of whom nothing comes, these tell.
    """
    if report.state == "failed":
        return "failed", report.reason
    if (
        report.state == "starting"
    ):  # it imports, reads and makes, and says nothing meanwhile; its host watches over it
        return "starting", LOADING
    if silent_s > TRAINER_SILENT_S:
        return "stalled", f"the trainer was not heard for {silent_s:.0f} s"
    if report.state != "stalled":
        return report.state, report.reason
    here = [node for node in nodes if node.players and node.state != "gone"]
    if not here:
        return "waiting", f"{report.reason}; nobody plays"
    if report.short and (steps := sum(_under_way(node) for node in here)):
        return "waiting", f"{report.reason}; {many(steps, 'step')} of the next are played"
    if report.short and (beginner := next((node for node in here if _in_first_step(node)), None)):
        return "waiting", f"{report.reason}; {beginner.name} is in its first step"
    if report.short and (slow := next((node for node in here if _in_long_step(node)), None)):
        return "waiting", f"{report.reason}; a step of {slow.name} takes {slow.step_s_ago:.0f} s so far"
    troubled = [f"{node.name}: {node.reason}" for node in here if node.reason]
    return "stalled", "; ".join([report.reason, *troubled[:1]])


def _is_of_use(node: m.NodeStatus) -> bool:
    """It makes steps, and gives what is not refused."""
    return node.state == "working" and not (node.bundles.refused and not node.bundles.stored)


def _under_way(node: m.NodeStatus) -> int:
    """Steps so far of bundles that take long."""
    return sum(player.under_way for player in node.player_reports) if _is_of_use(node) else 0


def _in_long_step(node: m.NodeStatus) -> bool:
    """It would be stalled by now, had its steps not taken so long before. After a bundle none is under way until the
    first step of the next is over.
    """
    return _is_of_use(node) and node.step_s_ago >= STALL_AFTER_S


def _in_first_step(node: m.NodeStatus) -> bool:
    """A player of it is, and for no longer than it may be."""
    return node.state != "stalled" and any(player.first_step_s for player in node.player_reports)


def node_rows(view: StatusView) -> list[m.NodeStatus]:
    """One row per key that ever gave something: members of now, and those of before a restart."""
    broker = view.broker
    rows = [_node_row(view, member) for member in broker.members.roster.members.values()]
    known = broker.members.roster.members
    for key, ledger in broker.saved.ledgers.items():
        if key not in known and ledger.total().produced:
            row = _gone_row(
                broker.saved.names.get(key, "?"),
                key,
                ledger,
                "not back since the host, or its broker, started again",
            )
            rows.append(msgspec.structs.replace(row, before=True))
    if broker.saved.others_count:
        reason = f"{many(broker.saved.others_count, 'node')} that left long ago"
        rows.append(_gone_row("others", "", broker.saved.others, reason))
    return sorted(rows, key=lambda row: (row.state == "gone", not row.own, row.name, row.key))


def _node_row(view: StatusView, member: Member) -> m.NodeStatus:
    broker = view.broker
    peer = broker.members.peers[member.key]
    ledger = broker.saved.ledgers.get(member.key, Ledger())
    beat = peer.report
    version = beat.weights_version if beat else -1
    playing = beat.players if beat and member.state != "gone" else []
    under_way = sum(player.under_way for player in playing)
    standing = "admitted" if peer.hello.own else broker.admissions.standing(member.key)
    return m.NodeStatus(
        name=member.name,
        key=member.key,
        address=peer.address,
        players=member.players,
        state=member.state,
        reason=_reason(member, beat, standing),
        own=peer.hello.own,
        steps=ledger.total_steps + under_way,
        steps_per_s=beat.steps_per_s if beat and member.state != "gone" else 0.0,
        episodes=ledger.total_episodes,
        return_mean=peer.stats.mean,
        weights_version=version,
        lag=peer.lag,
        seen_s_ago=view.now - member.heard,
        version=peer.hello.version,
        system=peer.hello.system,
        bundles=ledger.total(),
        refused_by_host=refused_by_host(view.broker, member.key),
        player_reports=list(beat.players) if beat else [],
        faults=list(peer.faults),
        spooled=beat.spooled if beat else 0,
        standing=standing,
        return_mean_all=peer.stats.mean_all,
        levels=member.levels,
        step_s_ago=view.now - member.progressed,
    )


def _reason(member: Member, beat: m.Heartbeat | None, standing: m.Standing) -> str:
    if member.state == "gone" and member.reason in ("removed", "quarantined") and standing == "admitted":
        return f"it was {member.reason}; now it may come back"
    if member.reason or member.state in ("working", "gone"):
        return member.reason
    return "no heartbeat with progress yet" if beat is None else beat.reason


def _gone_row(name: str, key: str, ledger: Ledger, reason: str) -> m.NodeStatus:
    return m.NodeStatus(
        name=name,
        key=key,
        address="",
        players=0,
        state="gone",
        reason=reason,
        steps=ledger.total_steps,
        episodes=ledger.total_episodes,
        bundles=ledger.total(),
    )


def refused_by_host(broker: Broker, key: str) -> dict[str, int]:
    """What the host refused of a node, by reason: the broker and the shards together."""
    total = dict(broker.members.refused.get(key, {}))
    for report in broker.desk.reports.values():
        for reason, count in report.refused_by_node.get(key, {}).items():
            total[reason] = total.get(reason, 0) + count
    return total


def nobody_plays(host_name: str, addresses: Sequence[str], base_port: int) -> str:
    """What to do about it, where others can reach the host, and where its own machine alone can."""
    if addresses and all(ip_address(address).is_loopback for address in addresses):
        place = endpoint(addresses[0], base_port).removeprefix("tcp://")
        return f"no players: no other machine reaches this host; waiting for `p2prl join {place}` on this one"
    return f"no players: waiting for `p2prl join {host_name}` on another machine"


def environment_warnings(nodes: Sequence[m.NodeStatus]) -> list[str]:
    """A line where environments fail often, or never end an episode: both look like play, and teach nothing."""
    found = []
    for node in nodes:
        failures = sum(player.failures for player in node.player_reports)
        steps = sum(player.steps for player in node.player_reports)
        if node.state != "gone" and failures >= _MANY_FAILURES and steps < failures * _SELDOM_STEPS:
            last = f": {_COUNT.sub('', node.faults[-1])}" if node.faults else ""
            count = _power_of_ten(failures)  # as players count them
            often = f"{count:,} times and more" if count > 1 else "again and again"
            found.append(f"{node.name}: environments failed {often}{last}")
    steps, episodes = sum(node.steps for node in nodes), sum(node.episodes for node in nodes)
    if not found and not episodes and steps >= _ENDLESS_STEPS:
        found.append(
            f"no episode ended in {many(steps, 'step')}: an environment without a time limit may never end one"
        )
    return found


def _warnings(view: StatusView, nodes: list[m.NodeStatus]) -> list[str]:
    broker = view.broker
    if broker.stopping:
        return []
    warnings = [text for report in broker.desk.reports.values() for text in report.warnings]
    warnings += broker.trainer_watch.warnings(view.now)
    waited = view.now - broker.started > _GRACE_S  # a host's own players come a moment after its broker
    if waited and not any(node.players and node.state != "gone" for node in nodes):
        warnings.append(nobody_plays(broker.host_name, broker.config.addresses, broker.config.base_port))
    warnings += environment_warnings(nodes)
    late = [node for node in nodes if node.state == "working" and node.lag > _LATE_VERSIONS]
    return warnings + [
        f"{node.name} plays with weights {many(_power_of_ten(node.lag), 'version')} old and more: fewer --envs there, "
        "or a larger train.publish_interval_s here, make it less"
        for node in late
    ]


def _power_of_ten(count: int) -> int:
    """The largest that is no larger: what is said of a count then changes seldom, and so is said seldom."""
    return int(10 ** (len(str(count)) - 1))
