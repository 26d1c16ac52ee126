"""Weights to forty members behind one slow link: no more than the link must carry. `scripts/bench weights` times it."""

from __future__ import annotations

from collections.abc import Callable

from tests.netns.crowd_kit import MEMBERS, WARM, publications
from tests.netns.lab import Lab

COUNT = 6


def test_forty_members_are_sent_each_version_once_and_as_a_change(lab: Callable[[int], Lab]) -> None:
    found = [one for one in publications(lab(2), COUNT) if one.version >= WARM - 1]
    assert [one.version for one in found] == list(range(WARM - 1, COUNT))
    assert not any(one.whole for one in found)
    needed = MEMBERS * sum(one.size_bytes for one in found[1:])
    sent = found[-1].sent_bytes - found[0].sent_bytes

    assert needed <= sent <= 1.25 * needed, (needed, sent)
