"""The JSON that `--json` prints, as plain dicts. docs/cli.md lists the fields; a test compares the two."""

from __future__ import annotations

from typing import Any

import msgspec

from p2prl.core.messages import Books, CodeNews, Evaluation, StatusReply
from p2prl.nodes.report import HostStarted, HostStopped, Joined, Left, MemberStatus

_BUNDLES = ("produced", "stored", "pending", "refused", "stale", "dropped", "duplicate")
_EVALUATION = ("return_mean", "return_low", "return_high", "length_mean", "version", "episodes")


def totals(status: StatusReply | None) -> dict[str, Any]:
    """The run's figures; each is null when no status ever came. `nodes` counts those that are not gone."""
    names = (
        "steps", "steps_per_s", "episodes", "return_mean", "return_episodes", "return_mean_all", "updates",
        "updates_skipped", "sessions_lost", "weights_version", "lag_mean",
    )  # fmt: skip
    if status is None:
        return dict.fromkeys((*names, *evaluation(None), "bundles", "nodes"))
    return {
        **{name: getattr(status, name) for name in names},
        **evaluation(status.evaluation),
        "bundles": bundles(status.bundles),
        "nodes": sum(node.state != "gone" for node in status.nodes),
    }


def evaluation(last: Evaluation | None) -> dict[str, Any]:
    """What the last greedy episodes gave; each is null before the first."""
    return {f"eval_{name}": getattr(last, name, None) for name in _EVALUATION}


def bundles(books: Books) -> dict[str, Any]:
    """A node's or a run's books; the reasons stand beside the counts."""
    reasons = {"refused_reasons": books.refused_reasons, "dropped_reasons": books.dropped_reasons}
    return {**{name: getattr(books, name) for name in _BUNDLES}, **reasons}


def host_started(info: HostStarted) -> dict[str, Any]:
    """`started`."""
    return {
        "event": "started",
        "run_id": info.run_id,
        "run_name": info.run_name,
        "name": info.name,
        "address": info.address,
        "addresses": list(info.addresses),
        "base_port": info.base_port,
        "results": str(info.results),
        "term": info.term,
        "resumed": info.resumed,
        "open": info.open,
    }


def host_code(news: CodeNews) -> dict[str, Any]:
    """`code`."""
    limits = {"uses": news.uses, "ttl_s": news.ttl_s}
    return {"event": "code", "code": news.code, **limits, "reason": news.reason}


def host_progress(status: StatusReply) -> dict[str, Any]:
    """`progress`."""
    return {
        "event": "progress",
        "uptime_s": status.uptime_s,
        **totals(status),
        "trainer": status.trainer_state,
        "trainer_reason": status.trainer_reason,
        "warnings": list(status.warnings),
        "waiting_nodes": list(status.waiting_nodes),
    }


def host_stopped(info: HostStopped) -> dict[str, Any]:
    """`stopped`, with the last figures."""
    return {"event": "stopped", "reason": info.reason, "text": info.text, **totals(info.last)}


def member_joined(info: Joined) -> dict[str, Any]:
    """`joined`."""
    return {
        "event": "joined",
        "host": info.host_name,
        "address": info.address,
        "base_port": info.base_port,
        "run_id": info.run_id,
        "env": info.env,
        "agent": info.agent,
        "term": info.term,
        "players": info.players,
    }


def member_progress(status: MemberStatus) -> dict[str, Any]:
    """`progress` of a member."""
    return {
        "event": "progress",
        "host": status.host_name,
        "state": status.state,
        "reason": status.reason,
        "steps": status.steps,
        "steps_per_s": status.steps_per_s,
        "episodes": status.episodes,
        "weights_version": status.weights_version,
        "current_version": status.current_version,
        "bundles": bundles(status.books),
        "spooled": status.spooled,
        "spooled_bytes": status.spooled_bytes,
        "players": msgspec.to_builtins(list(status.players)),
    }


def member_left(info: Left) -> dict[str, Any]:
    """`left`, a member's last line."""
    return {"event": "left", "reason": info.reason, "text": info.text, "bundles": bundles(info.books)}


def run_status(status: StatusReply) -> dict[str, Any]:
    """`p2prl status --json`: the run, its totals, each node and each shard."""
    run = {
        "run_id": status.run_id,
        "name": status.run_name,
        "env": status.env,
        "agent": status.agent,
        "term": status.term,
        "host": status.host_name,
        "version": status.version,
        "uptime_s": status.uptime_s,
        "open": status.open,
        "stopping": status.stopping,
    }
    trainer = {
        "state": status.trainer_state,
        "reason": status.trainer_reason,
        "device": status.device,
        "metrics": dict(status.metrics),
    }
    return {
        "run": run,
        **totals(status),
        "trainer": trainer,
        "evaluating": msgspec.to_builtins(status.evaluating),
        "refused_frames": dict(status.refused_frames),
        "warnings": list(status.warnings),
        "waiting_nodes": list(status.waiting_nodes),
        "nodes": msgspec.to_builtins(status.nodes),
        "shards": msgspec.to_builtins(status.shards),
    }
