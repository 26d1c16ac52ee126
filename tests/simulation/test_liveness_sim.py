"""Processes that are stopped, machines that sleep, links that are cut, clocks that jump: all of it heals by itself.

Nobody is taken for dead that was only slow; whoever is cut off is found out in time; a shard that hangs holds up its
own bundles only; and half a minute after the last trouble everybody is back, with new weights.
"""

from __future__ import annotations

import random

import pytest

from tests.simulation.lan import Weather
from tests.simulation.member import Node, Plan
from tests.simulation.process import Machine, Process
from tests.simulation.world import Tally, World, schedule

SCENARIO = "liveness"
_SEEDS = 80
#: After this nobody suffers any more from what is over.
_HEAL_S = 30.0
#: Silence that a member is taken for gone for, and what may come on top: a heartbeat's and a look's interval, a leap.
_GONE_S, _LATE_S = 15.0, 2.0
#: Silence that may end with a member that is gone: with dialling anew it comes to 15 s.
_EXCUSE_S = 9.0
#: Troubles that follow each other within this are one: nobody was welcomed in between.
_BETWEEN_S = 4.0
#: A shard that is silent for so long gets nothing new.
_DOWN_S = 8.0
#: Versions are published each two seconds.
_VERSIONS_BEHIND = 3
#: A member that shards can take from has a bundle stored at least this often.
_PROGRESS_S = 15.0


class Patient(World):
    """A world that knows who has an excuse.

    Attributes:
        troubles: (begin, end, machine or process) of what happened or goes on.
    """

    def __init__(self, rng: random.Random, weather: Weather, folder: object) -> None:
        super().__init__(rng, folder, weather)  # type: ignore[arg-type]
        self.troubles: list[tuple[float, float, str]] = []
        self.host.gone = self._gone
        self._looked = 0.0
        self._progress: dict[str, tuple[float, int]] = {}
        self._numbered: dict[tuple[str, int], int] = {}

    # --- troubles

    def trouble(self, kind: str) -> None:
        """One more."""
        rng = self.rng
        duration_s = rng.choice((3.0, 6.0, 20.0, 60.0)) * (0.5 + 0.5 * rng.random())
        if kind == "stop":
            self._note(self._stop(duration_s), duration_s)
        elif kind == "sleep":
            machine = rng.choice(self._machines())
            if not machine.asleep:
                self.tally.stops += 1
                machine.sleep(duration_s)
                self._note(machine.name, duration_s)
        elif kind == "cut":
            machine = rng.choice(self.nodes).machine
            self.link_is_cut(duration_s, machine)
            self._note(machine.name, duration_s)
        elif kind == "flap":
            machine = rng.choice(self.nodes).machine
            for step in range(5):
                self.lan.after(step * 2.0, lambda: self.link_is_cut(1.0, machine))
            self._note(machine.name, 9.0)
        elif kind == "clock":
            self.clock_jumps()

    def _machines(self) -> list[Machine]:
        return [self.host.machine, *(node.machine for node in self.nodes)]

    def _stop(self, duration_s: float) -> str:
        members = [node.member.process for node in self.nodes if node.member is not None]
        process: Process = self.rng.choice([*self.host.processes(), *members])
        self.tally.stops += 1
        process.stop(duration_s)
        return process.name

    def _note(self, who: str, duration_s: float) -> None:
        self.troubles.append((self.lan.now, self.lan.now + duration_s, who))

    @property
    def quiet_since(self) -> float:
        """When the last trouble ended, or will end."""
        return max((end for _, end, _ in self.troubles), default=0.0)

    # --- what must hold

    def check(self) -> None:
        super().check()
        if self.lan.now - self._looked >= 1.0:
            self._looked = self.lan.now
            for node in self.nodes:
                self._check_found_out(node)
                self._check_progress(node)
                self._check_new_work(node)

    def _silences(self, *names: str) -> list[tuple[float, float]]:
        """Times in which one of these was hindered; those that follow each other at once are one."""
        silences: list[tuple[float, float]] = []
        for begin, end, who in sorted(self.troubles):
            if who not in names:
                continue
            if silences and begin - silences[-1][1] < _BETWEEN_S:
                silences[-1] = (silences[-1][0], max(end, silences[-1][1]))
            else:
                silences.append((begin, end))
        return silences

    def _path(self, node: Node) -> tuple[str, ...]:
        assert self.host.broker is not None
        return (node.machine.name, node.key[:8], self.host.machine.name, "broker")

    def _gone(self, key: str) -> None:
        """A broker took a member for gone: it must have had a reason."""
        node = next(node for node in self.nodes if node.key == key)
        now = self.lan.now
        excused = any(
            begin <= now <= end + _BETWEEN_S and now - begin >= _EXCUSE_S
            for begin, end in self._silences(*self._path(node))
        )
        assert excused, f"{key[:8]} was taken for gone at {now:.1f}, and was there: {self.troubles}"

    def _check_found_out(self, node: Node) -> None:
        """Who is cut off is not counted among the living."""
        broker, now = self.host.broker, self.lan.now
        if broker is None or not broker.process.awake:
            return
        path = self._path(node)
        # What was held back arrives when a trouble ends, though another goes on.
        since = max((end for _, end, who in self.troubles if who in path and end <= now), default=0.0)
        silent = [begin for begin, end, who in self.troubles if who == node.key[:8] and begin <= now < end]
        if silent and now - max(min(silent), since) > _GONE_S + _LATE_S:
            alive = [member.key for member in broker.roster.live()]
            assert node.key not in alive, f"{node.key[:8]} is silent since {min(silent):.1f}, now {now:.1f}"

    def _check_progress(self, node: Node) -> None:
        """Who can reach a shard gets rid of its bundles, whatever another shard does."""
        now, stored = self.lan.now, self.host.disk.per_node[node.key]
        since, before = self._progress.setdefault(node.key, (now, stored))
        hindered = [end for _, end, who in self.troubles if who != "shard 0"]
        if stored > before or node.member is None or node.truth.made >= node.plan.bundles:
            self._progress[node.key] = (now, stored)
        elif now - max(since, max(hindered, default=0.0)) > _PROGRESS_S:
            raise AssertionError(f"nothing of {node.key[:8]} was stored since {since:.1f}, now {now:.1f}")

    def _check_new_work(self, node: Node) -> None:
        """A shard that hangs gets nothing new, once that is known."""
        now = self.lan.now
        others = [end for _, end, who in self.troubles if not who.startswith("shard")]
        for begin, end, who in self.troubles:
            if not who.startswith("shard") or node.member is None:
                continue
            index = int(who[-1])
            lane = node.member.outgoing.outbox._lanes.get(index)
            if lane is None or now >= end or now - max([begin, *others]) < _DOWN_S:
                self._numbered.pop((node.key, index), None)
                continue
            before = self._numbered.setdefault((node.key, index), lane.next_seq)
            assert lane.next_seq == before, f"shard {index} hangs since {begin:.1f}, and is given more"

    def check_healed(self) -> None:
        """Half a minute after the last trouble."""
        broker = self.host.broker
        assert broker is not None
        current = broker.saved.weights_version
        states = {member.key: member.state for member in broker.roster.live()}
        for node in self.nodes:
            who = node.key[:8]
            assert node.member is not None
            assert states.get(node.key) == "working", f"{who} is {states.get(node.key, 'gone')}"
            version = node.member.sync.version
            assert version >= current - _VERSIONS_BEHIND, f"{who} has version {version}, there is {current}"
        addresses = broker.desk.listed()
        assert all(address.boot_id for address in addresses), f"a shard is not back: {addresses}"


