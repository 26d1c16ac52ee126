"""Made-up statuses that the tests of the command line share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2prl.core.messages import Books, NodeStatus, PlayerReport, ShardStatus, StatusReply
from p2prl.nodes.report import HostStarted, Joined, Left, MemberStatus

#: Clears the screen, sets the title, rings, reorders, breaks the line, and looks like markup.
HOSTILE = "evil\x1b[2J\x1b]0;pwned\x07\x9b31m[red]x[/red]\u202e\u2028\r\nforged"

BOOKS = Books(
    produced=1251,
    stored=1230,
    pending=12,
    refused=3,
    stale=4,
    dropped=2,
    duplicate=5,
    refused_reasons={"not_finite": 2, "oversize": 1},
    dropped_reasons={"window_full": 2},
)

STARTED = HostStarted(
    run_id="a1b2c3d4",
    run_name="cartpole-1129",
    name="attic",
    address="192.0.2.20",
    addresses=("192.0.2.20", "2001:db8::20"),
    base_port=47800,
    results=Path("results/cartpole-1129"),
    term=1,
    resumed=False,
)

JOINED = Joined("attic", "192.0.2.20", 47800, "a1b2c3d4", "CartPole-v1", "dqn", 1, 3)
LEFT = Left("stopped", "the mean return was reached", BOOKS)


def node(index: int, **changes: Any) -> NodeStatus:
    """A working node."""
    values: dict[str, Any] = {
        "name": f"laptop-{index:02d}",
        "key": f"{index:040d}",
        "address": f"192.0.2.{20 + index}",
        "players": 3,
        "state": "working",
        "steps": 120_000 - index,
        "steps_per_s": 4200.0 - index,
        "return_mean": 210.5,
        "return_mean_all": 187.25,
        "levels": (0.0, 0.75),
        "episodes": 431,
        "weights_version": 600,
        "lag": index % 4,
        "system": "Linux x86_64",
        "version": "0.1.0",
        "bundles": BOOKS,
    }
    return NodeStatus(**{**values, **changes})


def status(count: int = 4, **changes: Any) -> StatusReply:
    """A run that trains, with `count` working nodes."""
    values: dict[str, Any] = {
        "run_id": "a1b2c3d4",
        "run_name": "cartpole-1129",
        "host_name": "attic",
        "version": "0.1.0",
        "term": 1,
        "env": "CartPole-v1",
        "agent": "dqn",
        "uptime_s": 102.0,
        "steps": 1_234_567,
        "steps_per_s": 18452.3,
        "episodes": 5123,
        "return_mean": 423.71,
        "return_episodes": 100,
        "return_mean_all": 312.0,
        "updates": 12_345,
        "weights_version": 617,
        "lag_mean": 1.42,
        "bundles": BOOKS,
        "nodes": [node(0, name="attic", own=True), *(node(index) for index in range(1, count))],
        "shards": [ShardStatus(index=i, state="working", ticks=50_000, size_bytes=6_200_000) for i in (0, 1)],
        "trainer_state": "training",
        "device": "cpu",
        "warnings": ["the disk is full: what players give waits with them until there is room again"],
    }
    return StatusReply(**{**values, **changes})


def member(**changes: Any) -> MemberStatus:
    """A member that plays."""
    values: dict[str, Any] = {
        "state": "working",
        "reason": "",
        "host_name": "attic",
        "steps": 123_456,
        "steps_per_s": 4210.0,
        "episodes": 812,
        "weights_version": 617,
        "current_version": 619,
        "books": BOOKS,
        "players": (
            PlayerReport(rank=0, state="working"),
            PlayerReport(rank=1, state="failed", reason="boom"),
        ),
    }
    return MemberStatus(**{**values, **changes})
