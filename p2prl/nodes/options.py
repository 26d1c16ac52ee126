"""What a person asked for, already parsed: the arguments of `run_host` and `run_join`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from p2prl.config import Experiment

DEFAULT_BASE_PORT = 47800
DEFAULT_SPOOL_BYTES = 1_000_000_000


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
        back_to: the checkpoint to go on from, one of that run's; None for the last.
        base_port: where the block of ports begins, an error if one is taken; None for the default or the next free.
        interfaces: names of the interfaces to listen on and advertise; empty for the chosen ones.
        advertise: False to stay off mDNS (tests).
        open: admit any key; then there is no join code.
        code: the join code in its normal form; None to make one at random.
        code_uses: how many nodes a code admits, then there is none until the owner asks for one; None for no limit.
        code_ttl_s: for how many seconds a code is valid, as above; None for no limit.
        approve: a node that proved the code waits until the host's owner says `p2prl admit NODE`.
    """

    experiment: Experiment
    name: str
    players: int | None = None
    results: Path = Path("results")
    resume: bool = False
    back_to: Path | None = None
    base_port: int | None = None
    interfaces: Sequence[str] = ()
    advertise: bool = True
    open: bool = False
    code: str | None = None
    code_uses: int | None = None
    code_ttl_s: float | None = None
    approve: bool = False


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
        code: the host's join code in its normal form; None if none was given.
        token: a token, or the name of a file that holds one (net/tokens.py); instead of a code.
        ask_code: asks a person for the join code of the host that it is told; gives it in its normal form. None where
            there is no terminal.
        spool_bytes: what the spool may hold on disk while the host is away, in bytes; 0 for no spool.
    """

    target: str | None = None
    players: int | None = None
    envs: int | None = None
    wait_s: float | None = None
    agent: str | None = None
    name: str = ""
    interfaces: Sequence[str] = field(default_factory=tuple)
    choose: Callable[[Sequence[str]], int] | None = None
    code: str | None = None
    token: str | None = None
    ask_code: Callable[[str], str] | None = None
    spool_bytes: int = DEFAULT_SPOOL_BYTES
