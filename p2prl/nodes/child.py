"""A process under this one: the parent's side of nodes/process.py."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from p2prl.nodes.process import ChildEvent, encode_config
from p2prl.python_warnings import plain

#: Numeric libraries start one thread per core in every process; with many processes that only costs. They read these
#: when they are loaded, so a process has them from its beginning, and so have those that an environment starts.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",  # torch, and what else is built with OpenMP
    "OPENBLAS_NUM_THREADS": "1",  # numpy
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",  # numpy on macOS
}
#: glibc gives large pieces of memory back to the system once they are freed, and gets them again page by page: of a
#: bundle of pictures that took two thirds of the time. So freed memory is kept; other systems do not read these. What
#: the user has set of them counts.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),  # the most that it takes
    "MALLOC_TRIM_THRESHOLD_": str(128 * 1024 * 1024),
}
#: Lines and events that are kept while nobody asks; the newest, of each kind apart, so that a flood of lines takes no
#: event with it.
_MAX_QUEUED = 1000


@dataclass(frozen=True)
class LogLine:
    """A line on the child's standard error."""

    level: str
    text: str


@dataclass(frozen=True)
class Exited:
    """The child ended. On POSIX a negative code is the signal that killed it."""

    code: int

    def __str__(self) -> str:
        return f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


News = LogLine | ChildEvent | Exited


def _apart() -> dict[str, Any]:
    """Arguments of Popen that keep Ctrl-C, `timeout` and a closed terminal from the child, from its first instant on.

    The parent ends it in order instead; if the parent is killed, the pipe's end does.
    """
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


class Child:
    """One child process. Its pipes are read by two threads (portable: Windows cannot poll pipes).

    Args:
        descriptors: open files that the child gets, with the same numbers; none on Windows.
    """

    def __init__(
        self,
        role: str,
        config: msgspec.Struct,
        env: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        self.role = role
        # Deques: an append to a full one drops the oldest, and no thread can be in the way of another.
        self._lines: deque[LogLine] = deque(maxlen=_MAX_QUEUED)
        self._events: deque[ChildEvent] = deque(maxlen=_MAX_QUEUED)
        self._exited = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "p2prl.nodes", role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**KEEP_MEMORY, **os.environ, **(env or {})},
            pass_fds=descriptors,
            **_apart(),
        )
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._threads = [
            threading.Thread(target=self._read_events, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_log, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._process.stdin.write(encode_config(config))
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            pass  # it died at once; `news` will say so

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def news(self) -> list[News]:
        """What happened since the last call; the last item ever is Exited."""
        items: list[News] = []
        # Looked at before draining, and joined: so that nothing printed before the end is lost behind Exited.
        code = self._process.poll()
        if code is not None and not self._exited:
            for thread in self._threads:
                thread.join(1.0)
        for queued in (self._lines, self._events):
            while queued:  # this is the only place that takes out
                items.append(queued.popleft())
        if code is not None and not self._exited:
            self._exited = True
            items.append(Exited(code))
        return items

    def ask_to_end(self) -> None:
        """Close the pipe: the child ends in order."""
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(OSError):  # it is gone already
                self._process.stdin.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; False if it did not come in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._close_pipes()
        return True

    def kill(self) -> None:
        """End it by force."""
        self.ask_to_end()
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        self.ask_to_end()
        for thread in self._threads:
            thread.join(1.0)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _read_events(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            try:
                self._events.append(msgspec.json.decode(line, type=ChildEvent))
            except (msgspec.DecodeError, RecursionError):
                # An environment that prints: show it, as a person debugging it would want.
                self._lines.append(LogLine("INFO", plain(line.decode(errors="replace").rstrip())))

    def _read_log(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            text = plain(line.decode(errors="replace").rstrip())
            level, _, rest = text.partition(" ")
            if level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
                self._lines.append(LogLine(level, rest))
            elif text:
                self._lines.append(LogLine("INFO", text))


def end_all(children: list[Child], timeout_s: float) -> list[Child]:
    """End children in order: ask all, wait together, then by force; returns those that had to be forced."""
    for child in children:
        child.ask_to_end()
    deadline = time.monotonic() + timeout_s
    forced = [child for child in children if not child.wait(max(0.05, deadline - time.monotonic()))]
    for child in forced:
        child.kill()
    return forced
