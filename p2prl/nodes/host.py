"""`p2prl host`: starts the broker, the shards, the trainer and an own member, watches over them, and ends the run."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.episodes import WINDOW
from p2prl.errors import P2prlError
from p2prl.net.addresses import endpoint
from p2prl.net.cards import HostCard
from p2prl.net.discovery import Advertiser
from p2prl.net.interfaces import chosen_interfaces
from p2prl.net.keys import KeyPair, fingerprint, load_or_create, new_key_pair, run_lock, state_folder
from p2prl.net.loop import Loop
from p2prl.net.ports import MAX_BLOCKS, free_block
from p2prl.net.sockets import Frame, Network
from p2prl.nodes.control import ControlLine
from p2prl.nodes.options import DEFAULT_BASE_PORT, HostOptions, default_players
from p2prl.nodes.prepare import Prepared, prepare, save_run_file
from p2prl.nodes.process import ChildEvent
from p2prl.nodes.recorder import Recorder
from p2prl.nodes.report import HostReporter, HostStarted, HostStopped
from p2prl.nodes.signals import end_on_signals
from p2prl.nodes.supervisor import Charge, GivenUp, Supervisor
from p2prl.nodes.trainer_config import TrainerConfig
from p2prl.nodes.wiring import BrokerConfig, MemberConfig, ShardConfig, Staff

log = logging.getLogger("p2prl")

_LOCAL = "127.0.0.1"
_STATUS_S = 0.5
_FOLLOW_S = 5.0
#: How the at most 5 s of an ending are spent: the broker's farewell, the others' end, the broker's own end.
_FAREWELL_S, _OTHERS_S, _BROKER_S = 0.5, 2.5, 0.8
#: The last figures wait for the members' goodbyes, which bring their last books, until so long after the stop.
_LAST_STATUS_BY_S = 3.4
#: A process that came from a resumed host may hold its ports for a moment after it was killed.
_PORT_PATIENCE_S = 3.0


@dataclass(frozen=True)
class _Keys:
    host: KeyPair
    owner: KeyPair
    trainer: KeyPair
    shard: KeyPair
    member: KeyPair

    def staff(self) -> Staff:
        return Staff(owner=self.owner.public, trainer=self.trainer.public, shard=self.shard.public)


class Host:
    """Glue between the supervisor, the broker's status and the person."""

    def __init__(self, options: HostOptions, reporter: HostReporter, prepared: Prepared) -> None:
        self.options = options
        self.reporter = reporter
        self.prepared = prepared
        self.loop = Loop()
        self.recorder = Recorder(prepared.folder)
        self.supervisor = Supervisor(self.loop, self.say, self._on_ready, self._on_given_up)
        self.keys = _make_keys(prepared.file.run_id)
        self.players = default_players() if options.players is None else options.players
        self.bind = _bind_hosts(options)
        self.base_port = self._choose_base()
        self.advertiser: Advertiser | None = None
        self.name = options.name
        self.boot_id = secrets.token_hex(8)
        self.term = 0
        self.last: m.StatusReply | None = None
        self.started_at = self.loop.now()
        self.reason = ""
        self.text = ""
        self.exit_code = 0
        self._stage = "running"
        self._stage_at = 0.0
        self._stop_at = 0.0
        self._announced = False
        self.network = Network()
        self.control: ControlLine | None = None

    # --- starting

    def start(self) -> None:
        """Start the processes; the rest happens on the loop."""
        self.say(
            "warning", "host", "open host: any machine that reaches it is admitted (join codes come later)"
        )
        if not self.recorder.has_board:
            self.say("info", "host", "tensorboard is not installed: figures go to progress.jsonl only")
        self.supervisor.start(Charge("broker", "broker", self._broker_config))
        for index in range(self.options.experiment.shards):
            make = self._shard_maker(index)
            self.supervisor.start(Charge(f"shard {index}", "shard", make))
        threads = str(max(1, (os.cpu_count() or 1) - self.players))
        env = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        self.supervisor.start(Charge("trainer", "trainer", self._trainer_config, env))
        if self.players > 0:
            self.supervisor.start(Charge("member", "member", self._member_config))
        self.control = ControlLine(
            self.loop,
            self.network,
            endpoint(_LOCAL, self.base_port),
            self.keys.owner,
            self.keys.host.public,
            self._hello,
            self._on_control,
            self._on_refusal,
        )
        self.loop.every(_STATUS_S, self._ask_status)
        self.loop.every(0.05, self._advance)
        self.loop.every(_FOLLOW_S, self._follow)

    def _choose_base(self) -> int:
        options, shards = self.options, self.options.experiment.shards
        wanted = (
            options.base_port or (self.prepared.file.base_port if options.resume else 0) or DEFAULT_BASE_PORT
        )
        if options.resume:
            wait_for_ports(wanted, shards, _PORT_PATIENCE_S)
        base = free_block(wanted, shards, blocks=_blocks(options))
        if base != wanted:
            text = f"the ports from {wanted} on are taken; using the block from {base} on"
            self.say("warning", "host", text)
        self.prepared.file.base_port = base
        save_run_file(self.prepared.folder, self.prepared.file)
        return base

    def _broker_config(self) -> BrokerConfig:
        return BrokerConfig(
            run=self.prepared.run,
            run_name=self.prepared.file.name,
            host_name=self.name,
            keys=self.keys.host,
            staff=self.keys.staff(),
            base_port=self.base_port,
            bind=self.bind,
            shards=self.options.experiment.shards,
            folder=str(self.prepared.folder),
        )

    def _shard_maker(self, index: int) -> Callable[[], ShardConfig]:
        replay, shards = self.prepared.replay, self.options.experiment.shards

        def make() -> ShardConfig:
            return ShardConfig(
                run=self.prepared.run,
                index=index,
                server_keys=self.keys.host,
                shard_keys=self.keys.shard,
                staff=self.keys.staff(),
                base_port=self.base_port,
                bind=self.bind,
                folder=str(self.prepared.folder / "replay"),
                broker=_LOCAL,
                kind="queue" if replay.kind == "queue" else "uniform",
                capacity_bytes=-(-replay.capacity_bytes // shards),
                window=replay.window,
            )

        return make

    def _trainer_config(self) -> TrainerConfig:
        train = self.options.experiment.train
        return TrainerConfig(
            run=self.prepared.run,
            agent=self.options.experiment.agent.name,
            replay=self.prepared.replay,
            keys=self.keys.trainer,
            server_key=self.keys.host.public,
            host=_LOCAL,
            base_port=self.base_port,
            folder=str(self.prepared.folder),
            device=train.device,
            publish_interval_s=train.publish_interval_s,
            checkpoint_interval_s=train.checkpoint_interval_s,
            keep_checkpoints=train.keep_checkpoints,
        )

    def _member_config(self) -> MemberConfig:
        return MemberConfig(
            host=_LOCAL,
            base_port=self.base_port,
            server_key=self.keys.host.public,
            keys=self.keys.member,
            name=self.options.name,
            players=self.players,
            own=True,
        )

    def _hello(self) -> m.Hello:
        return m.Hello(
            protocol=m.PROTOCOL, version=__version__, role="client", name="owner", boot_id=self.boot_id
        )

    # --- what happens

    def say(self, level: str, source: str, text: str) -> None:
        """A line for the person and for host.log."""
        self.recorder.log(level, source, text)
        self.reporter.log(level, source, text)

    def _on_ready(self, charge: Charge, event: ChildEvent) -> None:
        if charge.name == "broker":
            self.term = int(event.data.get("term", 0))
        if charge.starts > 1:
            self.say("info", charge.name, "is back")
        needed = ["broker", *(f"shard {i}" for i in range(self.options.experiment.shards))]
        if not self._announced and all(self.supervisor.charges[name].was_ready for name in needed):
            self._announced = True
            self._announce()
        elif self.advertiser is not None and charge.name == "broker":
            self.advertiser.update(self._card())

    def _announce(self) -> None:
        options = self.options
        addresses: tuple[str, ...] = ()
        if options.advertise:
            self.advertiser = Advertiser(self._card(), options.interfaces, self.base_port)
            self._tell_about_mdns()
            addresses = self.advertiser.addresses
        self.reporter.started(
            HostStarted(
                run_id=self.prepared.run.run_id,
                run_name=self.prepared.file.name,
                name=self.name,
                address=addresses[0] if addresses else _LOCAL,
                addresses=addresses or (_LOCAL,),
                base_port=self.base_port,
                results=self.prepared.folder,
                term=self.term,
                resumed=options.resume,
            )
        )

    def _tell_about_mdns(self) -> None:
        assert self.advertiser is not None
        if self.advertiser.problem:
            self.say("warning", "host", self.advertiser.problem)
        if self.advertiser.name != self.name:
            self.say(
                "info", "host", f"another host is called {self.name}; this one is {self.advertiser.name}"
            )
            self.name = self.advertiser.name
        if self.control is not None:
            self.control.send(m.Rename(name=self.name))

    def _card(self) -> HostCard:
        run = self.prepared.run
        return HostCard(
            run_id=run.run_id,
            name=self.name,
            boot_id=self.boot_id,
            term=self.term,
            protocol=m.PROTOCOL,
            fingerprint=fingerprint(self.keys.host.public),
            env=run.env_id,
            agent=run.agent_name,
        )

    def _follow(self) -> None:
        if self.advertiser is not None and self._stage == "running" and self.advertiser.follow():
            self._tell_about_mdns()

    def _on_given_up(self, error: GivenUp) -> None:
        self.stop("error", str(error), error.exit_code)

    def _on_refusal(self, refusal: m.Refusal) -> None:
        self.stop("error", refusal.text, 1)

    def _ask_status(self) -> None:
        if self.control is not None and self._stage == "running":
            self.control.send(m.StatusAsk())

    def _on_control(self, message: m.Message, bulk: list[Frame]) -> None:
        if isinstance(message, m.StatusReply):
            self._on_status(message)
        elif isinstance(message, m.Stopping) and self._stage == "farewell":
            self._enter("others")

    def _on_status(self, status: m.StatusReply) -> None:
        self.last = status
        if self._stage == "last" and not any(node.players and node.state != "gone" for node in status.nodes):
            self._enter("broker")
        if self._stage != "running" or not self._announced:
            return
        if status.host_name != self.name and self.control is not None:
            self.control.send(m.Rename(name=self.name))  # the broker restarted
        self.recorder.status(status, self.loop.now())
        self.reporter.status(status)
        self._maybe_stop(status)

    def _maybe_stop(self, status: m.StatusReply) -> None:
        stop = self.options.experiment.stop
        full = status.return_episodes >= WINDOW and status.return_mean is not None
        if stop.mean_return is not None and full and (status.return_mean or 0.0) >= stop.mean_return:
            self.stop("return", f"mean return {status.return_mean:.1f} over the last {WINDOW} episodes")
        elif stop.steps and status.steps >= stop.steps:
            self.stop("steps", f"{status.steps} steps")
        elif stop.time_s and self.loop.now() - self.started_at >= stop.time_s:
            self.stop("time", f"{stop.time_s:g} s")

    # --- ending: running -> farewell -> others -> last -> broker -> over

    def stop(self, reason: str, text: str, exit_code: int = 0) -> None:
        """Begin to end; the first reason counts."""
        if self._stage != "running":
            return
        self.reason, self.text, self.exit_code = reason, text, exit_code
        self._stop_at = self.loop.now()
        if self.control is not None:
            self.control.send(m.StopAsk(reason=reason))
        self._enter("farewell")

    def _enter(self, stage: str) -> None:
        self._stage, self._stage_at = stage, self.loop.now()
        others = [name for name in self.supervisor.charges if name != "broker"]
        if stage == "others":
            self.supervisor.end(others)
        elif stage == "last":
            self._ask_last_status()
        elif stage == "broker":
            self.supervisor.end(["broker"])

    def _advance(self) -> None:
        if self._stage == "running":
            return
        waited_s = self.loop.now() - self._stage_at
        others = [name for name in self.supervisor.charges if name != "broker"]
        if self._stage == "farewell" and waited_s > _FAREWELL_S:
            self._enter("others")
        elif self._stage == "others" and (self.supervisor.ended(others) or waited_s > _OTHERS_S):
            self._enter("last")
        elif self._stage == "last":
            self._ask_last_status()
        elif self._stage == "broker" and (self.supervisor.ended(["broker"]) or waited_s > _BROKER_S):
            self.loop.stop(self.exit_code)

    def _ask_last_status(self) -> None:
        if self.control is None or self.loop.now() - self._stop_at > _LAST_STATUS_BY_S:
            self._enter("broker")
        else:
            self.control.send(m.StatusAsk())

    def run(self) -> int:
        """Until the end; returns the exit code."""
        try:
            with end_on_signals(lambda: self.stop("signal", "stopped by a signal")):
                self.start()
                self.loop.run()
        finally:
            self.supervisor.close(0.3)
            if self.advertiser is not None:
                self.advertiser.close()
            self.recorder.close(self.last)
            self.network.close()
        self.reporter.stopped(HostStopped(self.reason, self.text, self.last))
        if self.reason == "error":
            raise _coded(self.text, self.exit_code)
        return self.exit_code


def _coded(text: str, exit_code: int) -> P2prlError:
    error = P2prlError(text)
    error.exit_code = exit_code or 1
    return error


def _make_keys(run_id: str) -> _Keys:
    home = state_folder()
    return _Keys(
        host=load_or_create(home / "node.key"),
        owner=new_key_pair(),
        trainer=new_key_pair(),
        shard=new_key_pair(),
        # A key of its own for each run, so that its books and its seat come back with --resume.
        member=load_or_create(home / "own" / f"{run_id}.key"),
    )


def _bind_hosts(options: HostOptions) -> list[str]:
    """As ZeroMQ wants them. Loopback always, for the host's own processes."""
    if not options.interfaces:
        return ["*"]
    hosts = [_LOCAL]
    for interface in chosen_interfaces(options.interfaces):
        hosts += [address for address in interface.v4 if address != _LOCAL]
        hosts += [
            f"[{address}]" for address in interface.v6 if not address.startswith("fe80") and address != "::1"
        ]
    return hosts


def _blocks(options: HostOptions) -> int:
    """Who names a port has told it to others, or opened it in a firewall: another one would be of no use."""
    return 1 if options.base_port else MAX_BLOCKS


def wait_for_ports(base: int, shards: int, patience_s: float) -> None:
    """Give a killed host's processes a moment to let their ports go."""
    loop = Loop()
    deadline = loop.now() + patience_s

    def look() -> None:
        try:
            free_block(base, shards, blocks=1)
        except P2prlError:
            if loop.now() < deadline:
                return
        loop.stop()

    loop.every(0.1, look, first_s=0.0)
    loop.run()


def run_host(options: HostOptions, reporter: HostReporter) -> int:
    """Run a host until it stops; returns the exit code.

    Raises:
        P2prlError: with the exit code of its kind, if the run cannot start or cannot go on.
    """
    if options.base_port and not options.resume:  # before a folder is made for the run
        free_block(options.base_port, options.experiment.shards, blocks=1)
    with ExitStack() as locks:
        if options.resume:  # before anything in the folder is touched
            locks.enter_context(run_lock(options.results))
        prepared = prepare(options.experiment, options.results, options.resume)
        if not options.resume:
            locks.enter_context(run_lock(prepared.folder))
        return Host(options, reporter, prepared).run()
