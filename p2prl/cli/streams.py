"""Standard streams that cannot be written: a full disk is an error in one line, a stream that was closed is none."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from p2prl.errors import P2prlError


class OutputLost(P2prlError):
    """What a command says cannot be written; a reader that went away (BrokenPipeError) is no such error."""


class _Told:
    """Standard output whose errors say that they are of it: an OSError alone could be of any file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _told():
            return self._stream.write(text)

    def flush(self) -> None:
        with _told():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Commands run within: there is a stream of each kind, what its encoding lacks is a `?` there, and `OutputLost`
    tells of standard output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by who started us, as with `>&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 (for good)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a console of ASCII, or a file of Windows' code page
            stream.reconfigure(errors="replace")
    stream, sys.stdout = sys.stdout, cast(TextIO, _Told(sys.stdout))
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = stream


def silence_stdout() -> None:
    """Nobody can read stdout any more: what is still written to it, at exit too, goes nowhere."""
    _silence(sys.stdout)


def give_up_stderr() -> None:
    """At a command's end. What could not be written, and cannot be now, must not take the exit code's place."""
    try:
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 (os.devnull is no path on Windows)
        os.dup2(nowhere.fileno(), stream.fileno())


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(f"standard output cannot be written: {error.strerror}") from error
