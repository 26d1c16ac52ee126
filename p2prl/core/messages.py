"""Every message that crosses a socket, as data. docs/protocol.md is generated from this file.

Rules of evolution (msgspec's): a new field has a default, a type never changes, unknown fields are skipped. PROTOCOL
grows only when nodes of two versions could no longer understand each other.

A message is one msgpack frame, a map with its type under `t`. Bulk (bundles, weights, samples) follows in frames of its
own, so that it is never copied into the map. Keys are CURVE public keys in Z85 (40 characters).
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from p2prl.core.schema import SessionSchema
from p2prl.core.spaces import EnvSpec

PROTOCOL = 2

#: The format of weights that this p2prl sends, and the only one that it reads (wire/weights.py).
WEIGHTS_CODEC = "keyframes"

#: Formats of a bundle's columns that everyone reads: what fits no other is sent as one of these (wire/columns.py).
BUNDLE_CODECS = ("raw", "lz4")

#: Most samples that one SampleAsk may ask for.
MAX_SAMPLE_COUNT = 100_000

#: Why a bundle or a message is refused. A closed list, so that counters stay few.
REFUSALS = (
    "malformed",  # not a message of this protocol, or of another type than this socket takes
    "oversize",  # larger than its bound
    "wrong_run",  # of another run
    "wrong_schema",  # of another schema, or its size is not the schema's
    "bad_codec",  # compressed bytes that do not decode to exactly the schema's size
    "not_finite",  # NaN or infinity
    "out_of_space",  # an action outside the action space
    "future_version",  # played with weights that do not exist yet
    "not_permitted",  # the sender's key has no right to say this
    "unknown_node",  # the sender was not welcomed
    "protocol",  # the sender speaks another protocol number
    "rate_limited",  # more messages, or enrolments at once, than anybody needs
    "over_quota",  # more bundles or bytes than one node may give; they are to come again later
    "out_of_bounds",  # a reward or an episode's length that the environment says cannot be
    "full",  # one member more than a host takes
    "not_admitted",  # its key was not let in, or not yet
    "wrong_code",  # it does not know the join code, or somebody in between changed a message
    "no_code",  # no join code is valid now, or the token is not known
    "removed",  # the host's owner removed it
    "quarantined",  # it is kept out of this run
    "no_curve",  # a connection without CURVE
    "bad_handshake",  # a connection that broke off before its key was proved, or dialled for another server key
)


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """Base of all messages."""


MessageT = TypeVar("MessageT", bound=Message)


# --- enrol: ROUTER without CURVE, tiny frames ---------------------------------------------------------------------


#: How a host stands to a node's key.
Standing = Literal["unknown", "waiting", "admitted", "removed", "quarantined"]


class EnrolAsk(Message, frozen=True, kw_only=True, tag="enrol_ask"):
    """newcomer -> host: who are you, and how do I stand with you? Nothing in the answer is proved yet."""

    protocol: int
    version: str
    node_key: str


class EnrolCard(Message, frozen=True, kw_only=True, tag="enrol_card"):
    """host -> newcomer: who I am, and the key to expect on every other socket.

    Attributes:
        open: this host admits any key.
        standing: how it stands to the asker's key.
    """

    protocol: int
    version: str
    server_key: str
    run_id: str
    host_name: str
    boot_id: str
    term: int
    base_port: int
    env: str
    agent: str
    open: bool = True
    standing: Standing = "unknown"


class EnrolBegin(Message, frozen=True, kw_only=True, tag="enrol_begin"):
    """newcomer -> host, first of four: I know the join code, or a token's secret, and will prove it (SPAKE2).

    Attributes:
        node_key: what is to be admitted.
        name: for people.
        share: SPAKE2's first message (core/enrolment.py).
        token: which token's secret; empty for the join code.
    """

    protocol: int
    version: str
    node_key: str
    name: str
    share: bytes
    token: str = ""


class EnrolShare(Message, frozen=True, kw_only=True, tag="enrol_share"):
    """host -> newcomer, second of four.

    Attributes:
        share: SPAKE2's second message.
    """

    share: bytes


class EnrolProof(Message, frozen=True, kw_only=True, tag="enrol_proof"):
    """newcomer -> host, third of four: the newcomer proves first, so that each guess at the code is seen and counted.

    Attributes:
        proof: a MAC under the key that both sides now have.
    """

    proof: bytes


class EnrolProved(Message, frozen=True, kw_only=True, tag="enrol_proved"):
    """host -> newcomer, last of four: proved, and here is the host's own proof.

    Attributes:
        proof: as in EnrolProof.
        standing: `admitted`, or `waiting` for the host's owner (`p2prl host --approve`).
    """

    proof: bytes
    standing: Standing


class Refusal(Message, frozen=True, kw_only=True, tag="refusal"):
    """host -> anyone: no, and why; the answer to an enrolment or a Hello. `reason` is one of the refusals below.

    Attributes:
        retry_after_s: when it may be tried again; 0 if that is of no use.
    """

    reason: str
    text: str
    protocol: int = PROTOCOL
    version: str = ""
    retry_after_s: float = 0.0


# --- parts of the control socket's messages ------------------------------------------------------------------------


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """Where bundles went: produced = stored + pending + refused + stale + dropped; duplicates are beside it.

    Attributes:
        produced: bundles that players made.
        pending: in the member's window or spool: not sent yet, or without a verdict.
        dropped: given up on the way: `window full`, `spool full`, `unreadable`, `member died`, `member left`.
    """

    produced: int = 0
    stored: int = 0
    pending: int = 0
    refused: int = 0
    stale: int = 0
    dropped: int = 0
    duplicate: int = 0
    refused_reasons: dict[str, int] = {}
    dropped_reasons: dict[str, int] = {}

    def balanced(self) -> bool:
        """True if the accounting identity holds."""
        return self.produced == self.stored + self.pending + self.refused + self.stale + self.dropped


class PlayerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One player in its member's heartbeat. `state` is starting or working.

    Attributes:
        steps: of its bundles, and `under_way`.
        restarts: how often it was started again.
        failures: how often one of its environments raised; the slot then began anew.
        under_way: steps so far of the bundle that it plays, if that takes it more than a second; in no books yet.
        first_step_s: how long its first step has taken so far; 0 before and after it.
        loading_s: how long it has loaded its environment and agent so far; 0 later, and where one before it ended.
    """

    rank: int
    state: str
    steps: int = 0
    weights_version: int = -1
    restarts: int = 0
    reason: str = ""
    failures: int = 0
    under_way: int = 0
    first_step_s: float = 0.0
    loading_s: float = 0.0


class ShardAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shard listens. `boot_id` changes whenever the shard starts again."""

    index: int
    push_port: int
    sample_port: int
    boot_id: str = ""


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that all nodes of a run agree on.

    Attributes:
        seed: the experiment's.
        schema: of every session of the run.
        envs: slots of a player that does not say otherwise.
        env: the environment's spaces and limits (core/spaces.py).
        env_args, agent_settings: plain values; nothing executable.
        env_package, agent_package: the distributions that provide them on the host, as `name==version`; may be empty.
        env_hash, agent_hash: hashes of their source on the host.
        ladder: rungs of the exploration ladder.
        when_full, window_bytes, window_bundles: the player's and member's flow control.
        max_lag: sessions older than this many versions are stale; 0 for no limit.
        fresh: players wait for room before they play, so that they play with the newest weights.
        codecs: of bundles, those that the shards read: players use no other. BUNDLE_CODECS are always among them.
    """

    run_id: str
    seed: int
    env_id: str
    env_args: dict[str, Any]
    env: EnvSpec
    env_package: str
    env_hash: str
    agent_name: str
    agent_settings: dict[str, Any]
    agent_package: str
    agent_hash: str
    schema: SessionSchema
    ladder: int
    when_full: str
    window_bytes: int
    window_bundles: int
    max_lag: int
    envs: int
    fresh: bool = False
    codecs: tuple[str, ...] = BUNDLE_CODECS


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A player's place in the run: its rank on the ladder, and a seed that no other player ever got.

    Attributes:
        seed: mixed with the run's seed; never given twice.
    """

    rank: int
    seed: int


Role = Literal["member", "shard", "trainer", "client", "owner"]


class WeightsHeader(Message, frozen=True, kw_only=True, tag="weights"):
    """Names a set of weights; the payload follows in a frame of its own (wire/weights.py).

    Attributes:
        version: of these weights; grows with each publication and never goes back within a run.
        codec: names the payload's format, `keyframes`.
        size_bytes: the payload's length.
        candidate: the trainer keeps the state behind this version until it is evaluated.
        keyframe: the version of the keyframe that the payload is, has in it, or needs.
        whole: false if the payload is a change alone: only who has that keyframe can read it.
    """

    run_id: str
    version: int
    codec: str
    size_bytes: int
    updates: int = 0
    candidate: bool = False
    keyframe: int = -1
    whole: bool = True


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What greedy episodes with one version of the weights gave.

    Attributes:
        version: of the weights.
        episodes: how many there were.
        return_mean: of their returns.
        return_low, return_high: the 95 % confidence interval of that mean, by bootstrap.
        length_mean: of their lengths, in steps.
        steps: the run's environment steps when that version was published.
    """

    version: int
    episodes: int
    return_mean: float
    return_low: float
    return_high: float
    length_mean: float
    steps: int


