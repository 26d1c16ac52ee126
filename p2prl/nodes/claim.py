"""Which block of ports a host takes, so that hosts that start at the same moment take different ones.

Whether a TCP port is free is looked at before the processes that bind it exist. In between, a block belongs to the host
that holds UDP port `base` on loopback: nobody sees it, binding it is atomic, and it goes with its process.
"""

from __future__ import annotations

import errno
import socket
import sys

from p2prl.errors import P2prlError
from p2prl.net.loop import Loop
from p2prl.net.ports import MAX_BLOCKS, STRIDE, PortsTaken, block_ports, free_block, taken_ports
from p2prl.nodes.options import DEFAULT_BASE_PORT, HostOptions
from p2prl.nodes.port_holder import holder

_LOOK_S = 0.1
#: A process that came from a resumed host may hold its ports for a moment after it was killed.
_PORT_PATIENCE_S = 3.0


class Claim:
    """A block that is kept from other hosts on this machine until `release`, or until this process ends.

    Attributes:
        base: where the block begins.
        wanted: where it was to begin.
    """

    def __init__(self, base: int, wanted: int, holder: socket.socket | None) -> None:
        self.base, self.wanted = base, wanted
        self._holder = holder

    def release(self) -> None:
        """Let it go; a second call does nothing."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None


def claim_block(wanted: int, shards: int, blocks: int = MAX_BLOCKS) -> Claim:
    """The first free block from `wanted` on that no other host has claimed.

    Args:
        blocks: how many blocks to try; 1 to insist on `wanted`. Then a claim is not insisted on: it may be of
            something else, and who is second learns it when the ports are bound.

    Raises:
        UsageError, P2prlError: as `free_block`.
    """
    first, left = wanted, blocks
    while left > 0:
        base = free(first, shards, left)
        holder = _hold(base)
        if holder is not None or blocks == 1:
            return Claim(base, wanted, holder)
        left -= (base - first) // STRIDE + 1
        first = base + STRIDE
    raise P2prlError(
        f"other hosts on this machine are starting on all blocks of ports from {wanted} to {first - STRIDE}; "
        "choose another with --port BASE"
    )


def free(base: int, shards: int, blocks: int = 1) -> int:
    """As `free_block`; the error says who has the ports, where that can be told.

    Raises:
        UsageError, P2prlError: as `free_block`.
    """
    try:
        return free_block(base, shards, blocks=blocks)
    except PortsTaken as error:
        by = holder(error.ports, error.base)
        raise (PortsTaken(error.base, error.ports, error.last, by) if by else error) from error


def moved(claim: Claim, shards: int) -> str:
    """Why a host's block is not the one that was wanted, in a line; empty if it is."""
    if claim.base == claim.wanted:
        return ""
    by = holder(taken_ports(block_ports(claim.wanted, shards)), claim.wanted)
    by = f" by {by}" if by else ""
    return f"the ports from {claim.wanted} on are taken{by}; using the block from {claim.base} on"


def first_claim(options: HostOptions, before: int) -> Claim:
    """The block that a host begins with: the one that it is told, or that it had, or the next free one.

    Args:
        before: where the block of the run's last host began; 0 if that is not known.

    Raises:
        UsageError, P2prlError: as `free_block`.
    """
    shards = options.experiment.shards
    wanted = options.base_port or (before if options.resume else 0) or DEFAULT_BASE_PORT
    if options.resume:
        wait_for_ports(wanted, shards, _PORT_PATIENCE_S)
    # Who names a port has told it to others, or opened it in a firewall: another one would be of no use.
    return claim_block(wanted, shards, 1 if options.base_port else MAX_BLOCKS)


def wait_for_ports(base: int, shards: int, patience_s: float) -> None:
    """Give a killed host's processes a moment to let their ports go."""
    loop = Loop()
    deadline = loop.now() + patience_s

    def look() -> None:
        try:
            free_block(base, shards, blocks=1)
        except P2prlError:
            if loop.now() < deadline:
                return
        loop.stop()

    loop.every(_LOOK_S, look, first_s=0.0)
    loop.run()


def _hold(base: int) -> socket.socket | None:
    """The socket that holds a claim; None if another one does."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if sys.platform == "win32":
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        holder.bind(("127.0.0.1", base))
    except OSError as error:
        # On Windows a port may also be reserved by the system, which is as good as taken.
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            holder.close()
            return None
    return holder
