"""More players or slots than this machine has room for: allowed, with one line that says what it costs."""

from __future__ import annotations

import psutil

from p2prl.core.schema import SessionSchema
from p2prl.words import many, sized

#: Decoded bundles that a player holds at a time: the one that it plays, and the one that it encodes.
_BUNDLES = 2
#: A player with numpy, Gymnasium and small environments, without its bundles (measured: scripts/bench memory).
_PLAYER_BYTES = 45_000_000
#: Steps of a bundle from which on it matters that it is played as one.
_LARGE_STEPS = 16_384


def cost(players: int, slots: int, schema: SessionSchema) -> str:
    """What this many players cost this machine, for people; empty if there is room for them.

    Args:
        slots: of each player.
    """
    return in_words(
        players,
        slots,
        schema.ticks,
        schema.session_bytes(),
        psutil.cpu_count() or 1,
        psutil.virtual_memory().available,
    )


def in_words(players: int, slots: int, ticks: int, session_bytes: int, cores: int, free_bytes: int) -> str:
    """As `cost`, for sessions of so many ticks and bytes, and a machine of so many cores and free bytes.

    >>> in_words(8, 64, 32, 10_000, 2, 4_000_000_000)
    '8 players share 2 cores: if they compute all the time, each plays 0.25 as fast as alone, and others wait for them'
    >>> in_words(2, 64, 32, 10_000, 2, 4_000_000_000)
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
    if slots * ticks > _LARGE_STEPS:
        parts.append(
            f"a bundle of {many(slots, 'slot')} is {many(slots * ticks, 'step')}: bundles come seldom, and were "
            "played with older weights; fewer --envs come sooner"
        )
    if taken > free_bytes:
        parts.append(
            f"{many(players, 'player')} of {many(slots, 'slot')} take about {sized(taken)} beside their "
            f"environments, and {sized(free_bytes)} are free: this machine will swap or end them; "
            "fewer --envs or --players take less"
        )
    return "; ".join(parts)
