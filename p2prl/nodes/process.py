"""How a process of p2prl starts, speaks and ends: the child's side.

A parent starts `python -m p2prl.nodes ROLE`, writes one line (the role's config) to its standard input and keeps
the pipe open. The pipe's end means: end now. It comes when the parent closes it, and also when the parent was killed,
so no orphan holds a port or a log. Standard output carries one JSON event a line, standard error carries log lines.
"""

from __future__ import annotations

import base64
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from p2prl.errors import (
    AgentRaised,
    CorruptCheckpoint,
    LearningFailed,
    LimitsForbid,
    MissingPackage,
    P2prlError,
    UsageError,
)
from p2prl.net.loop import Loop
from p2prl.net.sockets import PortTaken
from p2prl.nodes.grace import CHILD_S
from p2prl.nodes.priority import keep_niceness
from p2prl.python_warnings import one_line_each

LOG_FORMAT = "%(levelname)s %(message)s"

#: Errors that another start of the same process cannot mend.
_HOPELESS = (UsageError, MissingPackage, CorruptCheckpoint, LimitsForbid, LearningFailed)

ConfigT = TypeVar("ConfigT")


class ChildEvent(msgspec.Struct, frozen=True):
    """What a child tells its parent on standard output: `ready`, `failed`, or a role's own events."""

    kind: str
    text: str = ""
    exit_code: int = 0
    data: dict[str, Any] = {}


def encode_config(config: msgspec.Struct) -> bytes:
    """A config as one line. Not JSON: that has no infinity, and spaces have infinite bounds."""
    return base64.b64encode(msgspec.msgpack.encode(config)) + b"\n"


def decode_config(line: bytes, config_type: type[ConfigT]) -> ConfigT:
    """What `encode_config` gave."""
    return msgspec.msgpack.decode(base64.b64decode(line), type=config_type)


def emit(kind: str, text: str = "", exit_code: int = 0, **data: Any) -> None:
    """Tell the parent something."""
    event = ChildEvent(kind, text, exit_code, data)
    line = msgspec.json.encode(event) + b"\n"
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The parent is gone; the watcher thread ends this process. Nobody is left to tell.
        logging.getLogger("p2prl").debug("parent is gone")


def run_child(config_type: type[ConfigT], main: Callable[[ConfigT, Loop], int]) -> int:
    """Read the config, watch the parent, run `main`; returns the exit code.

    A config may have a `grace_s`: a child that has not ended that long after its parent's end is ended by force.
    """
    # Ctrl-C does not reach us (see child.py), but the SIGTERM of a service manager may be for all processes at once:
    # the parent ends us in order, after it has had our last figures.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    config = decode_config(line, config_type)
    _allow_many_connections()
    keep_niceness()
    loop = Loop()
    grace_s = getattr(config, "grace_s", CHILD_S)
    threading.Thread(target=_watch_parent, args=(loop, grace_s), name="parent-watch", daemon=True).start()
    try:
        return _guarded(main, config, loop)
    finally:
        gc.freeze()  # else the interpreter looks through all objects once more: most of what an end takes


def _guarded(main: Callable[[ConfigT, Loop], int], config: ConfigT, loop: Loop) -> int:
    try:
        return main(config, loop)
    except P2prlError as error:
        logging.getLogger("p2prl").debug("failed", exc_info=True)
        flags = {
            "hopeless": isinstance(error, _HOPELESS),
            "port_taken": isinstance(error, PortTaken),
            "fruitless": isinstance(error, AgentRaised) and error.fruitless,
        }
        emit("failed", str(error), error.exit_code, **flags)
        return error.exit_code
    except Exception as error:
        logging.getLogger("p2prl").exception("unexpected error")
        emit("failed", f"{type(error).__name__}: {error}", 1)
        return 1


def _allow_many_connections() -> None:
    """Open as many files as the system lets us: each connection is one, and a stranger makes a thousand easily."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS takes less than it says
        logging.getLogger("p2prl").debug("at most %d files may be open: %s", soft, error)


def configure_logging(verbose: bool) -> logging.Logger:
    """Log lines to standard error, `LEVEL text` each; Python's warnings are among them."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.DEBUG if verbose else logging.INFO, format=LOG_FORMAT, force=True
    )
    log = logging.getLogger("p2prl")
    one_line_each(lambda text: log.warning("%s", text))
    return log


def _watch_parent(loop: Loop, grace_s: float) -> None:
    # Read the descriptor itself: a daemon thread blocked inside sys.stdin's lock would abort the interpreter's exit.
    while os.read(0, 4096):
        pass
    loop.stop(0)
    # Not a join: the main thread may be inside an environment's step, which cannot be interrupted.
    threading.Event().wait(grace_s)
    os._exit(1)
