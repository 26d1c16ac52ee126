"""What people write for a number or a length of time, and what they are told if it is none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from p2prl.errors import UsageError

_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
#: The longest that is of any use; what is longer was a slip.
_MOST_S = 366 * 86_400


def seconds(flag: str, text: str, least_s: float = 1.0, most_s: float = _MOST_S) -> float:
    """Seconds, as in `90`, `15m`, `2h` or `1d`. Raises UsageError, naming `flag`.

    >>> [seconds("--ttl", text) for text in ("90", "15m", "1.5h", "1d")]
    [90.0, 900.0, 5400.0, 86400.0]
    """
    match = _TIME.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{flag} {text[:40]!r}: expected a time, as in 90 (seconds), 15m, 2h or 1d")
    found = float(match[1]) * _SECONDS[match[2].lower()]
    if not least_s <= found <= most_s:
        raise UsageError(
            f"{flag} {text[:40]!r}: must be from {as_time(least_s)} to {as_time(most_s)}, as in {flag} 90 or {flag} 2m"
        )
    return found


def as_time(length_s: float) -> str:
    """As `seconds` reads it, in the largest unit that it is a whole number of.

    >>> [as_time(length_s) for length_s in (0.5, 90, 120, 7200, 86400)]
    ['0.5s', '90s', '2m', '2h', '1d']
    """
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if length_s >= length and length_s % length == 0:
            return f"{length_s / length:g}{unit}"
    return f"{length_s:g}s"


def longer(length_s: float) -> str:
    """A time to advise where one was too short for anything to happen: whole minutes, at least two.

    >>> [longer(length_s) for length_s in (4, 50, 900)]
    ['2m', '4m', '1h']
    """
    return as_time(max(120.0, 60.0 * math.ceil(4 * length_s / 60)))


# typer calls these with what was typed, and with defaults, which are numbers already.


def time(flag: str, least_s: float = 1.0, most_s: float = _MOST_S) -> Callable[[str | float], float]:
    """A flag's parser for a length of time."""
    return lambda value: seconds(flag, str(value), least_s, most_s)


def whole(flag: str, least: int, most: int | None, example: int) -> Callable[[str | int], int]:
    """A flag's parser for a whole number; `most` is None where there is no limit."""
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(value: str | int) -> int:
        found = _whole(str(value))
        if found is None or found < least or (most is not None and found > most):
            raise UsageError(
                f"{flag} {str(value)[:40]!r}: expected a whole number {allowed}, as in {flag} {example}"
            )
        return found

    return parse


def decimal(flag: str, example: float) -> Callable[[str | float], float]:
    """A flag's parser for any number."""

    def parse(value: str | float) -> float:
        found = _number(str(value))
        if not math.isfinite(found):
            raise UsageError(f"{flag} {str(value)[:40]!r}: expected a number, as in {flag} {example:g}")
        return found

    return parse


def _whole(text: str) -> int | None:
    """Also for 1e6; None for what is no whole number."""
    try:
        return int(text)
    except ValueError:
        found = _number(text)
        return int(found) if found.is_integer() else None


def _number(text: str) -> float:
    """Nan for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
