"""What people write for a length of time."""

from __future__ import annotations

import re

from p2prl.errors import UsageError

_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
#: The longest that is of any use; what is longer was a slip.
_MOST_S = 366 * 86_400


def seconds(flag: str, text: str) -> float:
    """Seconds, as in `90`, `15m`, `2h` or `1d`. Raises UsageError, naming `flag`.

    >>> [seconds("--ttl", text) for text in ("90", "15m", "1.5h", "1d")]
    [90.0, 900.0, 5400.0, 86400.0]
    """
    match = _TIME.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{flag} {text[:40]!r}: expected a time, as in 90 (seconds), 15m, 2h or 1d")
    found = float(match[1]) * _SECONDS[match[2].lower()]
    if not 1 <= found <= _MOST_S:
        raise UsageError(f"{flag} {text[:40]!r}: must be from 1 second to {_MOST_S // 86_400}d")
    return found
