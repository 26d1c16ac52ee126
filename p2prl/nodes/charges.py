"""What a host's processes are told: the keys, and the config of each at each start."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from p2prl.core import messages as m
from p2prl.core.codes import new_code
from p2prl.net.cards import HostCard
from p2prl.net.interfaces import chosen_interfaces
from p2prl.net.keys import KeyPair, fingerprint, load_or_create, new_key_pair, state_folder
from p2prl.nodes.claim import free
from p2prl.nodes.device import choose_device
from p2prl.nodes.grace import CHILD_S, more_s
from p2prl.nodes.options import HostOptions, default_players
from p2prl.nodes.prepare import Prepared
from p2prl.nodes.rings import Rings, open_rings
from p2prl.nodes.supervisor import Charge
from p2prl.nodes.trainer_config import TrainerConfig
from p2prl.nodes.wiring import BrokerConfig, MemberConfig, ShardConfig, Staff
from p2prl.registry import is_accelerated, is_file_agent, resolve_agent
from p2prl.replay.params import ReplayKind

LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class Keys:
    """The host's own key, and one for each kind of its processes."""

    host: KeyPair
    owner: KeyPair
    trainer: KeyPair
    shard: KeyPair
    member: KeyPair

    def staff(self) -> Staff:
        """The public halves that have rights."""
        return Staff(
            owner=self.owner.public,
            trainer=self.trainer.public,
            shard=self.shard.public,
            member=self.member.public,
        )


