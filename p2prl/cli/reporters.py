"""Who takes a host's or a member's events: a live view, or what piped.py has for where stdout is no terminal."""

from __future__ import annotations

import shlex
import sys
import time

from rich.console import Console, Group
from rich.text import Text

from p2prl.cli import joincode, output, qr, view
from p2prl.cli.lines import joined_line, left_line, silence_line
from p2prl.cli.piped import Clock, JsonHost, Plain, Reporter
from p2prl.cli.screen import Screen
from p2prl.cli.units import longer
from p2prl.core.messages import CodeNews, StatusReply
from p2prl.nodes.going_on import resume_command
from p2prl.nodes.report import HostStarted, HostStopped, Joined, Left, MemberStatus, Silence
from p2prl.packages import own_command

#: A warning that comes and goes within so long is the same one.
_SAME_S = 60.0
_MOST_HISTORY = 2000


# --- plain lines -------------------------------------------------------------------------------------


class PlainHost(Plain):
    """`p2prl host` where stdout is no terminal."""

    def __init__(self, verbose: bool = False, now: Clock = time.monotonic) -> None:
        super().__init__(verbose, now)
        self._info: HostStarted | None = None
        #: When each was last there.
        self._warnings: dict[str, float] = {}
        self._code = joincode.JoinCode(now)

    def started(self, info: HostStarted) -> None:
        """HostReporter.started."""
        self._info = info
        for line in (*started_lines(info), f"join with  {joincode.join_hint(info)}"):
            self._line(line)

    def code(self, news: CodeNews) -> None:
        """HostReporter.code; one that is not new is not told again."""
        first = self._code.text() is None
        changed = self._code.take(news)
        text = self._code.text()
        if changed:
            self.log("warning" if joincode.warns(news) else "info", "host", changed)
        if text is not None and (first or changed):
            self._line(f"join code  {text.plain}")

    def status(self, status: StatusReply) -> None:
        """HostReporter.status; a warning is told when it is new, or was gone for a while."""
        waiting, now = view.waiting_line(status), self._now()
        for warning in [*status.warnings, *([waiting] if waiting else [])]:
            if warning not in self._warnings and not view.repeats_trainer(status, warning):
                self.log("warning", "host", warning)
            self._warnings[warning] = now
        self._warnings = {text: at for text, at in self._warnings.items() if now - at < _SAME_S}
        if self._due():
            self._line(view.run_line(status))

    def stopped(self, info: HostStopped) -> None:
        """HostReporter.stopped."""
        if info.last is not None:
            self._line(view.run_line(view.ended(info.last)), last=True)
        for line in stopped_lines(info, self._info):
            self._line(line, last=True)


# --- live views --------------------------------------------------------------------------------------


class _Live(Reporter):
    def __init__(self, console: Console, verbose: bool = False, now: Clock = time.monotonic) -> None:
        super().__init__(verbose)
        self._screen = Screen(console, now)

    def close(self) -> None:
        """Leaves the last view where it is."""
        self._screen.close()

    def log(self, level: str, source: str, text: str) -> None:
        """A line above the view."""
        if level != "debug" or self._verbose:
            self._screen.log(level, source, text)

    def _say(self, *lines: str) -> None:
        for line in lines:
            self._screen.console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveHost(_Live):
    """`p2prl host` on a terminal."""

    def __init__(self, console: Console, verbose: bool = False, now: Clock = time.monotonic) -> None:
        super().__init__(console, verbose, now)
        self._info: HostStarted | None = None
        self._history: list[float] = []
        self._last: StatusReply | None = None
        self._code = joincode.JoinCode(now)
        self._qr_shown = False

    def started(self, info: HostStarted) -> None:
        """HostReporter.started."""
        self._info = info
        self._say(*started_lines(info))

    def code(self, news: CodeNews) -> None:
        """HostReporter.code: it stands in the view; the first one also as a QR code above it, where there is room."""
        changed = self._code.take(news)
        if changed:
            self.log("warning" if joincode.warns(news) else "info", "host", changed)
        if self._info is not None and news.code and not self._qr_shown:
            self._qr_shown = True
            console = self._screen.console
            drawing = qr.drawing(f"{joincode.dial_command(self._info)} --code {news.code}", console)
            if drawing is not None:
                console.print(drawing)

    def status(self, status: StatusReply) -> None:
        """HostReporter.status."""
        self._show(status)

    def silent(self, info: Silence) -> None:
        """A host that is watched does not answer: that stands above what it said last."""
        last, line = self._last, Text(silence_line(info), "bold red")
        self._screen.show(
            lambda width, height: Group(line, *([view.run_view(last, "", width, height - 1)] if last else []))
        )

    def stopped(self, info: HostStopped) -> None:
        """HostReporter.stopped: the last figures stay on the terminal, and what to do next below them."""
        started = self._info
        if info.last is not None:
            self._info = None  # nobody can join any more
            self._show(view.ended(info.last))
        self._screen.close()
        self._say(*stopped_lines(info, started))

    def _show(self, status: StatusReply) -> None:
        self._last = status
        if status.return_mean is not None:
            self._history.append(status.return_mean)
        if len(self._history) > _MOST_HISTORY:
            self._history = self._history[1::2]
        hint = joincode.join_hint(self._info) if self._info else ""
        code = self._code.text if hint else lambda: None
        self._screen.show(
            lambda width, height: view.run_view(status, hint, width, height, self._history, code())
        )


