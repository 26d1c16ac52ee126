"""A child process that writes JSON lines, and when each line came."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Ours and the peers' alike: one thread for each process's arithmetic.
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_END_S = 20.0
_KEPT_LINES = 50


class Child:
    """`python -m ARGUMENTS`; use it as a context manager, which ends it.

    It leads a session of its own, so that Ctrl-C reaches this program first, which ends its children in order.

    Attributes:
        late: it took longer than `kill_after_s`, and was killed.

    Args:
        kill_after_s: a child that hangs does not hang the matrix.
        listen: False if nobody will read its lines.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        kill_after_s: float = 3600,
        listen: bool = True,
    ) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if listen else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **THREADS, "PYTHONPATH": path, **(environment or {})},
            start_new_session=True,
        )
        self._errors: deque[str] = deque(maxlen=_KEPT_LINES)
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        self.late = False
        self._guard = threading.Timer(kill_after_s, self._give_up)
        self._guard.daemon = True
        self._guard.start()

    def events(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """(seconds since the start, object) until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield time.monotonic() - self.began, json.loads(line)
        self._process.wait()
        self._reader.join(_END_S)

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        return next((line for line in reversed(self._errors) if line), f"ended with {self.code}")

    def end(self) -> None:
        """Ask it to stop, and wait until it has."""
        if self.code is None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._guard.cancel()
        self._reader.join(_END_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _give_up(self) -> None:
        self.late = True
        self._process.kill()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line.strip())
