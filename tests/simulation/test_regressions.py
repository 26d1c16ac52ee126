"""What schedules found, each as small as it can be, with the seed that found it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from p2prl.core.dedup import MAX_BOOTS, Dedup
from p2prl.core.invitations import Invitations
from p2prl.core.ledger import Ledger
from p2prl.core.messages import Books
from tests.simulation.lan import Weather
from tests.simulation.member import Plan
from tests.simulation.world import World, schedule

# --- books


def test_a_hello_that_is_late_does_not_take_a_boot_from_the_account_that_it_goes_on_with() -> None:
    """Seed 11 of spool: the first Hello, from before the spool was found, came twice, once after the second."""
    ledger = Ledger()
    ledger.booted("one")
    ledger.reported("one", Books(produced=5, stored=3, pending=2), 40, 0)
    ledger.booted("two")
    ledger.booted("two", "one")
    ledger.booted("two")
    ledger.stored("two", 1)
    ledger.reported("two", Books(produced=6, stored=6), 48, 0)
    assert ledger.total() == Books(produced=6, stored=6)


def test_what_a_boot_gave_before_its_host_knew_what_it_goes_on_with_counts_once() -> None:
    """Seed 335 of spool: the broker died after the second Hello, before it had written that down."""
    ledger = Ledger()
    ledger.booted("one")
    ledger.reported("one", Books(produced=5, stored=3, pending=2), 40, 0)
    ledger.booted("two")
    ledger.stored("two", 1)
    ledger.booted("two", "one")
    ledger.reported("two", Books(produced=6, stored=4, pending=2), 48, 0)
    assert ledger.total() == Books(produced=6, stored=4, pending=2)
    assert ledger.total_steps == 48


def test_verdicts_on_what_an_unknown_account_named_are_counted() -> None:
    """Seed 624 of spool: the first boot of an account was never heard by this broker, the second one was killed."""
    ledger = Ledger()
    ledger.booted("two")
    ledger.booted("two", "one")
    ledger.stored("one", 2)
    ledger.stored("two", 3)
    ledger.booted("three")
    assert ledger.total() == Books(produced=5, stored=5)


# --- what was lost on the way


def _calm(seed: int, folder: Path) -> World:
    """One volunteer, and nothing that troubles it."""
    world = World(random.Random(seed), folder, Weather())
    world.add("0" * 40, Plan(1_000, pace_s=0.3))
    world.host.start()
    world.nodes[0].start()
    world.lan.run_until(5.0)
    return world


def test_a_list_of_shards_that_was_lost_with_its_connection_is_told_again() -> None:
    """Seed 90 of delivery: a shard was back, the word about it was lost, and what it owed waited for ever."""
    with schedule("delivery", 90) as folder:
        world = _calm(90, folder)
        member, shard = world.nodes[0].member, world.host.shards[1]
        assert member is not None
        assert shard is not None
        shard.process.stop(8.0)
        lanes = member.outgoing.outbox._lanes
        world.lan.run_until(20.0, enough=lambda: not lanes[1].up)
        assert not lanes[1].up
        broker = world.host.broker
        assert broker is not None
        world.lan.run_until(20.0, enough=lambda: bool(broker.desk.addresses[1].boot_id))
        for link in [one for one in world.lan.links if one.client is member.process]:
            link.break_()
        world.lan.run_until(world.lan.now + 6.0)
        assert lanes[1].up


@pytest.mark.parametrize("part", ["broker", "shard", "broker for long"])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_under_way_to_a_part_that_dies_goes_again_at_once(part: str, seed: int) -> None:
    """Seed 16 of liveness: a broker was stopped for a minute, and then its members were silent for another one."""
    with schedule("delivery", seed) as folder:
        world = _calm(seed, folder)
        world.lan.weather.delay_s = 0.3
        world.host.restart_s, world.host.busy = 0.5, 0.0
        host, node = world.host, world.nodes[0]
        member = node.member
        assert member is not None
        assert host.broker is not None
        world.lan.run_until(20.0, enough=lambda: member.outgoing.outbox.in_flight > 1)
        node.plan.bundles = node.truth.made
        if part == "broker for long":
            host.broker.process.stop(50.0)
            world.lan.run_until(world.lan.now + 50.0)
        else:
            (host.broker if part == "broker" else host.shards[0]).process.kill()  # type: ignore[union-attr]
        # Sooner than a bundle is due again whose first sending got no answer.
        world.lan.run_until(world.lan.now + 4.9)
        assert member.outgoing.outbox.pending == 0, member.outgoing.outbox._lanes


# --- what is known of old boots


def test_a_name_that_is_asked_about_is_not_the_one_that_is_forgotten() -> None:
    """By thought: a member that dies again and again before it hears that its oldest bundle is stored."""
    dedup = Dedup()
    dedup.mark("node", "oldest", 0)
    for boot in range(2 * MAX_BOOTS):
        assert dedup.seen("node", "oldest", 0), f"forgotten after {boot} boots"
        dedup.mark("node", f"boot {boot}", 0)


# --- the join code


def test_a_code_that_ends_while_a_token_is_made_is_told_of() -> None:
    """Seed 489 of enrolment: nobody was told, and a broker that was started again went on with that code."""
    invitations = Invitations(lambda limit: 0, "1-anchor-maple", None, 20.0, now=0.0)
    assert invitations.invite("token", "secret", 1, 60.0, now=20.1)
    assert invitations.ticked(20.2)
    assert invitations.code is None
