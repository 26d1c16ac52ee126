"""What somebody else's code raised, and where in it, for people. A leaf."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import Final

#: What somebody else's code may raise that is its own fault. `sys.exit()` in it must not end a process of ours.
FAULTS: Final = (Exception, SystemExit)


def raised(error: BaseException) -> str:
    """In one line what somebody else's code raised, and where in it: `ValueError: no (game.py line 12)`."""
    text = " ".join(str(error).split())
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    installed = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    installed.add(Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and installed.isdisjoint(path.parents):
            return f"{told} ({path.name} line {frame.lineno})"
    return told
