"""The member: owns a node's sockets to the host, its window, its players.

One code path for one machine and for forty: `p2prl join` runs it in the command's own process, and a host runs it as a
child process for its own players.
"""

from __future__ import annotations

import itertools
import logging
import platform
import secrets

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.outbox import Effect, Forget, Outbox, Send
from p2prl.errors import (
    MissingPackage,
    NoHostFound,
    NotAdmitted,
    P2prlError,
    RemoteProtocolError,
    UpgradeNeeded,
)
from p2prl.net.addresses import endpoint
from p2prl.net.keys import KeyPair
from p2prl.net.loop import Loop, Timer
from p2prl.net.sockets import Frame, Limits, Network, Socket
from p2prl.nodes.control import ControlLine
from p2prl.nodes.players import Players
from p2prl.nodes.process import emit, run_child
from p2prl.nodes.report import Joined, Left, MemberReporter, MemberStatus
from p2prl.nodes.wiring import MemberConfig, PlayerConfig
from p2prl.wire import frames

log = logging.getLogger("p2prl")

_TICK_S = 0.02
#: Few: what waits in a socket cannot go to another shard, and is sent twice when the shard restarts.
_PUSH_LIMITS = Limits(message_bytes=1_000, send_messages=4, receive_messages=1)
_WEIGHTS_LIMITS = Limits(message_bytes=512_000_000, send_messages=1, receive_messages=3)
_AWAY_SAY_S = 10.0
_PAUSED_AFTER_S = 2.0
#: On leaving: how long verdicts on the last bundles are waited for, if the host was heard just now.
_LAST_RECEIPTS_S, _PRESENT_S = 1.0, 2.5


