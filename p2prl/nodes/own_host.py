"""The host that this state folder's owner means when no other is named: one that runs here, with this folder's key."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec
import psutil

from p2prl.core import messages as m
from p2prl.core.bounds import line
from p2prl.errors import UsageError
from p2prl.net.addresses import MAX_BASE
from p2prl.net.keys import load_or_create, state_folder
from p2prl.net.ports import MAX_BLOCKS, STRIDE, taken_ports
from p2prl.nodes.locate import Located, Search, ask_card
from p2prl.nodes.options import DEFAULT_BASE_PORT

log = logging.getLogger("p2prl")

LOCAL = "127.0.0.1"


def is_own(card: m.EnrolCard, node_key: str) -> bool:
    """True if the card is of a host that runs from the state folder whose key this is."""
    return card.server_key == node_key


def has_hosted() -> bool:
    """True if a host ever ran from this state folder."""
    return (state_folder() / "owner.key").exists()


def own_host() -> Located | None:
    """The host that runs from this state folder: in one of the blocks of ports that hosts take by themselves, or noted.

    Raises:
        UsageError: several do.
    """
    if not has_hosted():
        return None
    bases = range(DEFAULT_BASE_PORT, min(DEFAULT_BASE_PORT + MAX_BLOCKS * STRIDE, MAX_BASE), STRIDE)
    wanted = sorted({*bases, *noted_bases()})
    return the_one(own_hosts([port - 1 for port in taken_ports([base + 1 for base in wanted], (LOCAL,))]))


class Noted(msgspec.Struct):
    """A host as it noted itself: its process, the name of its run, and when its process started.

    Attributes:
        started: seconds since the epoch, as psutil says; an id alone may be another process' by now.
    """

    pid: int
    run: str
    started: float = 0.0


def note_base(base: int, run: str) -> None:
    """This process' host, of this state folder, listens from `base` on: the owner's commands need not be told."""
    try:
        _ports().mkdir(mode=0o700, parents=True, exist_ok=True)
        noted = Noted(os.getpid(), run, psutil.Process().create_time())
        (_ports() / str(base)).write_bytes(msgspec.json.encode(noted))
    except OSError as error:
        log.warning(
            "%s cannot be written (%s): name this host's port to the owner's commands", _ports(), error
        )


def drop_base(base: int) -> None:
    """It does not any more. (One that was killed leaves its note, where nobody answers.)"""
    with contextlib.suppress(OSError):  # only a note
        (_ports() / str(base)).unlink(missing_ok=True)


def noted_bases() -> list[int]:
    """What `note_base` noted."""
    try:
        names = [path.name for path in _ports().iterdir()]
    except OSError:
        return []
    numbers = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) <= 5]
    return [number for number in numbers if 1 <= number <= MAX_BASE]


def noted_hosts() -> dict[int, Noted]:
    """By base port, what `note_base` noted; a host that was killed has left its note, too."""
    found = {}
    for base in noted_bases():
        with contextlib.suppress(OSError, msgspec.DecodeError):  # only a note
            found[base] = msgspec.json.decode((_ports() / str(base)).read_bytes(), type=Noted)
    return found


def _ports() -> Path:
    return state_folder() / "hosting" / "ports"


def own_hosts(bases: list[int]) -> list[Located]:
    """Those of these base ports on this machine where a host of this state folder answers."""
    node_key = load_or_create(state_folder() / "node.key").public
    search = Search(target=None, wait_s=None, node_key=node_key)
    found = []
    for base in bases:
        card, _ = ask_card(LOCAL, base, search)
        if card is not None and is_own(card, node_key):
            found.append(Located(card, LOCAL, base))
    return found


def the_one(hosts: list[Located]) -> Located | None:
    """The only one, or None if there is none. Raises UsageError if there are several."""
    if len(hosts) > 1:
        listed = ", ".join(f"{LOCAL}:{host.base_port} ({line(host.card.host_name, 60)})" for host in hosts)
        raise UsageError(f"several hosts run on this machine; name one: {listed}")
    return hosts[0] if hosts else None
