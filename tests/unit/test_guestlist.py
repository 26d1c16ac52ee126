"""core/guestlist.py: what a shard knows of the broker's list."""

from __future__ import annotations

import pytest

from p2prl.core.guestlist import GuestList
from p2prl.core.messages import Access


def access(open_: bool = False, admitted: str = "", barred: str = "", quarantined: str = "") -> Access:
    """Each letter is a key."""
    return Access(open=open_, admitted=list(admitted), barred=list(barred), quarantined=list(quarantined))


def test_before_the_first_word_nothing_is_known() -> None:
    guests = GuestList()
    assert guests.admits("a") is None
    assert not guests.may_give("a")
    assert not guests.told(access(admitted="a", barred="b"))
    assert guests.may_give("a")


def test_a_closed_host_admits_who_is_on_the_list_and_waits_for_word_of_others() -> None:
    guests = GuestList()
    guests.told(access(admitted="ab", barred="bc", quarantined="b"))
    assert [guests.admits(key) for key in "abcd"] == [True, False, False, None]
    assert [guests.may_give(key) for key in "abcd"] == [True, False, False, False]
    assert [guests.names(key) for key in "abcd"] == [True, True, True, False]
    assert guests.quarantined == {"b"}


def test_an_open_host_admits_all_but_the_barred() -> None:
    guests = GuestList()
    guests.told(access(open_=True, barred="c"))
    assert [guests.admits(key) for key in "acd"] == [True, False, True]


@pytest.mark.parametrize(
    ("before", "after", "cuts"),
    [
        (access(admitted="ab"), access(admitted="ab"), False),
        (access(admitted="ab"), access(admitted="abc"), False),
        (access(admitted="ab"), access(admitted="a", barred="b"), True),
        (access(admitted="ab"), access(admitted="ab", barred="b"), True),
        (access(admitted="ab"), access(admitted="a"), True),
        (access(admitted="ab", barred="b"), access(admitted="ab"), False),
        (access(admitted="a"), access(admitted="a", barred="s"), False),
        (access(open_=True), access(open_=True, barred="b"), True),
        (access(open_=True, barred="b"), access(open_=True, barred="b", quarantined="b"), False),
        (access(open_=True, barred="b"), access(open_=True), False),
        (access(open_=True), access(), True),
        (access(), access(open_=True), False),
    ],
)
def test_connections_are_cut_only_when_somebody_is_out_who_may_have_been_in(
    before: Access, after: Access, cuts: bool
) -> None:
    guests = GuestList()
    guests.told(before)
    assert guests.told(after) is cuts
