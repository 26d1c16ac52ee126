"""A bundle from its offer to the word on it, and what can be judged by its first frame and its version alone."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from p2prl.core.dedup import MAX_SEQ
from p2prl.core.messages import BundleHeader, Delivery, Verdict
from p2prl.errors import RemoteProtocolError
from p2prl.replay.records import StoredBundle
from p2prl.wire.blocks import Buffer
from p2prl.wire.bundle import Opened
from p2prl.wire.frames import Frame

#: A bundle that is this many versions ahead may only be earlier than the broker's word: it is to come again.
SOON_VERSIONS = 16
_MAX_BOOT_ID_CHARS = 64


class Accepted(msgspec.Struct, frozen=True):
    """The word on one bundle, and what it adds to the run; all zero unless it was stored now.

    Attributes:
        steps: ticks that are not RESET.
        episodes: as in BundleHeader.
        lag: weights versions between the one that played it and the current one.
        text: for people: why it was refused, or cannot be taken now.
    """

    verdict: Verdict
    steps: int = 0
    episodes: list[tuple[float, int, float]] = []
    lag: int = 0
    text: str = ""


class Offer(NamedTuple):
    """A bundle as it came.

    Attributes:
        node: the sender's key, from the socket.
        delivery, header, payload: its three frames.
    """

    node: str
    delivery: Delivery
    header: Frame
    payload: Buffer

    @property
    def name(self) -> tuple[str, str, int]:
        """What it is known by."""
        return self.node, self.delivery.boot_id, self.delivery.seq


class Ready(NamedTuple):
    """A bundle that passed all checks.

    Attributes:
        header, arrays: what is in it.
        lag: as in Accepted.
    """

    offer: Offer
    header: BundleHeader
    arrays: Opened
    lag: int

    def record(self, first: int) -> StoredBundle:
        """As it is logged, but for the payload; its sessions get the numbers from `first` on."""
        (node, delivery, frame, _), header = self.offer, self.header
        return StoredBundle(
            first,
            header.slots,
            header.steps,
            node,
            delivery.boot_id,
            delivery.seq,
            bytes(frame),
            b"",
        )

    def stored(self) -> Accepted:
        """The word on it, once it is stored."""
        return Accepted(
            said(self.offer.delivery, "stored"), self.header.steps, self.header.episodes, self.lag
        )


def check_delivery(delivery: Delivery, run_id: str) -> None:
    """Raises RemoteProtocolError `wrong_run` or `malformed`."""
    if delivery.run_id != run_id:
        raise RemoteProtocolError("wrong_run", "a bundle of another run")
    if not 0 <= delivery.seq < MAX_SEQ or len(delivery.boot_id) > _MAX_BOOT_ID_CHARS:
        raise RemoteProtocolError("malformed", "a bundle whose number or boot id is out of bounds")


def check_version(header: BundleHeader, current_version: int) -> None:
    """Raises RemoteProtocolError `malformed`, or `future_version` for one that cannot exist yet."""
    if header.version < 0:
        raise RemoteProtocolError("malformed", f"a bundle of version {header.version}")
    if header.version > current_version + SOON_VERSIONS:
        raise RemoteProtocolError("future_version", f"version {header.version} does not exist yet")


def said(delivery: Delivery, status: str, reason: str = "") -> Verdict:
    """The word on a bundle, as it is sent."""
    return Verdict(seq=delivery.seq, status=status, reason=reason)


def verdict(delivery: Delivery, status: str, reason: str = "", text: str = "") -> Accepted:
    """A bundle that adds nothing to the run, and why."""
    return Accepted(said(delivery, status, reason), text=text)
