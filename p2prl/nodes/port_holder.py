"""Who listens on ports that are taken, for people: another host, with its run, or the name of a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psutil

from p2prl.core.bounds import line
from p2prl.errors import P2prlError
from p2prl.net.keys import load_or_create, state_folder
from p2prl.nodes.locate import Search, ask_card
from p2prl.nodes.own_host import LOCAL, Noted, is_own, noted_hosts

_NAME_CHARS = 60


def holder(ports: Sequence[int], base: int) -> str:
    """Who listens on the first of these ports, or begins to if there is none yet; empty if that cannot be told.

    The system says whose a port is, of one's own processes at least (macOS: to the superuser alone). Where it does
    not, a host says itself who it is.

    Args:
        base: where the block begins that they belong to.
    """
    if not ports:
        return _host_that_starts(base)
    process = _listener(ports[0])
    return _program(process) if process is not None else _host_that_answers(base)


def _listener(port: int) -> psutil.Process | None:
    try:
        found = [
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid
        ]
        return psutil.Process(found[0]) if found else None
    except (psutil.Error, OSError):  # not for us to know
        return None


def _program(process: psutil.Process) -> str:
    """A host by its run: what listens is one of its children."""
    by_pid = {noted.pid: noted for noted in noted_hosts().values()}
    for one in _with_parents(process):
        if one.pid in by_pid:
            return _named(by_pid[one.pid])
        if _is_host(one):  # of another state folder
            return f"`p2prl host` (process {one.pid})"
    try:
        return f"{line(process.name(), _NAME_CHARS)} (process {process.pid})"
    except psutil.Error:
        return f"process {process.pid}"


def _with_parents(process: psutil.Process) -> Iterator[psutil.Process]:
    yield process
    try:
        yield from process.parents()
    except psutil.Error:  # it ended meanwhile
        return


def _is_host(process: psutil.Process) -> bool:
    """As it was started: with `p2prl host`, or with `python -m p2prl host`."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "host" in words and any("p2prl" in word for word in words[: words.index("host")])


def _host_that_starts(base: int) -> str:
    """It has claimed its ports (claim.py), and does not listen yet."""
    noted = noted_hosts().get(base)
    return _named(noted) if noted is not None and psutil.pid_exists(noted.pid) else "another `p2prl host`"


def _named(noted: Noted) -> str:
    return f"`p2prl host` (process {noted.pid}, run {line(noted.run, _NAME_CHARS)})"


def _host_that_answers(base: int) -> str:
    node_key = load_or_create(state_folder() / "node.key").public
    try:
        card, _ = ask_card(LOCAL, base, Search(target=None, wait_s=None, node_key=node_key))
    except P2prlError:  # one of another version, or that lets in nobody
        return "another `p2prl host`"
    if card is None:
        return ""
    noted = noted_hosts().get(base) if is_own(card, node_key) else None
    if noted is not None:
        return _named(noted)
    return f"`p2prl host`, called {line(card.host_name, _NAME_CHARS)}"
