"""Bundles on their way, without a spool: members, shards, broker and trainer die and come back, links are cut.

After each event the books of all balance, and nothing is acknowledged that is not on a shard's disk. In the end, when
the weather is good, each bundle is stored once, but for those that a member held in memory when it died.

A failing seed is in the test's name: `scripts/test tests/simulation -k "seed7]"`, or as the message says.
"""

from __future__ import annotations

import random

import pytest

from tests.simulation.disks import run_spec
from tests.simulation.lan import Weather
from tests.simulation.member import Plan
from tests.simulation.world import Tally, World, schedule

SCENARIO = "delivery"
_SEEDS = 200
#: From a host's restart on, until everything that was under way has its verdict.
_RESTART_S = 30.0


def bad_weather(rng: random.Random) -> Weather:
    """Of both kinds."""
    jitter_s = rng.choice((0.02, 0.3, 2.0))
    if rng.random() < 0.5:
        return Weather(ordered=True, breaks=rng.random() * 0.05, jitter_s=jitter_s)
    return Weather(ordered=False, loss=rng.random() * 0.4, duplication=rng.random() * 0.3, jitter_s=jitter_s)


def simulate(seed: int) -> Tally:
    """One schedule. Raises AssertionError if something that must hold does not."""
    rng = random.Random(seed)
    with schedule(SCENARIO, seed) as folder:
        run = run_spec(window_bundles=rng.choice((2, 8)))
        world = World(rng, folder, bad_weather(rng), run)
        world.lan.push_limit = rng.choice((1, 3, 8))
        world.host.quota_bytes_per_s = rng.choice((0.0, 2_000.0))
        members_die, host_dies = rng.random() < 0.6, rng.random() < 0.8
        for index in range(3):
            plan = Plan(bundles=40, players=rng.choice((1, 2)), impatient=rng.random() < 0.2)
            node = world.add(f"{index}" * 40, plan)
            world.lan.at(rng.random() * 5.0, node.start)
        world.host.start()
        for _ in range(10):
            _disaster(world, members_die, host_dies)
            world.lan.run_until(world.lan.now + 3.0)
        if rng.random() < 0.5:
            world.fair_weather()
        else:
            _last_restart(world)
        return world.tally


def _last_restart(world: World) -> None:
    """Nobody plays any more, all links are up, and the host dies once more: what is under way must not wait long."""
    for node in world.nodes:
        node.plan.bundles = node.truth.made
    while any(node.machine.cuts for node in world.nodes):
        world.lan.run_until(world.lan.now + 1.0)
    world.host_dies(0.5)
    world.fair_weather(within_s=_RESTART_S)


def _disaster(world: World, members_die: bool, host_dies: bool) -> None:
    rng = world.rng
    kind = rng.choice(("host part", "host part", "host", "member", "leave", "cut", "clock", "calm"))
    if kind.startswith("host") and not host_dies:
        return
    if kind == "host part":
        world.part_of_host_dies()
    elif kind == "host":
        world.host_dies(rng.random() * 4.0, moves=rng.random() < 0.3)
    elif kind == "member" and members_die:
        world.member_dies()
    elif kind == "leave" and members_die:
        rng.choice(world.nodes).leave(rng.random() * 5.0)
    elif kind == "cut":
        world.link_is_cut(rng.random() * 20.0)
    elif kind == "clock":
        world.clock_jumps()


@pytest.mark.parametrize("seed", range(_SEEDS), ids=lambda seed: f"seed{seed}")
def test_nothing_is_lost_and_nothing_is_stored_twice(seed: int) -> None:
    simulate(seed)
