"""A member's way of bundles, with its spool on a real disk, through any sequence of what can befall it.

Bundles are made, sent, stored, answered; messages are lost; the host goes and comes back; the member is killed, leaves
and starts again; the spool is small. Whatever happens: books balance, the bound holds, no bundle is stored twice, and
none is lost but those that were in memory alone when the member was killed, and those that made room.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.core.ledger import LEFT, Ledger
from p2prl.net.loop import Loop
from p2prl.net.sockets import Network
from p2prl.nodes.outgoing import Outgoing
from p2prl.nodes.spool_file import Entry
from tests.unit.spool_kit import (
    Clock,
    Killed,
    Killer,
    Shards,
    bundle,
    frames_of,
    member_config,
    number_of,
    run_spec,
)

_BOUND = 12_000


class Member:
    """One life of a member, as far as bundles go."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.out = out = world.outgoing()
        out.pushes = world.shards  # type: ignore[assignment]
        self.watch()
        # As Member does it: the account is known once the run is.
        world.ledger.booted(out.boot_id)
        self.hello()

    def watch(self) -> None:
        """Note which bundles the spool gives up."""
        spool, settle = self.out.spool, self.out.spool.settle

        def watched(entry: Entry, status: str, reason: str = "") -> None:
            if status in ("dropped", "stale", "refused"):
                read = spool._segments.read(entry)
                assert read is not None
                self.world.gone.add(number_of(read[0]))
            settle(entry, status, reason)

        spool.settle = watched  # type: ignore[method-assign]

    def hello(self) -> None:
        """The host is there, perhaps another one than before."""
        world, out = self.world, self.out
        world.heard = world.clock.now
        world.ledger.booted(out.boot_id, out.continues)
        out.shards(world.shards.term, world.shards.addresses())

    def in_memory(self) -> set[int]:
        """Bundles that a kill would take."""
        return {number_of(held.header) for held in self.out._held.values() if held.entry is None}


