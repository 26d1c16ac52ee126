"""Who takes a host's or a member's events: a live view, plain lines, or JSON lines."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console

from p2prl.cli import joincode, output, qr, shapes, view
from p2prl.cli.screen import Screen, log_text
from p2prl.cli.units import longer
from p2prl.core.messages import CodeNews, StatusReply
from p2prl.nodes.report import HostStarted, HostStopped, Joined, Left, MemberStatus
from p2prl.words import many, why_ended

_PLAIN_INTERVAL_S = 5.0
#: A warning that comes and goes within so long is the same one.
_SAME_S = 60.0
_MOST_HISTORY = 2000
Clock = Callable[[], float]
_R = TypeVar("_R", bound="Reporter")


class Reporter:
    """What all have in common: debug lines only on request, and a context that gives the terminal back."""

    def __init__(self, verbose: bool = False) -> None:
        self._verbose = verbose

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back; may come twice."""

    def log(self, level: str, source: str, text: str) -> None:
        """A line for people, on stderr."""
        if level != "debug" or self._verbose:
            output.write_line(log_text(level, source, text).plain, sys.stderr)


# --- JSON lines --------------------------------------------------------------------------------------


class _Piped(Reporter):
    """Writes to a pipe; a reader that goes away ends the command, as it does in any pipe."""

    def __init__(self, verbose: bool = False) -> None:
        super().__init__(verbose)
        self._lost = 0

    def _put(self, write: Callable[[], None], last: bool = False) -> None:
        if not self._lost:
            try:
                write()
                return
            except BrokenPipeError:
                output.silence_stdout()
        self._lost += 1
        if self._lost == 2 and not last:
            # Not the first: after Ctrl-C on a pipeline the reader is gone before our own stop is under way,
            # and a second signal would mean "now".
            signal.raise_signal(signal.SIGINT)


class _JsonLines(_Piped):
    """Writes objects."""

    def _write(self, value: dict[str, Any], last: bool = False) -> None:
        self._put(lambda: output.write_json(value), last)


class JsonHost(_JsonLines):
    """`p2prl host --json`: `started` is the first line, whatever is heard before it."""

    def __init__(self, verbose: bool = False) -> None:
        super().__init__(verbose)
        self._started = False

    def started(self, info: HostStarted) -> None:
        """HostReporter.started."""
        self._started = True
        self._write(shapes.host_started(info))

    def code(self, news: CodeNews) -> None:
        """HostReporter.code."""
        self._write(shapes.host_code(news))

    def status(self, status: StatusReply) -> None:
        """HostReporter.status."""
        if self._started:
            self._write(shapes.host_progress(status), last=bool(status.stopping))

    def stopped(self, info: HostStopped) -> None:
        """HostReporter.stopped."""
        self._write(shapes.host_stopped(info), last=True)


class JsonMember(_JsonLines):
    """`p2prl join --json`."""

    def joined(self, info: Joined) -> None:
        """MemberReporter.joined."""
        self._write(shapes.member_joined(info))

    def status(self, status: MemberStatus) -> None:
        """MemberReporter.status."""
        self._write(shapes.member_progress(status))

    def left(self, info: Left) -> None:
        """MemberReporter.left."""
        self._write(shapes.member_left(info), last=True)


# --- plain lines -------------------------------------------------------------------------------------


class _Plain(_Piped):
    def __init__(self, verbose: bool = False, now: Clock = time.monotonic) -> None:
        super().__init__(verbose)
        self._now = now
        self._told = now() - _PLAIN_INTERVAL_S

    def _due(self) -> bool:
        """True about every five seconds."""
        due = self._now() - self._told >= _PLAIN_INTERVAL_S
        if due:
            self._told = self._now()
        return due

    def _line(self, line: str, last: bool = False) -> None:
        self._put(lambda: output.write_line(line), last)


class PlainHost(_Plain):
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


