"""What one shard is told about its replay."""

from __future__ import annotations

from typing import Literal

import msgspec

ReplayKind = Literal["queue", "uniform", "prioritised"]


class ReplayParams(msgspec.Struct, frozen=True):
    """The part of an agent's ReplaySpec that a shard needs, for this shard alone.

    Attributes:
        kind: `queue` (each session once, first in first out), `uniform` or `prioritised`.
        capacity_bytes: what this shard may hold: decoded, but for pictures in a ring. At least one session, or one
            bundle of a queue, always fits.
        max_lag: sessions older than this many weights versions are stale; 0 for no limit.
        window: ticks per sample that `mass` is counted for, and priorities are kept for; 0 for whole sessions.
        fsync_interval_s: the most seconds of acknowledged sessions that a power cut may take; a kill, none. With 0
            a power cut takes none either, as long as `flush` is called before verdicts are passed on.
        segment_bytes: the log begins a new file after this many bytes.
        rings: the descriptor of memory that the trainer reads, for a uniform ring without pictures; -1 for none.
        shard, shards: which of how many shards it is, as that memory is divided.
        reward_range, max_episode_steps: what the environment declares (core/spaces.py); None for nothing.
    """

    kind: ReplayKind = "uniform"
    capacity_bytes: int = 32_000_000
    max_lag: int = 0
    window: int = 1
    fsync_interval_s: float = 1.0
    segment_bytes: int = 8 * 1024 * 1024
    rings: int = -1
    shard: int = 0
    shards: int = 1
    reward_range: tuple[float, float] | None = None
    max_episode_steps: int | None = None