class Evaluating(msgspec.Struct, frozen=True, kw_only=True):
    """How evaluation stands.

    Attributes:
        version: of the weights that are evaluated now; -1 for none.
        done: of its episodes, those that are played.
        episodes: how many there are to be.
        jobs: jobs under way.
        steps: environment steps that evaluation took since this broker started.
        refused: results that were not taken, by reason; `unknown_job` and `duplicate` are late ones.
    """

    version: int = -1
    done: int = 0
    episodes: int = 0
    jobs: int = 0
    steps: int = 0
    refused: dict[str, int] = {}


# --- control: ROUTER, members, trainers, shards and clients -> broker ----------------------------------------------


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """The first message on control, and again after each HelloAgain.

    Attributes:
        role: what the sender is; `shard`, `trainer` and `owner` need the host's own keys.
        seats: those that it has already, from before the broker restarted.
        slots: environments of each of its players; 0 for as many as the run says.
        continues: the boot that began the books that go on in this boot's, because its spool was found; empty for none.
        evaluators: how many of its players take evaluation jobs.
        weights_codecs: formats of weights that it reads.
    """

    protocol: int
    version: str
    role: Role
    name: str
    boot_id: str
    players: int = 0
    shard: ShardAddress | None = None
    weights_version: int = -1
    system: str = ""
    own: bool = False
    seats: list[Seat] = []
    slots: int = 0
    continues: str = ""
    evaluators: int = 0
    weights_codecs: tuple[str, ...] = (WEIGHTS_CODEC,)


class Heartbeat(Message, frozen=True, kw_only=True, tag="heartbeat"):
    """member -> broker, each 1 s: alive, and what was done. Sent by the member, never by a thread that steps.

    Attributes:
        players: one report per player.
        spooled: of the pending bundles, those on its disk.
        evaluating: the evaluation jobs that are here, by number: environment steps of each so far.
    """

    boot_id: str
    state: Literal["starting", "working", "paused"]
    reason: str = ""
    steps: int = 0
    episodes: int = 0
    steps_per_s: float = 0.0
    weights_version: int = -1
    books: Books = Books()
    players: list[PlayerReport] = []
    spooled: int = 0
    evaluating: dict[int, int] = {}


#: Whose fault a failure is.
FailureKind = Literal["missing_package", "environment", "agent", "schema", "player"]


class EvalResult(Message, frozen=True, kw_only=True, tag="eval_result"):
    """member -> broker: an evaluation job is over.

    Attributes:
        episodes: (return, length in steps) of each, in order; empty if the job failed.
        steps: environment steps that it took.
        failure: why there is no result; else empty.
        faulty: the job may be to blame for that: the environment or the agent raised, or its player died.
        kind: whose fault the failure is.
    """

    job: int
    episodes: list[tuple[float, int]] = []
    steps: int = 0
    failure: str = ""
    faulty: bool = False
    kind: FailureKind = "environment"


class Fault(Message, frozen=True, kw_only=True, tag="fault"):
    """member -> broker: something here does not work; `text` is one line for the host's owner."""

    kind: Literal["missing_package", "environment", "agent", "player", "schema", "warning"]
    text: str


