"""How often a secret may be guessed at, and by whom: token buckets, and longer and longer waits after wrong guesses.

An attacker on the LAN can have as many addresses as it likes. So what an address may do keeps one machine from taking
everybody's turn, and the budgets over all addresses are what bounds guessing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

#: Begun exchanges, over all addresses: each costs the host about 7 ms of CPU.
BEGIN_BURST, BEGIN_PER_S = 60, 5.0
#: Of one address; a class may sit behind one.
ADDRESS_BURST, ADDRESS_PER_S = 40, 2.0
#: Wrong guesses at the join code, over all addresses: at most 9,000 a day, each at one in 6.4 million.
GUESS_BURST, GUESS_PER_S = 200, 0.1
#: After wrong guesses an address waits 1, 2, 4 ... and at most this long.
MAX_WAIT_S = 60.0
#: Nothing is held against an address after this.
FORGIVEN_AFTER_S = 600.0
#: Addresses that are remembered; the least recently seen goes first.
MAX_ADDRESSES = 1024
#: So that who waits for exactly as long as it was told need not wait again.
_ROUNDING = 1e-6


@dataclass
class Bucket:
    """A token bucket, full at first.

    Attributes:
        burst: what it holds.
        per_s: what it gains each second.
        at: when `left` was right.
    """

    burst: float
    per_s: float
    at: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.burst

    def missing_s(self, now: float) -> float:
        """Seconds until one may be taken; 0 if now."""
        self.left = min(self.burst, self.left + max(0.0, now - self.at) * self.per_s)
        self.at = now
        return 0.0 if self.left >= 1.0 - _ROUNDING else (1.0 - self.left) / self.per_s

    def take(self) -> None:
        """Take one, even if there is none: a debt makes the next wait longer."""
        self.left -= 1.0


@dataclass
class _Address:
    """What one address did.

    Attributes:
        wrong, wrong_at: guesses in a row that were wrong, and when the last one was.
        barred_until: when it may begin again.
    """

    begins: Bucket
    seen: float
    wrong: int = 0
    wrong_at: float = 0.0
    barred_until: float = 0.0


class Guesses:
    """Who may begin an exchange now, and who has to wait."""

    def __init__(self, now: float) -> None:
        self._begins = Bucket(BEGIN_BURST, BEGIN_PER_S, now)
        self._wrong = Bucket(GUESS_BURST, GUESS_PER_S, now)
        #: Least recently seen first; never more than MAX_ADDRESSES.
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def begin(self, address: str, now: float, guessable: bool) -> float:
        """One more exchange, if it may be begun: 0. Else the seconds to wait.

        Args:
            guessable: it is about a join code, and so is kept within the budget of wrong guesses.
        """
        record = self._record(address, now)
        waits = [record.barred_until - now, record.begins.missing_s(now), self._begins.missing_s(now)]
        if guessable:
            waits.append(self._wrong.missing_s(now))
        wait_s = max(0.0, *waits)
        if wait_s == 0.0:
            record.begins.take()
            self._begins.take()
        return wait_s

    def barred_s(self, address: str, now: float) -> float:
        """Seconds that this address still has to wait after wrong guesses."""
        record = self._addresses.get(address)
        return max(0.0, record.barred_until - now) if record else 0.0

    def wrong(self, address: str, now: float, guessable: bool) -> float:
        """A wrong guess. Returns the seconds that this address has to wait now."""
        record = self._record(address, now)
        record.wrong, record.wrong_at = record.wrong + 1, now
        wait_s = min(MAX_WAIT_S, 2.0 ** min(record.wrong - 1, 10))
        record.barred_until = now + wait_s
        if guessable:
            self._wrong.missing_s(now)
            self._wrong.take()
        return wait_s

    def right(self, address: str) -> None:
        """Somebody at this address knew the secret: nothing is held against it."""
        record = self._addresses.get(address)
        if record is not None:
            record.wrong, record.barred_until = 0, 0.0

    def ticked(self, now: float) -> None:
        """Forget addresses not seen for FORGIVEN_AFTER_S."""
        while self._addresses:
            address, oldest = next(iter(self._addresses.items()))
            if now - oldest.seen < FORGIVEN_AFTER_S:
                return
            del self._addresses[address]

    def __len__(self) -> int:
        return len(self._addresses)

    def _record(self, address: str, now: float) -> _Address:
        self.ticked(now)
        record = self._addresses.get(address)
        if record is None:
            record = self._addresses[address] = _Address(Bucket(ADDRESS_BURST, ADDRESS_PER_S, now), now)
            if len(self._addresses) > MAX_ADDRESSES:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(address)
        record.seen = now
        if now - record.wrong_at >= FORGIVEN_AFTER_S:
            record.wrong = 0
        return record
