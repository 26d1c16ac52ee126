"""A node's books over its restarts, as the broker keeps them: each bundle once, whatever was lost on the way."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.core.bounds import MAX_COUNT
from p2prl.core.ledger import DIED, LEFT, Ledger
from p2prl.core.messages import Books


def began(boot: str = "a", **books: int) -> Ledger:
    ledger = Ledger()
    ledger.booted(boot)
    ledger.reported(boot, Books(**books), steps=10 * books.get("produced", 0), episodes=1)
    return ledger


def test_a_boot_that_begins_anew_closes_the_books_before() -> None:
    ledger = began(produced=10, stored=6, pending=4)
    ledger.booted("b")
    ledger.reported("b", Books(produced=1, stored=1), 5, 1)
    total = ledger.total()
    assert (total.produced, total.stored, total.pending, total.dropped_reasons) == (11, 7, 0, {DIED: 4})
    assert (ledger.total_steps, ledger.total_episodes) == (105, 2)


def test_a_boot_that_found_its_spool_goes_on() -> None:
    ledger = began(produced=10, stored=6, pending=4)
    ledger.booted("b", "a")
    assert ledger.total() == Books(produced=10, stored=6, pending=4)
    ledger.reported("b", Books(produced=15, stored=12, pending=3), 150, 4)
    assert ledger.total() == Books(produced=15, stored=12, pending=3)
    assert (ledger.total_steps, ledger.total_episodes) == (150, 4)
    ledger.reported("a", Books(), 0, 0)  # late
    assert ledger.total().produced == 15


def test_the_first_hello_does_not_know_yet_that_there_is_a_spool() -> None:
    ledger = began(produced=10, stored=6, pending=4)
    ledger.booted("b")
    assert ledger.total().balanced()
    ledger.booted("b", "a")
    assert ledger.total() == Books(produced=10, stored=6, pending=4)
    ledger.booted("b", "a")
    ledger.booted("c")
    ledger.booted("c", "a")
    assert ledger.total() == Books(produced=10, stored=6, pending=4)


@pytest.mark.parametrize("kept", [0, 3, 4, 100, -5])
def test_what_a_member_that_left_has_on_its_disk_is_pending(kept: int) -> None:
    ledger = began(produced=10, stored=6, pending=4)
    ledger.close(LEFT, kept=kept)
    total, waits = ledger.total(), max(0, min(4, kept))
    assert (total.produced, total.stored, total.pending) == (10, 6, waits)
    assert total.dropped_reasons == ({LEFT: 4 - waits} if waits < 4 else {})
    assert total.balanced()
    ledger.booted("b", "a")
    assert ledger.total() == Books(produced=10, stored=6, pending=4)


def test_when_it_begins_anew_nothing_waits_on_its_disk_any_more() -> None:
    ledger = began(produced=10, stored=6, pending=4)
    ledger.close(LEFT, kept=4)
    ledger.booted("b")
    assert ledger.total().dropped_reasons == {LEFT: 4}
    ledger.booted("b", "a")
    assert ledger.total().pending == 4


def test_an_account_may_go_on_after_another_one_began_and_ended_in_between() -> None:
    ledger = began(produced=10, stored=6, pending=4)
    ledger.close(LEFT, kept=4)
    ledger.booted("b")
    ledger.reported("b", Books(produced=2, stored=2), 20, 1)
    ledger.booted("c", "a")
    ledger.reported("c", Books(produced=10, stored=10), 100, 1)
    total = ledger.total()
    assert (total.produced, total.stored) == (12, 12)
    assert total.balanced()


def test_an_account_that_this_broker_never_heard_of_is_counted_once() -> None:
    ledger = began("x", produced=3, stored=3)
    ledger.booted("c", "a")
    ledger.reported("c", Books(produced=10, stored=8, pending=2), 100, 1)
    ledger.booted("d", "a")
    ledger.reported("d", Books(produced=10, stored=10), 100, 1)
    assert (ledger.total().produced, ledger.total().stored) == (13, 13)


def test_receipts_count_for_the_account_whose_boot_named_the_bundle() -> None:
    ledger = began(produced=10, stored=4, pending=6)
    ledger.booted("b", "a")
    ledger.stored("a", 2)
    ledger.stored("b", 3)
    ledger.stored("z", 100)
    assert ledger.receipts == 5
    ledger.booted("c")  # without its spool
    ledger.stored("a", 1)  # arrives late; it was not lost after all
    assert ledger.receipts == 0
    total = ledger.total()
    assert (total.stored, total.dropped_reasons) == (6, {DIED: 4})


def test_what_was_stored_was_not_lost_with_the_member_that_never_heard_of_it() -> None:
    """The new boot found one of five, and takes the others for lost; but the shards had three of them."""
    ledger = began(produced=5, pending=5)
    ledger.stored("a", 3)
    ledger.booted("b", "a")
    ledger.reported("b", Books(produced=5, pending=1, dropped=4, dropped_reasons={DIED: 4}), 50, 1)
    ledger.close(LEFT)
    total = ledger.total()
    assert total.balanced()
    assert (total.produced, total.stored, total.dropped_reasons) == (5, 3, {DIED: 2})


def test_it_comes_back_from_the_brokers_file_and_an_old_file_can_be_read() -> None:
    ledger = began(produced=10, stored=6, pending=4)
    ledger.close(LEFT, kept=4)
    ledger = msgspec.json.decode(msgspec.json.encode(ledger), type=Ledger)
    ledger.booted("b", "a")
    assert ledger.total().pending == 4
    old = {"closed": {"produced": 2, "stored": 2}, "boot_id": "a", "current": {"produced": 5, "pending": 5}}
    ledger = msgspec.json.decode(msgspec.json.encode(old), type=Ledger)
    ledger.booted("b", "a")
    assert ledger.total() == Books(produced=7, stored=2, pending=5)


def test_folding_keeps_the_totals() -> None:
    ledger, others = began(produced=10, stored=6, pending=4), Ledger()
    ledger.close(LEFT, kept=4)
    ledger.booted("b")
    ledger.reported("b", Books(produced=2, pending=2), 20, 1)
    produced, steps = ledger.total().produced, ledger.total_steps
    others.fold(ledger)
    assert (others.total().produced, others.total().pending, others.total_steps) == (produced, 0, steps)
    assert others.total().balanced()


def test_who_boots_and_boots_fills_no_memory() -> None:
    ledger = began(produced=1, stored=1)
    for boot in range(1000):
        ledger.booted(f"boot{boot}", "a")
        ledger.booted(f"other{boot}")
        ledger.reported(f"other{boot}", Books(produced=MAX_COUNT, stored=MAX_COUNT), MAX_COUNT, 1)
    assert len(msgspec.json.encode(ledger)) < 5000
    assert ledger.total().balanced()


# --- any order


class World:
    """A member, its disk and its broker; each method but `check` is something that can happen."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        #: What really happened.
        self.produced = self.stored = 0
        #: No account ended that had something to tell.
        self.exact = True
        self.boots = 0
        self.account = ""
        #: Of the account, as the member knows it.
        self.books = Books()
        #: Its bundles without a verdict are on its disk, or else in memory alone.
        self.spooled = False
        self.start()

    @property
    def boot(self) -> str:
        return f"boot{self.boots}"

    def change(self, **more: int) -> None:
        books = {name: getattr(self.books, name) + count for name, count in more.items()}
        self.books = msgspec.structs.replace(self.books, **books)

    def play(self) -> None:
        self.produced += 1
        self.change(produced=1, pending=1)

    def store(self) -> None:
        if self.books.pending:
            self.stored += 1
            self.ledger.stored(self.boot, 1)
            self.change(stored=1, pending=-1)

    def spool(self) -> None:
        self.spooled = True

    def empty(self) -> None:
        self.spooled = self.spooled and bool(self.books.pending)

    def beat(self) -> None:
        self.ledger.reported(self.boot, self.books, self.books.produced, 0)

    def start(self) -> None:
        self.boots += 1
        if not self.spooled:
            self.account, self.books = self.boot, Books()
        self.ledger.booted(self.boot)
        if self.spooled:
            self.ledger.booted(self.boot, self.account)

    def kill(self) -> None:
        if not self.spooled and self.ledger.current != self.books:
            self.exact = False
        self.start()

    def leave(self) -> None:
        self.beat()
        self.ledger.close(LEFT, kept=self.books.pending if self.spooled else 0)
        self.check()
        self.start()

    def restart(self) -> None:
        self.ledger = msgspec.json.decode(msgspec.json.encode(self.ledger), type=Ledger)

    def check(self) -> None:
        """At any time."""
        total = self.ledger.total()
        assert total.balanced()
        assert total.produced <= self.produced
        assert total.stored <= self.stored


_EVENTS = [World.play, World.store, World.beat] * 2 + [
    World.spool,
    World.empty,
    World.kill,
    World.leave,
    World.restart,
]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(_EVENTS), min_size=5, max_size=60))
def test_totals_balance_and_are_right_in_every_order(events: list[Callable[[World], None]]) -> None:
    world = World()
    for happens in events:
        happens(world)
        world.check()
    world.beat()
    world.check()
    if world.exact:
        total = world.ledger.total()
        assert (total.produced, total.stored) == (world.produced, world.stored)
        assert total.pending == world.books.pending
        assert world.ledger.total_steps == world.produced
