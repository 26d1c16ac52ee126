"""What lets newcomers in: the join code and the tokens, their uses and lifetimes.

A limit that the owner set is final: a code whose uses are up, or whose time is over, is not replaced; there is none
until the owner asks for one. (A limit that renewed itself would be no limit.) A code that was guessed at too often is
replaced at once, within the same limits.

Times are seconds of a clock that nobody sets (`now`). What is saved has the wall clock's time; if that was set back
while the host was away, nothing lives longer than it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from p2prl.core.codes import new_code
from p2prl.core.messages import CodeNews

#: Wrong guesses until a join code is replaced.
MAX_GUESSES = 10
MAX_TOKENS = 256


class CodeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The join code as it is saved.

    Attributes:
        uses: how many nodes it still admits; None for no limit.
        expires_at: in seconds since the epoch; None for no limit.
        guesses: how many were wrong.
    """

    code: str
    uses: int | None = None
    expires_at: float | None = None
    guesses: int = 0


class TokenEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is saved.

    Attributes:
        uses: how many nodes it still admits.
        expires_at: in seconds since the epoch.
        ttl_s: the lifetime that it was made for, in seconds.
    """

    id: str
    secret: str
    uses: int
    expires_at: float
    ttl_s: float


@dataclass(eq=False)
class Secret:
    """A join code, or a token's secret. It is the same one only as long as it is the same object.

    Attributes:
        token: which token's; empty for the join code.
        uses: how many keys it still admits; None for no limit.
        ends: when it is over; None for never.
        ttl_s: the lifetime that it was made for; None for no limit.
        guesses: wrong ones.
        keys: those that took one of its uses. One that comes again takes no second one.
    """

    token: str
    text: str
    uses: int | None
    ends: float | None
    ttl_s: float | None
    guesses: int = 0
    keys: set[str] = field(default_factory=set)

    def over(self, now: float) -> bool:
        """True if its time is over."""
        return self.ends is not None and now >= self.ends

    def left_s(self, now: float) -> float | None:
        """Seconds that are left; None for no limit."""
        return None if self.ends is None else max(0.0, self.ends - now)


class Invitations:
    """The join code and all tokens of one host.

    Args:
        below: gives a random integer in [0, n), for new codes.
        code: the join code; None if this host has none ever, empty if there is none until `renew`.
        uses, ttl_s: the owner's limits for each code that the owner asks for; None for no limit.
    """

    def __init__(
        self, below: Callable[[int], int], code: str | None, uses: int | None, ttl_s: float | None, now: float
    ) -> None:
        self._below, self._uses, self._ttl_s = below, uses, ttl_s
        self.with_codes = code is not None
        self.code = self._fresh(code, now) if code else None
        self._tokens: dict[str, Secret] = {}
        #: Why the code is as it is: CodeNews.reason.
        self._why = "new"

    def find(self, token: str) -> Secret | None:
        """The token's secret, or, for an empty `token`, the join code; None if there is none now."""
        return self._tokens.get(token) if token else self.code

    def why_none(self, token: str) -> str:
        """Why `find` found nothing, as half a sentence for the newcomer."""
        if token:
            return "this token is not known here, or it is used up or expired; ask the host's owner for a new one"
        if not self.with_codes:
            return "this host has no join code"
        over = {"used": "the join code is used up", "expired": "the join code has expired"}
        return f"{over.get(self._why, 'there is no join code now')}; ask the host's owner for a new one"

    def guessed(self, secret: Secret) -> bool:
        """A wrong guess. True if the join code was replaced, which only its own guesses can do."""
        secret.guesses += 1
        if secret is not self.code or secret.guesses < MAX_GUESSES:
            return False
        self.code = Secret(
            "", new_code(self._below), secret.uses, secret.ends, secret.ttl_s, keys=secret.keys
        )
        self._why = "guesses"
        return True

    def used(self, secret: Secret, key: str) -> bool:
        """A right proof by `key`. True if that was the join code's last use; there is none now."""
        if secret.uses is None or key in secret.keys:
            return False
        secret.keys.add(key)
        secret.uses -= 1
        if secret.uses > 0:
            return False
        if secret.token:
            del self._tokens[secret.token]
            return False
        self.code, self._why = None, "used"
        return True

    def ticked(self, now: float) -> bool:
        """Time passed. True if the join code's time is over; there is none now."""
        self._drop_tokens(now)
        if self.code is None or not self.code.over(now):
            return False
        self.code, self._why = None, "expired"
        return True

    def _drop_tokens(self, now: float) -> None:
        for token in [token for token, secret in self._tokens.items() if secret.over(now)]:
            del self._tokens[token]

    def renew(self, reason: str, now: float) -> bool:
        """A new code, with the owner's limits anew; False on a host without codes."""
        if self.with_codes:
            self.code, self._why = self._fresh(new_code(self._below), now), reason
        return self.with_codes

    def news(self, now: float) -> CodeNews:
        """The code as it is now; empty if there is none."""
        if self.code is None:
            return CodeNews(code="", reason=self._why)
        code = self.code
        return CodeNews(code=code.text, uses=code.uses, ttl_s=code.left_s(now), reason=self._why)

    def saved_code(self, now: float, wall: float) -> CodeEntry | None:
        """The code, to be saved; None if there is none."""
        code = self.code
        if code is None:
            return None
        left_s = code.left_s(now)
        expires_at = None if left_s is None else wall + left_s
        return CodeEntry(code=code.text, uses=code.uses, expires_at=expires_at, guesses=code.guesses)

    def load_code(self, entry: CodeEntry, now: float, wall: float) -> None:
        """Go on with a saved code; one whose time is over ends with the next tick. Nothing on a host without codes."""
        if not self.with_codes:
            return
        if entry.uses is not None and entry.uses <= 0:
            self.code, self._why = None, "used"
            return
        code = self._fresh(entry.code, now)
        code.uses, code.guesses, code.ends = entry.uses, entry.guesses, None
        if entry.expires_at is not None:
            left_s = entry.expires_at - wall
            code.ends = now + (left_s if self._ttl_s is None else min(left_s, self._ttl_s))
        self.code = code

    def invite(self, token: str, secret: str, uses: int, ttl_s: float, now: float) -> bool:
        """A new token; False if there are MAX_TOKENS already."""
        self._drop_tokens(now)  # and not the code: whoever ends that has to say so
        if len(self._tokens) >= MAX_TOKENS:
            return False
        self._tokens[token] = Secret(token, secret, uses, now + ttl_s, ttl_s)
        return True

    def tokens(self, now: float, wall: float) -> list[TokenEntry]:
        """The tokens that may still admit somebody, to be saved."""
        return [
            TokenEntry(
                id=token,
                secret=secret.text,
                uses=secret.uses or 0,
                expires_at=wall + (secret.left_s(now) or 0.0),
                ttl_s=secret.ttl_s or 0.0,
            )
            for token, secret in self._tokens.items()
        ]

    def load_tokens(self, entries: Iterable[TokenEntry], now: float, wall: float) -> None:
        """Take saved tokens in place of these. One that stays is the same one."""
        tokens: dict[str, Secret] = {}
        for entry in entries:
            left_s = min(entry.expires_at - wall, entry.ttl_s)
            if entry.id and entry.uses > 0 and left_s > 0 and len(tokens) < MAX_TOKENS:
                secret = self._tokens.get(entry.id)
                if secret is None or secret.text != entry.secret:
                    secret = Secret(entry.id, entry.secret, entry.uses, None, entry.ttl_s)
                secret.uses, secret.ends = entry.uses, now + left_s
                tokens[entry.id] = secret
        self._tokens = tokens

    def _fresh(self, code: str, now: float) -> Secret:
        return Secret("", code, self._uses, None if self._ttl_s is None else now + self._ttl_s, self._ttl_s)
