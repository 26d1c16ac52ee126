"""The host's list of keys, and how an owner names one of them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from zmq.utils import z85

from p2prl.core.access import MAX_ADMITTED, MAX_REMOVED, MAX_WAITING, Access, Entry, is_key, resolve
from p2prl.errors import UsageError
from p2prl.net.keys import fingerprint, new_key_pair


def key(number: int) -> str:
    return z85.encode(number.to_bytes(32, "big")).decode("ascii")


def entry(number: int, name: str) -> Entry:
    return Entry(key=key(number), name=name, standing="admitted")


def test_a_key_is_let_in_once() -> None:
    access = Access()
    assert access.standing(key(1)) == "unknown"
    assert access.admit(key(1), "pc", "code", "10.0.0.2", 5.0)
    assert access.standing(key(1)) == "admitted"
    assert access.entries() == [
        Entry(key=key(1), name="pc", standing="admitted", how="code", address="10.0.0.2", since=5.0)
    ]
    assert not access.admit(key(1), "pc", "code", "10.0.0.2", 9.0)
    assert access.admit(key(1), "renamed", "code", "10.0.0.3", 9.0)
    [one] = access.entries()
    assert (one.name, one.address, one.since) == ("renamed", "10.0.0.3", 5.0)
    assert access.get(key(1)) is one
    assert access.get(key(2)) is None


def test_who_waits_is_let_in_by_the_owner() -> None:
    access = Access()
    assert access.wait(key(1), "pc", "code", "10.0.0.2", 1.0)
    assert access.standing(key(1)) == "waiting"
    assert not access.wait(key(1), "pc", "code", "10.0.0.2", 2.0)
    assert access.admitted() == access.barred() == []
    assert access.admit(key(1), "", "owner", "", 3.0)
    [one] = access.entries()
    assert one == Entry(
        key=key(1), name="pc", standing="admitted", how="owner", address="10.0.0.2", since=3.0
    )
    assert not access.wait(key(1), "pc", "code", "10.0.0.2", 4.0)
    assert access.standing(key(1)) == "admitted"


def test_a_removed_key_stays_out_whatever_it_proves_until_the_owner_says_otherwise() -> None:
    access = Access()
    access.admit(key(1), "pc", "code", "10.0.0.2", 1.0)
    assert access.remove(key(1), "said rude things", 2.0)
    assert not access.remove(key(1), "again", 3.0)
    for how in ("code", "token", "open"):
        assert not access.admit(key(1), "pc", how, "10.0.0.2", 4.0)
    assert not access.wait(key(1), "pc", "code", "10.0.0.2", 4.0)
    assert not access.quarantine(key(1), "x", 4.0)
    assert not access.release(key(1), 4.0)
    assert access.standing(key(1)) == "removed"
    assert access.barred() == [key(1)]
    assert access.entries()[0].reason == "said rude things"
    assert access.admit(key(1), "pc", "owner", "10.0.0.2", 5.0)
    assert access.standing(key(1)) == "admitted"
    assert access.entries()[0].reason == ""


def test_a_key_that_was_never_seen_can_be_removed_ahead() -> None:
    access = Access()
    assert access.remove(key(1), "stolen laptop", 1.0)
    assert not access.admit(key(1), "pc", "code", "10.0.0.2", 2.0)


def test_quarantine_is_on_top_of_admission() -> None:
    access = Access()
    assert not access.quarantine(key(1), "who?", 1.0)
    access.admit(key(1), "pc", "token", "10.0.0.2", 1.0)
    assert access.quarantine(key(1), "100 malformed", 2.0)
    assert not access.quarantine(key(1), "100 malformed", 2.0)
    assert access.standing(key(1)) == "quarantined"
    assert (access.admitted(), access.barred(), access.quarantined()) == ([], [key(1)], [key(1)])
    for how in ("code", "owner"):
        assert not access.admit(key(1), "pc", how, "10.0.0.2", 3.0)
    assert access.release(key(1), 4.0)
    assert not access.release(key(1), 4.0)
    [one] = access.entries()
    assert (one.standing, one.reason, one.how) == ("admitted", "", "token")


def test_a_quarantined_key_can_be_removed() -> None:
    access = Access()
    access.admit(key(1), "pc", "code", "", 1.0)
    access.quarantine(key(1), "x", 2.0)
    assert access.remove(key(1), "enough", 3.0)
    assert access.quarantined() == []
    assert not access.release(key(1), 4.0)
    assert access.standing(key(1)) == "removed"


def test_what_is_no_key_is_never_listed() -> None:
    access = Access()
    assert not access.admit("", "pc", "code", "", 1.0)
    assert not access.wait("x" * 39, "pc", "code", "", 1.0)
    assert not access.remove("x" * 41, "", 1.0)
    access.load([Entry(key="\n" * 40, name="", standing="admitted")])
    assert access.entries() == []
    assert is_key(new_key_pair().public)


def test_a_full_list_admits_nobody_new_and_forgets_nobody() -> None:
    access = Access(entry(number, "pc") for number in range(MAX_ADMITTED))
    access.quarantine(key(0), "x", 1.0)
    assert access.full()
    assert not access.admit(key(99_999), "late", "code", "", 2.0)
    assert access.standing(key(99_999)) == "unknown"
    assert access.admit(key(1), "renamed", "code", "", 2.0)
    access.remove(key(1), "", 3.0)
    assert access.admit(key(99_999), "late", "code", "", 4.0)


def test_strangers_of_an_open_host_make_room_oldest_first() -> None:
    access = Access()
    access.admit(key(0), "pupil", "code", "", 0.0)
    for number in range(1, MAX_ADMITTED + 10):
        assert access.admit(key(number), "stranger", "open", "", float(number))
    assert len(access.entries()) == MAX_ADMITTED
    assert access.standing(key(0)) == "admitted"
    assert access.standing(key(1)) == "unknown"
    assert access.admit(key(99_999), "pupil", "code", "", 1e6)
    oldest = access.entries()[1].key
    assert access.admit(
        oldest, "pupil", "code", "", 1e6
    )  # it proved the code meanwhile, and is no stranger any more
    assert access.admit(key(99_998), "stranger", "open", "", 1e6)
    assert access.standing(oldest) == "admitted"


def test_the_waiting_and_the_removed_are_bounded_oldest_first() -> None:
    access = Access()
    for number in range(MAX_WAITING + 5):
        assert access.wait(key(number), "pc", "code", "", float(number))
    assert not access.wait("no key", "pc", "code", "", 1e6)
    assert [one.key for one in access.entries()] == [key(number) for number in range(5, MAX_WAITING + 5)]
    access = Access()
    for number in range(MAX_REMOVED + 5):
        assert access.remove(key(number), "", float(number))
    assert access.barred() == [key(number) for number in range(5, MAX_REMOVED + 5)]


def test_a_saved_list_comes_back_as_it_was() -> None:
    access = Access()
    access.admit(key(1), "a", "code", "10.0.0.1", 1.0)
    access.wait(key(2), "b", "code", "10.0.0.2", 2.0)
    access.remove(key(3), "why", 3.0)
    access.admit(key(4), "d", "owner", "", 4.0)
    access.quarantine(key(4), "x", 5.0)
    stored = msgspec.json.decode(msgspec.json.encode(access.entries()), type=list[Entry])
    assert Access(stored).entries() == access.entries()


def test_what_is_loaded_is_bounded_and_the_newest_stays() -> None:
    many = [
        Entry(key=key(number), name="", standing="removed", since=float(number))
        for number in range(MAX_REMOVED + 50)
    ]
    odd = [Entry(key=key(1), name="", standing="unknown"), Entry(key="x", name="", standing="admitted")]
    access = Access([*many, *odd])
    assert access.barred() == [key(number) for number in range(50, MAX_REMOVED + 50)]
    twice = [
        Entry(key=key(1), name="old", standing="removed", since=1.0),
        Entry(key=key(1), name="new", standing="admitted", since=2.0),
    ]
    assert [one.name for one in Access(twice).entries()] == ["new"]


class Lists(RuleBasedStateMachine):
    """Any order of changes: each says the truth about itself, and no key is let in against the owner's word."""

    def __init__(self) -> None:
        super().__init__()
        self.access = Access()
        self.banned: set[int] = set()
        self.now = 0.0

    def _changes(self, changed: bool, before: list[Entry]) -> None:
        assert changed == (before != self.access.entries())

    @rule(who=st.integers(0, 4), how=st.sampled_from(["code", "token", "open"]))
    def proved(self, who: int, how: str) -> None:
        before = self.access.entries()
        self._changes(self.access.admit(key(who), f"pc{who}", how, "a", self._tick()), before)

    @rule(who=st.integers(0, 4))
    def waits(self, who: int) -> None:
        before = self.access.entries()
        self._changes(self.access.wait(key(who), f"pc{who}", "code", "a", self._tick()), before)

    @rule(who=st.integers(0, 4))
    def owner_admits(self, who: int) -> None:
        before = self.access.entries()
        if self.access.standing(key(who)) != "quarantined":
            self.banned.discard(who)
        self._changes(self.access.admit(key(who), f"pc{who}", "owner", "a", self._tick()), before)

    @rule(who=st.integers(0, 4))
    def owner_removes(self, who: int) -> None:
        before = self.access.entries()
        self.banned.add(who)
        self._changes(self.access.remove(key(who), "r", self._tick()), before)

    @rule(who=st.integers(0, 4))
    def quarantined(self, who: int) -> None:
        before = self.access.entries()
        if self.access.standing(key(who)) == "admitted":
            self.banned.add(who)
        self._changes(self.access.quarantine(key(who), "q", self._tick()), before)

    @rule(who=st.integers(0, 4))
    def released(self, who: int) -> None:
        before = self.access.entries()
        if self.access.standing(key(who)) == "quarantined":
            self.banned.discard(who)
        self._changes(self.access.release(key(who), self._tick()), before)

    @rule()
    def restarted(self) -> None:
        before = self.access.entries()
        self.access.load(before)
        assert self.access.entries() == before

    @invariant()
    def who_was_put_out_is_out(self) -> None:
        out = {key(who) for who in self.banned}
        assert set(self.access.barred()) == out
        assert not out & set(self.access.admitted())

    def _tick(self) -> float:
        self.now += 1.0
        return self.now


