"""A player's process: steps environments, encodes bundles, hands them to its member. It never touches the network."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from pathlib import Path

import numpy as np
import psutil

from p2prl.core import messages as m
from p2prl.errors import MissingPackage, P2prlError, RemoteProtocolError, UsageError
from p2prl.learn.contracts import Actor, Agent, Weights
from p2prl.learn.environments import EnvironmentFailed
from p2prl.learn.evaluation import run_evaluation_seed
from p2prl.learn.rollout import Bundle, Rollout
from p2prl.learn.spaces import agent_schema, env_spec
from p2prl.net.loop import Loop
from p2prl.net.sockets import Limits, Network
from p2prl.nodes.evaluator import Evaluator
from p2prl.nodes.process import run_child
from p2prl.nodes.wiring import PlayerConfig
from p2prl.registry import is_file_agent, make_agent, make_env_factory, resolve_agent, source_hash
from p2prl.wire import frames
from p2prl.wire.bundle import encode_bundle
from p2prl.wire.weights import WeightsDecoder

log = logging.getLogger("p2prl")

_LIMITS = Limits(message_bytes=-1, send_messages=100, receive_messages=100)
#: Bundles that the member may hold unanswered before this player waits (or drops), at most.
_FIRST_CREDIT = 2
#: With `drop_oldest`: finished bundles kept here while the window is full; only the newest where what waits grows old.
_BACKLOG = 4


class Player:
    """One loop: take weights and credit, play one bundle, hand it over."""

    def __init__(self, config: PlayerConfig, loop: Loop) -> None:
        self.config = config
        self.run = config.run
        self.loop = loop
        self.rank = config.seat.rank
        self.version = -1
        self.serial = 0
        self.taken = 0
        #: One at a time where what waits would only grow old.
        self._most_credit = 1 if config.run.fresh else _FIRST_CREDIT
        self.credit = self._most_credit
        self._most_backlog = 1 if config.run.fresh else _BACKLOG
        #: Bundles, steps and episodes that were dropped and that the member was not told of yet.
        self.dropped = [0, 0, 0]
        #: Played and not handed over yet, oldest first.
        self.backlog: deque[tuple[m.PlayerBundle, bytes, bytes]] = deque()
        #: Serials handed over that the member has not answered, oldest first.
        self._sent: deque[int] = deque()
        self._weights = WeightsDecoder()
        #: How many of the rollout's warnings were passed on.
        self._warned = 0
        self.network = Network()
        self.socket = self.network.client(
            "dealer", config.endpoint, config.keys if config.keys.public else None, config.server_key, _LIMITS
        )
        loop.on_readable(self.socket, self._on_member)

    # --- starting

    def start(self) -> None:
        """Make the environment and the actor.

        Raises:
            P2prlError: they cannot be made here, or differ from the host's.
        """
        run, config = self.run, self.config
        make_env = make_env_factory(run.env_id, run.env_args, provided_by=run.env_package)
        cls = self._agent_class()
        agent = make_agent(cls, run.env, run.agent_settings)
        self.actor: Actor = agent.actor()
        env = make_env()
        try:
            spec = env_spec(env, run.env_id)
        finally:
            env.close()
        schema = agent_schema(spec, agent, run.schema.ticks)
        if schema.digest() != run.schema.digest():
            raise SchemaDiffers(
                f"{run.env_id} or {run.agent_name} differs from the host's: other spaces or fields; install what "
                f"the host has ({run.env_package or 'its environment'}, {run.agent_package or 'its agent'})"
            )
        sequence = np.random.SeedSequence((run.seed, config.seat.seed, config.start))
        self.rollout = Rollout(
            make_env,
            spec,
            schema,
            self.actor,
            slots=config.slots,
            ladder=run.ladder,
            rank=self.rank,
            seed=int(sequence.generate_state(1)[0]),
        )
        self.evaluator = Evaluator(
            self.rank,
            make_env,
            spec,
            agent.actor,
            run_evaluation_seed(run.seed),
            config.slots,
            lambda message: self.socket.send([frames.encode(message)]),
            self.loop.now,
        )
        hello = m.PlayerHello(
            rank=self.rank, env_hash=source_hash(make_env.source), agent_hash=source_hash(cls)
        )
        self.socket.send([frames.encode(hello)])
        self.loop.when_idle(self._work)

    def _agent_class(self) -> type[Agent]:
        run, own = self.run, self.config.agent
        if not own and is_file_agent(run.agent_name):
            # What a host names must not decide which file of this machine is run.
            advice = "copy it to this machine and name it: p2prl join --agent FILE:CLASS"
            raise UsageError(f"the host's agent is a file, {run.agent_name}; {advice}")
        return resolve_agent(own or run.agent_name, provided_by="" if own else run.agent_package)

    def fail(self, error: P2prlError) -> None:
        """Tell the member why this player cannot go on."""
        package = error.package if isinstance(error, MissingPackage) else ""
        kind = failure_kind(error)
        self.socket.send(
            [frames.encode(m.PlayerFailed(rank=self.rank, kind=kind, text=str(error)[:500], package=package))]
        )

    # --- the member's words

    def _on_member(self) -> None:
        newest: tuple[int, Weights] | None = None
        while (received := self.socket.receive()) is not None:
            message = frames.decode_to_player(received.frames[0])
            if isinstance(message, m.PlayerCredit):
                self.taken = message.serial
                self.credit = min(message.credit, self._most_credit)
            elif isinstance(message, m.EvalJob):
                self.evaluator.take(message, received.frames[1])
            elif isinstance(message, m.EvalDrop):
                self.evaluator.drop(message.job)
            elif message.version > self.version:
                # Each is read: it may have the keyframe that a later one needs.
                newest = (message.version, self._weights.read(received.frames[1]))
        if newest is not None:
            self.version, weights = newest
            self.actor.load(weights)
        self._flush()

    # --- playing

    def _work(self) -> bool:
        """Play one bundle if there is anything to play with and room for it; True to be called again at once."""
        blocked = self.backlog or (self.run.fresh and not self._has_credit())
        if self.version < 0 or (self.run.when_full == "wait" and blocked):
            return self.evaluator.turn()  # weights or credit will come as a message
        self._hand_over(self._play())
        return True

    def _play(self) -> Bundle:
        try:
            return self.rollout.collect(self.evaluator.tick if self.evaluator.busy else None)
        except P2prlError:
            raise
        except Exception as error:
            # Environments' errors come as EnvironmentFailed: this one is the agent's.
            log.debug("the agent raised", exc_info=True)
            raise AgentFailed(f"{self.run.agent_name} raised {type(error).__name__}: {error}") from error

    def _hand_over(self, bundle: Bundle) -> None:
        self.serial += 1
        header, payload = encode_bundle(
            self.run.schema,
            bundle.columns,
            slots=self.config.slots,
            version=self.version,
            rank=self.rank,
            serial=self.serial,
            steps=bundle.steps,
            episodes=bundle.episodes,
        )
        warning = next(iter(self.rollout.warnings[self._warned :]), "")  # one a bundle: they are few
        self._warned += bool(warning)
        message = m.PlayerBundle(
            rank=self.rank,
            serial=self.serial,
            ticks=self.run.schema.ticks * self.config.slots,
            steps=bundle.steps,
            episodes=len(bundle.episodes),
            version=self.version,
            warning=warning,
            failures=self.rollout.failures,
            failure=self.rollout.failure[:500],
        )
        self.backlog.append((message, frames.encode(header), payload))
        self._flush()
        while len(self.backlog) > self._most_backlog:
            self._drop(self.backlog.popleft()[0])

    def _drop(self, message: m.PlayerBundle) -> None:
        for index, count in enumerate((1, message.steps, message.episodes)):
            self.dropped[index] += count
        bundles, steps, episodes = self.dropped
        told = m.PlayerDropped(rank=self.rank, bundles=bundles, steps=steps, episodes=episodes)
        if self.socket.send([frames.encode(told)]):
            self.dropped = [0, 0, 0]

    def _flush(self) -> None:
        """Hand over what the credit allows."""
        while self.backlog:
            message, header, payload = self.backlog[0]
            if not self._has_credit():
                return
            if not self.socket.send([frames.encode(message), header, payload]):
                return
            self.backlog.popleft()
            self._sent.append(message.serial)

    def _has_credit(self) -> bool:
        while self._sent and self._sent[0] <= self.taken:
            self._sent.popleft()
        return len(self._sent) < self.credit


class SchemaDiffers(P2prlError):
    """This machine's environment or agent gives other columns than the host's."""


class AgentFailed(P2prlError):
    """The agent's own code raised while it played."""


