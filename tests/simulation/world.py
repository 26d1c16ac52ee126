"""A host and some volunteers on a fake LAN, and what befalls them."""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from p2prl.core import messages as m
from tests.simulation import invariants
from tests.simulation.disks import run_spec
from tests.simulation.host import Host
from tests.simulation.lan import FakeLan, Weather
from tests.simulation.member import Node, Plan
from tests.simulation.process import Machine, Process

#: In good weather everything must be settled within this.
HEAL_S = 150.0


@dataclass
class Tally:
    """What happened in some schedules."""

    schedules: int = 0
    events: int = 0
    bundles: int = 0
    crashes: int = 0
    partitions: int = 0
    stops: int = 0
    clock_jumps: int = 0
    admissions: int = 0
    attacks: int = 0

    def add(self, other: Tally) -> None:
        """Both together."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@contextmanager
def schedule(scenario: str, seed: int) -> Iterator[Path]:
    """A folder for one schedule; what fails in it names the seed."""
    logger = logging.getLogger("p2prl")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    folder = Path(tempfile.mkdtemp(prefix="sim-"))
    try:
        yield folder
    except AssertionError as error:
        again = f"scripts/simulate --scenario {scenario} --schedules 1 --seed-from {seed}"
        raise AssertionError(f"seed {seed} of {scenario}: {error}\nagain: {again}") from error
    finally:
        logger.setLevel(level)
        Process.running = None
        shutil.rmtree(folder)


class World:
    """One LAN.

    Args:
        folder: for the disks of all machines.

    Attributes:
        tally: what happened so far.
    """

    def __init__(
        self,
        rng: random.Random,
        folder: Path,
        weather: Weather,
        run: m.RunSpec | None = None,
        **config: object,
    ) -> None:
        self.rng, self.folder = rng, folder
        self.lan = FakeLan(rng, weather)
        self.tally = Tally(schedules=1)
        self.host = Host(self.lan, self.machine("host"), run or run_spec(), folder / "host", **config)
        self.nodes: list[Node] = []
        #: No more disasters.
        self.fair = False
        self.lan.after_event = self.check

    def machine(self, name: str) -> Machine:
        """A machine whose clocks are anywhere."""
        monotonic = self.rng.choice((0.0, self.rng.random() * 1e6))
        return Machine(self.lan, name, monotonic, wall=1.7e9 + self.rng.random() * 1e6)

    def add(self, key: str, plan: Plan) -> Node:
        """One more volunteer."""
        node = Node(self.host, self.machine(key[:8]), key, plan)
        self.nodes.append(node)
        return node

    def check(self) -> None:
        """After each event."""
        invariants.check_now(self.host, self.nodes)

    # --- disasters

    def kill(self, process: Process) -> None:
        """Now, or in the midst of what it does next."""
        if self.fair:
            return
        if self.rng.random() < 0.3:
            process.kill()
        else:
            process.doomed = self.rng.randrange(12)

    def member_dies(self) -> None:
        members = [node.member for node in self.nodes if node.member is not None]
        if members:
            self.kill(self.rng.choice(members).process)

    def a_member_is_doomed(self) -> None:
        """It will die in the midst of what it does once its host is back."""
        members = [node.member for node in self.nodes if node.member is not None]
        if members and not self.fair:
            self.rng.choice(members).process.doomed = self.rng.randrange(50)

    def part_of_host_dies(self) -> None:
        processes = self.host.processes()
        if processes:
            self.kill(self.rng.choice(processes))

    def host_dies(self, away_s: float, moves: bool = False) -> None:
        self.host.kill_all(away_s, moves)

    def link_is_cut(self, duration_s: float, machine: Machine | None = None) -> None:
        self.tally.partitions += 1
        self.lan.cut(machine or self.rng.choice(self.nodes).machine, duration_s)

    def process_is_stopped(self, duration_s: float) -> None:
        members = [node.member.process for node in self.nodes if node.member is not None]
        processes = [*self.host.processes(), *members]
        if processes:
            self.tally.stops += 1
            self.rng.choice(processes).stop(duration_s)

    def machine_sleeps(self, duration_s: float) -> None:
        self.tally.stops += 1
        machines = [self.host.machine, *(node.machine for node in self.nodes)]
        self.rng.choice(machines).sleep(duration_s)

    def clock_jumps(self) -> None:
        self.tally.clock_jumps += 1
        machines = [self.host.machine, *(node.machine for node in self.nodes)]
        self.rng.choice(machines).wall += self.rng.choice((-3600.0, 3600.0))

    # --- to the end

    def fair_weather(self, within_s: float = HEAL_S) -> None:
        """The sun comes out, for all; then everything must come to an end."""
        self.fair = True
        self.host.publishes = False  # what was missed until now is not made up for by what comes later
        self.lan.weather.improve()
        for process in self.host.processes():
            process.doomed = None
        for node in self.nodes:
            if node.member is not None:
                node.member.process.doomed = None
        deadline = self.lan.now + within_s
        self.lan.run_until(deadline, enough=lambda: self.settled())
        assert self.settled(), f"not settled {within_s:g} s after the last trouble: {self.describe()}"
        # Until the broker knows it too, and everything that is under way has arrived.
        self.lan.run_until(self.lan.now + 30.0, enough=lambda: invariants.told(self.host, self.nodes))
        assert invariants.told(self.host, self.nodes), f"not told, or without weights: {self.versions()}"
        self.lan.run_until(self.lan.now + 2.0)
        invariants.check_end(self.host, self.nodes)
        self._count()

    def settled(self) -> bool:
        """No trouble goes on, and everything that was made has its end."""
        machines = [self.host.machine, *(node.machine for node in self.nodes)]
        if any(machine.cuts for machine in machines) or not self.host.whole:
            return False
        return all(invariants.settled(node) for node in self.nodes)

    def describe(self) -> str:
        """What is not at its end."""
        texts = []
        for node in self.nodes:
            if not invariants.settled(node):
                books = None if node.member is None else node.member.outgoing.books()
                texts.append(f"{node.key[:8]} made {node.truth.made} of {node.plan.bundles}: {books}")
        return "; ".join(texts)

    def versions(self) -> dict[str, int]:
        """Of the weights that the host and its members have."""
        versions = {node.key[:8]: node.member.sync.version for node in self.nodes if node.member is not None}
        return versions | {"host": self.host.broker.saved.weights_version if self.host.broker else -1}

    def _count(self) -> None:
        tally = self.tally
        tally.events += self.lan.events
        tally.bundles += sum(node.truth.made for node in self.nodes)
        tally.crashes += self.host.kills + sum(node.kills for node in self.nodes)


Simulate = Callable[[int], Tally]
