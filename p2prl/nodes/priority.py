"""How a process steps back behind the other programs of its machine."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

log = logging.getLogger("p2prl")

_NICE = 10
_AUTOGROUP = Path("/proc/self/autogroup")


def step_back() -> None:
    """Let everything else on this machine go first: its owner's programs, and a host's own trainer."""
    if sys.platform == "win32":
        import psutil  # it takes 1 MB, and other systems do without it

        try:
            psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
        except psutil.Error as error:
            log.debug("the priority stays as it is: %s", error)
    else:
        try:
            os.nice(_NICE)  # no further than anybody can
        except OSError as error:
            log.debug("the priority stays as it is: %s", error)
    # Linux shares a processor out among sessions first (sched(7), autogroup), and a player has one of its own: its
    # niceness alone would count for nothing against other programs.
    if _AUTOGROUP.exists():
        try:
            _AUTOGROUP.write_text(str(_NICE))
        except OSError as error:
            log.debug("the session's priority stays as it is: %s", error)