class PlainMember(_Plain):
    """`p2prl join` where stdout is no terminal."""

    def __init__(self, verbose: bool = False, now: Clock = time.monotonic) -> None:
        super().__init__(verbose, now)
        self._state = ("", "")

    def joined(self, info: Joined) -> None:
        """MemberReporter.joined."""
        self._line(joined_line(info))

    def status(self, status: MemberStatus) -> None:
        """MemberReporter.status; a change of state is told at once."""
        state = (status.state, status.reason)
        if self._due() or state != self._state:
            self._line(view.member_line(status))
        self._state = state

    def left(self, info: Left) -> None:
        """MemberReporter.left."""
        if info.last is not None:
            self._line(view.member_line(info.last), last=True)
        self._line(left_line(info), last=True)


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

    def stopped(self, info: HostStopped) -> None:
        """HostReporter.stopped: the last figures stay on the terminal, and what to do next below them."""
        started = self._info
        if info.last is not None:
            self._info = None  # nobody can join any more
            self._show(view.ended(info.last))
        self._screen.close()
        self._say(*stopped_lines(info, started))

    def _show(self, status: StatusReply) -> None:
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


# --- lines that plain and live share -----------------------------------------------------------------


def started_lines(info: HostStarted) -> list[str]:
    """What runs where; a path has a line of its own, so that it can be copied from a narrow terminal."""
    word = "resumed" if info.resumed else "started"
    what = f"{word} {output.safe(info.run_name)} as {output.safe(info.name)}"
    return [f"{what} on {info.address}, ports from {info.base_port}", f"results in {info.results}"]


def stopped_lines(info: HostStopped, started: HostStarted | None) -> list[str]:
    """Why it ended, and what can be done next; an error's text is what the command itself ends with."""
    from p2prl.nodes import checkpoint  # with it comes numpy, which a joiner's own process does without

    detail = _detail(info)
    lines = [f"stopped: {info.reason}" + (f" ({output.safe(detail)})" if detail else "")]
    there = started is not None and checkpoint.is_run(
        started.results
    )  # a person may have deleted it meanwhile
    updates = (
        checkpoint.updates_of(started.results / "checkpoints") if started is not None and there else None
    )
    if started is None or not there or (updates is None and info.reason == "error"):
        return lines
    folder = shlex.quote(str(started.results))
    score = [f"its score:  p2prl eval {folder}"] if updates else []
    return [*lines, *score, f"to go on:   p2prl host --resume --results {folder}{_further(info, updates)}"]


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


def joined_line(info: Joined) -> str:
    """Whose run this is."""
    run = f"{output.safe(info.env)} with {output.safe(info.agent)}"
    players = many(info.players, "player")
    where = f"{output.safe(info.host_name)} at {output.safe(info.address)}:{info.base_port}"
    return f"joined {where}: {run}, {players}"


def left_line(info: Left) -> str:
    """Why it ended, and what was given; an error's text is what the command itself ends with."""
    why = {"signal": info.text or "stopped here", "stopped": why_ended(info.text)}.get(
        info.reason, info.reason
    )
    why, books = output.safe(why), info.books
    return f"left: {why}; {output.count(books.stored)} of {many(books.produced, 'bundle')} stored"


def for_host(json: bool, verbose: bool) -> JsonHost | PlainHost | LiveHost:
    """The reporter that fits stdout."""
    if json:
        return JsonHost(verbose)
    console = terminal()
    return PlainHost(verbose) if console is None else LiveHost(console, verbose)


def for_member(json: bool, verbose: bool) -> JsonMember | PlainMember | LiveMember:
    """The reporter that fits stdout."""
    if json:
        return JsonMember(verbose)
    console = terminal()
    return PlainMember(verbose) if console is None else LiveMember(console, verbose)


def terminal() -> Console | None:
    """A console on stdout if a person with a capable terminal sits there. It respects NO_COLOR."""
    if not sys.stdout.isatty():
        return None
    console = Console(highlight=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None