class World:
    """Each method of the first part is something that can happen, with a number that says how; some may not, now."""

    def __init__(self, folder: Path, drops: bool, max_lag: int) -> None:
        self.folder = folder
        self.clock, self.network, self.shards, self.ledger = Clock(), Network(), Shards(), Ledger()
        self.shards.takes = lambda: self.up
        self.run = run_spec(drops, max_lag)
        self.version = self.made = 0
        self.up, self.heard = True, 0.0
        self.killer = Killer()
        #: Bundles that were dropped, stale or refused; that a kill may have taken.
        self.gone: set[int] = set()
        self.killed: set[int] = set()
        self.member: Member | None = Member(self)

    def outgoing(self) -> Outgoing:
        """As a member that was just started has it."""
        config = member_config(self.folder, _BOUND)
        loop = Loop(self.clock)
        out = Outgoing(config, loop, self.network, lambda: self.version, lambda: None, lambda *_: None)
        out.begin(self.run)
        return out

    # --- what can happen

    def bundles_are_made(self, number: int) -> None:
        if self.member is None:
            return
        for index in range(number % 8):
            # What was under way when the room was gone comes all the same.
            if self.member.out.room or index == 0:
                self.made += 1
                self.killed.add(self.made)  # if it is killed now
                made = bundle(max(0, self.version - number % 2))
                self.member.out.took(made, *frames_of(self.made, 50 + number * 7 % 850))
                self.killed.discard(self.made)

    def a_second_passes(self, number: int) -> None:
        self.clock.now += 1.0
        if self.up:
            self.heard = self.clock.now
        if self.member is None:
            return
        out = self.member.out
        out.each_second(self.clock.now - self.heard)
        if self.up and number % 3:
            self.ledger.reported(out.boot_id, out.books(), out.steps, out.episodes)
        out.noted()

    def time_passes(self, number: int) -> None:
        for second in range(4 + number % 10):
            self.a_second_passes(second + 1)
            if self.member is not None:
                self.member.out._tick()

    def shards_look(self, number: int) -> None:
        status = {7: "busy", 8: "stale", 9: "refused"}.get(number % 10, "stored")
        if not self.up:
            return
        if status in ("stale", "refused"):
            self.gone |= {number for *_, number in self.shards.inbox} - set(self.shards.numbers())
        before = len(self.shards.answers)
        self.shards.take(status)
        for answer in self.shards.answers[before:]:
            stored = sum(verdict.status == "stored" for verdict in answer.verdicts)
            self.ledger.stored(answer.boot_id, stored)

    def receipts_arrive(self, number: int) -> None:
        answers, self.shards.answers = self.shards.answers, []
        if self.member is not None and self.up:
            for answer in answers:
                self.member.out.receipts(answer)

    def messages_are_lost(self, number: int) -> None:
        (self.shards.inbox if number % 2 else self.shards.answers).clear()

    def weights_are_newer(self, number: int) -> None:
        self.version += number % 3

    def the_host_goes(self, number: int) -> None:
        self.up = False
        self.shards.inbox.clear()
        self.shards.answers.clear()

    def the_host_comes(self, number: int) -> None:
        if self.up:
            return
        self.up = True
        if number % 2:
            self.shards.term += 1
            self.shards.boots = [f"{boot[0]}{self.shards.term}" for boot in self.shards.boots]
            self.ledger = msgspec.json.decode(msgspec.json.encode(self.ledger), type=Ledger)
        if self.member is not None:
            self.member.hello()

    def the_member_is_killed(self, number: int) -> None:
        if self.member is None:
            return
        self.killer.writes = None
        memory, out = self.member.in_memory(), self.member.out
        self.killed |= memory
        self.member = None
        out.spool.close()
        if out.spool.active and not memory and not out._unnoted:
            before, found = out.books(), self.outgoing()
            found.spool.close()
            assert msgspec.structs.replace(found.books(), duplicate=before.duplicate) == before
            assert (found.account, found.steps, found.episodes) == (out.account, out.steps, out.episodes)

    def the_member_is_killed_soon(self, number: int) -> None:
        """At one of its next writes, whatever it does then."""
        self.killer.writes = number % 30

    def died(self) -> None:
        """It was killed while it wrote."""
        if self.member is not None:  # else it was starting
            self.killed |= self.member.in_memory()
            self.member.out.spool.close()
            self.member = None

    def the_member_leaves(self, number: int) -> None:
        if self.member is None:
            return
        out = self.member.out
        out.close()
        kept, lost = out.keep()
        assert lost == len(self.member.in_memory())
        self.killed |= self.member.in_memory()
        if number % 2 and self.up:
            self.ledger.reported(out.boot_id, out.books(), out.steps, out.episodes)
            self.ledger.close(LEFT, kept=kept)
        self.member = None

    def the_member_starts(self, number: int) -> None:
        if self.member is None and self.up:
            self.member = Member(self)

    # --- what holds

    def check(self) -> None:
        """At any time."""
        numbers = self.shards.numbers()
        assert len(numbers) == len(set(numbers)), "stored twice"
        on_disk = sum(path.stat().st_size for path in self.folder.glob("*/*.spool"))
        assert on_disk <= _BOUND
        total = self.ledger.total()
        assert total.balanced()
        assert total.produced <= self.made
        assert total.stored <= len(numbers)
        if self.member is not None:
            out = self.member.out
            assert out.books().balanced()
            assert out.outbox.pending - out.outbox.in_window == out.spool.waiting
            assert out.spool.size_bytes == on_disk

    def settle(self) -> None:
        """Everything is up again: all that can arrive does, and nothing stays on the disk."""
        self.the_host_comes(1)
        self.the_member_starts(0)
        assert self.member is not None
        out = self.member.out
        for _ in range(500):
            self.a_second_passes(1)
            out._tick()
            self.shards_look(0)
            self.receipts_arrive(0)
            self.check()
            if not out.outbox.pending:
                break
        assert out.outbox.pending == 0
        assert set(range(1, self.made + 1)) - set(self.shards.numbers()) <= self.gone | self.killed
        self.a_second_passes(1)
        assert list(self.folder.iterdir()) == []

    def close(self) -> None:
        if self.member is not None:
            self.member.out.spool.close()
        self.network.close()


_EVENTS = [
    *[World.bundles_are_made] * 4,
    *[World.shards_look, World.receipts_arrive] * 2,
    World.a_second_passes,
    World.time_passes,
    World.messages_are_lost,
    World.weights_are_newer,
    World.the_host_goes,
    World.the_host_comes,
    World.the_member_is_killed,
    World.the_member_is_killed_soon,
    World.the_member_leaves,
    *[World.the_member_starts] * 2,
]


@settings(max_examples=300, deadline=None)
@given(
    drops=st.booleans(),
    max_lag=st.sampled_from([0, 3]),
    events=st.lists(st.tuples(st.sampled_from(_EVENTS), st.integers(0, 999)), min_size=60, max_size=150),
)
def test_nothing_is_lost_or_doubled_whatever_happens(
    drops: bool, max_lag: int, events: list[tuple[Callable[[World, int], None], int]]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="spool-"))
    world = World(folder, drops, max_lag)
    with pytest.MonkeyPatch.context() as patch:
        world.killer.patch(patch)
        try:
            for happens, number in events:
                try:
                    happens(world, number)
                except Killed:
                    world.died()
                world.check()
            world.killer.writes = None
            world.settle()
        finally:
            world.close()
            shutil.rmtree(folder)