class Goodbye(Message, frozen=True, kw_only=True, tag="goodbye"):
    """anyone -> broker: I leave on purpose."""

    reason: str = ""
    books: Books | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A shard's word on one bundle: `stored`, `duplicate`, `stale`, `refused` (with a reason) or `busy`.

    Attributes:
        status: the word.
    """

    seq: int
    status: str
    reason: str = ""


class ShardReceipts(Message, frozen=True, kw_only=True, tag="shard_receipts"):
    """shard -> broker: what became of one node's bundles; the broker passes it on as Receipts.

    Attributes:
        episodes: as in BundleHeader, of what was stored now: the last 100, and the last 100 of level 0. All would cost
            the broker more than the rest.
        ended: how many episodes there were.
        steps_total, inserted_ticks: as in ShardReport; totals, so that repeating them does no harm.
    """

    shard: int
    node: str
    boot_id: str
    verdicts: list[Verdict]
    episodes: list[tuple[float, int, float]] = []
    ended: int = 0
    steps_total: int = 0
    inserted_ticks: int = 0


class ShardReport(Message, frozen=True, kw_only=True, tag="shard_report"):
    """shard -> broker, each 0.5 s: how full it is.

    Attributes:
        refused_by_node: refusals by node key, then by reason.
        inserted_ticks, steps_total, stored: since the run began, restarts included; other counters are of this boot.
    """

    index: int
    boot_id: str
    sessions: int
    ticks: int
    size_bytes: int
    inserted_ticks: int
    steps_total: int
    stored: int
    duplicate: int
    refused: dict[str, int] = {}
    stale: int = 0
    evicted: int = 0
    refused_by_node: dict[str, dict[str, int]] = {}
    warnings: list[str] = []


TrainerState = Literal["starting", "waiting", "training", "stalled", "failed"]


class TrainerReport(Message, frozen=True, kw_only=True, tag="trainer_report"):
    """trainer -> broker, each 0.05 s: progress.

    Attributes:
        sampled: ticks taken so far: one a window, all those of a whole session.
        lag_mean: null before the first update of this trainer.
        insert_ceiling: how far the shards' inserted ticks may go; null for no limit.
        updates_skipped: updates that changed nothing, because loss or gradient was not finite; not among `updates`.
        short: the next update needs more sessions than there are.
        sessions_lost: of a queue, those that left it for trainers that ended, and that no checkpoint learned from.
    """

    state: TrainerState
    reason: str = ""
    updates: int = 0
    sampled: int = 0
    weights_version: int = -1
    lag_mean: float | None = None
    insert_ceiling: int | None = None
    metrics: dict[str, float] = {}
    device: str = ""
    updates_skipped: int = 0
    short: bool = False
    sessions_lost: int = 0


class WeightsAsk(Message, frozen=True, kw_only=True, tag="weights_ask"):
    """anyone -> broker: send me the current weights if newer than `have`.

    Attributes:
        have: the version that the sender has; -1 for none.
        keyframe: the version of the keyframe that it has; a change on that one will do. Else they come whole.
    """

    have: int = -1
    keyframe: int = -1


class StatusAsk(Message, frozen=True, kw_only=True, tag="status_ask"):
    """client -> broker: how is the run?"""


class StopAsk(Message, frozen=True, kw_only=True, tag="stop_ask"):
    """owner -> broker: the run ends; tell everyone why.

    Attributes:
        return_mean: the mean return that is the reason; null for another one.
    """

    reason: str
    return_mean: float | None = None


class Rename(Message, frozen=True, kw_only=True, tag="rename"):
    """owner -> broker: the host's name on this LAN (mDNS may have added a suffix)."""

    name: str


class NodesAsk(Message, frozen=True, kw_only=True, tag="nodes_ask"):
    """owner -> broker: which keys do you know, and what is the join code? The answer is a NodesReply."""


class AdmitAsk(Message, frozen=True, kw_only=True, tag="admit_ask"):
    """owner -> broker: let this key in; it waited, or had been removed. The answer is a NodesReply."""

    key: str


class RemoveAsk(Message, frozen=True, kw_only=True, tag="remove_ask"):
    """owner -> broker: this key is out from now on, its live connections too. The answer is a NodesReply."""

    key: str


class QuarantineAsk(Message, frozen=True, kw_only=True, tag="quarantine_ask"):
    """owner -> broker: this key is kept out of this run, and its sessions are not sampled. The answer: a NodesReply.

    Attributes:
        undo: let it in again, and sample what is still there of its sessions.
    """

    key: str
    reason: str = ""
    undo: bool = False


class CodeAsk(Message, frozen=True, kw_only=True, tag="code_ask"):
    """owner -> broker: make a new join code; the answer is a CodeNews."""


class InviteAsk(Message, frozen=True, kw_only=True, tag="invite_ask"):
    """owner -> broker: make a token, for machines where nobody types. The answer is an Invite.

    Attributes:
        uses: how many nodes it admits.
        ttl_s: for how long, in seconds.
    """

    uses: int
    ttl_s: float


