"""A member's promise to deliver: which bundle goes to which shard, when again, and when it may be forgotten.

PUSH alone loses work (design section 4): a bundle handed to a socket may die with the peer. So each bundle stays here
until a shard gave its verdict on it. A bundle that was sent once is only ever sent again to the same shard, under the
same name, because the shard is what recognises duplicates. That holds over the member's own restarts: what comes back
from its spool keeps the boot id under which it was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from p2prl.core.messages import Books, ShardAddress, Verdict

#: Verdicts that settle a bundle. Only `busy` does not: the bundle stays, and is sent again later.
SETTLING = ("stored", "duplicate", "stale", "refused")
_BUSY_RETRY_S, _BUSY_RETRY_MAX_S = 0.25, 5.0
_RESEND_MAX_S = 60.0


class Name(msgspec.Struct, frozen=True):
    """What a shard knows one of this node's bundles by. An empty `boot_id` stands for the boot that runs now."""

    shard: int
    boot_id: str
    seq: int


class Send(msgspec.Struct, frozen=True):
    """Send bundle `token` to `shard` under `seq`; report `send_failed` if its socket takes nothing now.

    Attributes:
        boot_id: as in Name.
    """

    shard: int
    seq: int
    token: int
    boot_id: str = ""


class Forget(msgspec.Struct, frozen=True):
    """Bundle `token` is settled: `status` is a settling verdict."""

    token: int
    status: str
    reason: str


Effect = Send | Forget


@dataclass(slots=True)
class _Item:
    token: int
    size_bytes: int
    ticks: int
    shard: int = -1
    seq: int = -1
    boot_id: str = ""
    #: When it is to be sent again if no verdict came; None while it waits for its first sending.
    due: float | None = None
    attempts: int = 0


@dataclass(slots=True)
class _Lane:
    """One shard, seen from here."""

    boot_id: str = ""
    next_seq: int = 0
    blocked_until: float = 0.0
    size_bytes: int = 0
    #: Sent and unsettled, by boot id and sequence number, in order.
    items: dict[tuple[str, int], _Item] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        return bool(self.boot_id)


