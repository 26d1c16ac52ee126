"""The command that goes on with a run, for people to copy."""

from __future__ import annotations

import shlex
from pathlib import Path

from p2prl.nodes.options import HostOptions
from p2prl.packages import own_command


def resume_command(run: Path, further: str) -> str:
    """Goes on with the run in this folder; `further` is what `flags_again` gave."""
    return f"{own_command()} host --resume --results {shlex.quote(str(run))}{further}"


def flags_again(options: HostOptions) -> str:
    """The flags of a start that the run's folder does not keep, each after a space.

    Without them a resumed run would listen elsewhere, or let in others than before. A join code is no command's to
    show, and its limits count from each start.
    """
    flags = [] if options.players is None else ["--players", str(options.players)]
    flags += [] if options.base_port is None else ["--port", str(options.base_port)]
    for interface in options.interfaces:
        flags += ["--interface", interface]
    flags += ["--approve"] if options.approve else []
    flags += ["--open"] if options.open else []
    return "".join(f" {shlex.quote(flag)}" for flag in flags)
