"""A player that plays some bundles and then hands over the same again and again, as fast as its member takes them.

All but the playing is the player of p2prl itself: each bundle is encoded anew, gets its own number, and waits for
credit. `python -m bench_parts.replayer` stands in for `python -m p2prl.nodes player`; see fed.py.
"""

from __future__ import annotations

import os
import sys

from p2prl.learn.playing import Bundle
from p2prl.net.loop import Loop
from p2prl.nodes import player
from p2prl.nodes.process import configure_logging
from p2prl.nodes.wiring import PlayerConfig

#: How many bundles are played, how many are handed over each second (0: as many as can be), and how many before that
#: at once.
COUNT, PACE, FIRST = "P2PRL_BENCH_COUNT", "P2PRL_BENCH_PACE", "P2PRL_BENCH_FIRST"
#: How often it is looked whether another one is due.
_LOOK_S = 0.002


class Replayer(player.Player):
    """Plays `COUNT` bundles, then no more."""

    def __init__(self, config: PlayerConfig, loop: Loop) -> None:
        super().__init__(config, loop)
        self._count = int(os.environ.get(COUNT, "32"))
        self._pace, self._first = float(os.environ.get(PACE, "0")), int(os.environ.get(FIRST, "0"))
        self._played: list[Bundle] = []
        self._given, self._began = 0, 0.0
        if self._pace:
            loop.every(_LOOK_S, lambda: None)  # after it the loop asks for work

    def _work(self) -> bool:
        paced = self._given - self._first
        if self._played and self._pace and paced >= self._pace * (self.loop.now() - self._began):
            return False
        return super()._work()

    def _play(self) -> Bundle:
        while len(self._played) < self._count:
            self._played.append(super()._play())
        if self._given <= self._first:
            self._began = self.loop.now()
        self._given += 1
        return self._played[self._given % self._count]


def main() -> int:
    """As p2prl.nodes.__main__ does it."""
    configure_logging(verbose=False)
    player.Player = Replayer  # type: ignore[misc]
    return player.child_main()


if __name__ == "__main__":
    sys.exit(main())