# --- control: broker -> members, trainers, shards, clients ---------------------------------------------------------


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """The answer to Hello. Current weights, if any, follow: a WeightsHeader frame and the payload frame.

    A member that must move gets another one, with new seats: its players start again in those.

    Attributes:
        run: everything that all nodes agree on.
        weights_port: where the XPUB listens.
        seats: one per player, for members.
        silent_after_s: how long either side may be silent before it is taken for gone.
        grant_ticks: as in Receipts.
        warnings: one line each, for the person at the node: what differs from the host, for instance.
    """

    run: RunSpec
    host_name: str
    version: str
    term: int
    shards: list[ShardAddress]
    weights_version: int
    weights_port: int
    seats: list[Seat] = []
    silent_after_s: float = 15.0
    grant_ticks: int | None = None
    warnings: list[str] = []


class HelloAgain(Message, frozen=True, kw_only=True, tag="hello_again"):
    """broker -> anyone whose key it does not know (it restarted), or the host's command on a new connection: say Hello
    again."""

    term: int


class HeartbeatAck(Message, frozen=True, kw_only=True, tag="heartbeat_ack"):
    """broker -> member: heard; the weights' current version, and the member's grant.

    Attributes:
        trainer: why the trainer takes nothing, where it is not only behind; for people.
    """

    term: int
    weights_version: int
    grant_ticks: int | None = None
    trainer: str = ""


class Receipts(Message, frozen=True, kw_only=True, tag="receipts"):
    """broker -> member: verdicts of one shard. A bundle leaves the member only on one of these.

    Attributes:
        grant_ticks: how many ticks this member may have unsettled; None for no limit (design: the insert gate).
    """

    shard: int
    boot_id: str
    verdicts: list[Verdict]
    grant_ticks: int | None = None


class Grant(Message, frozen=True, kw_only=True, tag="grant"):
    """broker -> member: a new grant, when it changes without a receipt."""

    grant_ticks: int | None = None


class ShardList(Message, frozen=True, kw_only=True, tag="shard_list"):
    """broker -> members and trainers: the shards as they are now; a new boot_id means resend what is unsettled."""

    term: int
    shards: list[ShardAddress]


class RunProgress(Message, frozen=True, kw_only=True, tag="run_progress"):
    """broker -> trainer, each 1 s: how well the policy plays, for the choice of the best checkpoint.

    Attributes:
        returns: the last episodes' returns, as the broker keeps them (core/episodes.py), for the checkpoints.
        candidate_wanted: publish a version whose state you keep, until its evaluation comes.
        evaluation: the last one.
    """

    steps: int
    episodes: int
    return_mean: float | None
    return_episodes: int
    returns: dict[str, list[float]] = {}
    candidate_wanted: bool = False
    evaluation: Evaluation | None = None


class EvalJob(Message, frozen=True, kw_only=True, tag="eval_job"):
    """broker -> member: play these episodes greedily with exactly these weights; the answer is an EvalResult.

    A WeightsHeader frame and the payload frame follow. The member passes it on to a player, without the header.

    Attributes:
        job: a number that no other job has.
        version: of the weights.
        first: the first episode's number; with the run's seed it makes the episode's own seed.
        episodes: how many, from `first` on.
        max_length: an episode counts as ended after so many steps.
    """

    job: int
    version: int
    first: int
    episodes: int
    max_length: int


class EvalDrop(Message, frozen=True, kw_only=True, tag="eval_drop"):
    """broker -> member -> player: this evaluation job is not wanted any more."""

    job: int


class Current(Message, frozen=True, kw_only=True, tag="current"):
    """broker -> shards: the newest published weights version, sent before members can have it."""

    weights_version: int


class Stopping(Message, frozen=True, kw_only=True, tag="stopping"):
    """broker -> everyone: the run has ended. `reason`: return, steps, time, signal or error."""

    reason: str


class Access(Message, frozen=True, kw_only=True, tag="access"):
    """broker -> shards: who may give sessions; the whole of it, at each change, and with a shard's Welcome.

    Attributes:
        open: any key but the barred ones.
        admitted: keys that may.
        barred: keys that may not, in an open host: removed or quarantined.
        quarantined: keys whose sessions are not to be sampled.
    """

    open: bool
    admitted: list[str]
    barred: list[str]
    quarantined: list[str]


