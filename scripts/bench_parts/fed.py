"""`p2prl join` as it is, but for its players' process: it is replayer.py's. `python -m bench_parts.fed ARGUMENTS`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from p2prl.cli.main import main
from p2prl.nodes import child

_PLAYER = ["-m", "p2prl.nodes", "player"]


class _Popen(subprocess.Popen[bytes]):
    """Starts a replayer where a player is asked for."""

    def __init__(self, command: Sequence[str], **more: Any) -> None:
        words = list(command)
        if words[1:] == _PLAYER:
            words[1:] = ["-m", "bench_parts.replayer"]
        super().__init__(words, **more)


if __name__ == "__main__":
    child.subprocess.Popen = _Popen  # type: ignore[misc]
    sys.argv[0] = "p2prl"
    sys.exit(main())
