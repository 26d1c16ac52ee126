"""The config that a host gives to its trainer. Apart from wiring.py, because ReplaySpec brings numpy."""

from __future__ import annotations

import msgspec

from p2prl.core.messages import RunSpec
from p2prl.learn.contracts import ReplaySpec
from p2prl.net.keys import KeyPair
from p2prl.nodes.grace import CHILD_S


class TrainerConfig(msgspec.Struct, frozen=True):
    """The trainer's. `agent` names it as on this machine; `host` is where the broker listens for it.

    Attributes:
        eval_episodes: greedy episodes that are asked for of each candidate, by which `best` is chosen; 0 for none.
        goal: the mean return that ends the run; None if none does.
        rings: the descriptor of the memory that the shards write (nodes/rings.py); -1 if samples come through sockets.
        shards: how many shards there are.
        shard_bytes: capacity of each shard.
        check: a checkpoint's folder: only look whether it fits, and end; empty to train.
        grace_s: what it has for its end.
    """

    run: RunSpec
    agent: str
    replay: ReplaySpec
    keys: KeyPair
    server_key: str
    host: str
    base_port: int
    folder: str
    device: str
    publish_interval_s: float
    checkpoint_interval_s: float
    keep_checkpoints: int
    eval_episodes: int = 0
    goal: float | None = None
    rings: int = -1
    shards: int = 1
    shard_bytes: int = 0
    check: str = ""
    grace_s: float = CHILD_S
