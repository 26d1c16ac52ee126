"""More players or slots than this machine has room for: allowed, with one line that says what it costs."""

from __future__ import annotations

import psutil

from p2prl.words import many

#: Decoded bundles that a player holds at a time: the one that it plays, and the one that it encodes.
_BUNDLES = 2
#: A player with numpy, Gymnasium and small environments, without its bundles (measured: scripts/bench memory).
_PLAYER_BYTES = 45_000_000


def cost(players: int, slots: int, session_bytes: int) -> str:
    """What this many players cost this machine, for people; empty if there is room for them.

    Args:
        slots: of each player.
        session_bytes: of one session, decoded.
    """
    return in_words(players, slots, session_bytes, psutil.cpu_count() or 1, psutil.virtual_memory().available)


def in_words(players: int, slots: int, session_bytes: int, cores: int, free_bytes: int) -> str:
    """As `cost`, for a machine of so many cores and free bytes.

    >>> in_words(8, 64, 10_000, 2, 4_000_000_000)
    '8 players share 2 cores: if they compute all the time, each plays 0.25 as fast as alone, and others wait for them'
    >>> in_words(2, 64, 10_000, 2, 4_000_000_000)
    ''
    """
    taken = players * (_PLAYER_BYTES + _BUNDLES * slots * session_bytes)
    parts = []
    if players > cores:
        speed = f"{cores / players:.2g}"
        parts.append(
            f"{many(players, 'player', 'shares', 'share')} {many(cores, 'core')}: if they compute all the time, "
            f"each plays {speed} as fast as alone, and others wait for them"
        )
    if taken > free_bytes:
        parts.append(
            f"{many(players, 'player')} of {many(slots, 'slot')} take about {taken / 1e6:,.0f} MB beside their "
            f"environments, and {free_bytes / 1e6:,.0f} MB are free: this machine will swap or end them; "
            "fewer --envs or --players take less"
        )
    return "; ".join(parts)
