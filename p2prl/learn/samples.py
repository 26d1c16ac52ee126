"""Samples between a shard and the trainer: how large a batch is, whether it can be asked for, frames to arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2prl.core.messages import MAX_SAMPLE_COUNT
from p2prl.core.schema import SessionSchema
from p2prl.errors import P2prlError
from p2prl.learn.contracts import Array, ReplaySpec
from p2prl.replay.storage import MAX_SAMPLE_BYTES, in_pictures
from p2prl.wire.stills import Darkroom, decode_stills
from p2prl.words import sized


def batch_bytes(schema: SessionSchema, spec: ReplaySpec) -> int:
    """Bytes of one batch, without what says where it came from."""
    return spec.batch * sum(schema.rows(column, spec.window) * column.row_bytes for column in schema.columns)


def check_batch(schema: SessionSchema, spec: ReplaySpec) -> str:
    """Why a batch is more than shards can be asked for at once, or an empty string."""
    # Of a queue two batches are asked for, so that one is whole.
    times = 2 if spec.kind == "queue" else 1
    if times * spec.batch > MAX_SAMPLE_COUNT:
        return f"replay.batch={spec.batch} is more than the {MAX_SAMPLE_COUNT // times} samples that can be asked for"
    size = times * batch_bytes(schema, spec)
    if size > MAX_SAMPLE_BYTES:
        fits = spec.batch * MAX_SAMPLE_BYTES // size
        return (
            f"replay.batch={spec.batch} is {sized(size)} of samples at once: at most {fits} can be asked for"
        )
    return ""


def columns_from_frames(
    schema: SessionSchema, spec: ReplaySpec, count: int, payload: Sequence[memoryview | bytes]
) -> list[Array]:
    """The arrays of a SampleReply: one `[count, rows, ...]` per column, then the versions `[count]`; of a prioritised
    replay also the ids `[count, 2]` and the priorities `[count]`. Of pictures a Still for each sample, `[count]`.

    Raises:
        ValueError: the frames are not exactly of the schema's sizes.
    """
    expected = len(schema.columns) + (3 if spec.kind == "prioritised" else 1)
    if len(payload) != expected:
        raise ValueError(f"a sample of {len(payload)} frames, expected {expected}")
    arrays: list[Array] = []
    for column, frame in zip(schema.columns, payload, strict=False):
        if in_pictures(column):
            stills = np.empty(count, object)
            stills[:] = decode_stills(frame, count)
            arrays.append(stills)
            continue
        rows = schema.rows(column, spec.window)
        arrays.append(np.frombuffer(frame, column.dtype).reshape(count, rows, *column.shape))
    versions, *drawn = payload[len(schema.columns) :]
    arrays.append(np.frombuffer(versions, np.int64).reshape(count))
    if drawn:
        ids, priorities = drawn
        arrays.append(np.frombuffer(ids, np.int64).reshape(count, 2))
        arrays.append(np.frombuffer(priorities, np.float32).reshape(count))
    return arrays


def darkrooms(schema: SessionSchema, window: int) -> dict[str, Darkroom]:
    """By the names of the columns of pictures: a batch's are developed in them."""
    return {
        column.name: Darkroom(schema.rows(column), schema.rows(column, window), column.shape)
        for column in schema.columns
        if in_pictures(column)
    }


def checked_priorities(priorities: Array, count: int) -> Array:
    """Float32 `[count]`, as in Update. Raises P2prlError if they are not what the contract says."""
    values = np.asarray(priorities, np.float32)
    if values.shape != (count,):
        raise P2prlError(f"update gave priorities of the shape {values.shape}; the batch has {count} samples")
    sound = np.isfinite(values) & (values > 0)
    if not sound.all():
        raise P2prlError(f"update gave a priority of {values[~sound][0]}; each must be finite and above 0")
    return values
