"""What leaves the process: text that is safe for a terminal, numbers for people, JSON lines for programs."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import unicodedata
from typing import Any, TextIO

#: Unicode categories that may steer a terminal or reorder a line: controls, bidi marks, line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: object, limit: int = 0) -> str:
    """One line of `text` that cannot steer a terminal: what other machines say is data, not escape codes.

    Args:
        limit: most characters, 0 for all; what is cut is shown by an ellipsis.

    >>> safe("a\\x1b[2Jb\\nc")
    'a?[2Jb c'
    """
    words = " ".join(str(text).split())
    line = "".join("?" if unicodedata.category(char) in _UNSAFE else char for char in words)
    return line if not limit or len(line) <= limit else line[: limit - 1] + "…"


def count(number: float | None) -> str:
    """A whole number with thousands separators; a dash for none."""
    return "-" if number is None else f"{number:,.0f}"


def decimal(number: float | None) -> str:
    """One decimal; a dash for none."""
    return "-" if number is None or not math.isfinite(number) else f"{number:,.1f}"


def duration(seconds: float) -> str:
    """`12 s`, `3 m 05 s`, `2 h 07 m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} m"


def json_line(value: dict[str, Any]) -> str:
    """One JSON object on one line, ASCII only; NaN and infinities, which JSON does not have, are null."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def write_line(text: str, stream: TextIO | None = None) -> None:
    """One line to stdout (or `stream`), at once: whoever reads a pipe reads it now."""
    out = stream or sys.stdout
    out.write(text + "\n")
    out.flush()


def write_json(value: dict[str, Any]) -> None:
    """One JSON object as a line on stdout."""
    write_line(json_line(value))


def write_log(text: str) -> None:
    """One line to stderr. Where that cannot be written there is nowhere left to say so, and the command goes on."""
    with contextlib.suppress(OSError):
        write_line(text, sys.stderr)


def complain(text: str) -> None:
    """One line on stderr, signed."""
    write_log(f"p2prl: {safe(text)}")
