"""Memory without a name that a host's shards share with its trainer, where the system has such: Linux.

It goes with the last process that holds it, so a kill leaves nothing behind. The host holds it too: a shard that is
started again gets the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.core.schema import SessionSchema
from p2prl.replay.params import ReplayKind
from p2prl.replay.shared import can_be_shared, ring_bytes
from p2prl.replay.storage import ring_capacity


@dataclass(frozen=True)
class Ring:
    """Descriptors of one memory: the shard writes through one, the trainer can only read through the other."""

    writes: int
    reads: int


def open_rings(schema: SessionSchema, kind: ReplayKind, shards: int, shard_bytes: int) -> list[Ring]:
    """One a shard, of its size for good, and not inherited; none where samples go through sockets.

    Args:
        shard_bytes: the capacity of each.
    """
    rings: list[Ring] = []
    if kind != "uniform" or not can_be_shared(schema):
        return rings
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):  # musl's Python may lack it
        return rings
    size = ring_bytes(schema, ring_capacity(schema, shard_bytes))
    try:
        rings.extend(_open(f"p2prl-ring-{index}", size) for index in range(shards))
    except OSError:  # a sandbox forbids it, or there is no /proc: sockets do
        close_rings(rings)
    return rings


def _open(name: str, size: int) -> Ring:
    import fcntl

    writes = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(writes, size)
        # Whoever made it smaller would end those that read it.
        fcntl.fcntl(writes, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return Ring(writes, os.open(f"/proc/self/fd/{writes}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        os.close(writes)
        raise


def close_rings(rings: list[Ring]) -> None:
    """The memory stays for those that have it already."""
    for ring in rings:
        os.close(ring.writes)
        os.close(ring.reads)
    rings.clear()


def keep_to_itself(descriptors: Sequence[int]) -> None:
    """What this process starts does not get them: they came by being inherited, and would go on so."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
