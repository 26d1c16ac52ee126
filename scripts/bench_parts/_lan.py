"""What the benchmarks on a LAN of namespaces share: commands on its machines, the run as its broker sees it, output."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from p2prl import __version__
from tests.kit import Program
from tests.netns.lab import Lab, missing

_HERE = Path(__file__).resolve().parent


class Watcher:
    """The run as the broker tells it, at a fixed rate, to a client on the host's own machine.

    Attributes:
        last: `t` (monotonic seconds, the same clock for all processes of this machine), `steps`, `missed` ... as in
            `_watch.py`.
    """

    def __init__(self, lan: Lab, machine: int, interval_s: float) -> None:
        self._process = lan.popen(
            machine,
            [sys.executable, str(_HERE / "_watch.py"), str(interval_s)],
            {"PYTHONPATH": str(_HERE.parents[1]), "P2PRL_HOME": str(lan.home(machine) / "watch")},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.last: dict[str, Any] = {}

    def until(
        self, condition: Callable[[dict[str, Any]], bool], timeout_s: float, what: str
    ) -> dict[str, Any]:
        """The first picture for which `condition` holds.

        Raises:
            RuntimeError: it did not hold in time, or the host is gone.
        """
        deadline = time.monotonic() + timeout_s
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last = json.loads(line)
            if condition(self.last):
                return self.last
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: not within {timeout_s:g} s; last: {self.last}")
        raise RuntimeError(f"{what}: the host is gone; last: {self.last}")

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()


def command(lan: Lab, machine: int, *arguments: str) -> Program:
    """`p2prl ARGUMENTS --json` on a machine of the LAN."""
    prefix = ("ip", "netns", "exec", lan.namespace(machine))
    return Program(*arguments, "--json", home=lan.home(machine), cwd=lan.home(machine), prefix=prefix)


def options(text: str) -> argparse.ArgumentParser:
    """The options that all have."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser


def ready(parser: argparse.ArgumentParser) -> None:
    """End with one line where there can be no LAN of namespaces."""
    if why := missing():
        parser.exit(1, f"{parser.prog}: {why}\n")


def workplace() -> tempfile.TemporaryDirectory[str]:
    """A folder that is gone afterwards; its path is short, as Unix sockets want it."""
    return tempfile.TemporaryDirectory(prefix="pb-")


def machine() -> dict[str, Any]:
    """What the figures were measured on. `load` is the 1-minute load average before."""
    return {
        "p2prl": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": psutil.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns for people; figures right, the first column left."""
    cells = [[str(title) for title in titles], *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    lines = []
    for row in cells:
        parts = [
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def say(text: str) -> None:
    """Progress, for people."""
    sys.stderr.write(f"{text}\n")


def finish(figures: dict[str, Any], text: str, path: Path | None) -> None:
    """Print the table, write the JSON."""
    sys.stdout.write(f"{text}\n")
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n")
