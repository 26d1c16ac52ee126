"""How fast something grows that comes in pieces: what a person reads as steps per second."""

from __future__ import annotations

from collections import deque

#: What it is over: at least so long, and so many pieces. A slow world's bundle may take longer than that to play.
_SPAN_S, _PIECES = 10.0, 3
#: Nothing for so long, and for so many times as long as between two pieces, and it stands still.
_STILL_S, _STILL_PIECES = 5.0, 3.0


class Rate:
    """Growth per second, from one piece to another: it is the same before and after each, however rare they are."""

    def __init__(self, now: float, total: float) -> None:
        #: From where the first piece counts; None after it stood still: how long that piece took is not known.
        self._began: tuple[float, float] | None = (now, total)
        #: When there was more, and how much there was then.
        self._marks: deque[tuple[float, float]] = deque()
        self._last = total

    def look(self, now: float, total: float) -> float:
        """Growth per second as of now. To be called about each second.

        Args:
            total: how much there is now; less than before begins anew.
        """
        last, self._last = self._last, total
        if total < last:
            self._began = (now, total)
            self._marks.clear()
        elif total > last:
            self._marks.append((now, total))
            while len(self._marks) > _PIECES + 1 and now - self._marks[1][0] >= _SPAN_S:
                self._marks.popleft()
        return self._per_second(now)

    def _per_second(self, now: float) -> float:
        if not self._marks:
            return 0.0
        (first_at, first), (last_at, last) = self._marks[0], self._marks[-1]
        pieces = len(self._marks) - 1
        if not pieces and self._began is not None:  # the only one so far
            (first_at, first), pieces = self._began, 1
        span_s = max(1e-6, last_at - first_at)
        gap_s, silent_s = span_s / max(1, pieces), now - last_at
        if silent_s > max(_STILL_S, _STILL_PIECES * gap_s):
            self._began = None
            self._marks.clear()
            return 0.0
        return (last - first) / (span_s + max(0.0, silent_s - gap_s))
