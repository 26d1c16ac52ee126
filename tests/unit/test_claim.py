"""Blocks of ports that hosts on one machine keep from each other."""

from __future__ import annotations

import pytest

from p2prl.errors import P2prlError
from p2prl.net.ports import free_block
from p2prl.nodes.claim import claim_block

BASE = 24_300


def test_two_claims_are_of_different_blocks_and_a_released_one_is_free_again() -> None:
    first = claim_block(BASE, 1)
    second = claim_block(first.base, 1)
    try:
        assert second.base > first.base
        assert (
            free_block(first.base, 1) == first.base
        )  # the TCP ports themselves are left to those that bind them
        base = first.base
        first.release()
        first.release()
        again = claim_block(base, 1)
        assert again.base == base
        again.release()
    finally:
        first.release()
        second.release()


def test_all_claimed_is_an_error_that_says_what_to_do() -> None:
    first = claim_block(BASE, 1)
    second = claim_block(first.base + 100, 1)
    try:
        blocks = (second.base - first.base) // 100 + 1
        if blocks == 2:
            with pytest.raises(P2prlError, match="--port"):
                claim_block(first.base, 1, blocks)
        # Whoever names a port gets it: who is second is told when the ports are bound.
        named = claim_block(first.base, 1, blocks=1)
        assert named.base == first.base
        named.release()
    finally:
        first.release()
        second.release()
