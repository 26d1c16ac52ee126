"""The insert gate: how many ticks each member may have unsettled, so that players never run away from the trainer.

The trainer's rate limiter says how far the shards' inserted ticks may go in all (an absolute ceiling, as in QUIC's
MAX_DATA, RFC 9000 section 4.1: repeating or losing such a number does no harm). What is left is shared evenly.
"""

from __future__ import annotations


def share_out(ceiling: int | None, inserted: int, members: int) -> int | None:
    """Ticks that each of `members` may have unsettled; None for no limit.

    >>> share_out(1000, 400, 3), share_out(1000, 1000, 3), share_out(None, 5, 1), share_out(1000, 999, 3)
    (200, 0, None, 1)
    """
    if ceiling is None:
        return None
    room = ceiling - inserted
    if room <= 0:
        return 0
    return max(1, room // max(1, members))
