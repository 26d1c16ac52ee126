"""What all commands share: the flags that each has, and the one place that knows whether `-v` was given."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Annotated

import typer

from p2prl.cli.units import time
from p2prl.errors import UsageError
from p2prl.places import looks_like_path

#: What an mDNS name holds (a label of 63 bytes), with room for a suffix.
_NAME_BYTES = 58


@dataclass
class CliState:
    """Outlives the command, so that `main` knows how to tell an error."""

    verbose: bool = False


def _set_verbose(context: typer.Context, value: bool) -> bool:
    state = context.find_root().obj
    if isinstance(state, CliState):
        state.verbose = state.verbose or value
    return value


Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Tracebacks and debug logs.", callback=_set_verbose, is_eager=True),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout, logs on stderr.")]
Name = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="This machine's name for people; default: the machine's own name."
    ),
]
Interfaces = Annotated[
    list[str] | None,
    typer.Option(
        "--interface",
        metavar="IF",
        help="Use this network interface; may be repeated. Default: all but docker, virtual and VPN ones.",
    ),
]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|ADDRESS[:BASE]", help="A host's name or address; default: the one on this LAN."
    ),
]
_OWN_HELP = "Your host's name or address; default: the one that runs on this machine."
OwnTarget = Annotated[str | None, typer.Argument(metavar="NAME|ADDRESS[:BASE]", help=_OWN_HELP)]
OwnHost = Annotated[str | None, typer.Option("--host", metavar="NAME|ADDRESS[:BASE]", help=_OWN_HELP)]
AnyTarget = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|ADDRESS[:BASE]",
        help="A host's name or address; default: the one that runs on this machine, or the one on this LAN.",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="TIME",
        parser=time("--wait", 0.1),
        help="Give up (exit 3) when no host answers for so long: 90 (seconds), 2m.",
    ),
]


def verbose(context: typer.Context) -> bool:
    """Whether `-v` was given, before the command's name or after it."""
    state = context.find_root().obj
    return isinstance(state, CliState) and state.verbose


def node_name(name: str | None) -> str:
    """The name that people see: as given, or the machine's. Raises UsageError if mDNS could not carry it."""
    if name is None:
        return platform.node().partition(".")[0][:_NAME_BYTES] or "node"
    name = name.strip()
    if not name or not name.isprintable() or len(name.encode()) > _NAME_BYTES:
        raise UsageError(
            f"--name wants 1 to {_NAME_BYTES} bytes of printable text, as in attic, not {name[:40]!r}"
        )
    if looks_like_path(name):
        raise UsageError(f"--name {name!r} looks like a path: nobody could join by it; write it as in attic")
    return name
