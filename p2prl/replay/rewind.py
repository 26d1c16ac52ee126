"""Going back: a shard's log as it would be without the sessions that newer weights played.

The log is written anew, beside the old one, which stays as it is. Sessions are numbered anew, so that a ring has room
for all that are left; what was stored stays known by name, so that nothing that comes twice is stored now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from p2prl.core.dedup import Dedup
from p2prl.errors import RemoteProtocolError
from p2prl.replay.log import SNAPSHOT, SegmentLog
from p2prl.replay.params import ReplayParams
from p2prl.replay.records import (
    BUNDLE,
    CONSUMED,
    Snapshot,
    StoredBundle,
    decode_bundle_record,
    decode_consumed,
    decode_snapshot,
    encode_record,
)
from p2prl.wire.frames import decode_bundle_header


@dataclass
class Survey:
    """What a shard's log holds, seen from a version of the weights.

    Attributes:
        consumed: sessions below this left the queue.
        kept, slots, steps: bundles that this version or an older one played and that are live, their sessions, and
            their steps.
        taken: of those sessions, the ones at the front that left the queue.
        left_out: bundles that newer versions played.
        stored: bundles of this version or older ones, as far as known; those that are gone are among them.
        seen: the names of all bundles that were ever stored.
    """

    consumed: int = 0
    kept: int = 0
    slots: int = 0
    steps: int = 0
    taken: int = 0
    left_out: int = 0
    stored: int = 0
    seen: Dedup = field(default_factory=Dedup)


def survey(folder: Path, version: int) -> Survey:
    """Read a shard's log.

    Raises:
        LogError: it cannot be read.
    """
    found = Survey()
    for kind, body in _records(folder):
        try:
            _count(found, kind, body)
        except msgspec.MsgspecError:
            continue  # rotted: its shard left it out, too
    for bundle in _live(folder, found.consumed):
        if _version(bundle) > version:
            found.left_out += 1
            continue
        if not found.kept:
            found.taken = max(0, found.consumed - bundle.first)
        found.kept += 1
        found.slots += bundle.slots
        found.steps += bundle.steps
    found.stored = max(found.kept, found.stored - found.left_out)
    return found


def _count(found: Survey, kind: int, body: bytes) -> None:
    if kind == SNAPSHOT:
        snapshot = decode_snapshot(body)
        found.consumed = max(found.consumed, snapshot.consumed)
        found.stored = max(found.stored, snapshot.stored)
        found.seen.restore(snapshot.seen)
    elif kind == CONSUMED:
        found.consumed = max(found.consumed, decode_consumed(body))
    elif kind == BUNDLE:
        bundle = decode_bundle_record(body)
        found.seen.mark(bundle.node, bundle.boot_id, bundle.seq)
        found.stored += 1


def rewrite(
    source: Path, target: Path, found: Survey, version: int, ticks: int, steps: int, inserted: int
) -> None:
    """Write a shard's log anew, without what newer versions played.

    Args:
        found: `survey` of the source.
        ticks: of a session.
        steps, inserted: what the shard's totals are to be, in steps and in ticks; more, if what is kept is more.

    Raises:
        LogError: no space, or the disk fails.
    """
    state = Snapshot(
        next_session=0,
        consumed=found.taken,
        inserted_ticks=max(0, inserted - ticks * found.slots),
        steps=max(0, steps - found.steps),
        stored=found.stored - found.kept,
        seen=found.seen.snapshot(),
    )
    log = SegmentLog(target, ReplayParams().segment_bytes, lambda: encode_record(state))
    try:
        log.append(CONSUMED, encode_record(state.consumed))  # so that there is a snapshot, whatever follows
        for bundle in _live(source, found.consumed):
            if _version(bundle) > version:
                continue
            moved = msgspec.structs.replace(bundle, first=state.next_session)
            log.append(BUNDLE, encode_record(moved), mark=moved.first + moved.slots)
            state = msgspec.structs.replace(
                state,
                next_session=moved.first + moved.slots,
                inserted_ticks=state.inserted_ticks + ticks * moved.slots,
                steps=state.steps + moved.steps,
                stored=state.stored + 1,
            )
    finally:
        log.close()


def _records(folder: Path) -> Iterator[tuple[int, bytes]]:
    log = SegmentLog(folder, ReplayParams().segment_bytes, lambda: b"")
    try:
        yield from log.records()
    finally:
        log.close()


def _live(folder: Path, consumed: int) -> Iterator[StoredBundle]:
    """The bundles that can be read, and of a queue those that were not consumed."""
    for kind, body in _records(folder):
        if kind != BUNDLE:
            continue
        try:
            bundle = decode_bundle_record(body)
        except msgspec.MsgspecError:
            continue
        if bundle.first + bundle.slots > consumed:
            yield bundle


def _version(bundle: StoredBundle) -> float:
    try:
        return decode_bundle_header(bundle.header).version
    except RemoteProtocolError:
        return float("inf")  # not to be read: it is left out
