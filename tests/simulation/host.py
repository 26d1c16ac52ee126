"""The simulated host: a broker, two shards and a trainer on one machine, started again whenever they die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from p2prl.core import messages as m
from p2prl.net.addresses import endpoint
from p2prl.net.keys import KeyPair
from p2prl.nodes.wiring import BrokerConfig, Staff
from tests.simulation.broker import Broker
from tests.simulation.disks import HOST_KEY, OWN_MEMBER, OWNER, RUN_ID, SHARD, SHARDS, TRAINER, Disk
from tests.simulation.lan import FakeLan
from tests.simulation.process import Machine, Process
from tests.simulation.shard import Shard
from tests.simulation.trainer import Trainer


class Host:
    """The machine and its processes; those that die are started again, as the supervisor does.

    Args:
        state: a folder for the list of keys.
        config: changes of the broker's config.

    Attributes:
        terms: of all brokers so far.
        contents: what weights of each version are.
        starts: brokers, shards and trainers that were started.
        seeds: whom each seed was given to, as (key, boot id).
        down: the whole host is away.
        kills: how often one of its processes died.
    """

    def __init__(self, lan: FakeLan, machine: Machine, run: m.RunSpec, state: Path, **config: object) -> None:
        self.lan, self.machine, self.run, self.rng = lan, machine, run, lan.rng
        self.address, self.base_port = "192.0.2.1", 47800
        self._state, self._more = state, config
        self.disk = Disk()
        self.quota_bytes_per_s = 0.0
        self.busy = 0.03
        self.publishes = True
        #: How long a process is missing after it died; 0 for anything.
        self.restart_s = 0.0
        self.terms: list[int] = []
        self.starts: Counter[str] = Counter()
        self.seeds: dict[int, tuple[str, str]] = {}
        self.contents: dict[int, bytes] = {}
        self.kills = 0
        self.down = False
        self.broker: Broker | None = None
        self.trainer: Trainer | None = None
        self.shards: list[Shard | None] = [None] * SHARDS
        self.new_broker: Callable[[Host], Broker] = Broker
        #: Told of each member that a broker took for gone.
        self.gone: Callable[[str], None] = lambda key: None
        #: Told of each bundle that a shard stores, by whom it is and what the shard knows of who may give.
        self.keeps: Callable[[str, m.Access], None] = lambda user, access: None

    def config(self) -> BrokerConfig:
        """The broker's."""
        fields: dict[str, object] = {
            "run": self.run, "run_name": RUN_ID, "host_name": "host", "keys": KeyPair(HOST_KEY, ""),
            "staff": Staff(OWNER, TRAINER, SHARD, OWN_MEMBER), "base_port": self.base_port, "bind": ["*"],
            "shards": SHARDS, "folder": "", "state": str(self._state), "open": True,
        }  # fmt: skip
        return BrokerConfig(**(fields | self._more))  # type: ignore[arg-type]

    def at(self, port: int) -> str:
        """An endpoint of this host."""
        return endpoint(self.address, port)

    # --- starts and ends

    def start(self) -> None:
        """All of it."""
        self.down = False
        self._start_broker()
        for index in range(SHARDS):
            self._start_shard(index)
        self._start_trainer()

    def processes(self) -> list[Process]:
        """Those that are alive."""
        parts = [self.broker, self.trainer, *self.shards]
        return [part.process for part in parts if part is not None and part.process.alive]

    @property
    def whole(self) -> bool:
        """All of it runs."""
        return len(self.processes()) == SHARDS + 2

    def kill_all(self, away_s: float, moves: bool = False) -> None:
        """kill -9 of everything; it comes back by `--resume`, perhaps on another address and port."""
        if self.down:
            return
        self.down = True
        for process in self.processes():
            process.kill()
        if moves:
            self.address, self.base_port = f"192.0.2.{self.rng.randrange(1, 255)}", self.base_port + 100
        self.lan.after(away_s, self.start)

    def _died(self, again: Callable[[], None]) -> Callable[[Process], None]:
        def died(process: Process) -> None:
            self.kills += 1
            if not self.down:
                delay_s = self.restart_s or 0.2 + self.rng.choice((1.0, 8.0)) * self.rng.random()
                self.lan.after(delay_s, lambda: None if self.down else again())

        return died

    def _process(self, name: str, again: Callable[[], None]) -> Process:
        self.starts[name] += 1
        return Process(self.machine, name, self._died(again))

    def _start_broker(self) -> None:
        if self.broker is None or not self.broker.process.alive:
            self.broker = self.new_broker(self)

    def _start_shard(self, index: int) -> None:
        old = self.shards[index]
        if old is None or not old.process.alive:
            self.shards[index] = Shard(self, index)

    def _start_trainer(self) -> None:
        if self.trainer is None or not self.trainer.process.alive:
            self.trainer = Trainer(self)
