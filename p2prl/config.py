"""An experiment: everything a run is made from. TOML in, TOML out. A leaf: it imports nothing of p2prl."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

#: Bounds are data, so that a value from a flag, from `--set` or a file is judged in one place.
Count = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
NotNegative = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
#: Of all steps; the rest is play.
Share = Annotated[float, msgspec.Meta(ge=0, le=0.9)]
#: What numpy, torch and Gymnasium all take.
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
#: Ports base+10 to base+11+2*32 lie below the web page's, base+80.
MAX_SHARDS = 32
#: What a host takes of one node (core/bounds.py).
MAX_PLAYERS = 256
#: What one bundle can carry (wire/bundle.py).
MAX_SLOTS = 1024
Slots = Annotated[int, msgspec.Meta(ge=1, le=MAX_SLOTS)]
Shards = Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARDS)]


class EnvConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[env]`: which environment."""

    id: str = "CartPole-v1"
    """A Gymnasium id, `module:Id`, or the name of an installed `p2prl.envs` entry point."""
    args: dict[str, Any] = {}
    """Keyword arguments of the environment."""


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[agent]`: which algorithm, with its settings beside its name."""

    name: str = "dqn"
    """The name of an installed `p2prl.agents` entry point, or `path/to/file.py:Class`."""
    settings: dict[str, Any] = {}
    """The algorithm's own settings; docs/write-an-agent.md and `p2prl experiments` name them."""


class ReplayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[replay]`: overrides of what the agent asks for; null keeps the agent's value. The last is the host's own."""

    kind: Literal["queue", "uniform", "prioritised"] | None = None
    """`queue`: each session once, about in order. `uniform`: at random. `prioritised`: surprises more often."""
    ticks: Count | None = None
    """T, the length of every session."""
    batch: Count | None = None
    """Samples per update."""
    capacity_bytes: Count | None = None
    """What all shards together may hold, in bytes: decoded, but for pictures in a ring, kept as they were sent."""
    min_ticks: NotNegative | None = None
    """Ticks stored before the first update."""
    samples_per_insert: NotNegativeFloat | None = None
    """How often a tick is sampled on average; 0 for no limit."""
    max_lag: NotNegative | None = None
    """Sessions older than this many weights versions are stale; 0 for no limit."""
    fsync_interval_s: NotNegativeFloat = 1.0
    """Seconds of acknowledged sessions that a power cut may cost (a kill: none); 0 brings each to the disk at once."""


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: what a host takes of one node. What is more is `busy`, and comes again later."""

    node_bytes_per_s: NotNegative = 50_000_000
    """Bytes of bundles that one node may give per second, as sent, over all shards; 0 for no limit."""
    node_bundles_per_s: NotNegative = 2000
    """Bundles that one node may give per second, over all shards; 0 for no limit."""


class PlayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[play]`: how players play."""

    envs: Slots = 16
    """B, the environment slots of one player."""
    when_full: Literal["wait", "drop_oldest"] = "wait"
    """What a player does when its window is full: wait, or drop its oldest unsent bundle (counted)."""
    window_bytes: Count = 16_000_000
    """Bytes that one member may hold that no shard has acknowledged yet."""
    window_bundles: Count = 256
    """Bundles that one member may hold that no shard has acknowledged yet."""
    eval_share: Share = 0.05
    """The share of all steps that players spend on greedy episodes, for the curve and for `best`; 0 for none."""
    eval_episodes: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20
    """Greedy episodes of each version that is evaluated, fewer while they are too dear; the same seeds each time."""


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[train]`: how the trainer trains."""

    publish_interval_s: NotNegativeFloat = 0.1
    """Least seconds between two broadcasts of the weights."""
    checkpoint_interval_s: Positive = 30.0
    """Seconds between two checkpoints."""
    keep_checkpoints: Count = 3
    """How many of the last checkpoints stay, beside the best."""
    device: Literal["auto", "cpu", "cuda", "mps", "gpu"] = "auto"
    """`auto` takes a GPU if there is one; `gpu` is `cuda` or `mps`, and an error where there is neither."""


class StopConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[stop]`: when the run ends by itself; 0 or null for never."""

    steps: NotNegative | None = None
    """Environment steps stored."""
    mean_return: float | None = None
    """Mean return of the last 100 episodes of the least exploring slots."""
    time_s: NotNegativeFloat | None = None
    """Seconds since this start."""


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Environment + agent + settings; a preset has a name."""

    name: str = "cartpole"
    """The experiment's name; the run's folder begins with it."""
    seed: Seed = 1
    """Seeds everything: the networks, the players, the samplers."""
    shards: Shards = 2
    """Shard processes on the host."""
    env: EnvConfig = EnvConfig()
    agent: AgentConfig = AgentConfig()
    replay: ReplayConfig = ReplayConfig()
    play: PlayConfig = PlayConfig()
    train: TrainConfig = TrainConfig()
    stop: StopConfig = StopConfig()
    limits: LimitsConfig = LimitsConfig()
