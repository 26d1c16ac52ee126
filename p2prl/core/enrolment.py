"""Enrolment: a newcomer proves that it knows the join code, or a token's secret, and the host proves that it does.

    newcomer                              host
       | EnrolBegin  key, name, share      |
       |---------------------------------->|   computes a share of its own (7 ms)
       |               EnrolShare  share   |
       |<----------------------------------|   nothing is given away yet
       | EnrolProof  proof                 |
       |---------------------------------->|   right: Proved
       |  EnrolProved  proof, standing     |   wrong: a guess; counted, answered slower, then there is a new code
       |<----------------------------------|

The newcomer proves first, so that each guess at a host's code is seen by that host. Whoever only pretends to be the
host gets one guess at the code from each newcomer that is misled, and that newcomer then says so: it must not try again
by itself. core/pake.py has the exchange, core/invitations.py the secrets, core/guesses.py who has to wait.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from p2prl.core import messages as m
from p2prl.core.access import is_key
from p2prl.core.bounds import line
from p2prl.core.guesses import Guesses
from p2prl.core.invitations import MAX_GUESSES, MAX_TOKENS, CodeEntry, Invitations, Secret, TokenEntry
from p2prl.core.pake import Claim, Party, Proofs, same
from p2prl.errors import LocalProtocolError, NotAdmitted, RemoteProtocolError

__all__ = [
    "MAX_TOKENS",
    "Attempt",
    "CodeChanged",
    "CodeEntry",
    "Effect",
    "Gate",
    "Newcomer",
    "Proved",
    "Reply",
    "TokenEntry",
]

#: An exchange that is not proved by then is forgotten.
EXCHANGE_S = 10.0
#: Begun exchanges at a time; the oldest makes room.
MAX_EXCHANGES = 64
_MAX_NAME_CHARS = 64
#: When to begin again if nothing speaks against it.
_AGAIN_S = 1.0

Outcome = Literal["proved", "wrong_code", "no_code", "malformed", "lapsed"]


@dataclass(frozen=True)
class Reply:
    """Send this to the newcomer; a Refusal is also to be counted."""

    peer: bytes
    message: m.EnrolShare | m.Refusal


@dataclass(frozen=True)
class Proved:
    """This key's owner knows the secret. Decide on its standing, and answer with an EnrolProved.

    Attributes:
        proof: the host's, for that EnrolProved; not to be sent if the key is to stay out.
    """

    peer: bytes
    key: str
    name: str
    address: str
    how: Literal["code", "token"]
    proof: bytes


@dataclass(frozen=True)
class CodeChanged:
    """Tell the owner: there is another join code, or none any more."""

    news: m.CodeNews


@dataclass(frozen=True)
class Attempt:
    """Tell the owner: somebody tried to enrol, and this came of it. (Who had to wait is only counted.)

    Attributes:
        outcome: `lapsed` for an exchange that was begun and never proved.
        text: one line, without the key.
    """

    address: str
    name: str
    key: str
    outcome: Outcome
    text: str


Effect = Reply | Proved | CodeChanged | Attempt


@dataclass(frozen=True)
class _Exchange:
    """What the host remembers between its share and the newcomer's proof."""

    key: str
    name: str
    address: str
    secret: Secret
    proofs: Proofs
    begun_at: float


class Newcomer:
    """The newcomer's side of one enrolment; `begin`, `answer` and `finish` are called once each, in this order.

    Args:
        secret: the join code (core/codes.py: parse_code), or the token's secret.
        server_key: the one in the host's EnrolCard, or in the token.
        entropy: gives n random bytes.
        token: which token it is; empty for the join code.
    """

    def __init__(
        self,
        secret: str,
        *,
        node_key: str,
        name: str,
        server_key: str,
        entropy: Callable[[int], bytes],
        token: str = "",
        protocol: int = m.PROTOCOL,
        version: str = "",
    ) -> None:
        self._claim = Claim(protocol, version, node_key, name, server_key, token)
        self._party = Party("newcomer", secret, self._claim, entropy)
        self._proofs: Proofs | None = None

    def begin(self) -> m.EnrolBegin:
        """What to send first."""
        claim = self._claim
        return m.EnrolBegin(
            protocol=claim.protocol,
            version=claim.version,
            node_key=claim.node_key,
            name=claim.name,
            share=self._party.share,
            token=claim.token,
        )

    def answer(self, share: m.EnrolShare) -> m.EnrolProof:
        """What to send when the host's share came.

        Raises:
            RemoteProtocolError: `malformed`: it is no share.
        """
        self._proofs = self._party.agree(share.share)
        return m.EnrolProof(proof=self._proofs.newcomer)

    def finish(self, proved: m.EnrolProved) -> m.Standing:
        """How the host stands to this node now. Its key is proved: pin it.

        The standing itself is not under the proof; what it promises shows on the control socket.

        Raises:
            NotAdmitted: whoever answered does not know the secret. It had one guess at it.
        """
        if self._proofs is None:
            raise LocalProtocolError("an enrolment was finished before it was answered")
        if not same(proved.proof, self._proofs.host):
            what = "this token's secret" if self._claim.token else "the join code"
            raise NotAdmitted(
                f"whoever answered does not know {what}: it may be another machine that pretends to be the host; "
                "tell the host's owner before you try again"
            )
        return proved.standing


