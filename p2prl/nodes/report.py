"""What a running command tells the person in front of it: the events, and who takes them.

`cli` implements these protocols twice, as a live view and as JSON lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from p2prl.core.messages import Books, CodeNews, PlayerReport, StatusReply

#: What `p2prl host --open` means, said at its start.
OPEN_WARNING = (
    "open host: any machine that reaches its ports may give sessions and read the weights; "
    "what is sent is still encrypted, and p2prl remove NODE still works"
)


@dataclass(frozen=True)
class HostStarted:
    """The host listens and is advertised. `addresses` are those that it is advertised under; `address` the first.

    Attributes:
        open: it admits any key, and has no join code.
        further: the flags that `--resume` needs again, for the run's folder does not keep them.
    """

    run_id: str
    run_name: str
    name: str
    address: str
    addresses: tuple[str, ...]
    base_port: int
    results: Path
    term: int
    resumed: bool
    open: bool = False
    further: str = ""


@dataclass(frozen=True)
class Silence:
    """A host that is watched does not answer. `since`: when it did last, in seconds since the epoch."""

    host_name: str
    since: float


@dataclass(frozen=True)
class HostStopped:
    """The run's end. `reason`: return, steps, time, signal or error; `last` is the last status, if there was one.

    Attributes:
        stop_time_s: after how many seconds it was to end; 0 for no such limit.
    """

    reason: str
    text: str
    last: StatusReply | None
    stop_time_s: float = 0.0


class HostReporter(Protocol):
    """Takes a host's events, on the host's one loop: must not block."""

    def log(self, level: str, source: str, text: str) -> None:
        """One line. `level`: debug, info, warning or error. `source`: host, broker, shard 0, trainer, member ..."""

    def started(self, info: HostStarted) -> None:
        """Once."""

    def code(self, news: CodeNews) -> None:
        """The join code: once after `started` unless the host is open, then at each change; may repeat itself."""

    def status(self, status: StatusReply) -> None:
        """About once a second."""

    def stopped(self, info: HostStopped) -> None:
        """Once, last."""


@dataclass(frozen=True)
class Joined:
    """A welcome. Comes again after each reconnection to a host that was restarted."""

    host_name: str
    address: str
    base_port: int
    run_id: str
    env: str
    agent: str
    term: int
    players: int


@dataclass(frozen=True)
class MemberStatus:
    """About once a second. `state`: searching, connecting, starting, working, paused, away (the host is silent); at
    the end stopped or failed.

    Attributes:
        spooled, spooled_bytes: of the pending bundles, those on this machine's disk.
    """

    state: str
    reason: str
    host_name: str
    steps: int
    steps_per_s: float
    episodes: int
    weights_version: int
    current_version: int
    books: Books
    players: tuple[PlayerReport, ...] = field(default_factory=tuple)
    spooled: int = 0
    spooled_bytes: int = 0


@dataclass(frozen=True)
class Left:
    """The member's end. `reason`: signal, stopped (the run ended; `text` says why), error.

    Attributes:
        last: its figures once nobody plays any more; None if it never was a member.
    """

    reason: str
    text: str
    books: Books
    last: MemberStatus | None = None


class MemberReporter(Protocol):
    """Takes a member's events, on the member's one loop: must not block."""

    def log(self, level: str, source: str, text: str) -> None:
        """One line, as in HostReporter."""

    def joined(self, info: Joined) -> None:
        """Once per welcome."""

    def status(self, status: MemberStatus) -> None:
        """About once a second."""

    def left(self, info: Left) -> None:
        """Once, last."""