class Outbox:
    """The window, receipts, resending.

    A bundle may also wait outside, in the member's spool: it is counted as pending all the same.

    Invariant: `books().balanced()`, after every event.

    Args:
        window_bytes, window_bundles: bounds on what is unsettled (a single larger bundle is still taken alone).
        resend_s: how long a verdict may take before the bundle is sent again; doubles with each attempt.
        block_s: how long a shard whose socket took nothing is left alone.
        books: those that go on in these; what is pending in them waits outside.
        fresh: there is room only for what could go at once: players wait before they play, not after.
    """

    def __init__(
        self,
        window_bytes: int,
        window_bundles: int,
        resend_s: float = 5.0,
        block_s: float = 0.01,
        books: Books | None = None,
        fresh: bool = False,
    ) -> None:
        books = books or Books()
        self._fresh = fresh
        self._window_bytes = window_bytes
        self._window_bundles = window_bundles
        self._resend_s = resend_s
        self._block_s = block_s
        self._lanes: dict[int, _Lane] = {}
        #: Bundles that no shard was sent yet, oldest first.
        self._unsent: deque[_Item] = deque()
        self._term = -1
        #: Ticks that may be unsettled; None for no limit.
        self._grant: int | None = None
        #: This member leaves: its last bundles go at once, whatever the grant.
        self.leaving = False
        self._unsettled_ticks = 0
        self._size_bytes = 0
        self._count = 0
        #: Bundles that wait outside of the window.
        self._outside = books.pending
        self._produced, self._stored, self._stale = books.produced, books.stored, books.stale
        self._duplicate = books.duplicate
        self._refused = dict(books.refused_reasons)
        self._dropped = dict(books.dropped_reasons)
        #: Boots under whose names bundles were sent from here.
        self._boots = {""}

    # --- what can be seen

    @property
    def room(self) -> bool:
        """True if the window takes another bundle.

        Behind a closed gate one waiting bundle is enough: more would only grow old here.
        """
        fits = self._size_bytes < self._window_bytes and self._count < self._window_bundles
        return not self.gated and fits if self._fresh else self._count == 0 or (fits and not self.gated)

    @property
    def gated(self) -> bool:
        """True if it is the grant that keeps bundles (fresh: the players) waiting, and not the shards."""
        return (self._fresh or bool(self._unsent)) and not self.grants()

    @property
    def up(self) -> bool:
        """True if a shard is there."""
        return any(lane.up for lane in self._lanes.values())

    @property
    def pending(self) -> int:
        """Bundles unsettled, in the window and outside."""
        return self._count + self._outside

    @property
    def in_window(self) -> int:
        """Those in the window."""
        return self._count

    @property
    def in_flight(self) -> int:
        """Bundles that were sent to a shard and not settled yet."""
        return self._count - len(self._unsent)

    def books(self) -> Books:
        """Where every bundle went."""
        return Books(
            produced=self._produced,
            stored=self._stored,
            pending=self.pending,
            refused=sum(self._refused.values()),
            stale=self._stale,
            dropped=sum(self._dropped.values()),
            duplicate=self._duplicate,
            refused_reasons=dict(self._refused),
            dropped_reasons=dict(self._dropped),
        )

    def grants(self, ahead: int = 0) -> bool:
        """True if the grant has room for a bundle beside those sent, and `ahead` ticks that players are at."""
        # Any positive room admits one bundle, so that a grant smaller than a bundle never stops everything.
        return self._grant is None or self.leaving or self._unsettled_ticks + ahead < self._grant

    # --- events

    def produced(self, token: int, size_bytes: int, ticks: int, now: float) -> list[Effect]:
        """A player handed over a bundle."""
        self._produced += 1
        self._count += 1
        self._size_bytes += size_bytes
        self._unsent.append(_Item(token, size_bytes, ticks))
        return self._fill(now)

    def dropped(self, reason: str, count: int) -> None:
        """A player dropped bundles before they reached the window."""
        self._produced += count
        self._dropped[reason] = self._dropped.get(reason, 0) + count

    def put_outside(self) -> None:
        """A player handed over a bundle, which waits outside of the window."""
        self._produced += 1
        self._outside += 1

    def taken_in(
        self, token: int, size_bytes: int, ticks: int, name: Name | None, now: float
    ) -> list[Effect]:
        """A bundle that waited outside is in the window now.

        Args:
            name: if it was sent before, by an earlier boot; it is sent again whatever the grant.
        """
        self._outside -= 1
        self._count += 1
        self._size_bytes += size_bytes
        item = _Item(token, size_bytes, ticks)
        if name is None:
            self._unsent.append(item)
            return self._fill(now)
        lane = self._lanes.setdefault(name.shard, _Lane())
        self._boots.add(name.boot_id)
        self._into(lane, item, name)
        # Without its shard it waits, and goes when that is listed.
        return [self._send_again(lane, item, now)] if lane.up else []

    def given_up(self, reason: str) -> None:
        """A bundle that waited outside is lost."""
        self._outside -= 1
        _count(self._dropped, reason)

    def grown_stale(self) -> None:
        """A bundle that waited outside, and was never sent, is older than the run takes."""
        self._outside -= 1
        self._stale += 1

    def shards_listed(self, term: int, shards: Sequence[ShardAddress], now: float) -> list[Effect]:
        """The broker named the shards. What a restarted shard, or a restarted broker, may have forgotten goes again.

        A new boot id: the shard lost what was in its queues. A new term: receipts may have died with the old broker.
        """
        effects: list[Effect] = []
        new_term, self._term = term != self._term, term
        for address in shards:
            lane = self._lanes.setdefault(address.index, _Lane())
            reborn = lane.boot_id != address.boot_id
            lane.boot_id = address.boot_id
            if reborn or new_term:
                effects += self._send_all(lane, now)
        return effects + self._fill(now)

    def host_back(self, now: float) -> list[Effect]:
        """The host was silent for long: what is unsettled goes again, without the patience that it took meanwhile."""
        effects: list[Effect] = []
        for lane in self._lanes.values():
            effects += self._send_all(lane, now)
        return effects + self._fill(now)

    def settled(
        self,
        shard: int,
        verdicts: Sequence[Verdict],
        grant_ticks: int | None,
        now: float,
        boot_id: str = "",
    ) -> list[Effect]:
        """A shard's verdicts arrived, with the grant that holds from now on.

        Args:
            boot_id: of the boot that named those bundles, as in Name.
        """
        effects: list[Effect] = []
        self._grant = grant_ticks
        lane = self._lanes.get(shard)
        for verdict in verdicts:
            if verdict.status == "duplicate" and boot_id in self._boots:
                self._duplicate += 1
            item = lane.items.get((boot_id, verdict.seq)) if lane else None
            if lane is None or item is None:
                continue  # settled before: a duplicate's second verdict
            if verdict.status in SETTLING:
                effects.append(self._settle(lane, item, verdict))
            elif verdict.status == "busy":
                delay_s = min(_BUSY_RETRY_S * 2 ** min(item.attempts, 10), _BUSY_RETRY_MAX_S)
                item.due = now + delay_s
        return effects + self._fill(now)

    def granted(self, grant_ticks: int | None, now: float) -> list[Effect]:
        """The broker changed the grant."""
        self._grant = grant_ticks
        return self._fill(now)

    def send_failed(self, shard: int, seq: int, now: float, boot_id: str = "") -> None:
        """The shard's socket took nothing: leave it alone for a moment, and send this one again then."""
        lane = self._lanes[shard]
        lane.blocked_until = now + self._block_s
        item = lane.items.get((boot_id, seq))
        if item is not None:
            item.attempts = max(0, item.attempts - 1)
            item.due = lane.blocked_until

    def writable(self, shard: int, now: float) -> list[Effect]:
        """The socket of a shard that took nothing takes messages again: what waited for it goes, then more."""
        lane = self._lanes.get(shard)
        if lane is None or not lane.up:
            return []
        waited = [item for item in lane.items.values() if item.due == lane.blocked_until]
        lane.blocked_until = 0.0
        return [self._send_again(lane, item, now) for item in waited] + self._fill(now)

    def ticked(self, now: float) -> list[Effect]:
        """Time passed: resend what is due."""
        effects: list[Effect] = []
        for lane in self._lanes.values():
            if not lane.up or lane.blocked_until > now:
                continue
            due = [item for item in lane.items.values() if item.due is not None and item.due <= now]
            effects += [self._send_again(lane, item, now) for item in due]
        return effects + self._fill(now)

    # --- inside

    def _fill(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._unsent and self.grants():
            best = self._best_lane(now)
            if best is None:
                break
            shard, lane = best
            item = self._unsent.popleft()
            self._into(lane, item, Name(shard, "", lane.next_seq))
            lane.next_seq += 1
            effects.append(self._send_again(lane, item, now))
        return effects

    def _into(self, lane: _Lane, item: _Item, name: Name) -> None:
        """From now on this bundle goes to this shard only, under this name."""
        item.shard, item.boot_id, item.seq = name.shard, name.boot_id, name.seq
        lane.items[item.boot_id, item.seq] = item
        lane.size_bytes += item.size_bytes
        self._unsettled_ticks += item.ticks

    def _best_lane(self, now: float) -> tuple[int, _Lane] | None:
        """The live shard that owes us the fewest bytes (of equals, the one that got least so far), within its share.

        The share is of bytes and of bundles: a shard that hangs takes what its socket holds without an answer, and
        with the whole window it would leave nothing for the others.
        """
        lanes = max(1, len(self._lanes))
        share_bytes = max(1, self._window_bytes // lanes)
        share_bundles = max(1, self._window_bundles // lanes)
        best: tuple[int, int, int] | None = None
        for shard, lane in self._lanes.items():
            if not lane.boot_id or lane.blocked_until > now:
                continue
            if lane.items and (lane.size_bytes >= share_bytes or len(lane.items) >= share_bundles):
                continue
            order = (lane.size_bytes, lane.next_seq, shard)
            if best is None or order < best:
                best = order
        return None if best is None else (best[2], self._lanes[best[2]])

    def _send_all(self, lane: _Lane, now: float) -> list[Effect]:
        if not lane.up:
            return []
        lane.blocked_until = 0.0
        for item in lane.items.values():
            item.attempts = 0
        return [self._send_again(lane, item, now) for item in lane.items.values()]

    def _send_again(self, lane: _Lane, item: _Item, now: float) -> Send:
        item.due = now + min(self._resend_s * 2 ** min(item.attempts, 10), _RESEND_MAX_S)
        item.attempts += 1
        return Send(item.shard, item.seq, item.token, item.boot_id)

    def _settle(self, lane: _Lane, item: _Item, verdict: Verdict) -> Forget:
        del lane.items[item.boot_id, item.seq]
        lane.size_bytes -= item.size_bytes
        self._unsettled_ticks -= item.ticks
        self._size_bytes -= item.size_bytes
        self._count -= 1
        if verdict.status in ("stored", "duplicate"):
            self._stored += 1
        elif verdict.status == "stale":
            self._stale += 1
        else:
            reason = verdict.reason or "unknown"
            _count(self._refused, reason)
            return Forget(item.token, verdict.status, reason)
        return Forget(item.token, verdict.status, verdict.reason)


def _count(counter: dict[str, int], key: str) -> None:
    counter[key] = counter.get(key, 0) + 1
