"""How many batches are asked for together, and how fast sampling and inserting go against each other."""

from __future__ import annotations

from p2prl.core.limiter import Limiter, QueueLimiter, RateLimiter
from p2prl.core.messages import MAX_SAMPLE_COUNT
from p2prl.core.schema import SessionSchema
from p2prl.learn.contracts import ReplaySpec
from p2prl.learn.samples import batch_bytes

#: Batches per group, and groups under way or waiting, of a ring. What is drawn waits until up to so many updates were
#: made, so of a prioritised replay they are few; of a uniform one that is nothing beside how old its sessions are, and
#: larger questions cost less for each batch: measured, a quarter more sessions a second with 16 than with 4.
_GROUP_BATCHES, _MOST_BATCHES = 4, 16
#: As many where shards only say where samples are, and sampling is not tied to inserting: little is sent, and nothing
#: kept, until a batch is taken. Measured on sessions of CartPole: a third more a second than with 16.
_MOST_SHARED = 64
GROUPS_AHEAD = 2
#: Bytes of one group, if it has more than one batch: where a batch is large, the dialogue's cost is small beside it.
_GROUP_BYTES = 64_000_000
#: Ticks that inserting may run ahead of the ratio, as a part of the capacity in ticks and at least this many.
_TOLERANCE_TICKS = 2_000


def ticks_each(schema: SessionSchema, spec: ReplaySpec) -> int:
    """Ticks that one sample counts for: a window its first alone, a whole session all of them."""
    return schema.ticks if spec.kind == "queue" or spec.window == 0 else 1


def group_batches(schema: SessionSchema, spec: ReplaySpec, shared: bool = False) -> int:
    """Batches that are asked for together; `shared`: out of memory that the shards share."""
    most = _MOST_SHARED if shared else _MOST_BATCHES
    fitting = min(_GROUP_BYTES // max(1, batch_bytes(schema, spec)), MAX_SAMPLE_COUNT // spec.batch)
    return max(1, min(_wanted_batches(schema, spec, most), fitting))


def _wanted_batches(schema: SessionSchema, spec: ReplaySpec, most: int) -> int:
    """No more than the limiter's tolerance covers: what is asked for counts as sampled."""
    if spec.kind != "uniform":
        return _GROUP_BATCHES
    if not spec.samples_per_insert:
        return most
    ticks = spec.batch * ticks_each(schema, spec) * GROUPS_AHEAD
    covered = int(spec.samples_per_insert * _TOLERANCE_TICKS // ticks)
    return max(_GROUP_BATCHES, min(_MOST_BATCHES, covered))


def limiter(schema: SessionSchema, spec: ReplaySpec, sampled_total: int) -> Limiter:
    """The run's limiter; `sampled_total` as in Sampler."""
    batch_ticks = spec.batch * ticks_each(schema, spec)
    if spec.kind == "queue":
        capacity_ticks = spec.capacity_bytes // max(1, schema.session_bytes()) * schema.ticks
        return QueueLimiter(capacity_ticks, batch_ticks, sampled_total)
    ahead = batch_ticks * _GROUP_BATCHES * GROUPS_AHEAD
    tolerance = max(ahead, spec.samples_per_insert * _TOLERANCE_TICKS)
    return RateLimiter(spec.samples_per_insert, spec.min_ticks, tolerance, batch_ticks, sampled_total)
