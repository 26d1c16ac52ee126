"""`p2prl host`: starts the broker, the shards, the trainer and an own member, watches over them, and ends the run."""

from __future__ import annotations

import secrets
from contextlib import ExitStack

import msgspec

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.errors import P2prlError
from p2prl.net.addresses import endpoint
from p2prl.net.cards import HostCard
from p2prl.net.keys import run_lock
from p2prl.net.loop import Loop
from p2prl.net.ports import STRIDE
from p2prl.net.sockets import Frame, Network
from p2prl.nodes import broker_file
from p2prl.nodes.announce import Announced, Announcer
from p2prl.nodes.charges import LOCAL, Plan, check_options
from p2prl.nodes.claim import Claim, claim_block, first_claim, moved
from p2prl.nodes.control import ControlLine
from p2prl.nodes.ending import check_goes_on, coded, ended_at_once, note_reached, reached, somebody_plays
from p2prl.nodes.going_on import flags_again
from p2prl.nodes.grace import Timetable
from p2prl.nodes.options import HostOptions
from p2prl.nodes.own_host import drop_base, note_base
from p2prl.nodes.prepare import Prepared, keep, prepare, save_run_file
from p2prl.nodes.process import ChildEvent
from p2prl.nodes.pulse import Pulse
from p2prl.nodes.recorder import Recorder
from p2prl.nodes.report import OPEN_WARNING, HostReporter, HostStarted, HostStopped
from p2prl.nodes.rewind import WentBack, go_back_if_asked
from p2prl.nodes.signals import end_on_signals
from p2prl.nodes.supervisor import Charge, GivenUp, Supervisor

_STATUS_S = 0.5
_FOLLOW_S = 5.0
_ADVANCE_S = 0.05
#: The last figures come again when the broker has given no new ones for so long: `progress` is promised each 2 s.
_REPEAT_S = 1.5
#: `started` waits for mDNS to settle the name, but not longer than this.
_NAME_S = 4.0


