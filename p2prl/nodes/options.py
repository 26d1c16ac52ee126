"""What a person asked for, already parsed: the arguments of `run_host` and `run_join`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from p2prl.config import Experiment

DEFAULT_BASE_PORT = 47800


def default_players() -> int:
    """Cores - 1, at least 1."""
    return max(1, (psutil.cpu_count() or 1) - 1)


@dataclass(frozen=True)
class HostOptions:
    """`p2prl host`.

    Attributes:
        experiment: the effective experiment, flags already laid over it.
        name: the host's name for people; mDNS may add a suffix.
        players: own player processes; None for cores - 1, at least 1; 0 for none.
        results: the folder that holds runs (`results/`), or with `resume` a run's folder.
        resume: go on with the run in `results` (or the latest run there).
        base_port: where the block of ports begins, an error if one is taken; None for the default or the next free.
        interfaces: names of the interfaces to listen on and advertise; empty for the chosen ones.
        advertise: False to stay off mDNS (tests).
    """

    experiment: Experiment
    name: str
    players: int | None = None
    results: Path = Path("results")
    resume: bool = False
    base_port: int | None = None
    interfaces: Sequence[str] = ()
    advertise: bool = True


@dataclass(frozen=True)
class JoinOptions:
    """`p2prl join`.

    Attributes:
        target: a host's name, an address, `address:base`, or None to look on the LAN.
        players: player processes; None for cores - 1, at least 1.
        envs: slots per player; None for the experiment's.
        wait_s: give up (exit 3) after this many seconds without a host; None to wait for ever.
        agent: one's own copy of the host's `path/to/file.py:Name` agent; None to use the host's name for it.
        name: this node's name for people.
        choose: asks a person which of several hosts to join, by index; None where there is no terminal.
    """

    target: str | None = None
    players: int | None = None
    envs: int | None = None
    wait_s: float | None = None
    agent: str | None = None
    name: str = ""
    interfaces: Sequence[str] = field(default_factory=tuple)
    choose: Callable[[Sequence[str]], int] | None = None