class LiveMember(_Live):
    """`p2prl join` on a terminal."""

    def __init__(self, console: Console, verbose: bool = False, now: Clock = time.monotonic) -> None:
        super().__init__(console, verbose, now)
        self._joined: Joined | None = None

    def joined(self, info: Joined) -> None:
        """MemberReporter.joined."""
        self._joined = info
        self.log("info", "member", joined_line(info))

    def status(self, status: MemberStatus) -> None:
        """MemberReporter.status."""
        self._screen.show(lambda width, height: view.member_view(status, self._joined, width))

    def left(self, info: Left) -> None:
        """MemberReporter.left: the last figures stay on the terminal, and why it ended below them."""
        if info.last is not None:
            self.status(info.last)
        self._screen.close()
        self._say(left_line(info))


# --- lines that a host's plain and live share -----------------------------------------------------------------


def started_lines(info: HostStarted) -> list[str]:
    """What runs where; a path has a line of its own, so that it can be copied from a narrow terminal."""
    word = "resumed" if info.resumed else "started"
    what = f"{word} {output.safe(info.run_name)} as {output.safe(info.name)}"
    return [f"{what} on {info.address}, ports from {info.base_port}", f"results in {info.results}"]


def stopped_lines(info: HostStopped, started: HostStarted | None) -> list[str]:
    """Why it ended, and what can be done next; an error's text is what the command itself ends with."""
    from p2prl.nodes import checkpoint  # with it comes numpy, which a joiner's own process does without

    detail = _detail(info)
    why = "stopped here" if info.reason == "signal" else f"stopped: {info.reason}"  # as a member says it
    lines = [why + (f" ({output.safe(detail)})" if detail else "")]
    there = started is not None and checkpoint.is_run(
        started.results
    )  # a person may have deleted it meanwhile
    updates = (
        checkpoint.updates_of(started.results / "checkpoints") if started is not None and there else None
    )
    if started is None or not there or (updates is None and info.reason == "error"):
        return lines
    folder = shlex.quote(str(started.results))
    score = [f"its score:  {own_command()} eval {folder}"] if updates else []
    go_on = resume_command(started.results, started.further)
    return [*lines, *score, f"to go on:   {go_on}{_further(info, updates)}"]


def _further(info: HostStopped, updates: int | None) -> str:
    """The flag without which a resumed run would end again, as soon as this one."""
    if info.reason in ("return", "steps"):
        return " --no-stop"
    began = updates and info.last is not None and info.last.episodes
    return f" --stop-time {longer(info.stop_time_s)}" if info.reason == "time" and not began else ""


def _detail(info: HostStopped) -> str:
    """What there is to say about a reason; an error is told elsewhere."""
    if info.reason == "return":
        return info.text
    told = [f"after {info.text}"] if info.reason == "time" else []
    if info.reason != "error" and (info.last is None or not info.last.episodes):
        told.append("no episode ended yet")
    return ", ".join(told)


def for_host(json: bool, verbose: bool) -> JsonHost | PlainHost | LiveHost:
    """The reporter that fits stdout."""
    if json:
        return JsonHost(verbose)
    console = terminal()
    return PlainHost(verbose) if console is None else LiveHost(console, verbose)


def terminal() -> Console | None:
    """A console on stdout if a person with a capable terminal sits there. It respects NO_COLOR."""
    if not sys.stdout.isatty():
        return None
    console = Console(highlight=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None
