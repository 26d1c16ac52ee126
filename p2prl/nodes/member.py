"""The member: owns a node's sockets to the host, its players, and the way of their bundles (outgoing.py).

One code path for one machine and for forty: `p2prl join` runs it in the command's own process, and a host runs it as a
child process for its own players.
"""

from __future__ import annotations

import platform
from dataclasses import replace

import msgspec

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.rate import Rate
from p2prl.errors import (
    MissingPackage,
    NoHostFound,
    NotAdmitted,
    P2prlError,
    UpgradeNeeded,
)
from p2prl.net.addresses import endpoint
from p2prl.net.keys import KeyPair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Frame, Network
from p2prl.nodes import beyond
from p2prl.nodes.control import ControlLine
from p2prl.nodes.locate import Located, remember
from p2prl.nodes.lookout import Lookout
from p2prl.nodes.outgoing import Outgoing
from p2prl.nodes.own_member import ParentReporter
from p2prl.nodes.players import Players
from p2prl.nodes.process import run_child
from p2prl.nodes.report import Joined, Left, MemberReporter, MemberStatus
from p2prl.nodes.upgrade import check_bundle_codecs
from p2prl.nodes.volunteer import Volunteer
from p2prl.nodes.weights_feed import WeightsFeed
from p2prl.nodes.wiring import MemberConfig, PlayerConfig
from p2prl.words import many, why_ended

#: Said again after 10, 20, 40 ... s: a host may be away for a night.
_AWAY_SAY_S, _AWAY_SAY_MAX_S = 10.0, 600.0
_PAUSED_AFTER_S = 2.0
#: The host answers each second: a person should not have to wait for the connection's own time-out.
_AWAY_SHOWN_S = 5.0
#: On leaving: how long verdicts on the last bundles are waited for, if the host was heard just now.
_LAST_RECEIPTS_S, _PRESENT_S = 1.5, 2.5
#: Reasons of a run's end after which nobody waits for its last bundles.
_FINISHED = ("return", "steps", "time")


