"""A player's process: steps environments, encodes bundles, hands them to its member. It never touches the network."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from p2prl.blame import FAULTS, raised
from p2prl.core import messages as m
from p2prl.core.credit import Credit
from p2prl.core.schema import SessionSchema
from p2prl.core.spaces import EnvSpec, difference
from p2prl.errors import (
    AgentRaised,
    MissingPackage,
    P2prlError,
    RemoteProtocolError,
    UsageError,
)
from p2prl.learn.contracts import Actor, Agent
from p2prl.learn.environments import try_environment
from p2prl.learn.evaluation import run_evaluation_seed
from p2prl.learn.own_columns import OwnColumns
from p2prl.learn.playing import Bundle, Playing
from p2prl.learn.promises import named
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import OutsideSpace, agent_schema
from p2prl.learn.vector_rollout import VectorRollout
from p2prl.net.loop import Loop
from p2prl.net.sockets import Frame, Limits, Network
from p2prl.nodes.evaluator import Evaluator
from p2prl.nodes.player_faults import SchemaDiffers, failure_kind, hopeless, other_columns
from p2prl.nodes.priority import step_back
from p2prl.nodes.process import emit, run_child
from p2prl.nodes.wiring import PlayerConfig
from p2prl.registry import (
    EnvFactory,
    is_file_agent,
    make_agent,
    make_env_factory,
    resolve_agent,
    source_hash,
)
from p2prl.wire import frames
from p2prl.wire.bundle import BundleEncoder, check_slots
from p2prl.wire.keyframes import needed_for_last
from p2prl.wire.weights import WeightsDecoder

log = logging.getLogger("p2prl")

_LIMITS = Limits(message_bytes=-1, send_messages=100, receive_messages=100)
#: A bundle that takes longer than this is told of while it is played, and then each time that so long went by.
_TELL_S = 1.0
#: With `drop_oldest`: finished bundles kept here while the window is full; only the newest where what waits grows old.
_BACKLOG = 4


class _AskedToEnd(Exception):
    """In the middle of a bundle. What was played of it counts for nothing, and nobody waits for the rest."""


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
        #: Bundles that the member may hold unanswered before this player waits, or drops.
        self.credit = Credit(config.run.fresh).bundles
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
        #: The member was told that the first bundle is under way.
        self._begun = False
        #: When the member is told how far the bundle under way is, unless it is handed over before.
        self._tell_at = 0.0
        #: Whose code, or whose setting, is at work: what fails is blamed on it.
        self._at: m.FailureKind = "environment"
        self._started = False
        self._closers: list[Callable[[], None]] = []
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
        spec = try_environment(make_env, run.env_id, lambda text: emit("trying", text))
        self._at = "agent"
        cls = self._agent_class()
        agent = make_agent(cls, run.env, run.agent_settings)
        with self._agents_code():
            self.actor: Actor = agent.actor()
            schema = self._same_schema(agent, spec)
        self._at = "player"
        check_slots(schema, config.slots)
        self._at = "environment"
        self._own_columns = OwnColumns(schema)
        self._encoder = BundleEncoder(schema, config.slots, run.codecs)
        sequence = np.random.SeedSequence((run.seed, config.seat.seed, config.start))
        with self._agents_code():
            self.rollout: Playing = rollout_of(
                make_env,
                spec,
                schema,
                self.actor,
                slots=config.slots,
                ladder=run.ladder,
                rank=self.rank,
                seed=int(sequence.generate_state(1)[0]),
            )
        self._closers.append(self.rollout.close)
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
        self._closers.append(self.evaluator.close)
        hello = m.PlayerHello(
            rank=self.rank, env_hash=source_hash(make_env.source), agent_hash=source_hash(cls)
        )
        self.socket.send([frames.encode(hello)])
        self._started = True
        self.loop.when_idle(self._work)

    def _same_schema(self, agent: Agent, spec: EnvSpec) -> SessionSchema:
        """The host's schema, made anew here. Raises SchemaDiffers if the environment or the agent is another one."""
        run = self.run
        if what := difference(spec, run.env):
            has = f"install what the host has ({run.env_package})" if run.env_package else ""
            advice = has or "use the module that the host has"
            raise SchemaDiffers(f"{run.env_id} differs from the host's: {what}; {advice}")
        schema = agent_schema(spec, agent, run.schema.ticks)
        if schema.digest() != run.schema.digest():
            raise SchemaDiffers(
                f"{run.agent_name} differs from the host's: {other_columns(schema, run.schema)}; install what the "
                f"host has ({run.env_package or 'its environment'}, {run.agent_package or 'its agent'})"
            )
        return schema

    def _agent_class(self) -> type[Agent]:
        run, own = self.run, self.config.agent
        if not own and is_file_agent(run.agent_name):
            # What a host names must not decide which file of this machine is run.
            advice = "copy it to this machine and name it: p2prl join --agent FILE:CLASS"
            raise UsageError(f"the host's agent is a file, {run.agent_name}; {advice}")
        return resolve_agent(own or run.agent_name, provided_by="" if own else run.agent_package)

    def close(self) -> None:
        """Close the environments and the socket."""
        for close in self._closers:
            try:
                close()
            except FAULTS as error:  # an environment may raise anything
                log.debug("an environment did not close: %s", raised(error))
        self.network.close()

    def fail(self, error: P2prlError) -> None:
        """Tell the member why this player cannot go on."""
        package = error.package if isinstance(error, MissingPackage) else ""
        failed = m.PlayerFailed(
            rank=self.rank,
            kind=failure_kind(error, self._at),
            text=str(error)[:500],
            package=package,
            hopeless=hopeless(error, self._started),
        )
        self.socket.send([frames.encode(failed)])

    # --- the member's words

    def _on_member(self) -> None:
        sets: list[tuple[m.WeightsHeader, Frame]] = []
        while (received := self.socket.receive()) is not None:
            message = frames.decode_to_player(received.frames[0])
            if isinstance(message, m.PlayerCredit):
                self.taken = message.serial
                self.credit = message.credit
            elif isinstance(message, m.EvalJob):
                self.evaluator.take(message, received.frames[1])
            elif isinstance(message, m.EvalDrop):
                self.evaluator.drop(message.job)
            elif message.version > self.version:
                sets.append((message, received.frames[1]))
        for payload in needed_for_last(sets):
            weights = self._weights.read(payload)
        if sets:
            with self._agents_code():
                self.actor.load(weights)
            self.version = sets[-1][0].version
        self._flush()

    # --- playing

    def _work(self) -> bool:
        """Play one bundle if there is anything to play with and room for it; True to be called again at once."""
        blocked = self.backlog or (self.run.fresh and not self._has_credit())
        if self.version < 0 or (self.run.when_full == "wait" and blocked):
            return self.evaluator.turn()  # weights or credit will come as a message
        self._begun = self._begun or self._tell_progress()
        self._tell_at = self.loop.now() + _TELL_S
        try:
            bundle = self._play()
        except _AskedToEnd:
            return False
        self._hand_over(bundle)
        return True

    def _after_tick(self) -> None:
        if self.loop.stopping():
            raise _AskedToEnd
        if self.loop.now() >= self._tell_at:
            self._tell_progress()
        if self.evaluator.busy:
            self.evaluator.tick()

    def _tell_progress(self) -> bool:
        """False if it did not go through; then it is told in a second."""
        self._tell_at = self.loop.now() + _TELL_S
        told = m.PlayerProgress(rank=self.rank, steps=self.rollout.under_way, version=self.version)
        return self.socket.send([frames.encode(told)])

    def _play(self) -> Bundle:
        try:
            with named(self.run.agent_name):
                bundle = self.rollout.collect(self._after_tick)
            self._own_columns.check(bundle.columns)
            return bundle
        except OutsideSpace as error:
            raise AgentRaised(f"{self.run.agent_name} acted outside its space: {error}") from error
        except (P2prlError, _AskedToEnd):
            raise
        except FAULTS as error:
            # Environments' errors come as EnvironmentFailed: this one is the agent's.
            log.debug("the agent raised", exc_info=True)
            raise AgentRaised(f"{self.run.agent_name} raised {raised(error)}") from error

    @contextlib.contextmanager
    def _agents_code(self) -> Iterator[None]:
        """What raises in here is the agent's fault."""
        try:
            with named(self.run.agent_name):
                yield
        except P2prlError:
            raise
        except FAULTS as error:
            raise AgentRaised(f"{self.run.agent_name} raised {raised(error)}") from error

    def _hand_over(self, bundle: Bundle) -> None:
        self.serial += 1
        header, payload = self._encoder.encode(
            bundle.packable,
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


def rollout_of(
    make_env: EnvFactory,
    spec: EnvSpec,
    schema: SessionSchema,
    actor: Actor,
    *,
    slots: int,
    ladder: int,
    rank: int,
    seed: int,
) -> Playing:
    """All slots together where there is a vector environment that can do it, else one by one; raises as they do."""
    places = {"slots": slots, "ladder": ladder, "rank": rank, "seed": seed}
    make_vector = make_env.vector(spec, slots)
    if make_vector is None:
        return Rollout(make_env, spec, schema, actor, **places)
    return VectorRollout(make_vector, spec, schema, actor, **places)


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
            player.close()
            remove_orphaned_socket(config.endpoint, member_pid)

    return run_child(PlayerConfig, main)
