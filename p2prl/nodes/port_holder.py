"""Who listens on ports that are taken, for people: another host, with its run, or the name of a program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import psutil

from p2prl.core.bounds import line
from p2prl.errors import P2prlError
from p2prl.net.keys import load_or_create, state_folder
from p2prl.nodes.locate import Search, ask_card
from p2prl.nodes.own_host import LOCAL, Noted, is_own, noted_hosts

_NAME_CHARS = 60
#: What p2prl runs as: a program of that name in any folder, or a module; and Python's options that a value follows.
_PROGRAM = re.compile(r"(.*[/\\])?p2prl(-script\.pyw?|\.exe)?", re.IGNORECASE | re.DOTALL)
_MODULES = (["p2prl"], ["p2prl.__main__"], ["p2prl.cli"], ["p2prl.cli.main"])
_WITH_VALUE = ("-X", "-W")
#: A process' start is told alike each time, but for what the system's clock was set by.
_SAME_START_S = 2.0


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
        if one.pid in by_pid and _is_noted(one, by_pid[one.pid]):
            return _named(by_pid[one.pid])
        if _is_host(one):  # of another state folder
            return f"`p2prl host` (process {one.pid})"
    try:
        return f"{line(process.name(), _NAME_CHARS)} (process {process.pid})"
    except psutil.Error:
        return f"process {process.pid}"


def _is_noted(process: psutil.Process, noted: Noted) -> bool:
    """False for another process that got the same id later: a host that was killed has left its note."""
    try:
        started: float = process.create_time()
    except psutil.Error:
        return False
    return abs(started - noted.started) <= _SAME_START_S


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
    return command(words) == "host"


def command(words: Sequence[str]) -> str:
    """Which command of p2prl a process was started with; empty if it is another program.

    Args:
        words: its command line: p2prl and its arguments, or Python, its options, p2prl and its arguments.
    """
    for index, word in enumerate(words):
        if word == "-m":
            return _first(words[index + 2 :]) if words[index + 1 : index + 2] in _MODULES else ""
        if _PROGRAM.fullmatch(word):
            return _first(words[index + 1 :])
        if index and not word.startswith("-") and words[index - 1] not in _WITH_VALUE:
            return ""  # what Python runs
    return ""


def _first(arguments: Sequence[str]) -> str:
    return next((word for word in arguments if not word.startswith("-")), "")


def _host_that_starts(base: int) -> str:
    """It has claimed its ports (claim.py), and does not listen yet."""
    noted = noted_hosts().get(base)
    try:
        if noted is not None and _is_noted(psutil.Process(noted.pid), noted):
            return _named(noted)
    except psutil.NoSuchProcess:  # it was killed
        pass
    return "another `p2prl host`"


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