class CodeNews(Message, frozen=True, kw_only=True, tag="code_news"):
    """broker -> owner: the join code as it is now; with the owner's Welcome, and at each change.

    Attributes:
        code: empty if this host has none (it is open).
        uses: how many nodes it still admits; null for no limit.
        ttl_s: seconds that it is still valid; null for no limit.
        reason: why it changed: `new`, `guesses`, `used`, `expired` or `asked`.
    """

    code: str
    uses: int | None = None
    ttl_s: float | None = None
    reason: str = "new"


class Invite(Message, frozen=True, kw_only=True, tag="invite"):
    """broker -> owner: a token (net/tokens.py makes one text of it).

    Attributes:
        id: which one.
        secret: what a newcomer proves that it knows.
        server_key: the host's key.
        addresses: where it listens, as far as it knows.
        uses, ttl_s: as in InviteAsk.
    """

    id: str
    secret: str
    server_key: str
    addresses: list[str]
    base_port: int
    uses: int
    ttl_s: float


class NodeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One key that the host knows, as `p2prl nodes` shows it.

    Attributes:
        how: what let it in: `code`, `token`, `owner` or `open`.
        since: when it got this standing, in seconds since the epoch.
        state: its state as a member; empty if it is none now.
        refused: what this host refused of it, by reason.
    """

    key: str
    name: str
    standing: Standing
    how: str = ""
    reason: str = ""
    address: str = ""
    since: float = 0.0
    state: str = ""
    refused: dict[str, int] = {}


class NodesReply(Message, frozen=True, kw_only=True, tag="nodes_reply"):
    """broker -> owner: every key that it knows, after what was asked for was done.

    Attributes:
        code: as in CodeNews.
        uses, ttl_s: as in CodeNews.
    """

    host_name: str
    open: bool
    nodes: list[NodeEntry]
    code: str = ""
    uses: int | None = None
    ttl_s: float | None = None


class ShardStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One shard, as `p2prl status` shows it."""

    index: int
    state: str
    sessions: int = 0
    ticks: int = 0
    size_bytes: int = 0
    inserted_ticks: int = 0
    stored: int = 0
    duplicate: int = 0
    refused: int = 0
    refused_reasons: dict[str, int] = {}
    stale: int = 0
    evicted: int = 0
    starts: int = 1
    push_port: int = 0
    sample_port: int = 0


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as `p2prl status` shows it.

    Attributes:
        lag: versions that it is behind.
        seen_s_ago: since its last word.
        step_s_ago: since its last step.
        player_reports: one per player, from its last heartbeat.
        faults: its last five faults.
        state: starting, working, stalled, paused or gone; `reason` says why if it is not working.
        refused_by_host: what the host refused of this node, by reason, malformed frames included.
        spooled: of its pending bundles, those on its disk.
        standing: admitted, removed or quarantined.
        return_mean: over the last 100 episodes of those of its slots that explore least of all in the run.
        return_mean_all: over the last 100 episodes of all its slots.
        levels: where its least and its most exploring slot stand on the exploration ladder; 0 explores least.
        before: it was here before the host started, or its broker did again, and is not back; it counts in the books.
    """

    name: str
    key: str
    address: str
    players: int
    state: str
    reason: str = ""
    own: bool = False
    steps: int = 0
    steps_per_s: float = 0.0
    episodes: int = 0
    return_mean: float | None = None
    weights_version: int = -1
    lag: int = 0
    seen_s_ago: float = 0.0
    version: str = ""
    system: str = ""
    bundles: Books = Books()
    refused_by_host: dict[str, int] = {}
    player_reports: list[PlayerReport] = []
    faults: list[str] = []
    spooled: int = 0
    standing: Standing = "admitted"
    return_mean_all: float | None = None
    levels: tuple[float, float] = (0.0, 0.0)
    step_s_ago: float = 0.0
    before: bool = False


class StatusReply(Message, frozen=True, kw_only=True, tag="status_reply"):
    """broker -> client: the whole run. `p2prl status --json` prints this, flattened.

    Attributes:
        run_name: the name of its folder.
        uptime_s: since this start of the host, whatever became of its broker meanwhile.
        bundles: the run's books: the sum of the nodes'.
        nodes: one row per key that is here, gave something or told of a fault; `others` stands for those that went
            longest ago.
        refused_frames: frames refused at control and enrol, by reason.
        members_waiting: true if nobody plays.
        stopping: why the run ends, or empty.
        waiting_nodes: names of nodes that proved the code and wait for the owner's word.
        return_mean: over the last 100 episodes of the least exploring slots; None before the first one.
        return_episodes: how many episodes that mean is over (at most 100).
        evaluation: the last one, of greedy episodes; None before the first.
        evaluating: how the next one stands.
        updates_skipped, sessions_lost: as in TrainerReport.
    """

    run_id: str
    run_name: str
    host_name: str
    version: str
    term: int
    env: str
    agent: str
    uptime_s: float
    steps: int
    steps_per_s: float
    episodes: int
    return_mean: float | None
    return_episodes: int
    return_mean_all: float | None
    updates: int
    weights_version: int
    lag_mean: float
    bundles: Books
    nodes: list[NodeStatus]
    shards: list[ShardStatus]
    trainer_state: str
    trainer_reason: str = ""
    device: str = ""
    metrics: dict[str, float] = {}
    refused_frames: dict[str, int] = {}
    warnings: list[str] = []
    open: bool = True
    members_waiting: bool = False
    stopping: str = ""
    waiting_nodes: list[str] = []
    evaluation: Evaluation | None = None
    evaluating: Evaluating = Evaluating()
    updates_skipped: int = 0
    sessions_lost: int = 0


# --- sessions: PUSH -> PULL, member -> shard ------------------------------------------------------------------------


class Delivery(Message, frozen=True, kw_only=True, tag="delivery"):
    """member -> shard, frame 1 of 3. Frame 2 is the player's BundleHeader, frame 3 its payload; both opaque here.

    (node key, boot_id, seq) names a bundle for ever; `seq` counts from 0 for each shard and boot. `boot_id` is of the
    boot that numbered the bundle: one that comes from a spool keeps its name.
    """

    run_id: str
    boot_id: str
    seq: int


class BundleHeader(Message, frozen=True, kw_only=True, tag="bundle"):
    """player -> member -> shard: what the payload holds.

    Attributes:
        schema: SessionSchema.digest().
        slots: B.
        version: of the weights that played all of it.
        rank, serial: which player, and its count of bundles.
        steps: ticks that are not RESET, over all slots.
        episodes: (return, length, ladder level) of each episode that ended in it.
        codecs, sizes: per column in schema order; `sizes` are the compressed lengths in the payload.
    """

    schema: bytes
    slots: int
    version: int
    rank: int
    serial: int
    steps: int
    episodes: list[tuple[float, int, float]]
    codecs: list[str]
    sizes: list[int]


# --- sampling: DEALER -> ROUTER, trainer -> shard -------------------------------------------------------------------


class SampleAsk(Message, frozen=True, kw_only=True, tag="sample_ask"):
    """trainer -> shard: send `count` samples, of a queue up to so many; 0 asks for the mass only.

    Attributes:
        count: samples wanted.
        window: ticks per sample; 0 for whole sessions.
        highest: the highest priority seen in any shard, which new sessions get; 0 for none.
        wait: a queue that is empty answers once it has something. It remembers only the newest question.
    """

    ask: int
    count: int
    window: int = 0
    weights_version: int = 0
    highest: float = 0.0
    wait: bool = False


class SampleReply(Message, frozen=True, kw_only=True, tag="sample_reply"):
    """shard -> trainer: `count` samples. One frame per column follows, `[count, rows, ...]` raw in C order, then one
    frame with the samples' versions (int64). Of a prioritised replay two more: `[count, 2]` int64, each sample's
    session number and place in the ring, and float32 `[count]`, the priorities that they were drawn with.

    Where shard and trainer share memory (replay/shared.py) one frame takes the place of the columns' frames: int64
    `[count, 3]`, each sample's place, stamp and first tick.

    Attributes:
        ask: which it answers; 0 for none: a queue that was empty has something again.
        count: samples that follow; may be fewer than asked for.
        mass: ticks (uniform), places (prioritised) or sessions (queue) that could be sampled now.
        stale: sessions that were dropped from the queue: older than max_lag, or of a node that is quarantined.
        priority_total: all priorities there together as the samples were drawn; 0 if the replay is not prioritised.
        highest: the highest priority that this shard has heard of; 0 for none.
        shared: the samples are in memory that the trainer reads, and what follows says where.
    """

    ask: int
    count: int
    mass: int
    inserted_ticks: int
    boot_id: str
    ticks: int = 0
    stale: int = 0
    priority_total: float = 0.0
    highest: float = 0.0
    shared: bool = False


class Priorities(Message, frozen=True, kw_only=True, tag="priorities"):
    """trainer -> shard: how often samples that the shard gave are to be drawn from now on. No answer.

    Two frames follow: `[count, 2]` int64, as they came with the samples, and float32 `[count]`, finite and above 0.
    Those of sessions that are gone are ignored.

    Attributes:
        count: samples.
        highest: as in SampleAsk.
    """

    count: int
    highest: float = 0.0


# --- player <-> member: DEALER <-> ROUTER, ipc ----------------------------------------------------------------------


class PlayerHello(Message, frozen=True, kw_only=True, tag="player_hello"):
    """player -> member: my environment and agent are ready; send weights."""

    rank: int
    env_hash: str = ""
    agent_hash: str = ""


class PlayerBundle(Message, frozen=True, kw_only=True, tag="player_bundle"):
    """player -> member. Two more frames: the BundleHeader and the payload.

    Attributes:
        ticks: T x B, what the bundle counts for in grants.
        version: of the weights that played all of it.
        warning: one line for people, once.
        failures: how often an environment raised since this player started; the slot then began anew.
        failure: one line about the last time.
    """

    rank: int
    serial: int
    ticks: int
    steps: int
    episodes: int
    version: int
    warning: str = ""
    failures: int = 0
    failure: str = ""


class PlayerProgress(Message, frozen=True, kw_only=True, tag="player_progress"):
    """player -> member, as its first bundle begins, and about each second while one takes longer: how far it is.

    Attributes:
        steps: of the bundle under way, in all slots.
        version: of the weights that play it.
    """

    rank: int
    steps: int
    version: int


class PlayerDropped(Message, frozen=True, kw_only=True, tag="player_dropped"):
    """player -> member: so many bundles, with so many steps and episodes, were dropped: the window was full.

    Attributes:
        bundles: how many.
    """

    rank: int
    bundles: int
    steps: int
    episodes: int


class PlayerEvaluated(Message, frozen=True, kw_only=True, tag="player_evaluated"):
    """player -> member, each 0.5 s and at the end: how far an evaluation job is.

    Attributes:
        steps: environment steps so far.
        over: there is nothing more to come of it.
        episodes, failure, kind: as in EvalResult, when it is over.
    """

    rank: int
    job: int
    steps: int
    over: bool = False
    episodes: list[tuple[float, int]] = []
    failure: str = ""
    kind: FailureKind = "environment"


class PlayerFailed(Message, frozen=True, kw_only=True, tag="player_failed"):
    """player -> member: I cannot go on.

    Attributes:
        package: the one that is missing.
        hopeless: nor could another player in my place.
    """

    rank: int
    kind: FailureKind
    text: str
    package: str = ""
    hopeless: bool = False


class PlayerCredit(Message, frozen=True, kw_only=True, tag="player_credit"):
    """member -> player: bundles up to `serial` were taken over; you may hold `credit` more unanswered.

    To a player that waited the member's newest weights go before it, if it was not sent them.

    Attributes:
        credit: bundles that may be under way unanswered.
    """

    serial: int
    credit: int


EnrolMessage = EnrolAsk | EnrolCard | EnrolBegin | EnrolShare | EnrolProof | EnrolProved | Refusal
ToBroker = (
    Hello
    | Heartbeat
    | EvalResult
    | Fault
    | Goodbye
    | ShardReceipts
    | ShardReport
    | TrainerReport
    | WeightsAsk
    | StatusAsk
    | StopAsk
    | Rename
    | NodesAsk
    | AdmitAsk
    | RemoveAsk
    | QuarantineAsk
    | CodeAsk
    | InviteAsk
)
FromBroker = (
    Welcome
    | HelloAgain
    | HeartbeatAck
    | Receipts
    | Grant
    | ShardList
    | Current
    | RunProgress
    | EvalJob
    | EvalDrop
    | Stopping
    | StatusReply
    | WeightsHeader
    | Refusal
    | Access
    | CodeNews
    | Invite
    | NodesReply
)
SampleMessage = SampleAsk | SampleReply | Priorities
FromPlayer = PlayerHello | PlayerBundle | PlayerProgress | PlayerDropped | PlayerFailed | PlayerEvaluated
ToPlayer = PlayerCredit | WeightsHeader | EvalJob | EvalDrop
