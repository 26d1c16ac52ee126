"""Bundles that wait on a volunteer's disk: the host is away for long, members die in the midst of a write.

The spool's files are real ones. What a spool holds is never lost by a kill, and never stored twice; what made room for
newer bundles, or grew too old, is counted. No member counts, and the broker does not either, more than the truth, or
less than it was told.
"""

from __future__ import annotations

import random

import pytest

from tests.simulation.disks import run_spec
from tests.simulation.member import Plan, torn_writes
from tests.simulation.test_delivery_sim import bad_weather
from tests.simulation.world import Tally, World, schedule

SCENARIO = "spool"
_SEEDS = 200


def simulate(seed: int) -> Tally:
    """One schedule. Raises AssertionError if something that must hold does not."""
    rng = random.Random(seed)
    with schedule(SCENARIO, seed) as folder, torn_writes():
        run = run_spec(
            when_full=rng.choice(("wait", "drop_oldest")),
            max_lag=rng.choice((0, 0, 3, 10)),
            window_bundles=rng.choice((2, 8)),
        )
        world = World(rng, folder, bad_weather(rng), run)
        world.lan.push_limit = rng.choice((1, 3, 8))
        for index in range(2):
            _add(world, index)
        world.host.start()
        for _ in range(8):
            _disaster(world)
            world.lan.run_until(world.lan.now + rng.choice((1.0, 5.0)))
        world.fair_weather()
        return world.tally


def _add(world: World, index: int) -> None:
    rng = world.rng
    spool = world.folder / f"node{index}" / "spool"
    spool.mkdir(parents=True)
    plan = Plan(
        bundles=50,
        players=rng.choice((1, 2)),
        pace_s=rng.choice((0.3, 1.0)),
        spool=spool,
        spool_bytes=rng.choice((6_000, 1_000_000)),
        impatient=rng.random() < 0.1,
    )
    node = world.add(f"{index}" * 40, plan)
    world.lan.at(rng.random() * 3.0, node.start)


def _disaster(world: World) -> None:
    rng = world.rng
    kind = rng.choice(
        ("host", "host", "host part", "member", "member", "crash loop", "leave", "cut", "clock")
    )
    if kind == "host":
        away_s = rng.choice((1.0, 10.0, 30.0)) * rng.random()
        world.host_dies(away_s, moves=rng.random() < 0.3)
        if rng.random() < 0.5:
            world.lan.after(max(0.0, away_s - 0.5), world.a_member_is_doomed)
    elif kind == "host part":
        world.part_of_host_dies()
    elif kind == "member":
        world.member_dies()
    elif kind == "crash loop":
        for step in range(10):
            world.lan.after(step * 2.5, world.member_dies)
    elif kind == "leave":
        rng.choice(world.nodes).leave(rng.random() * 10.0)
    elif kind == "cut":
        world.link_is_cut(rng.random() * 30.0)
    elif kind == "clock":
        world.clock_jumps()


@pytest.mark.parametrize("seed", range(_SEEDS), ids=lambda seed: f"seed{seed}")
def test_what_is_on_a_disk_arrives_once(seed: int) -> None:
    simulate(seed)
