"""How a process steps back behind the other programs of its machine."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

log = logging.getLogger("p2prl")

#: How far a player steps back.
_NICE = 10
_AUTOGROUP = Path("/proc/self/autogroup")
#: As many processes as start at once here, and more: each needs a turn of its own.
_AGAIN_S, _TRIES = 0.13, 100


def step_back() -> None:
    """Let everything else on this machine go first: its owner's programs, and a host's own trainer."""
    if sys.platform == "win32":
        import psutil  # it takes 1 MB, and other systems do without it

        try:
            psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
        except psutil.Error as error:
            log.debug("the priority stays as it is: %s", error)
        return
    try:
        os.nice(_NICE)  # no further than anybody can
    except OSError as error:
        log.debug("the priority stays as it is: %s", error)
    keep_niceness()


def keep_niceness() -> None:
    """Let this process's niceness count in a session of its own, as each child process has one: `nice p2prl host`.

    Linux shares a processor out among sessions first, and looks at niceness within one alone (sched(7), autogroup).
    """
    if sys.platform == "win32" or not _AUTOGROUP.exists():
        return
    if os.nice(0) > 0 and not _written():
        threading.Thread(target=_write_later, name="niceness", daemon=True).start()


def _write_later() -> None:
    for _ in range(_TRIES):
        time.sleep(_AGAIN_S)
        if _written():
            return
    log.debug("the session's priority stays as it is: the system was busy")


def _written() -> bool:
    """False if it is to be tried again: who is not root may write one session's a tenth of a second, all told."""
    try:
        _AUTOGROUP.write_text(str(os.nice(0)))  # of now: a player has stepped back meanwhile
    except BlockingIOError:
        return False
    except OSError as error:
        log.debug("the session's priority stays as it is: %s", error)
    return True
