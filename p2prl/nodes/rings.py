"""Memory without a name that a host's shards share with its trainer, where the system has such: Linux.

It goes with the last process that holds it, so a kill leaves nothing behind. The host holds it too: a shard that is
started again gets the same.
"""

from __future__ import annotations

import os
import sys

from p2prl.core.schema import SessionSchema
from p2prl.replay.params import ReplayKind
from p2prl.replay.shared import can_be_shared


def open_rings(schema: SessionSchema, kind: ReplayKind, shards: int) -> list[int]:
    """One descriptor a shard, none of them inherited; empty where samples go through sockets."""
    rings: list[int] = []
    if kind != "uniform" or not can_be_shared(schema):
        return rings
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):  # musl's Python may lack it
        return rings
    try:
        rings.extend(os.memfd_create(f"p2prl-ring-{index}") for index in range(shards))
    except OSError:  # a sandbox forbids it: sockets do
        close_rings(rings)
        return []
    return rings


def close_rings(rings: list[int]) -> None:
    """The memory stays for those that have it already."""
    for ring in rings:
        os.close(ring)
    rings.clear()
