"""What left a queue and was never learned from: a queue gives each session once, also to a trainer that dies."""

from __future__ import annotations

import logging

from p2prl.words import many

log = logging.getLogger("p2prl")


class Departures:
    """Compares what had left the shards when a trainer began with what the checkpoint that it goes on from says.

    Args:
        ticks: of a session.
        shards: how many there are.
        left: ticks that had left the queue at that checkpoint; None if it does not say, as an older version's.
        lost: sessions that no checkpoint learned from, as it says.

    Attributes:
        lost: as above, and as soon as all shards were heard also those that left the queue after the checkpoint: for
            updates that ended with their trainer, on their way to one, or because they were too old or quarantined.
    """

    def __init__(self, ticks: int, shards: int = 1, left: int | None = 0, lost: int = 0) -> None:
        self._ticks, self._unmet, self._at_checkpoint, self.lost = ticks, shards, left, lost
        #: Ticks that had left those shards that were met; ticks that left them since.
        self._found = self._since = 0

    def met(self, left: int) -> None:
        """Another shard was heard for the first time, which `left` ticks had left."""
        self._found += left
        self._unmet -= 1
        if self._unmet:
            return
        known = self._found if self._at_checkpoint is None else self._at_checkpoint
        if lost := max(0, self._found - known) // self._ticks:
            self.lost += lost
            log.warning(
                "%s had left the queue for the trainer that ended, and no checkpoint learned from them: each is given "
                "only once",
                many(lost, "session"),
            )

    def gone(self, ticks: int) -> None:
        """So many more left it: they were learned from, or dropped."""
        self._since += ticks

    @property
    def left(self) -> int | None:
        """Ticks that left the queue since the run began; None as long as unknown.

        Until all shards were heard those that had left for earlier trainers are not counted: the next one will.
        """
        known = self._at_checkpoint if self._unmet else self._found
        return None if known is None else known + self._since
