"""Finds a free block of TCP ports for a host: base to base+3, base+80 and two for each shard."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence

from p2prl.errors import P2prlError, UsageError

#: From one block to the next.
STRIDE = 100
#: Blocks that are tried before giving up.
MAX_BLOCKS = 50
MAX_SHARDS = 35

#: Wildcards, and the loopback addresses too: some systems let a wildcard be bound beside another program's
#: specific address, and that program would then get the connections.
_EVERYWHERE = ("0.0.0.0", "127.0.0.1", "::", "::1")


class PortsTaken(P2prlError):
    """No block of ports is free.

    Attributes:
        base: where the first block that was tried begins.
        ports: those of the first block that are taken.
        last: where the last block that was tried begins.
    """

    def __init__(self, base: int, ports: Sequence[int], last: int, by: str = "") -> None:
        """`by`: who has them; empty if that is not known."""
        self.base, self.ports, self.last = base, tuple(ports), last
        others = "" if last == base else f", and so is a port in each block up to {last}"
        held = f"taken by {by}" if by else "taken on this machine"
        which = f"port {ports[0]} is" if len(ports) == 1 else f"ports {ranges(ports)} are"
        super().__init__(f"the TCP {which} {held}{others}; choose another block with --port BASE")


def ranges(ports: Sequence[int]) -> str:
    """Ports in order, those that follow each other as a range.

    >>> ranges([47800, 47801, 47802, 47810])
    '47800-47802, 47810'
    """
    runs: list[list[int]] = []
    for port in ports:
        if runs and port == runs[-1][-1] + 1:
            runs[-1].append(port)
        else:
            runs.append([port])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def block_ports(base: int, shards: int) -> list[int]:
    """The ports of a host whose block begins at `base` (docs/protocol.md has the table).

    >>> block_ports(47800, 1)
    [47800, 47801, 47802, 47803, 47810, 47811, 47880]
    """
    sharded = [base + 10 + offset for offset in range(2 * shards)]
    return [base, base + 1, base + 2, base + 3, *sharded, base + 80]


def free_block(
    base: int, shards: int, addresses: Sequence[str] | None = None, blocks: int = MAX_BLOCKS
) -> int:
    """The first base, from `base` on in steps of 100, all of whose ports can be listened on.

    Nothing is reserved: another program may still be faster, and then binding fails and says so.

    Args:
        base: where to begin.
        shards: how many shards the host has.
        addresses: the IPv4 and IPv6 addresses to listen on; None for all.
        blocks: how many blocks to try; 1 to insist on `base`.

    Raises:
        UsageError: `base` is not a port, or there are more shards than a block has room for.
        PortsTaken: no block is free; the text names the first block's taken ports.
    """
    if not 1 <= base <= 65535 - 80:
        raise UsageError(f"--port {base} is out of range; a block of ports begins between 1 and {65535 - 80}")
    if not 0 <= shards <= MAX_SHARDS:
        raise UsageError(f"--shards {shards} is out of range; a host has 0 to {MAX_SHARDS} of them")
    bases = [base + STRIDE * step for step in range(blocks) if base + STRIDE * step + 80 <= 65535]
    for candidate in bases:
        if not taken_ports(block_ports(candidate, shards), addresses, first_only=True):
            return candidate
    raise PortsTaken(base, taken_ports(block_ports(base, shards), addresses), bases[-1])


def taken_ports(
    ports: Sequence[int], addresses: Sequence[str] | None = None, first_only: bool = False
) -> list[int]:
    """Those of `ports` that cannot be listened on now, at one of `addresses` (None: anywhere)."""
    taken = []
    for port in ports:
        if not all(_can_listen(address, port, addresses is None) for address in addresses or _EVERYWHERE):
            taken.append(port)
            if first_only:
                break
    return taken


def _can_listen(address: str, port: int, may_be_absent: bool) -> bool:
    """Whether a socket can listen there; an address family that this machine lacks is not taken."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            _take_as_zmq_does(probe, family)
            probe.bind(where)
            probe.listen(1)
    except socket.gaierror as error:
        if may_be_absent:
            return True
        raise P2prlError(
            f"{address} is not an address of this machine; name an interface that is up"
        ) from error
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            if may_be_absent:
                return True
            raise P2prlError(
                f"{address} is not an address of this machine; name an interface that is up"
            ) from error
        return False
    return True


def _take_as_zmq_does(probe: socket.socket, family: int) -> None:
    """On POSIX, REUSEADDR: a port whose last connections linger in TIME_WAIT is free. On Windows that option
    would let two programs share a port, and EXCLUSIVEADDRUSE is what means "free"."""
    if sys.platform == "win32":
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
