"""Who takes a host's or a member's events where stdout is no terminal: JSON lines or plain lines.

Rich is not needed for these, and takes 2 MB: a joiner whose output nobody watches does without it.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from p2prl.cli import lines, output, shapes, streams
from p2prl.core.messages import CodeNews, StatusReply
from p2prl.nodes.report import HostStarted, HostStopped, Joined, Left, MemberStatus

if TYPE_CHECKING:
    from p2prl.cli.reporters import LiveMember

_PLAIN_INTERVAL_S = 5.0
_NUMBER = re.compile(r"\d+")
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
            output.write_log("".join(lines.log_parts(source, text)))


# --- JSON lines --------------------------------------------------------------------------------------


class _Piped(Reporter):
    """Writes to a pipe or a file. A reader that goes away ends the command, as it does in any pipe; so does a disk
    that is full, and that is an error."""

    def __init__(self, verbose: bool = False) -> None:
        super().__init__(verbose)
        self._lost = 0
        self._error: streams.OutputLost | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._error is not None and (error is None or isinstance(error, KeyboardInterrupt)):
            raise self._error

    def _put(self, write: Callable[[], None], last: bool = False) -> None:
        if not self._lost:
            try:
                write()
                return
            except streams.OutputLost as error:
                self._error = error
                streams.silence_stdout()
            except BrokenPipeError:
                streams.silence_stdout()
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


class Plain(_Piped):
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


class PlainMember(Plain):
    """`p2prl join` where stdout is no terminal."""

    def __init__(self, verbose: bool = False, now: Clock = time.monotonic) -> None:
        super().__init__(verbose, now)
        self._state = ("", "")

    def joined(self, info: Joined) -> None:
        """MemberReporter.joined."""
        self._line(lines.joined_line(info))

    def status(self, status: MemberStatus) -> None:
        """MemberReporter.status; a change of state is told at once. That a number in its reason counts on is none."""
        state = (status.state, _NUMBER.sub("0", status.reason))
        if self._due() or state != self._state:
            self._line(lines.member_line(status))
        self._state = state

    def left(self, info: Left) -> None:
        """MemberReporter.left."""
        if info.last is not None:
            self._line(lines.member_line(info.last), last=True)
        self._line(lines.left_line(info), last=True)


def for_member(json: bool, verbose: bool) -> JsonMember | PlainMember | LiveMember:
    """The reporter that fits stdout."""
    if json:
        return JsonMember(verbose)
    if not sys.stdout.isatty():
        return PlainMember(verbose)
    from p2prl.cli.reporters import LiveMember, terminal

    console = terminal()
    return PlainMember(verbose) if console is None else LiveMember(console, verbose)