class Gate:
    """The host's side, for all newcomers. It never raises for what they send.

    Args:
        server_key: the host's, in Z85.
        entropy: gives n random bytes.
        below: gives a random integer in [0, n), for new codes.
        code: the join code; None if this host has none (only tokens admit), empty if there is none until `renew`.
        uses, ttl_s: the owner's limits for each code that the owner asks for; None for no limit.
        now: seconds of a clock that nobody sets, as in all that follows.
    """

    def __init__(
        self,
        server_key: str,
        *,
        entropy: Callable[[int], bytes],
        below: Callable[[int], int],
        code: str | None,
        uses: int | None,
        ttl_s: float | None,
        now: float,
    ) -> None:
        self._server_key, self._entropy = server_key, entropy
        self._invitations = Invitations(below, code, uses, ttl_s, now)
        self._guesses = Guesses(now)
        #: By connection, oldest first; never more than MAX_EXCHANGES.
        self._exchanges: OrderedDict[bytes, _Exchange] = OrderedDict()

    def handle(
        self, peer: bytes, address: str, message: m.EnrolBegin | m.EnrolProof, now: float
    ) -> list[Effect]:
        """A newcomer said something.

        Args:
            peer: its connection.
            address: where it comes from, as the socket says.
        """
        effects = self.ticked(now)
        if isinstance(message, m.EnrolBegin):
            return effects + self._begin(peer, address, message, now)
        return effects + self._prove(peer, message, now)

    def ticked(self, now: float) -> list[Effect]:
        """Time passed: codes and tokens end, exchanges lapse."""
        effects: list[Effect] = []
        while self._exchanges:
            peer, oldest = next(iter(self._exchanges.items()))
            if now - oldest.begun_at < EXCHANGE_S:
                break
            effects.append(self._lapse(peer))
        if self._invitations.ticked(now):
            effects.append(CodeChanged(self.news(now)))
        self._guesses.ticked(now)
        return effects

    def renew(self, reason: str, now: float) -> list[Effect]:
        """The owner wants a new code: it has the owner's limits anew. Nothing on a host without codes.

        Args:
            reason: CodeNews.reason, `asked`.
        """
        return [CodeChanged(self.news(now))] if self._invitations.renew(reason, now) else []

    def news(self, now: float) -> m.CodeNews:
        """The code as it is now; empty if there is none."""
        return self._invitations.news(now)

    def invite(self, token_id: str, secret: str, uses: int, ttl_s: float, now: float) -> bool:
        """A new token; False if there are too many already. `secret` is random, never a code that somebody chose."""
        return self._invitations.invite(token_id, secret, uses, ttl_s, now)

    def saved_code(self, now: float, wall: float) -> CodeEntry | None:
        """The code, to be saved after each Proved, CodeChanged and wrong guess; None if there is none.

        Args:
            wall: now, in seconds since the epoch.
        """
        return self._invitations.saved_code(now, wall)

    def load_code(self, entry: CodeEntry, now: float, wall: float) -> None:
        """Go on with a saved code; one whose time is over ends with the next tick. Nothing on a host without codes."""
        self._invitations.load_code(entry, now, wall)

    def tokens(self, now: float, wall: float) -> list[TokenEntry]:
        """The tokens that may still admit somebody, to be saved after `invite` and each Proved by a token."""
        return self._invitations.tokens(now, wall)

    def load_tokens(self, entries: Iterable[TokenEntry], now: float, wall: float) -> None:
        """Take saved tokens in place of these; exchanges about one that stays go on."""
        self._invitations.load_tokens(entries, now, wall)

    def _begin(self, peer: bytes, address: str, begin: m.EnrolBegin, now: float) -> list[Effect]:
        if begin.protocol != m.PROTOCOL:
            text = f"the host speaks protocol {m.PROTOCOL}, this node {begin.protocol}: upgrade the older one"
            return [_refused(peer, "protocol", text)]
        if not is_key(begin.node_key):
            return [_refused(peer, "malformed", "that is no node's key")]
        wait_s = self._guesses.begin(address, now, guessable=not begin.token)
        if wait_s > 0:
            return [self._wait(peer, address, wait_s, now)]
        name = line(begin.name, _MAX_NAME_CHARS) or "?"
        secret = self._invitations.find(begin.token)
        if secret is None:
            why = self._invitations.why_none(begin.token)
            told = f"{name!r} at {address} tried to join: {why}"
            return [_refused(peer, "no_code", why), Attempt(address, name, begin.node_key, "no_code", told)]
        try:
            share, proofs = self._agree(begin, secret)
        except RemoteProtocolError as error:
            told = f"{name!r} at {address} tried to join with {error}"
            refused = _refused(peer, error.reason, str(error))
            return [refused, Attempt(address, name, begin.node_key, "malformed", told)]
        effects = self._remember(peer, _Exchange(begin.node_key, name, address, secret, proofs, now))
        return [*effects, Reply(peer, m.EnrolShare(share=share))]

    def _agree(self, begin: m.EnrolBegin, secret: Secret) -> tuple[bytes, Proofs]:
        claim = Claim(
            begin.protocol, begin.version, begin.node_key, begin.name, self._server_key, begin.token
        )
        party = Party("host", secret.text, claim, self._entropy)
        return party.share, party.agree(begin.share)

    def _remember(self, peer: bytes, exchange: _Exchange) -> list[Effect]:
        """Begin an exchange; one of the same connection that was not proved, or the oldest, lapses."""
        effects: list[Effect] = [self._lapse(peer)] if peer in self._exchanges else []
        if len(self._exchanges) >= MAX_EXCHANGES:
            effects.append(self._lapse(next(iter(self._exchanges))))
        self._exchanges[peer] = exchange
        return effects

    def _lapse(self, peer: bytes) -> Attempt:
        gone = self._exchanges.pop(peer)
        told = f"{gone.name!r} at {gone.address} began to join, and proved nothing"
        return Attempt(gone.address, gone.name, gone.key, "lapsed", told)

    def _prove(self, peer: bytes, message: m.EnrolProof, now: float) -> list[Effect]:
        exchange = self._exchanges.pop(peer, None)
        if exchange is None:
            return [
                _refused(peer, "malformed", "nothing was begun that could be proved; begin again", _AGAIN_S)
            ]
        # Exchanges that one address began side by side, or under a code that was replaced meanwhile, are no guesses.
        wait_s = self._guesses.barred_s(exchange.address, now)
        if wait_s > 0:
            return [self._wait(peer, exchange.address, wait_s, now)]
        if self._invitations.find(exchange.secret.token) is not exchange.secret:
            return [
                _refused(peer, "no_code", "the join code, or the token, ended just now; ask for the new one")
            ]
        if same(message.proof, exchange.proofs.newcomer):
            return self._right(peer, exchange, now)
        return self._wrong(peer, exchange, now)

    def _right(self, peer: bytes, exchange: _Exchange, now: float) -> list[Effect]:
        self._guesses.right(exchange.address)
        how: Literal["code", "token"] = "token" if exchange.secret.token else "code"
        what = "a token's secret" if exchange.secret.token else "the join code"
        told = f"{exchange.name!r} at {exchange.address} proved that it knows {what}"
        effects: list[Effect] = [
            Proved(peer, exchange.key, exchange.name, exchange.address, how, exchange.proofs.host),
            Attempt(exchange.address, exchange.name, exchange.key, "proved", told),
        ]
        if self._invitations.used(exchange.secret, exchange.key):
            effects.append(CodeChanged(self.news(now)))
        return effects

    def _wrong(self, peer: bytes, exchange: _Exchange, now: float) -> list[Effect]:
        token, name, address = exchange.secret.token, exchange.name, exchange.address
        wait_s = self._guesses.wrong(address, now, guessable=not token)
        replaced = self._invitations.guessed(exchange.secret)
        if token:
            text = "that is not this token's secret: its text is damaged, or somebody in between changed a message"
            told = f"{name!r} at {address} does not know the secret of the token {token}"
        else:
            text = "that is not this host's join code, or somebody in between changed a message; look at the code again"
            told = f"{name!r} at {address} gave a wrong join code (guess {exchange.secret.guesses} of {MAX_GUESSES})"
        effects: list[Effect] = [
            _refused(peer, "wrong_code", text, wait_s),
            Attempt(address, name, exchange.key, "wrong_code", told),
        ]
        return [*effects, CodeChanged(self.news(now))] if replaced else effects

    def _wait(self, peer: bytes, address: str, wait_s: float, now: float) -> Reply:
        if self._guesses.barred_s(address, now) > 0:
            text = f"a wrong code came from this address; it may be tried again in {math.ceil(wait_s)} s"
        else:
            text = f"too many newcomers at once; try again in {math.ceil(wait_s)} s"
        return _refused(peer, "rate_limited", text, wait_s)


def _refused(peer: bytes, reason: str, text: str, retry_after_s: float = 0.0) -> Reply:
    return Reply(peer, m.Refusal(reason=reason, text=text, retry_after_s=retry_after_s))