class Member:
    """Glue between sockets, players and the pure machines in core."""

    def __init__(self, config: MemberConfig, loop: Loop, reporter: MemberReporter) -> None:
        self.config = config
        self.loop = loop
        self.reporter = reporter
        self.boot_id = secrets.token_hex(8)
        self.welcome: m.Welcome | None = None
        self.outbox = Outbox(1, 1)
        self.bundles: dict[int, tuple[Frame, Frame]] = {}
        self._tokens = itertools.count()
        self._ticks: Timer | None = None
        self._pushes: dict[int, tuple[int, Socket]] = {}
        self._subscription: tuple[int, Socket] | None = None
        self.steps = self.episodes = 0
        self._rate = (loop.now(), 0)
        self.steps_per_s = 0.0
        self._moved_at = loop.now()
        self._said_away = -1e9
        self._began = loop.now()
        self._grant: int | None = None
        self._seats: list[m.Seat] = []
        self._fatal: P2prlError | None = None
        self.left = Left("signal", "", m.Books())
        self.network = Network(loop, admits=lambda key: key in self.players.keys)
        self.players = Players(
            loop,
            self.network,
            self._player_config,
            self._on_bundle,
            lambda: self.outbox.room,
            self._on_dropped,
            self._on_failure,
            reporter.log,
        )
        self.control = ControlLine(
            loop,
            self.network,
            endpoint(config.host, config.base_port),
            config.keys,
            config.server_key,
            self._hello,
            self._on_control,
            self._on_refusal,
        )
        loop.every(1.0, self._each_second)

    # --- from here on in the order of a run: hello, welcome, bundles, receipts, goodbye

    def _hello(self) -> m.Hello:
        run = self.welcome.run if self.welcome else None
        return m.Hello(
            protocol=m.PROTOCOL,
            version=__version__,
            role="member",
            name=self.config.name,
            boot_id=self.boot_id,
            players=self.config.players,
            weights_version=self.players.sync.version if run else -1,
            system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            own=self.config.own,
            seats=self._seats,
            slots=self.config.envs,
        )

    def _on_control(self, message: m.Message, bulk: list[Frame]) -> None:
        now = self.loop.now()
        if isinstance(message, m.Welcome):
            self._on_welcome(message, bulk)
        elif isinstance(message, m.Receipts):
            if message.boot_id == self.boot_id:
                self._grant = message.grant_ticks
                self._apply(self.outbox.settled(message.shard, message.verdicts, message.grant_ticks, now))
        elif isinstance(message, m.HeartbeatAck):
            self.players.sync.heard(message.weights_version, now)
            self._granted(message.grant_ticks)
        elif isinstance(message, m.Grant):
            self._granted(message.grant_ticks)
        elif isinstance(message, m.ShardList):
            self._on_shards(message.term, message.shards)
        elif isinstance(message, m.WeightsHeader):
            self._on_weights(message, bulk)
        elif isinstance(message, m.Stopping):
            self._finish("stopped", message.reason)

    def _on_welcome(self, welcome: m.Welcome, bulk: list[Frame]) -> None:
        known = self.welcome
        if known is not None and known.run.run_id != welcome.run.run_id:
            self._forget_run()
            return
        self.welcome = welcome
        if known is None:
            run = welcome.run
            self.outbox = Outbox(run.window_bytes, run.window_bundles)
            self._grant = welcome.grant_ticks
        for text in welcome.warnings:
            self.reporter.log("warning", "host", text)
        self._seats = welcome.seats
        self.players.sync.heard(welcome.weights_version, self.loop.now())
        self._subscribe(welcome.weights_port)
        self._on_shards(welcome.term, welcome.shards)
        self._granted(welcome.grant_ticks)
        self.players.seat(welcome.seats)
        if len(bulk) == 2:
            self._on_weights_frames(bulk)
        if known is None or known.term != welcome.term:
            self.reporter.joined(self._joined(welcome))

    def _joined(self, welcome: m.Welcome) -> Joined:
        run = welcome.run
        return Joined(
            host_name=welcome.host_name,
            address=self.config.host,
            base_port=self.config.base_port,
            run_id=run.run_id,
            env=run.env_id,
            agent=run.agent_name,
            term=welcome.term,
            players=self.config.players,
        )

    def _forget_run(self) -> None:
        """The host began another run: what was played for the old one is of no use to it. Introduce ourselves anew."""
        lost = self.outbox.pending
        text = f"the host began another run; {lost} bundles of the old one were dropped"
        self.reporter.log("warning", "member", text)
        self.players.stop()
        self.players.sync.reset()
        self.bundles.clear()
        self.outbox = Outbox(1, 1)
        self.welcome = None
        self.boot_id = secrets.token_hex(8)
        self.steps = self.episodes = 0
        self._rate = (self.loop.now(), 0)
        self._seats = []
        self.control.hello_again()

    def _player_config(
        self, seat: m.Seat, start: int, address: str, keys: KeyPair, server_key: str
    ) -> PlayerConfig:
        assert self.welcome is not None
        return PlayerConfig(
            run=self.welcome.run,
            seat=seat,
            start=start,
            slots=self.config.envs or self.welcome.run.envs,
            agent=self.config.agent,
            endpoint=address,
            keys=keys,
            server_key=server_key,
        )

    # --- weights

    def _subscribe(self, port: int) -> None:
        if self._subscription is not None:
            if self._subscription[0] == port:
                return
            self.loop.forget(self._subscription[1])
            self._subscription[1].close()
        config = self.config
        socket = self.network.client(
            "sub", endpoint(config.host, port), config.keys, config.server_key, _WEIGHTS_LIMITS
        )
        self._subscription = (port, socket)
        self.loop.on_readable(socket, self._on_broadcast)

    def _on_broadcast(self) -> None:
        assert self._subscription is not None
        while (received := self._subscription[1].receive()) is not None:
            self._on_weights_frames(received.frames)

    def _on_weights_frames(self, parts: list[Frame]) -> None:
        try:
            header = frames.decode_weights_header(parts[0])
        except RemoteProtocolError as error:
            # Of a newer host, perhaps: what is missed shows as a lag, and the pull asks again.
            self.reporter.log("warning", "host", f"sent weights that cannot be read: {error.reason}")
            return
        self._on_weights(header, parts[1:])

    def _on_weights(self, header: m.WeightsHeader, bulk: list[Frame]) -> None:
        if self.welcome is None or header.run_id != self.welcome.run.run_id or len(bulk) != 1:
            return
        self.players.weights(header.version, [frames.encode(header), bulk[0]])

    # --- bundles

    def _on_bundle(self, bundle: m.PlayerBundle, header: Frame, payload: Frame) -> None:
        self._count(bundle.steps, bundle.episodes)
        if bundle.warning:
            self.control.send(m.Fault(kind="warning", text=bundle.warning))
        token = next(self._tokens)
        self.bundles[token] = (header, payload)
        size = memoryview(header).nbytes + memoryview(payload).nbytes
        self._apply(self.outbox.produced(token, size, bundle.ticks, self.loop.now()))

    def _on_dropped(self, dropped: m.PlayerDropped) -> None:
        self._count(dropped.steps, dropped.episodes)
        self.outbox.dropped("window full", dropped.bundles)

    def _count(self, steps: int, episodes: int) -> None:
        self.steps += steps
        self.episodes += episodes
        self._moved_at = self.loop.now()

    def _on_shards(self, term: int, shards: list[m.ShardAddress]) -> None:
        config = self.config
        for shard in shards:
            known = self._pushes.get(shard.index)
            if known is not None and known[0] != shard.push_port:
                known[1].close()
                known = None
            if known is None:
                address = endpoint(config.host, shard.push_port)
                socket = self.network.client("push", address, config.keys, config.server_key, _PUSH_LIMITS)
                self._pushes[shard.index] = (shard.push_port, socket)
        self._apply(self.outbox.shards_listed(term, shards, self.loop.now()))

    def _granted(self, grant: int | None) -> None:
        self._grant = grant
        self._apply(self.outbox.granted(grant, self.loop.now()))

    def _tick(self) -> None:
        self._apply(self.outbox.ticked(self.loop.now()))
        if not self.outbox.pending and self._ticks is not None:
            self._ticks.cancel()
            self._ticks = None

    def _apply(self, effects: list[Effect]) -> None:
        settled = False
        blocked: set[int] = set()
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect, blocked)
            elif isinstance(effect, Forget):
                settled = True
                del self.bundles[effect.token]
                if effect.status == "refused":
                    self.reporter.log("warning", "host", f"refused a bundle: {effect.reason}")
        if settled:
            self.players.give_credit()
        # Only while something waits for its verdict: a machine that is lent should not be woken for nothing.
        if self.outbox.pending and self._ticks is None:
            self._ticks = self.loop.every(_TICK_S, self._tick)

    def _send(self, send: Send, blocked: set[int]) -> None:
        assert self.welcome is not None
        # In order per shard: once it takes nothing, what follows waits too.
        if send.shard not in blocked:
            header, payload = self.bundles[send.token]
            delivery = m.Delivery(run_id=self.welcome.run.run_id, boot_id=self.boot_id, seq=send.seq)
            if self._pushes[send.shard][1].send([frames.encode(delivery), header, payload]):
                return
            blocked.add(send.shard)
        self.outbox.send_failed(send.shard, send.seq, self.loop.now())

    # --- time

    def _each_second(self) -> None:
        now = self.loop.now()
        then, steps = self._rate
        rate = (self.steps - steps) / max(1e-6, now - then)
        self.steps_per_s = rate if self.steps_per_s == 0.0 else 0.5 * self.steps_per_s + 0.5 * rate
        self._rate = (now, self.steps)
        self._tell_about_players()
        if self.welcome is not None and self.control.welcomed:
            self._heartbeat()
            if self.players.sync.wants_pull(now):
                self.control.send(m.WeightsAsk(have=self.players.sync.version))
        self._watch_host(now)
        self.reporter.status(self._status())

    def _heartbeat(self) -> None:
        state, reason = self.state()
        self.control.send(
            m.Heartbeat(
                boot_id=self.boot_id,
                state="working" if state == "working" else "paused" if state == "paused" else "starting",
                reason=reason,
                steps=self.steps,
                episodes=self.episodes,
                steps_per_s=self.steps_per_s,
                weights_version=self.players.version,
                books=self.outbox.books(),
                players=self.players.reports(),
            )
        )

    def state(self) -> tuple[str, str]:
        """This node's state and, if it is not working, why."""
        reports = self.players.reports()
        if self.welcome is None:
            return "connecting", f"waiting for {self.config.host} port {self.config.base_port}"
        if self.control.silent_s() > self.welcome.silent_after_s:
            return "away", f"{self.welcome.host_name} was not heard for {self.control.silent_s():.0f} s"
        idle = self.loop.now() - self._moved_at > _PAUSED_AFTER_S
        if self.steps and not idle:
            return "working", ""
        if self.steps and self._grant is not None and not self.outbox.room:
            return "paused", "the trainer is behind: players wait for it"
        if self.steps and not self.outbox.room:
            return "paused", f"the window is full: {self.outbox.pending} bundles wait for a shard"
        reasons = [report.reason for report in reports if report.reason]
        return ("working" if self.steps else "starting"), reasons[0] if reasons else ""

    def _status(self) -> MemberStatus:
        state, reason = self.state()
        return MemberStatus(
            state=state,
            reason=reason,
            host_name=self.welcome.host_name if self.welcome else self.config.host,
            steps=self.steps,
            steps_per_s=self.steps_per_s,
            episodes=self.episodes,
            weights_version=self.players.version,
            current_version=self.players.sync.current,
            books=self.outbox.books(),
            players=tuple(self.players.reports()),
        )

    def _watch_host(self, now: float) -> None:
        silent_s = self.control.silent_s()
        limit_s = self.welcome.silent_after_s if self.welcome else 3.0
        if silent_s > limit_s and now - self._said_away >= _AWAY_SAY_S:
            self._said_away = now
            where = f"{self.config.host} port {self.config.base_port}"
            text = f"no answer from {where} for {silent_s:.0f} s; dialling again at least each 5 s"
            self.reporter.log("warning", "member", text)
        wait_s = self.config.wait_s
        if self.welcome is None and wait_s is not None and now - self._began > wait_s:
            where = f"{self.config.host} port {self.config.base_port}"
            self._fail(
                NoHostFound(
                    f"{where} was reached for enrolling, but did not welcome this node in {wait_s:g} s"
                )
            )

    def _tell_about_players(self) -> None:
        """Differences between this machine's code and the host's, once each."""
        if self.welcome is None:
            return
        run = self.welcome.run
        for hello in self.players.hellos:
            pairs = (
                ("environment", run.env_id, run.env_package, run.env_hash, hello.env_hash),
                ("agent", run.agent_name, run.agent_package, run.agent_hash, hello.agent_hash),
            )
            for kind, name, package, theirs, ours in pairs:
                if theirs and ours and theirs != ours:
                    source = f" ({package})" if package else ""
                    text = f"the source of {kind} {name} here differs from the host's{source}"
                    self.reporter.log("warning", "member", text)
                    self.control.send(m.Fault(kind="warning", text=text))
        self.players.hellos.clear()

    # --- ends

    def _on_failure(self, failure: m.PlayerFailed) -> None:
        self.control.send(m.Fault(kind=failure.kind, text=failure.text))
        if failure.kind == "missing_package":
            self._fail(MissingPackage(failure.text, failure.package))
        elif failure.kind not in ("environment", "player"):  # those two are started again, and may pass
            self._fail(P2prlError(failure.text))

    def _on_refusal(self, refusal: m.Refusal) -> None:
        kind = UpgradeNeeded if refusal.reason == "protocol" else NotAdmitted
        self._fail(kind(refusal.text))

    def _fail(self, error: P2prlError) -> None:
        if self._fatal is None:
            self._fatal = error
            self._finish("error", str(error), error.exit_code)

    def _finish(self, reason: str, text: str, code: int = 0) -> None:
        self.left = Left(reason, text, self.outbox.books())
        self.loop.stop(code)

    def run(self) -> int:
        """Until the run ends, a signal comes or something cannot be mended; returns the exit code.

        Raises:
            P2prlError: what could not be mended.
        """
        try:
            code = self.loop.run()
        finally:
            self.close()
        if self._fatal is not None:
            raise self._fatal
        return code

    def close(self) -> None:
        """End the players, say goodbye, close the sockets."""
        self.players.stop()
        if self.left.reason == "signal" and self.control.welcomed and self.control.silent_s() < _PRESENT_S:
            # What is under way will be stored, and should be counted so; after a run's end no shard would answer.
            self.loop.run_on(lambda: self.outbox.in_flight == 0, _LAST_RECEIPTS_S)
        books = self.outbox.books()
        self.left = Left(self.left.reason, self.left.text, books)
        if self.control.welcomed:
            self.control.send(m.Goodbye(reason=self.left.text or "left", books=books))
        self.players.close()
        self.network.close()


class _ParentReporter:
    """A host's own member tells its supervisor."""

    def log(self, level: str, source: str, text: str) -> None:
        log.log(logging.getLevelName(level.upper()), "%s: %s", source, text)

    def joined(self, info: Joined) -> None:
        emit("joined", players=info.players)

    def status(self, status: MemberStatus) -> None:
        """The supervisor asks the broker instead."""

    def left(self, info: Left) -> None:
        emit("left", info.text)


def child_main() -> int:
    """Run a host's own member as a child process."""

    def main(config: MemberConfig, loop: Loop) -> int:
        member = Member(config, loop, _ParentReporter())
        return member.run()

    return run_child(MemberConfig, main)
