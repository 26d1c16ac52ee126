"""Memory without a name that a host's shards share with its trainer, where the system has such: Linux.

It goes with the last process that holds it, so a kill leaves nothing behind. The host holds it too: a shard that is
started again gets the same.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from p2prl.core.schema import SessionSchema
from p2prl.replay.params import ReplayKind
from p2prl.replay.shared import can_be_shared, rings_bytes
from p2prl.replay.storage import ring_capacity


@dataclass(frozen=True)
class Rings:
    """Descriptors of one memory: shards write through one, the trainer can only read through the other."""

    writes: int
    reads: int

    def close(self) -> None:
        """The memory stays for those that have it already."""
        os.close(self.writes)
        os.close(self.reads)


def open_rings(schema: SessionSchema, kind: ReplayKind, shards: int, shard_bytes: int) -> Rings | None:
    """Of all shards, of its size for good, and not inherited; None where samples go through sockets.

    Args:
        shard_bytes: the capacity of each.
    """
    if kind != "uniform" or not can_be_shared(schema):
        return None
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):  # musl's Python may lack it
        return None
    try:
        return _open(rings_bytes(schema, shards, ring_capacity(schema, shard_bytes)))
    except OSError:  # a sandbox forbids it, or there is no /proc: sockets do
        return None


def _open(size: int) -> Rings:
    import fcntl

    writes = os.memfd_create("p2prl-rings", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(writes, size)
        # Whoever made it smaller would end those that read it.
        fcntl.fcntl(writes, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return Rings(writes, os.open(f"/proc/self/fd/{writes}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        os.close(writes)
        raise


def keep_to_itself(descriptor: int) -> None:
    """What this process starts does not get it: it came by being inherited, and would go on so. -1 for none."""
    if descriptor >= 0:
        os.set_inheritable(descriptor, False)
