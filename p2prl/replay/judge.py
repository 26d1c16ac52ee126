"""May a bundle be kept? Asked of each, the cheap things first."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.core.dedup import Dedup
from p2prl.core.schema import SessionSchema
from p2prl.errors import RemoteProtocolError
from p2prl.replay.counters import Counters
from p2prl.replay.params import ReplayParams
from p2prl.replay.validate import Rules
from p2prl.replay.verdicts import Accepted, Offer, Ready, check_delivery, check_version, verdict
from p2prl.wire.bundle import BundleReader, check_header
from p2prl.wire.frames import decode_bundle_header


class Judge:
    """Of one shard.

    Args:
        dedup: what was stored before.
        counters: of what is not stored.
        full: says whether the store takes nothing now.
    """

    def __init__(
        self,
        schema: SessionSchema,
        spec: ReplayParams,
        dedup: Dedup,
        counters: Counters,
        full: Callable[[], bool],
    ) -> None:
        self._schema, self._max_lag = schema, spec.max_lag
        self._dedup, self._counters, self._full = dedup, counters, full
        self._reader = BundleReader(schema)
        self._rules = Rules(schema, spec.reward_range, spec.max_episode_steps)

    def judge(self, offer: Offer, current_version: int, run_id: str) -> Ready | Accepted:
        """A bundle that may be kept, or the word on one that may not, which is counted."""
        try:
            return self._judged(offer, current_version, run_id)
        except RemoteProtocolError as error:
            self._counters.refuse(offer.node, error.reason)
            return verdict(offer.delivery, "refused", error.reason, text=str(error))

    def _judged(self, offer: Offer, current_version: int, run_id: str) -> Ready | Accepted:
        delivery = offer.delivery
        check_delivery(delivery, run_id)
        if self._dedup.seen(*offer.name):
            self._counters.duplicate += 1
            return verdict(delivery, "duplicate")
        header = decode_bundle_header(offer.header)
        check_header(self._schema, header, len(offer.payload))
        check_version(header, current_version)
        lag = current_version - header.version
        if self._max_lag > 0 and lag > self._max_lag:
            self._counters.stale += 1
            return verdict(delivery, "stale")
        if lag < 0:
            return verdict(delivery, "busy", "early")
        if self._full():
            return verdict(delivery, "busy", "full")
        arrays = self._reader.open_checked(header, offer.payload)
        self._rules.check(header, arrays)
        return Ready(offer, header, arrays, lag)
