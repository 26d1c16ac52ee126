"""The configs that parents give to their child processes; the trainer's is in trainer_config.py.

A member reads this file: it must not bring in numpy (a joiner's member holds neither arrays nor environments).
"""

from __future__ import annotations

import msgspec

from p2prl.core.messages import CodeNews, RunSpec, Seat
from p2prl.net.key_pair import KeyPair
from p2prl.nodes.grace import CHILD_S
from p2prl.replay.params import ReplayKind

#: Members at a time; each costs memory in the broker and a row in every status.
MAX_MEMBERS = 1000


class Staff(msgspec.Struct, frozen=True):
    """Public keys of the host's own processes, and with them their rights.

    Attributes:
        owner: may stop and rename the run, and say who is let in.
        trainer: may sample and publish weights.
        shard: may give receipts.
        member: is always let in.
    """

    owner: str
    trainer: str
    shard: str
    member: str


class BrokerConfig(msgspec.Struct, frozen=True):
    """The broker's.

    Attributes:
        bind: hosts to listen on, as ZeroMQ writes them (`*` for all).
        state: the host's state folder, which keeps whom it let in.
        session: of this start of the host; a broker that was killed goes on with the code of the one before it.
        open: any key is admitted that was not removed.
        code: the join code as it is now, with what is left of its limits.
        code_uses, code_ttl_s: the owner's limits for each new code; None for no limit.
        approve: who proved the code waits for the owner's word.
        addresses: where others reach this host, for tokens.
        max_members: members at a time.
        last_term: the highest term that this run had, as its host knows it: the file may lack it, if the disk is full.
        eval_share, eval_episodes: as in `[play]`.
        up_s: for how long its host had been up when it was started.
    """

    run: RunSpec
    run_name: str
    host_name: str
    keys: KeyPair
    staff: Staff
    base_port: int
    bind: list[str]
    shards: int
    folder: str
    state: str
    session: str = ""
    open: bool = False
    code: CodeNews = CodeNews(code="")
    code_uses: int | None = None
    code_ttl_s: float | None = None
    approve: bool = False
    addresses: list[str] = []
    max_members: int = MAX_MEMBERS
    last_term: int = 0
    eval_share: float = 0.0
    eval_episodes: int = 1
    up_s: float = 0.0


class ShardConfig(msgspec.Struct, frozen=True):
    """One shard's.

    Attributes:
        fsync_interval_s: the most seconds of acknowledged sessions that a power cut may take.
        node_bytes_per_s, node_bundles_per_s: what this shard takes of one node; 0 for no limit.
        rings: the descriptor of memory that the trainer reads (nodes/rings.py); -1 for none.
        shards: how many shards there are.
        grace_s: what it has for its end.
    """

    run: RunSpec
    index: int
    server_keys: KeyPair
    shard_keys: KeyPair
    staff: Staff
    base_port: int
    bind: list[str]
    folder: str
    broker: str
    kind: ReplayKind
    capacity_bytes: int
    window: int
    fsync_interval_s: float = 1.0
    node_bytes_per_s: float = 0.0
    node_bundles_per_s: float = 0.0
    rings: int = -1
    shards: int = 1
    grace_s: float = CHILD_S


class MemberConfig(msgspec.Struct, frozen=True):
    """A member's.

    Attributes:
        agent: this machine's own name for the host's agent; empty to use the host's.
        envs: slots per player; 0 for the experiment's.
        own: True for the member that a host starts for its own players.
        interfaces: names of those to look for a lost host on; empty for the chosen ones.
        spool_bytes: of disk that sessions may take while the host is away; 0 for none.
        spool_folder: where they are kept; empty for nowhere.
        keep_free_bytes: of the disk that are left to everybody else.
        grace_s: what it has for its end, and that of its players.
    """

    host: str
    base_port: int
    server_key: str
    keys: KeyPair
    name: str
    players: int
    envs: int = 0
    agent: str = ""
    own: bool = False
    wait_s: float | None = None
    interfaces: list[str] = []
    spool_bytes: int = 0
    spool_folder: str = ""
    keep_free_bytes: int = 1_000_000_000
    grace_s: float = CHILD_S


class PlayerConfig(msgspec.Struct, frozen=True):
    """A player's. The keys are empty where member and player talk over ipc.

    Attributes:
        start: how often this seat's player was started; mixed into the seed.
    """

    run: RunSpec
    seat: Seat
    start: int
    slots: int
    agent: str
    endpoint: str
    keys: KeyPair = KeyPair("", "")
    server_key: str = ""


def publish_port(base_port: int) -> int:
    """Where the broker takes weights from its trainer."""
    return base_port + 3


def push_port(base_port: int, index: int) -> int:
    """Where shard `index` takes sessions (design section 5)."""
    return base_port + 10 + 2 * index


def sample_port(base_port: int, index: int) -> int:
    """Where shard `index` gives samples."""
    return base_port + 11 + 2 * index