def simulate(seed: int) -> Tally:
    """One schedule. Raises AssertionError if something that must hold does not."""
    rng = random.Random(seed)
    with schedule(SCENARIO, seed) as folder:
        world = Patient(rng, Weather(jitter_s=rng.choice((0.02, 0.5))), folder)
        for index in range(2):
            spool = folder / f"node{index}" / "spool"
            spool.mkdir(parents=True)
            plan = Plan(1_000, pace_s=1.0, spool=spool, spool_bytes=rng.choice((0, 1_000_000)))
            world.add(f"{index}" * 40, plan)
        world.host.start()
        for node in world.nodes:
            node.start()
        world.lan.run_until(10.0)
        for _ in range(3):
            for _ in range(rng.randrange(1, 4)):
                world.trouble(rng.choice(("stop", "stop", "sleep", "cut", "flap", "clock")))
                world.lan.run_until(world.lan.now + rng.random() * 10.0)
            world.lan.run_until(max(world.lan.now, world.quiet_since) + _HEAL_S)
            world.check_healed()
        for node in world.nodes:
            node.plan.bundles = node.truth.made
        world.fair_weather()
        return world.tally


@pytest.mark.parametrize("seed", range(_SEEDS), ids=lambda seed: f"seed{seed}")
def test_all_heals_by_itself(seed: int) -> None:
    simulate(seed)


def test_a_check_without_troubles_finds_nothing_to_excuse() -> None:
    """The checks above can fail: without a trouble nobody may be gone."""
    with schedule(SCENARIO, 0) as folder:
        world = Patient(random.Random(0), Weather(), folder)
        node = world.add("0" * 40, Plan(10))
        world.host.start()
        with pytest.raises(AssertionError, match="was there"):
            world.host.gone(node.key)