class Plan:
    """Makes the charges.

    Attributes:
        base_port, name: may change; the next start of a process is told the new one.
        rings: the memory that the shards share with the trainer; None for none.
        code: the join code as the broker told it last, so that its next incarnation goes on with it.
        term: the broker's last one; 0 before the first.
    """

    def __init__(self, options: HostOptions, prepared: Prepared, base_port: int) -> None:
        self.options = options
        self.prepared = prepared
        self.base_port = base_port
        self.name = options.name
        self.keys = _make_keys(prepared.file.run_id)
        self.players = default_players() if options.players is None else options.players
        self.bind = bind_hosts(options)
        self.code = _first_code(options)
        self.rings: Rings | None = None
        self._session = secrets.token_hex(8)
        self.term = 0
        self._began = time.monotonic()

    def charges(self) -> list[Charge]:
        """In the order in which they are started. Once: memory that they share is made here."""
        replay, count = self.prepared.replay, self.options.experiment.shards
        kind = cast(ReplayKind, replay.kind)
        self.rings = open_rings(self.prepared.run.schema, kind, count, self._shard_bytes())
        writes = [self.rings.writes] if self.rings is not None else []
        reads = [self.rings.reads] if self.rings is not None else []
        shards = [
            Charge(f"shard {index}", "shard", self._shard_maker(index), descriptors=writes)
            for index in range(count)
        ]
        threads = str(max(1, (os.cpu_count() or 1) - self.players))
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        env = {name: threads for name in names if name not in os.environ}
        trainer = Charge("trainer", "trainer", self._trainer_config, env, reads)
        members = [Charge("member", "member", self._member_config)] if self.players > 0 else []
        return [Charge("broker", "broker", self._broker_config), *shards, trainer, *members]

    def close(self) -> None:
        """Let go of the shared memory."""
        if self.rings is not None:
            self.rings.close()

    def played(self) -> list[str]:
        """Those that make sessions, and those that learn from them."""
        return ["member", "trainer"]

    def needed(self) -> list[str]:
        """Those without which nobody can join."""
        return ["broker", *(f"shard {index}" for index in range(self.options.experiment.shards))]

    def card(self, boot_id: str, term: int) -> HostCard:
        """What mDNS says of this host."""
        run = self.prepared.run
        return HostCard(
            run_id=run.run_id,
            name=self.name,
            boot_id=boot_id,
            term=term,
            protocol=m.PROTOCOL,
            fingerprint=fingerprint(self.keys.host.public),
            env=run.env_id,
            agent=run.agent_name,
        )

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
            state=str(state_folder()),
            session=self._session,
            open=self.options.open,
            last_term=self.term,
            code=self.code,
            code_uses=self.options.code_uses,
            code_ttl_s=self.options.code_ttl_s,
            approve=self.options.approve,
            addresses=_reachable(self.options),
            eval_share=self.options.experiment.play.eval_share,
            eval_episodes=self.options.experiment.play.eval_episodes,
            up_s=time.monotonic() - self._began,
        )

    def _shard_maker(self, index: int) -> Callable[[], ShardConfig]:
        experiment, replay = self.options.experiment, self.prepared.replay
        shards, limits = experiment.shards, experiment.limits

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
                broker=LOCAL,
                kind=cast(ReplayKind, replay.kind),
                capacity_bytes=self._shard_bytes(),
                window=replay.window,
                fsync_interval_s=experiment.replay.fsync_interval_s,
                node_bytes_per_s=limits.node_bytes_per_s / shards,
                node_bundles_per_s=limits.node_bundles_per_s / shards,
                rings=self.rings.writes if self.rings is not None else -1,
                shards=shards,
                grace_s=self._grace_s(),
            )

        return make

    def _shard_bytes(self) -> int:
        return -(-self.prepared.replay.capacity_bytes // self.options.experiment.shards)

    def _trainer_config(self) -> TrainerConfig:
        train, play = self.options.experiment.train, self.options.experiment.play
        return TrainerConfig(
            run=self.prepared.run,
            agent=self.options.experiment.agent.name,
            replay=self.prepared.replay,
            keys=self.keys.trainer,
            server_key=self.keys.host.public,
            host=LOCAL,
            base_port=self.base_port,
            folder=str(self.prepared.folder),
            device=train.device,
            publish_interval_s=train.publish_interval_s,
            checkpoint_interval_s=train.checkpoint_interval_s,
            keep_checkpoints=train.keep_checkpoints,
            eval_episodes=play.eval_episodes if play.eval_share > 0 else 0,
            goal=self.options.experiment.stop.mean_return,
            rings=self.rings.reads if self.rings is not None else -1,
            shards=self.options.experiment.shards,
            shard_bytes=self._shard_bytes(),
            grace_s=self._grace_s(),
        )

    def check_config(self, path: Path) -> TrainerConfig:
        """For a trainer that only looks whether a checkpoint fits this experiment."""
        return msgspec.structs.replace(self._trainer_config(), check=str(path), rings=-1)

    def _member_config(self) -> MemberConfig:
        agent = self.options.experiment.agent.name
        return MemberConfig(
            host=LOCAL,
            base_port=self.base_port,
            server_key=self.keys.host.public,
            keys=self.keys.member,
            name=self.options.name,
            players=self.players,
            agent=agent if is_file_agent(agent) else "",
            own=True,
            grace_s=self._grace_s(),
        )

    def _grace_s(self) -> float:
        return CHILD_S + more_s(self.players)


def bind_hosts(options: HostOptions) -> list[str]:
    """Where to listen, as ZeroMQ wants it. Loopback always, for the host's own processes.

    Raises:
        UsageError: there is no such interface.
    """
    if not options.interfaces:
        return ["*"]
    hosts = [LOCAL]
    for interface in chosen_interfaces(options.interfaces):
        hosts += [address for address in interface.v4 if address != LOCAL]
        hosts += [
            f"[{address}]" for address in interface.v6 if not address.startswith("fe80") and address != "::1"
        ]
    return hosts


def check_options(options: HostOptions) -> None:
    """What can be refused before there is a folder, a process or a player.

    Raises:
        UsageError, MissingPackage, P2prlError: the device, an interface or the named ports are not to be had.
    """
    bind_hosts(options)
    wanted = options.experiment.train.device
    if wanted not in ("auto", "cpu"):  # those are always there, and looking for a GPU imports torch
        agent = options.experiment.agent.name
        choose_device(wanted, agent, is_accelerated(resolve_agent(agent)))
    if options.base_port and not options.resume:
        free(options.base_port, options.experiment.shards)


def _first_code(options: HostOptions) -> m.CodeNews:
    """The join code that this host begins with: none if it is open."""
    if options.open:
        return m.CodeNews(code="")
    code = options.code or new_code(secrets.randbelow)
    return m.CodeNews(code=code, uses=options.code_uses, ttl_s=options.code_ttl_s)


def _reachable(options: HostOptions) -> list[str]:
    """Where other machines may reach this host."""
    interfaces = chosen_interfaces(options.interfaces)
    addresses = [address for interface in interfaces for address in (*interface.v4, *interface.v6)]
    return [address for address in addresses if not address.startswith("fe80")] or [LOCAL]


def _make_keys(run_id: str) -> Keys:
    home = state_folder()
    return Keys(
        host=load_or_create(home / "node.key"),
        # Kept, so that the owner's commands in another terminal are known as the owner's.
        owner=load_or_create(home / "owner.key"),
        trainer=new_key_pair(),
        shard=new_key_pair(),
        # A key of its own for each run, so that its books and its seat come back with --resume.
        member=load_or_create(home / "own" / f"{run_id}.key"),
    )
