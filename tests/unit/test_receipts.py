"""How a shard's verdicts are put together: at once where it is quiet, some milliseconds' worth in a stream."""

from __future__ import annotations

from p2prl.core import messages as m
from p2prl.net.loop import Loop
from p2prl.nodes.receipts import Batch, Batches, Receipts
from p2prl.wire import frames
from tests.unit.spool_kit import Clock


class Desk:
    """A shard's receipts, and what went to the broker."""

    def __init__(self, **more: float) -> None:
        self.clock = Clock()
        self.loop = Loop(self.clock)
        self.said: list[m.ShardReceipts] = []
        self.stored = 0
        self.receipts = Receipts(
            1, self.loop, self.said.append, lambda: (self.stored, 2 * self.stored), **more
        )

    def store(self, *nodes: str) -> None:
        """One turn: a bundle of each of these nodes, in which an episode ended."""
        batches: Batches = {}
        for node in nodes:
            batch = batches.setdefault((node, "boot"), Batch())
            batch.verdicts.append(m.Verdict(seq=self.stored, status="stored"))
            batch.episodes.append((float(self.stored), 1, 0.0))
            self.stored += 1
        self.receipts.add(batches)

    def after(self, seconds: float) -> None:
        """Time passes, and timers ring."""
        self.clock.now += seconds
        self.loop._run_timers()

    def seqs(self) -> list[tuple[str, list[int]]]:
        """Of each message: the node, and the bundles that it is about."""
        return [(said.node, [verdict.seq for verdict in said.verdicts]) for said in self.said]


def test_where_it_is_quiet_a_verdict_goes_at_once() -> None:
    desk = Desk()
    for _ in range(3):
        desk.store("a")
        desk.after(1.0)
    assert desk.seqs() == [("a", [0]), ("a", [1]), ("a", [2])]
    assert desk.loop._timers == []  # nothing wakes an idle shard


def test_where_players_wait_for_verdicts_none_waits_for_another() -> None:
    desk = Desk(together_s=0.0)
    desk.store("a")
    desk.store("a")
    assert desk.seqs() == [("a", [0]), ("a", [1])]


def test_in_a_stream_verdicts_go_together_and_the_last_one_too() -> None:
    desk = Desk()
    desk.store("a")
    desk.store("a", "b")
    desk.store("a")
    assert desk.seqs() == [("a", [0])]
    desk.after(0.011)
    assert desk.seqs() == [("a", [0]), ("a", [1, 3]), ("b", [2])]
    assert [episode[0] for said in desk.said for episode in said.episodes] == [0.0, 1.0, 3.0, 2.0]
    assert [(said.steps_total, said.inserted_ticks) for said in desk.said] == [(1, 2), (4, 8), (4, 8)]
    desk.after(1.0)
    assert len(desk.said) == 3


def test_what_comes_after_the_time_is_over_does_not_wait_for_the_timer() -> None:
    desk = Desk()
    desk.store("a")
    desk.store("a")
    desk.clock.now += 0.03  # one long turn: the timer could not ring
    desk.store("a")
    assert desk.seqs() == [("a", [0]), ("a", [1, 2])]
    desk.store("a")
    desk.after(0.001)  # the old timer is gone; the new one is not due
    assert len(desk.said) == 2
    desk.after(0.01)
    assert desk.seqs()[-1] == ("a", [3])


def test_of_many_episodes_the_last_are_said_and_how_many_there_were() -> None:
    desk = Desk()
    batch = Batch()
    batch.verdicts = [
        m.Verdict(seq=2**40 + seq, status="refused", reason="future_version") for seq in range(100)
    ]
    # The widest that an episode can be; one of a hundred is of level 0.
    batch.episodes = [(float(index), 2**40, 0.1 * bool(index % 100)) for index in range(30_000)]
    desk.receipts.add({("k" * 40, "b" * 64): batch})
    [said] = desk.said
    assert said.ended == 30_000
    assert len(said.verdicts) == 100
    assert [episode[0] for episode in said.episodes] == [*range(20_000, 29_900, 100), *range(29_900, 30_000)]
    assert len(frames.encode_to_broker(said)) < frames.MAX_TO_BROKER_BYTES / 8


def test_at_the_end_all_is_said() -> None:
    desk = Desk()
    desk.store("a")
    desk.store("a")
    desk.receipts.say()
    desk.receipts.say()
    assert desk.seqs() == [("a", [0]), ("a", [1])]


def test_a_turn_without_any_verdict_wakes_nobody() -> None:
    desk = Desk()
    desk.store("a")
    desk.store()
    assert desk.loop._timers == []
    assert len(desk.said) == 1