def failure_kind(error: P2prlError) -> m.FailureKind:
    """The kind under which a member reports a player's failure."""
    if isinstance(error, MissingPackage):
        return "missing_package"
    if isinstance(error, SchemaDiffers):
        return "schema"
    if isinstance(error, EnvironmentFailed):
        return "environment"
    if isinstance(error, AgentFailed):
        return "player"
    return "agent" if isinstance(error, UsageError) else "environment"


def step_back() -> None:
    """Let everything else on this machine go first: its owner's programs, and a host's own trainer."""
    try:
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if os.name == "nt" else 10)
    except (psutil.Error, OSError) as error:
        log.debug("the priority stays as it is: %s", error)


def remove_orphaned_socket(endpoint: str, member_pid: int) -> None:
    """Remove the member's ipc folder if the member was killed, and so could not do it itself."""
    if not endpoint.startswith("ipc://") or os.getppid() == member_pid:
        return
    path = Path(endpoint.removeprefix("ipc://"))
    with contextlib.suppress(OSError):  # another player of the same member was first
        path.unlink()
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def child_main() -> int:
    """Run a player as a child process."""
    member_pid = os.getppid()

    def main(config: PlayerConfig, loop: Loop) -> int:
        step_back()
        player = Player(config, loop)
        try:
            player.start()
            return loop.run()
        except RemoteProtocolError:
            raise
        except P2prlError as error:
            player.fail(error)
            return 1
        finally:
            player.network.close()
            remove_orphaned_socket(config.endpoint, member_pid)

    return run_child(PlayerConfig, main)