class Member:
    """Glue between sockets, players and the pure machines in core."""

    def __init__(self, config: MemberConfig, loop: Loop, reporter: MemberReporter) -> None:
        self.config = config
        self.loop = loop
        self.reporter = reporter
        self.welcome: m.Welcome | None = None
        self._rate, self.steps_per_s = Rate(loop.now(), 0), 0.0
        #: When a player last moved; None before the first time.
        self._moved_at: float | None = None
        #: Of the last welcome that was reported.
        self._joined_term: int | None = None
        #: When it was said last that the host is away, and how long until it is said again.
        self._said_away, self._away_say_s = -1e9, _AWAY_SAY_S
        self._began, self._seats = loop.now(), list[m.Seat]()
        self._fatal: P2prlError | None = None
        self.left = Left("signal", "", m.Books())
        self.lookout = Lookout(config, reporter.log)
        self.network = Network(loop, admits=lambda key: key in self.players.keys)
        self.players = Players(
            loop,
            self.network,
            self._player_config,
            self._on_bundle,
            self._on_moved,
            lambda ahead: self.outgoing.room and (not ahead or self.outgoing.outbox.grants(ahead)),
            self._on_dropped,
            self._on_failure,
            lambda said, faulty: self.volunteer.evaluated(said, faulty),
            reporter.log,
        )
        self.feed = WeightsFeed(loop, self.network, self.players, self._say, reporter.log, self._fail)
        self.volunteer = Volunteer(self.players, self._say)
        self.outgoing = Outgoing(
            config,
            loop,
            self.network,
            lambda: self.players.sync.current,
            self.players.give_credit,
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

    def _say(self, message: m.Message) -> None:
        """To the broker; it may be lost with a connection."""
        self.control.send(message)

    # --- from here on in the order of a run: hello, welcome, bundles, receipts, goodbye

    def _hello(self) -> m.Hello:
        run = self.welcome.run if self.welcome else None
        return m.Hello(
            protocol=m.PROTOCOL,
            version=__version__,
            role="member",
            name=self.config.name,
            boot_id=self.outgoing.boot_id,
            players=self.config.players,
            weights_version=self.players.sync.version if run else -1,
            system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            own=self.config.own,
            seats=self._seats,
            slots=self.config.envs,
            continues=self.outgoing.continues,
            evaluators=self.config.players,
        )

    def _on_control(self, message: m.Message, bulk: list[Frame]) -> None:
        if isinstance(message, m.Welcome):
            self._on_welcome(message, bulk)
        elif isinstance(message, m.Receipts):
            self.feed.take()
            self.outgoing.receipts(message)
        elif isinstance(message, m.HeartbeatAck):
            self.players.sync.heard(message.weights_version, self.loop.now())
            self.outgoing.trainer = message.trainer
            self.outgoing.granted(message.grant_ticks)
        elif isinstance(message, m.Grant):
            self.feed.take()
            self.outgoing.granted(message.grant_ticks)
        elif isinstance(message, m.ShardList):
            self.outgoing.shards(message.term, message.shards)
        elif isinstance(message, m.WeightsHeader):
            self.feed.came(message, bulk)
        elif isinstance(message, m.EvalJob):
            self.volunteer.job(message, bulk)
        elif isinstance(message, m.EvalDrop):
            self.volunteer.drop(message)
        elif isinstance(message, m.Stopping):
            self._finish("stopped", message.reason)

    def _on_welcome(self, welcome: m.Welcome, bulk: list[Frame]) -> None:
        known = self.welcome
        if known is not None and known.run.run_id != welcome.run.run_id:
            self._forget_run()
            return
        try:
            check_bundle_codecs(welcome)
        except UpgradeNeeded as error:
            self._fail(error)
            return
        self.welcome = self.feed.welcome = welcome
        if known is None:
            self.outgoing.begin(welcome.run)
            self._rate = Rate(self.loop.now(), self._steps)
            self._say_cost(welcome.run)
            if self.outgoing.continues:
                # The host must know whose books go on in ours before it sees any of them. Over a new connection: on
                # this one a second Welcome may be under way, and would be taken for the answer to this Hello.
                self.control.redial(endpoint(self.config.host, self.config.base_port))
                return
        for text in welcome.warnings:
            self.reporter.log("warning", "host", text)
        self._seats = welcome.seats
        self.players.sync.heard(welcome.weights_version, self.loop.now())
        self.feed.subscribe(self.config)
        self.outgoing.shards(welcome.term, welcome.shards)
        self.outgoing.granted(welcome.grant_ticks)
        self.players.seat(welcome.seats)
        if len(bulk) == 2:
            self.feed.frames_came(bulk)
        if self._joined_term != welcome.term:
            self._joined_term = welcome.term
            if not self.config.own:
                remember(self.config, welcome)
            self.reporter.joined(self._joined(welcome))

    def _say_cost(self, run: m.RunSpec) -> None:
        slots = self.config.envs or run.envs
        if text := beyond.cost(self.config.players, slots, run.schema):
            self.reporter.log("warning", "member", text)

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
        self.volunteer.forget()
        self.players.forget_run()
        kept, lost = self.outgoing.forget_run()
        text = f"the host began another run; dropped {many(lost, 'bundle')} of the old one"
        if kept:
            text += f", {kept} are kept in the spool in case that it comes back"
        self.reporter.log("warning", "member", text)
        self.welcome = self.feed.welcome = self._joined_term = self._moved_at = None
        self._rate = Rate(self.loop.now(), 0)
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

    # --- bundles

    def _on_bundle(self, bundle: m.PlayerBundle, header: Frame, payload: Frame) -> None:
        self._on_moved()
        if bundle.warning:
            self.control.send(m.Fault(kind="warning", text=bundle.warning))
        self.outgoing.took(bundle, header, payload)

    def _on_dropped(self, dropped: m.PlayerDropped) -> None:
        self._on_moved()
        self.outgoing.dropped(dropped)

    def _on_moved(self) -> None:
        self._moved_at = self.loop.now()

    @property
    def _steps(self) -> int:
        """So far, also those of bundles under way."""
        return self.outgoing.steps + self.players.under_way

    # --- time

    def _each_second(self) -> None:
        now = self.loop.now()
        self.steps_per_s = self._rate.look(now, self._steps)
        self.outgoing.each_second(self.control.silent_s())
        self._tell_about_players()
        if self.welcome is not None and self.control.welcomed:
            self._heartbeat()
            self.outgoing.noted()
            self.feed.look(now)
        self._watch_host(now)
        self.reporter.status(self._status())

    def _heartbeat(self) -> None:
        state, reason = self.state()
        self.control.send(
            m.Heartbeat(
                boot_id=self.outgoing.boot_id,
                state="working" if state == "working" else "paused" if state == "paused" else "starting",
                reason=reason,
                steps=self.outgoing.steps,
                episodes=self.outgoing.episodes,
                steps_per_s=self.steps_per_s,
                weights_version=self.players.version,
                books=self.outgoing.books(),
                players=self.players.reports(),
                spooled=self.outgoing.spool.count,
                evaluating=dict(self.volunteer.under_way),
            )
        )

    def state(self) -> tuple[str, str]:
        """This node's state and, if it is not working, why."""
        if self.welcome is None:
            return "connecting", f"waiting for {self.config.host} port {self.config.base_port}"
        idle = self._moved_at is None or self.loop.now() - self._moved_at > _PAUSED_AFTER_S
        waits = self.outgoing.waits_because if idle and self._moved_at is not None else ""
        silent_s, spooled = self.control.silent_s(), self.outgoing.spool.count
        if silent_s > min(_AWAY_SHOWN_S, self.welcome.silent_after_s):
            text = f"{self.welcome.host_name} was not heard for {silent_s:.0f} s"
            if waits and spooled:
                return "paused", f"{waits}; {text}"
            wait = f"; {many(spooled, 'bundle', 'waits', 'wait')} in the spool"
            return "away", text + (wait if spooled else "")
        if not idle:
            return "working", ""
        if waits:
            return "paused", waits
        reasons = [report.reason for report in self.players.reports() if report.reason]
        return ("starting" if self._moved_at is None else "working"), reasons[0] if reasons else ""

    def _status(self) -> MemberStatus:
        state, reason = self.state()
        return MemberStatus(
            state=state,
            reason=reason,
            host_name=self.welcome.host_name if self.welcome else self.config.host,
            steps=self._steps,
            steps_per_s=self.steps_per_s,
            episodes=self.outgoing.episodes,
            weights_version=self.players.version,
            current_version=self.players.sync.current,
            books=self.outgoing.books(),
            players=tuple(self.players.reports()),
            spooled=self.outgoing.spool.count,
            spooled_bytes=self.outgoing.spool.size_bytes,
        )

    def _last(self, version: int) -> MemberStatus:
        """Once the players have ended; why is told beside it.

        Args:
            version: of the weights that they played with.
        """
        state = "failed" if self._fatal is not None else "stopped"
        last = replace(self._status(), state=state, reason="", steps_per_s=0.0)
        return replace(last, weights_version=version, players=())

    def _watch_host(self, now: float) -> None:
        silent_s = self.control.silent_s()
        limit_s = self.welcome.silent_after_s if self.welcome else 3.0
        if silent_s < limit_s:
            self._away_say_s = _AWAY_SAY_S
        elif now - self._said_away >= self._away_say_s:
            self._said_away, self._away_say_s = now, min(2 * self._away_say_s, _AWAY_SAY_MAX_S)
            where = f"{self.config.host} port {self.config.base_port}"
            text = f"no answer from {where} for {silent_s:.0f} s; dialling again at least each 5 s"
            self.reporter.log("warning", "member", text)
        run_id = self.welcome.run.run_id if self.welcome else ""
        found = self.lookout.look(silent_s, (self.config.host, self.config.base_port), run_id, now)
        if found is not None:
            self._redial(found)
        wait_s = self.config.wait_s
        if self.welcome is None and wait_s is not None and now - self._began > wait_s:
            where = f"{self.config.host} port {self.config.base_port}"
            self._fail(
                NoHostFound(
                    f"{where} was reached for enrolling, but did not welcome this node in {wait_s:g} s"
                )
            )

    def _redial(self, found: Located) -> None:
        """The host is back, perhaps somewhere else: all connections are made anew, and it says the rest."""
        config = self.config
        if (found.address, found.base_port) != (config.host, config.base_port):
            self._joined_term = None
            text = f"found {config.host} port {config.base_port} at {found.address} port {found.base_port}"
            self.reporter.log("info", "member", f"{text}: dialling there")
        self.config = msgspec.structs.replace(config, host=found.address, base_port=found.base_port)
        self.control.redial(endpoint(found.address, found.base_port))
        self.outgoing.pushes.redial(found.address)
        self.feed.hang_up()

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
        elif failure.hopeless:  # else it is started again, and it may pass
            self._fail(P2prlError(failure.text))

    def _on_refusal(self, refusal: m.Refusal) -> None:
        kind = UpgradeNeeded if refusal.reason == "protocol" else NotAdmitted
        self._fail(kind(refusal.text))

    def _fail(self, error: P2prlError) -> None:
        if self._fatal is None:
            self._fatal = error
            self._finish("error", str(error), error.exit_code)

    def _finish(self, reason: str, text: str, code: int = 0) -> None:
        self.left = Left(reason, text, self.outgoing.books())
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
        """End the players, keep what has no receipt, say goodbye, close the sockets."""
        self.volunteer.forget()
        played_with = self.players.version
        self.players.stop()
        self.outgoing.close()
        if self._is_heard_to_the_end() and self.control.silent_s() < _PRESENT_S:
            # What is under way will be stored, and should be counted so.
            self.loop.run_on(self._all_told, _LAST_RECEIPTS_S)
        self._keep()
        books = self.outgoing.books()
        self.left = Left(self.left.reason, self.left.text, books, self._last(played_with))
        if self.control.welcomed:
            self._heartbeat()  # which says how many bundles are on this disk, and not lost
            self.control.send(m.Goodbye(reason=self._why_left(), books=books))
        self.players.close()
        self.lookout.close()
        self.network.close()

    def _why_left(self) -> str:
        """For the people at the host."""
        left = self.left
        return why_ended(left.text) if left.reason == "stopped" else left.text or "stopped on its machine"

    def _all_told(self) -> bool:
        """Each bundle has its verdict, or no shard is there to give one."""
        outbox = self.outgoing.outbox
        return not outbox.in_window or not (outbox.in_flight or outbox.up)

    def _is_heard_to_the_end(self) -> bool:
        """The shards are there for as long as we are: a host ends them after those who play."""
        return self.control.welcomed and self.left.reason != "error"

    def _keep(self) -> None:
        outgoing = self.outgoing
        if not outgoing.spool.active and self.left.text in _FINISHED:
            return
        kept, lost = outgoing.keep()
        if lost > 0 and self.config.own:
            text = f"dropped {many(lost, 'bundle')} that had no verdict when the run ended"
            self.reporter.log("info", "member", text)
        elif lost > 0:
            text = f"dropped {many(lost, 'bundle')} without a receipt: there is no spool"
            self.reporter.log("warning", "member", text)
        if kept:
            text = f"kept {many(kept, 'bundle')} in the spool, for the host at the next `p2prl join`"
            self.reporter.log("warning", "member", text)


def child_main() -> int:
    """Run a host's own member as a child process."""

    def main(config: MemberConfig, loop: Loop) -> int:
        member = Member(config, loop, ParentReporter())
        return member.run()

    return run_child(MemberConfig, main)
