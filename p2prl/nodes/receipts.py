"""A shard's verdicts on their way to the broker: at once, but those that follow others at once go together.

To pass a message on costs broker and member about as much as to take a bundle. So in a stream of bundles there is one
message each few milliseconds for a node, and in a quiet run one for each bundle, without waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from p2prl.core import messages as m
from p2prl.core.episodes import Episode, last_that_count
from p2prl.net.loop import Loop, Timer

#: A window holds far more than comes in this time.
TOGETHER_S = 0.01


class Batch:
    """Verdicts on bundles of one boot of one node, and the episodes that ended in what was stored of them."""

    def __init__(self) -> None:
        self.verdicts: list[m.Verdict] = []
        self.episodes: list[Episode] = []


#: By node key and boot id.
Batches = dict[tuple[str, str], Batch]


class Receipts:
    """Those that are not said yet.

    Args:
        send: to the broker.
        totals: the shard's steps_total and inserted_ticks as they are now.
        together_s: how long a verdict waits for others, at most; 0 where players wait for it.
    """

    def __init__(
        self,
        shard: int,
        loop: Loop,
        send: Callable[[m.ShardReceipts], object],
        totals: Callable[[], tuple[int, int]],
        together_s: float = TOGETHER_S,
    ) -> None:
        self._shard, self._loop, self._send, self._totals = shard, loop, send, totals
        self._together_s = together_s
        self._waiting: Batches = {}
        self._said_at = -1e9
        self._timer: Timer | None = None

    def add(self, batches: Batches) -> None:
        """Verdicts of one turn; what was stored is in the log by now."""
        for key, batch in batches.items():
            waiting = self._waiting.setdefault(key, batch)
            if waiting is not batch:
                waiting.verdicts += batch.verdicts
                waiting.episodes += batch.episodes
        wait_s = self._said_at + self._together_s - self._loop.now()
        if wait_s <= 0:
            self.say()
        elif self._timer is None and self._waiting:
            self._timer = self._loop.after(wait_s, self.say)

    def say(self) -> None:
        """All that wait, now."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._said_at = None, self._loop.now()
        batches, self._waiting = self._waiting, {}
        steps_total, inserted_ticks = self._totals()
        for (node, boot_id), batch in batches.items():
            self._send(
                m.ShardReceipts(
                    shard=self._shard,
                    node=node,
                    boot_id=boot_id,
                    verdicts=batch.verdicts,
                    episodes=list(last_that_count(batch.episodes)),
                    ended=len(batch.episodes),
                    steps_total=steps_total,
                    inserted_ticks=inserted_ticks,
                )
            )
