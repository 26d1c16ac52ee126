"""One SPAKE2 exchange (Abdalla and Pointcheval, CT-RSA 2005; RFC 9382): two sides that know the same secret get the
same key, and whoever listens or guesses learns nothing that could be tried out elsewhere.

Both CURVE keys go in as the identities, so that a machine in the middle that swaps one of them ends up with no key. The
proofs are RFC 9382's key confirmation: MACs over everything that was said.

The group's arithmetic is Python's (the `spake2` package), so its time depends on secrets. Each exchange has fresh ones,
a try costs milliseconds of noise, and the host replaces a code after a few wrong guesses.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spake2 import SPAKE2_A, SPAKE2_B, SPAKEError
from spake2.ed25519_basic import NotOnCurve, Q

from p2prl.errors import LocalProtocolError, RemoteProtocolError

#: A side's letter and a compressed Ed25519 point.
SHARE_BYTES = 33


@dataclass(frozen=True)
class Claim:
    """Everything that both sides must mean, beside the secret.

    Attributes:
        node_key, server_key: CURVE public keys, in Z85.
        name: the newcomer's, as it says it.
        token: which token's secret it is; empty for the join code.
    """

    protocol: int
    version: str
    node_key: str
    name: str
    server_key: str
    token: str

    def identities(self) -> tuple[bytes, bytes]:
        """SPAKE2's idA and idB."""
        token = b" " + self.token.encode()
        return (
            b"p2prl newcomer " + self.node_key.encode() + token,
            b"p2prl host " + self.server_key.encode() + token,
        )

    def parts(self) -> list[bytes]:
        """What the proofs are over, before the shares."""
        texts = (str(self.protocol), self.version, self.node_key, self.name, self.server_key, self.token)
        return [text.encode() for text in texts]


@dataclass(frozen=True)
class Proofs:
    """What each side says to show that it has the key; 32 bytes each."""

    newcomer: bytes
    host: bytes


class Party:
    """One side of one exchange; never used for a second one.

    Args:
        secret: the join code, or a token's secret.
        entropy: gives n random bytes.
    """

    def __init__(
        self,
        side: Literal["newcomer", "host"],
        secret: str,
        claim: Claim,
        entropy: Callable[[int], bytes],
    ) -> None:
        newcomer_id, host_id = claim.identities()
        make = SPAKE2_A if side == "newcomer" else SPAKE2_B
        self._side, self._claim, self._agreed = side, claim, False
        self._spake = make(secret.encode(), idA=newcomer_id, idB=host_id, entropy_f=entropy)
        #: What the other side is to get; SHARE_BYTES long.
        self.share: bytes = self._spake.start()

    def agree(self, theirs: bytes) -> Proofs:
        """The proofs, given the other side's share. Both sides get the same if, and only if, they mean the same.

        Raises:
            RemoteProtocolError: `malformed`: it is no share, or it is our own one sent back.
            LocalProtocolError: called twice.
        """
        if self._agreed:
            raise LocalProtocolError("an exchange of secrets was used twice")
        self._agreed = True
        if not _is_canonical(theirs):
            raise RemoteProtocolError("malformed", "a share of another form than SPAKE2's")
        try:
            key = self._spake.finish(theirs)
        except (SPAKEError, NotOnCurve, ValueError, TypeError, AssertionError) as error:
            raise RemoteProtocolError("malformed", "a share that is no point of the group") from error
        ours_first = self._side == "newcomer"
        shares = [self.share, theirs] if ours_first else [theirs, self.share]
        transcript = _framed([*self._claim.parts(), *shares])
        return Proofs(
            _mac(key, b"p2prl newcomer proves", transcript), _mac(key, b"p2prl host proves", transcript)
        )


def same(one: bytes, other: bytes) -> bool:
    """True if two proofs are equal; takes as long whether or not they are."""
    return hmac.compare_digest(one, other)


def _is_canonical(share: bytes) -> bool:
    """One point has one form: `spake2` would also take longer ones, y coordinates that are not reduced, and a neutral
    element (y = 1) with a sign."""
    y = int.from_bytes(share[1:], "little") & ((1 << 255) - 1)
    return len(share) == SHARE_BYTES and y < Q and y != 1


def _framed(parts: list[bytes]) -> bytes:
    """The parts with their lengths, so that no two lists give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _mac(key: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.new(key, _framed([label]) + transcript, hashlib.sha256).digest()
