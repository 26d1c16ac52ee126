"""A real `p2prl host` without players of its own on loopback, and members that are fed by replayers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bench_parts import replayer
from bench_parts._lan import workplace
from bench_parts.kinds import Unavailable
from p2prl.core.messages import StatusReply
from p2prl.nodes.client import Client, open_client
from tests import kit

ROOT = Path(__file__).resolve().parents[2]
AGENTS = Path(__file__).with_name("agents.py")
CODE = "17-maple-otter"
_PATIENCE_S = 60.0
#: How often the broker is asked while something is waited for.
_LOOK_S = 0.005


@dataclass(frozen=True)
class Workload:
    """What is played.

    Attributes:
        env, args: as after `--env` and `--set env.args.`.
        slots, ticks: sessions of a bundle, and ticks of a session.
        played: different bundles of each player.
    """

    name: str
    env: str
    slots: int
    ticks: int
    args: tuple[tuple[str, str], ...] = ()
    played: int = 32

    def arguments(self, agent: str) -> list[str]:
        """Of `p2prl host`."""
        pairs = [f"env.args.{key}={value}" for key, value in self.args]
        return ["--env", self.env, "--agent", f"{AGENTS}:{agent}", "--envs", str(self.slots), *sets(*pairs)]


def sets(*pairs: str) -> list[str]:
    """`--set` before each."""
    return [word for pair in pairs for word in ("--set", pair)]


class Running:
    """The host, once its trainer has published; use it as a context manager, which ends all that belongs to it.

    Nothing is left out of it: CURVE, checks, quotas, receipts and the log are on. Its log lies in the temporary folder.

    Args:
        arguments: of `p2prl host`.
        open_: False asks joiners for CODE.
        writes: the agent is one of agents.py's that write figures; they go to `file`.

    Attributes:
        file: JSON lines.
    """

    def __init__(self, arguments: Sequence[str], open_: bool = True, writes: bool = False) -> None:
        self._stack = ExitStack()
        self._arguments, self._open, self._writes = arguments, open_, writes
        self._joined = 0
        self.base = kit.free_base()

    def __enter__(self) -> Running:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(workplace()))
            self.file = self.folder / "figures.jsonl"
            more = [
                *(() if self._open else ("--code", CODE)),
                *sets(*[f"agent.file={self.file}"] * self._writes),
            ]
            host = kit.host(
                *(self.folder, "--players", "0", *self._arguments, *more),
                name="bench",
                port=self.base,
                open_=self._open,
                env=_environment(),
            )
            self.host = stack.enter_context(host)
            try:
                self.host.wait_for("started", timeout=_PATIENCE_S)
            except AssertionError as error:
                raise Unavailable(f"the host did not start: {error}") from error
            self._client = stack.enter_context(self._opened())
            self.until(lambda now: now.weights_version >= 0, "the first weights")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _opened(self) -> Client:
        """A client with the owner's key, which lies in the host's state folder."""
        before = os.environ.get("P2PRL_HOME")
        os.environ["P2PRL_HOME"] = str(self.folder / "home-bench")
        try:
            return open_client(f"127.0.0.1:{self.base}", _PATIENCE_S, "p2prl status")
        finally:
            if before is None:
                del os.environ["P2PRL_HOME"]
            else:
                os.environ["P2PRL_HOME"] = before

    def lines(self) -> list[dict[str, float]]:
        """The figures so far; a line that is not whole yet is left out."""
        text = self.file.read_text(encoding="utf-8") if self.file.is_file() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_lines(self, count: int, what: str) -> list[dict[str, float]]:
        """At least so many. Raises Unavailable as `until` does."""
        deadline = time.monotonic() + _PATIENCE_S
        while len(found := self.lines()) < count:
            if time.monotonic() > deadline or self.host.code is not None:
                raise Unavailable(
                    f"{what}: {len(found)} of {count} came; the host said: {self.host.stderr[-500:]}"
                )
            time.sleep(_LOOK_S)
        return found

    def status(self) -> StatusReply:
        """The run as the broker knows it now."""
        return self._client.status()

    def until(self, condition: Callable[[StatusReply], bool], what: str) -> StatusReply:
        """The first status for which it holds.

        Raises:
            Unavailable: it did not hold in a minute, or the host ended.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and self.host.code is None:
            if condition(now := self.status()):
                return now
            time.sleep(_LOOK_S)
        raise Unavailable(f"{what}: it did not come; the host said: {self.host.stderr[-500:]}")

    def join(self, *arguments: str, module: str = "p2prl.cli", **environment: str) -> kit.Program:
        """One member with one player, in a state folder of its own; it ends with the host."""
        self._joined += 1
        name = f"laptop{self._joined}"
        where = ("join", f"127.0.0.1:{self.base}", "--players", "1", "--name", name, "--json")
        home, env = self.folder / f"home-{name}", {**_environment(), **environment}
        return self._stack.enter_context(kit.Program(*where, *arguments, home=home, env=env, module=module))

    def feed(self, agent: str, played: int, pace: float = 0.0, first: int = 0) -> kit.Program:
        """One member whose player hands over what it played again and again: so many at once, then at the pace."""
        environment = {replayer.COUNT: str(played), replayer.PACE: str(pace), replayer.FIRST: str(first)}
        return self.join("--agent", f"{AGENTS}:{agent}", module="bench_parts.fed", **environment)


def _environment() -> dict[str, str]:
    """So that agents and environments of the bench are found."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path.rstrip(os.pathsep)}