class Host:
    """Glue between the supervisor, the broker's status and the person.

    Attributes:
        signalled: set by a signal's handler, which may come in the middle of anything; looked at on the loop.
    """

    def __init__(
        self,
        options: HostOptions,
        reporter: HostReporter,
        prepared: Prepared,
        claim: Claim,
        went_back: WentBack | None = None,
    ) -> None:
        self.options = options
        self.reporter = reporter
        self.prepared = prepared
        self.loop = Loop()
        self.recorder = Recorder(prepared.folder, went_back.steps if went_back is not None else None)
        if went_back is not None:
            self.say("info", "host", went_back.text())
        self.claim = claim
        if text := moved(claim, options.experiment.shards):
            self.say("warning", "host", text)
        #: What this start changes stands in the run's folder; in a resumed one only once everything came up.
        self._kept = not options.resume
        self._keep_base(claim.base)
        self.plan = Plan(options, prepared, self.claim.base)
        self.supervisor = Supervisor(
            self.loop,
            self.say,
            self._on_ready,
            self._on_given_up,
            self._on_port_taken,
            lambda: self.signalled,
        )
        self.announcer: Announcer | None = None
        self.announced: Announced | None = None
        self.boot_id = secrets.token_hex(8)
        self.term = broker_file.load(prepared.folder).term + 1
        self.last: m.StatusReply | None = None
        self.started_at = self.loop.now()
        self.pulse = Pulse(self.started_at)
        self.signalled = False
        self.reason = self.text = ""
        self.exit_code = 0
        self._stage = "running"
        self._stage_at = self._stop_at = self._told_at = 0.0
        self._up_at: float | None = None
        self._started = False
        self._by = Timetable.of(self.plan.players)
        self.network = Network()
        self.control = self._dial()

    # --- starting

    def start(self) -> None:
        """Start the processes, and mDNS beside them; the rest happens on the loop."""
        for text in (*([OPEN_WARNING] if self.options.open else []), *self.prepared.warnings):
            self.say("warning", "host", text)
        if not self.recorder.has_board:
            self.say("info", "host", "tensorboard is not installed: figures go to progress.jsonl only")
        if self.options.advertise:
            self.announcer = Announcer(self._card(), self.options.interfaces, self.plan.base_port)
        for charge in self.plan.charges():
            self.supervisor.start(charge)
        self.loop.every(_STATUS_S, self._ask_status)
        self.loop.every(_ADVANCE_S, self._advance)
        self.loop.every(_FOLLOW_S, self._follow)

    def _keep_base(self, base: int) -> None:
        note_base(base, self.prepared.file.name)
        self.prepared.file.base_port = base
        self.prepared.file.host_name = self.options.name
        if self._kept:
            save_run_file(self.prepared.folder, self.prepared.file)

    def _keep_if_sound(self) -> None:
        """What was asked for works: now the run's files say it."""
        charges = self.supervisor.charges
        if not self._kept and all(charges[name].was_ready for name in (*self.plan.needed(), "trainer")):
            keep(self.prepared, self.options.experiment)
            self._kept = True

    def _dial(self) -> ControlLine:
        keys = self.plan.keys
        address = endpoint(LOCAL, self.plan.base_port)
        return ControlLine(
            self.loop,
            self.network,
            address,
            keys.owner,
            keys.host.public,
            self._hello,
            self._on_control,
            self._on_refusal,
        )

    def _hello(self) -> m.Hello:
        return m.Hello(
            protocol=m.PROTOCOL, version=__version__, role="owner", name="owner", boot_id=self.boot_id
        )

    def _on_port_taken(self, text: str) -> bool:
        """Somebody was faster than the child that binds. Nobody knows our ports before `started`: take others."""
        if self._started or self._stage != "running":
            return False
        if self.options.base_port:
            self.stop("error", f"{text}; choose another block with --port BASE", 1)
            return True
        try:
            claim = claim_block(self.claim.base + STRIDE, self.options.experiment.shards)
        except P2prlError as error:
            self.stop("error", str(error), error.exit_code)
            return True
        old, self.claim = self.claim, claim
        old.release()
        drop_base(old.base)
        self.say("warning", "host", f"{text}; moving to the block from {claim.base} on")
        self._keep_base(claim.base)
        self.plan.base_port = claim.base
        self.control.close()
        self.control = self._dial()
        self.supervisor.begin_again()
        if self.announcer is not None:
            self.announcer.update(self._card(), claim.base)
        return True

    # --- what happens

    def say(self, level: str, source: str, text: str) -> None:
        """A line for the person and for host.log."""
        self.recorder.log(level, source, text)
        self.reporter.log(level, source, text)

    def _on_ready(self, charge: Charge, event: ChildEvent) -> None:
        if self._stage != "running":
            return
        if charge.starts > 1:
            self.say("info", charge.name, "is back")
        self._keep_if_sound()
        if charge.name != "broker":
            return
        self.pulse.heard(self.loop.now())
        if charge.starts > 1:
            self.control.hello_again()  # so that it knows whom to tell of the join code
        self.plan.term = term = int(event.data.get("term", self.term))
        if term != self.term:
            self.term = term
            if self.announcer is not None:
                self.announcer.update(self._card(), self.plan.base_port)

    def _card(self) -> HostCard:
        return self.plan.card(self.boot_id, self.term)

    def _maybe_started(self) -> None:
        """All that joiners need is up, and mDNS has settled the name."""
        charges, now = self.supervisor.charges, self.loop.now()
        if self._started or not all(charges[name].was_ready for name in self.plan.needed()):
            return
        self._up_at = now if self._up_at is None else self._up_at
        if self.announcer is not None and self.announced is None and now - self._up_at < _NAME_S:
            return
        self._started = True
        addresses = self.announced.addresses if self.announced else ()
        self.reporter.started(
            HostStarted(
                run_id=self.prepared.run.run_id,
                run_name=self.prepared.file.name,
                name=self.plan.name,
                address=addresses[0] if addresses else LOCAL,
                addresses=addresses or (LOCAL,),
                base_port=self.plan.base_port,
                results=self.prepared.folder,
                term=self.term,
                resumed=self.options.resume,
                open=self.options.open,
                further=flags_again(self.options),
            )
        )
        self._tell_code(self.plan.code)

    def _hear_announcer(self) -> None:
        news = self.announcer.news() if self.announcer is not None else None
        if news is None:
            return
        self.announced = news
        if news.problem:
            self.say("warning", "host", news.problem)
        if news.name != self.plan.name:
            text = f"another host is called {self.plan.name}; this one is {news.name}"
            self.say("info", "host", text)
            self.plan.name = news.name  # the broker is told with the next status

    def _follow(self) -> None:
        if self.announcer is not None and self._stage == "running":
            self.announcer.follow()

    def _on_given_up(self, error: GivenUp) -> None:
        self.stop("error", str(error), error.exit_code)

    def _on_refusal(self, refusal: m.Refusal) -> None:
        self.stop("error", refusal.text, 1)

    def _ask_status(self) -> None:
        if self._stage == "running":
            self.control.send(m.StatusAsk())

    def _on_control(self, message: m.Message, bulk: list[Frame]) -> None:
        self.pulse.heard(self.loop.now())
        if isinstance(message, m.StatusReply):
            self._on_status(message)
        elif isinstance(message, m.CodeNews):
            self._on_code(message)
        elif isinstance(message, m.Stopping) and self._stage == "farewell":
            self._enter("played")

    def _on_code(self, news: m.CodeNews) -> None:
        """The join code as it is now; it comes with each Welcome, too."""
        before, self.plan.code = self.plan.code, news
        if self._started and (news.code, news.uses) != (before.code, before.uses):
            self._tell_code(news)

    def _tell_code(self, news: m.CodeNews) -> None:
        if not self.options.open:
            self.reporter.code(news)

    def _on_status(self, status: m.StatusReply) -> None:
        # A broker that was killed had not written down the last moment; its shards tell the next one.
        steps = max(status.steps, self.last.steps if self.last is not None else 0)
        self.last = status = msgspec.structs.replace(status, steps=steps)
        if self._stage == "last" and not somebody_plays(status):
            self._enter("broker")
        if self._stage != "running" or not self._started:
            return
        if status.host_name != self.plan.name:
            self.control.send(m.Rename(name=self.plan.name))  # mDNS renamed us, or the broker restarted
        self.recorder.status(status, self.loop.now())
        self._tell(status)
        self._maybe_stop(status)

    def _tell(self, status: m.StatusReply) -> None:
        self._told_at = self.loop.now()
        self.reporter.status(status)

    def _maybe_stop(self, status: m.StatusReply) -> None:
        stop = self.options.experiment.stop
        found = reached(stop, status.steps, status.return_mean, status.return_episodes)
        if found is not None:
            self.stop(*found)

    # --- time

    def _advance(self) -> None:
        """Each few hundredths of a second: what does not wait for anybody's answer."""
        if self.signalled:
            self.stop("signal", "stopped by a signal")
        if self._stage != "running":
            self._advance_ending()
            return
        self._hear_announcer()
        self._maybe_started()
        self._watch_broker()
        now, stop = self.loop.now(), self.options.experiment.stop
        if self._started and self.last is not None and now - self._told_at >= _REPEAT_S:
            self._tell(self.last)
        if self._started and stop.time_s and now - self.started_at >= stop.time_s:
            self.stop("time", f"{stop.time_s:g} s")

    def _watch_broker(self) -> None:
        now, charge = self.loop.now(), self.supervisor.charges["broker"]
        silent_s = self.pulse.silent_s(now)
        found = self.pulse.look(now, charge.up)
        if found == "silent":
            self.say("warning", "broker", f"the broker has not answered for {silent_s:.0f} s")
        elif found == "hung":
            self.supervisor.restart(
                "broker", f"the broker has not answered for {silent_s:.0f} s, so it was killed"
            )

    # --- ending: running -> farewell -> played -> others -> last -> broker -> over

    def stop(self, reason: str, text: str, exit_code: int = 0) -> None:
        """Begin to end; the first reason counts."""
        if self._stage != "running":
            return
        self.reason, self.text, self.exit_code = reason, text, exit_code
        self.recorder.log("error" if exit_code else "info", "host", f"stopped: {reason}: {text}")
        self._stop_at = self.loop.now()
        self.supervisor.keep_no_longer()
        if self.announcer is not None:
            self.announcer.end()
        mean = self.last.return_mean if reason == "return" and self.last is not None else None
        if mean is not None:
            note_reached(self.prepared, mean)
        self.control.send(m.StopAsk(reason=reason, return_mean=mean))
        self._enter("farewell" if self.supervisor.charges["broker"].up else "played")

    def _enter(self, stage: str) -> None:
        self._stage, self._stage_at = stage, self.loop.now()
        if stage == "played":  # the shards are still there for the last bundles
            self.supervisor.end(self.plan.played())
        elif stage == "others":
            self.supervisor.end(self._others())
        elif stage == "last":
            self._ask_last_status()
        elif stage == "broker":
            self.supervisor.end(["broker"])

    def _others(self) -> list[str]:
        return [name for name in self.supervisor.charges if name != "broker"]

    def _advance_ending(self) -> None:
        now = self.loop.now()
        spent_s = now - self._stop_at
        if self._stage == "farewell" and spent_s > self._by.farewell_s:
            self._enter("played")
        elif self._stage in ("played", "others"):
            self._advance_others(spent_s)
        elif self._stage == "last":
            self._ask_last_status()
        elif self._stage == "broker" and (
            self.supervisor.ended(["broker"]) or now - self._stage_at > self._by.broker_s
        ):
            self.loop.stop(self.exit_code)

    def _advance_others(self, spent_s: float) -> None:
        """All but the broker: first who plays, joiners too, then who keeps what was played. The trainer ends beside."""
        if spent_s > self._by.unborn_s:
            self.supervisor.kill_unborn(self._others())
        if self._stage == "played":
            left = self.supervisor.ended(["member"]) and (
                not somebody_plays(self.last) or self._unheard(spent_s)
            )
            if left or spent_s > self._by.played_s:
                self._enter("others")
            else:
                self.control.send(m.StatusAsk())
        if spent_s > self._by.others_s:
            self.supervisor.close(self._others(), 0.0)
        if self.supervisor.ended(self._others()):
            self._enter("last")

    def _ask_last_status(self) -> None:
        spent_s = self.loop.now() - self._stop_at
        if self._unheard(spent_s) or spent_s > self._by.last_status_s:
            self._enter("broker")
        else:
            self.control.send(m.StatusAsk())

    def _unheard(self, spent_s: float) -> bool:
        """The broker is gone, or has not said a word since the ending began."""
        mute = self.pulse.silent_s(self.loop.now()) > spent_s > self._by.mute_s
        return mute or not self.supervisor.charges["broker"].up or self.supervisor.ended(["broker"])

    def run(self) -> int:
        """Until the end; returns the exit code."""
        try:
            self.start()
            self.loop.run()
        finally:
            self._close()
        stop_time_s = self.options.experiment.stop.time_s or 0.0
        self.reporter.stopped(HostStopped(self.reason, self.text, self.last, stop_time_s))
        if self.reason == "error":
            raise coded(self.text, self.exit_code)
        return self.exit_code

    def _close(self) -> None:
        self.supervisor.keep_no_longer()
        self.supervisor.close(list(self.supervisor.charges), min(self._by.close_s, self._left_s()))
        if self.announcer is not None:
            self.announcer.close(self._left_s())
        self.recorder.close(self.last)
        self.network.close()
        self.plan.close()
        self.claim.release()
        drop_base(self.claim.base)

    def _left_s(self) -> float:
        """Seconds that an ending may still take."""
        if self._stage == "running":  # an error on the way
            return 0.3
        return max(0.1, self._stop_at + self._by.over_s - self.loop.now())


def run_host(options: HostOptions, reporter: HostReporter) -> int:
    """Run a host until it stops; returns the exit code.

    Raises:
        P2prlError: with the exit code of its kind, if the run cannot start or cannot go on.
        KeyboardInterrupt: a signal came before there was anything to end.
    """
    host: Host | None = None

    def end() -> None:
        if host is None:
            raise KeyboardInterrupt
        host.signalled = True

    def last_words() -> str:
        return ended_at_once(host.prepared.folder if host is not None else None, options)

    with end_on_signals(end, last_words), ExitStack() as locks:
        check_options(options)
        if options.resume:  # before anything in the folder is touched
            locks.enter_context(run_lock(options.results))
        prepared = prepare(
            options.experiment,
            options.results,
            options.resume,
            lambda text: reporter.log("info", "host", text),
        )
        if not options.resume:
            locks.enter_context(run_lock(prepared.folder))
        check_goes_on(options, prepared)
        claim = first_claim(options, prepared.file.base_port)
        locks.callback(claim.release)
        went_back = go_back_if_asked(options, prepared, claim.base)
        host = Host(options, reporter, prepared, claim, went_back)
        return host.run()