TestLists = Lists.TestCase
TestLists.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# --- naming one


NODES = [
    entry(1, "lab-pc"),
    entry(2, "lab-mac"),
    entry(3, "Anna's laptop"),
    entry(4, "lab"),
    entry(5, "twin"),
    entry(6, "twin"),
]


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ("lab-pc", 1),
        ("LAB-PC ", 1),
        ("lab-m", 2),
        ("lab", 4),  # a whole name goes before a beginning
        ("anna", 3),
        (key(5), 5),
        (fingerprint(key(6)), 6),
        (fingerprint(key(6)).upper(), 6),
        (fingerprint(key(6))[:6], 6),
    ],
)
def test_a_name_a_key_or_a_fingerprint_or_its_beginning_is_one_node(typed: str, number: int) -> None:
    assert resolve(typed, NODES, fingerprint).key == key(number)


def test_what_may_be_several_names_them_with_their_fingerprints() -> None:
    with pytest.raises(UsageError) as caught:
        resolve("twin", NODES, fingerprint)
    text = str(caught.value)
    assert f"twin ({fingerprint(key(5))}), twin ({fingerprint(key(6))})" in text
    assert "say it by its fingerprint" in text
    with pytest.raises(UsageError, match=r"'lab-' may be lab-pc .*, lab-mac "):
        resolve("lab-", NODES, fingerprint)


def test_what_is_nobody_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"knows no node 'lab-bc'; it knows .*lab-pc") as caught:
        resolve("lab-bc", NODES, fingerprint)
    assert "twin" not in str(caught.value)
    with pytest.raises(UsageError, match=r"knows no node 'qqqqqqqq'; it knows lab-pc \(.*twin"):
        resolve("qqqqqqqq", NODES, fingerprint)
    with pytest.raises(UsageError, match="it knows none yet"):
        resolve("lab", [], fingerprint)


def test_a_long_list_is_not_all_said() -> None:
    with pytest.raises(UsageError, match=", 92 more") as caught:
        resolve("pc", [entry(number, f"pc{number}") for number in range(100)], fingerprint)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("typed", ["", "  ", "x", key(1)[:3]])
def test_too_little_is_nobody(typed: str) -> None:
    with pytest.raises(UsageError):
        resolve(typed, NODES, fingerprint)


def test_a_name_that_steers_a_terminal_is_said_without_it() -> None:
    with pytest.raises(UsageError) as caught:
        resolve("evil", [entry(1, "evil\x1b[2J"), entry(2, "evil2")], fingerprint)
    assert str(caught.value).isprintable()


@given(st.text(max_size=50))
def test_whatever_is_typed_is_one_node_or_one_line(typed: str) -> None:
    try:
        found = resolve(typed, NODES, fingerprint)
    except UsageError as error:
        said = str(error)
    else:
        said = found.name
        assert found in NODES
    assert said.isprintable()
