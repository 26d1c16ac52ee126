"""Members, their states and their seats; ledgers; the gate; weights; returns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.core.books import merged
from p2prl.core.episodes import Episode, EpisodeStats, last_that_count
from p2prl.core.gate import share_out
from p2prl.core.ladder import levels_of
from p2prl.core.ledger import DIED, Ledger, fold_oldest
from p2prl.core.membership import TRANSITIONS, Roster
from p2prl.core.messages import Books
from p2prl.core.weight_sync import WeightSync


def test_every_state_is_reachable_and_only_gone_can_say_hello() -> None:
    assert set(TRANSITIONS.values()) == {"starting", "working", "stalled", "paused", "gone"}
    assert [state for state, event in TRANSITIONS if event == "hello"] == ["gone"]


def test_a_node_works_stalls_recovers_and_goes() -> None:
    roster = Roster(silent_after_s=15, stall_after_s=10)
    member = roster.hello("k", "pc", "b1", 1, [], 0.0)
    assert member.state == "starting"
    roster.heartbeat("k", "b1", 5, "", 1.0)
    assert member.state == "working"
    for second in range(2, 12):
        roster.heartbeat("k", "b1", 5, "", float(second))
        roster.ticked(float(second))
    assert (member.state, member.reason) == ("stalled", "no step for 10 s")
    roster.heartbeat("k", "b1", 6, "", 12.0)
    assert member.state == "working"
    assert [m.key for m in roster.ticked(27.0)] == ["k"]
    assert member.state == "gone"
    assert member.seats == []


def test_a_node_that_never_steps_says_why_within_thirty_seconds() -> None:
    roster = Roster()
    member = roster.hello("k", "pc", "b1", 1, [], 0.0)
    for second in range(30):
        roster.heartbeat("k", "b1", 0, "", float(second))
        roster.ticked(float(second))
    assert member.state == "stalled"
    assert member.reason


def test_a_slow_environment_is_not_stalled_and_one_that_hangs_is() -> None:
    """Ticks of 80 s, later of 200 s; and for 21 s it waits for weights."""
    roster = Roster(stall_after_s=10)
    member = roster.hello("k", "pc", "b1", 1, [], 0.0)
    changes = []
    for second in range(3000):
        ticks = max(0, second - 21) // 80 if second < 821 else min(10 + (second - 821) // 200, 18)
        roster.heartbeat("k", "b1", 16 * ticks, "", float(second), first_step=21 <= second < 101)
        if roster.ticked(float(second)):
            changes.append((second, member.reason))
    assert changes == [
        (10, "no step for 10 s"),  # there are no weights
        (821 + 160, "no step for 160 s"),  # the first tick of 200 s
        (821 + 8 * 200 + 400, "no step for 400 s"),  # it hangs
    ]
    assert member.state == "stalled"


def test_a_first_step_that_never_ends_is_told_and_so_is_a_player_that_ends_in_it() -> None:
    roster = Roster(stall_after_s=10)
    member = roster.hello("k", "pc", "b1", 1, [], 0.0)
    for second in range(1, 122):
        roster.heartbeat("k", "b1", 0, "", float(second), first_step=True)
        roster.ticked(float(second))
        assert member.state == ("stalled" if second == 121 else "starting")
    for second in range(122, 140):  # it was ended, and does not come back
        roster.heartbeat("k", "b1", 0, "", float(second), first_step=False)
        roster.ticked(float(second))
    assert member.state == "stalled"


def test_the_time_of_a_pause_or_before_the_first_step_does_not_make_a_hang_wait_longer() -> None:
    roster = Roster(silent_after_s=1e6, stall_after_s=10)
    member = roster.hello("k", "pc", "b1", 1, [], 0.0)
    roster.heartbeat("k", "b1", 1, "", 60.0)
    roster.heartbeat("k", "b1", 1, "the trainer is behind", 61.0)
    roster.heartbeat("k", "b1", 2, "", 400.0)
    roster.ticked(409.0)
    assert member.state == "working"
    roster.ticked(410.0)
    assert member.state == "stalled"


def test_paused_is_not_stalled() -> None:
    roster = Roster(stall_after_s=10)
    member = roster.hello("k", "pc", "b1", 1, [], 0.0)
    roster.heartbeat("k", "b1", 5, "", 1.0)
    for second in range(2, 60):
        roster.heartbeat("k", "b1", 5, "the trainer is behind", float(second))
        roster.ticked(float(second))
    assert (member.state, member.reason) == ("paused", "the trainer is behind")


def test_ranks_are_unique_and_the_lowest_free_ones() -> None:
    roster = Roster()
    first = roster.hello("a", "a", "b", 2, [], 0.0)
    second = roster.hello("b", "b", "b", 2, [], 0.0)
    assert [s.rank for s in first.seats] == [0, 1]
    assert [s.rank for s in second.seats] == [2, 3]
    roster.goodbye("a", "left", 1.0)
    third = roster.hello("c", "c", "b", 3, [], 2.0)
    assert [s.rank for s in third.seats] == [0, 1, 4]


def test_no_seed_is_given_twice_even_to_the_same_node() -> None:
    roster = Roster()
    seeds = []
    for boot in range(5):
        seeds += [seat.seed for seat in roster.hello("a", "a", f"boot{boot}", 2, [], float(boot)).seats]
    assert len(set(seeds)) == len(seeds) == 10


def test_the_same_boot_keeps_its_seats_and_a_restarted_broker_honours_them() -> None:
    roster = Roster()
    seats = roster.hello("a", "a", "b1", 2, [], 0.0).seats
    assert roster.hello("a", "a", "b1", 2, seats, 1.0).seats == seats
    fresh = Roster(next_seed=1)
    assert fresh.hello("a", "a", "b1", 2, seats, 0.0).seats == seats
    assert fresh.hello("b", "b", "b1", 1, [], 0.0).seats[0].rank == 2
    assert fresh.next_seed > max(seat.seed for seat in seats)


def test_an_unknown_boot_must_say_hello() -> None:
    roster = Roster()
    roster.hello("a", "a", "b1", 1, [], 0.0)
    assert roster.heartbeat("a", "other", 1, "", 1.0) is None
    assert roster.heartbeat("nobody", "b1", 1, "", 1.0) is None


def test_a_killed_members_pending_bundles_are_counted_as_dropped() -> None:
    ledger = Ledger()
    ledger.booted("b1")
    ledger.reported("b1", Books(produced=10, stored=6, pending=4), steps=100, episodes=3)
    ledger.stored("b1", 8)  # two more receipts passed by after the last heartbeat
    ledger.booted("b2")
    ledger.reported("b2", Books(produced=5, stored=5), steps=50, episodes=1)
    total = ledger.total()
    assert (total.produced, total.stored, total.pending, total.dropped) == (15, 13, 0, 2)
    assert total.dropped_reasons == {DIED: 2}
    assert total.balanced()
    assert (ledger.total_steps, ledger.total_episodes) == (150, 4)


def test_books_that_do_not_balance_are_not_believed() -> None:
    ledger = Ledger()
    ledger.booted("b1")
    ledger.reported("b1", Books(produced=10, stored=1), steps=1, episodes=0)
    assert ledger.total().produced == 0


@pytest.mark.parametrize(
    ("ceiling", "inserted", "members", "grant"),
    [
        (None, 5, 3, None),
        (100, 100, 2, 0),
        (100, 120, 2, 0),
        (100, 0, 4, 25),
        (100, 99, 40, 1),
        (10, 0, 0, 10),
    ],
)
def test_gate(ceiling: int | None, inserted: int, members: int, grant: int | None) -> None:
    assert share_out(ceiling, inserted, members) == grant


def test_weights_never_go_back_and_a_gap_is_pulled_once_a_while() -> None:
    sync = WeightSync(pull_after_s=1.0)
    assert sync.arrived(3)
    assert not sync.arrived(3)
    assert not sync.arrived(2)
    sync.heard(5, 10.0)
    assert not sync.wants_pull(10.5)
    assert sync.wants_pull(11.0)
    assert not sync.wants_pull(12.5), "what was asked for is under way, or its link is slow"
    assert sync.wants_pull(13.0)
    assert not sync.wants_pull(16.5)
    assert sync.arrived(5)
    assert not sync.wants_pull(20.0)
    sync.heard(6, 21.0)
    assert sync.wants_pull(22.0)


def test_what_a_slow_link_still_carries_is_not_asked_for() -> None:
    sync = WeightSync()
    for second in range(100):  # each takes two seconds, and there is always a newer one
        sync.heard(second + 10, float(second))
        if second % 2:
            assert sync.arrived(second)
        assert not sync.wants_pull(float(second))
    sync.arrived(200, size_bytes=2_000_000)
    sync.heard(201, 200.0)
    assert not sync.wants_pull(207.9), "as much takes eight seconds where little is carried"
    assert sync.wants_pull(208.0)


def test_a_change_that_is_of_no_use_is_no_reason_to_wait_but_one_to_ask_once() -> None:
    sync = WeightSync()
    sync.arrived(3, size_bytes=2_000_000)
    sync.useless(7, 100.0)
    assert sync.wants_pull(100.0)
    sync.useless(8, 100.1)
    assert not sync.wants_pull(100.1)
    sync.useless(9, 116.0)
    assert sync.wants_pull(116.0)
    assert sync.version == 3


def test_a_player_is_sent_few_sets_of_weights_while_it_plays_and_skips_versions() -> None:
    sync = WeightSync()
    sync.player_joined(0)
    for version in (1, 2):
        sync.arrived(version)
        assert sync.to_send() == [0]
        assert sync.to_send() == []
    sync.arrived(3)
    sync.arrived(4)
    assert sync.to_send() == []
    sync.player_between_bundles(0)
    assert sync.to_send() == [0]
    sync.player_between_bundles(0)
    assert sync.to_send() == [], "it was sent the newest"


def test_what_a_player_plays_with_and_what_came_before_waits_for_it_no_more() -> None:
    sync = WeightSync()
    sync.player_joined(0)
    for version in (1, 2, 3):
        sync.arrived(version)
        assert sync.to_send() == ([0] if version < 3 else [])
    sync.player_took(0, 1)
    assert sync.to_send() == [0]
    for version in (4, 5):
        sync.arrived(version)
        sync.player_took(0, 1)  # it is in the same bundle still
        assert sync.to_send() == [], "the second and the third wait for it"
    sync.player_took(0, 3)
    assert sync.to_send() == [0]
    sync.player_took(1, 5)  # there is no such player
    assert sync.to_send() == []


def test_a_restarted_player_gets_the_weights_again() -> None:
    sync = WeightSync()
    sync.player_joined(0)
    sync.arrived(4)
    assert sync.to_send() == [0]
    sync.player_left(0)
    sync.player_joined(0)
    assert sync.to_send() == [0]


def test_returns_of_the_least_exploring_slots_are_kept_apart() -> None:
    stats = EpisodeStats()
    assert stats.mean is None
    stats.ended([(10.0, 10, 0.0), (0.0, 5, 0.5)])
    assert (stats.mean, stats.mean_all, stats.count) == (10.0, 5.0, 2)
    stats.ended([(float(i), 1, 0.0) for i in range(150)])
    assert stats.mean == sum(range(50, 150)) / 100
    run, node = EpisodeStats(), EpisodeStats()
    run.ended([(1.0, 3, 0.0)], [])
    run.ended([(2.0, 3, 0.0), (6.0, 3, 1.0)], [node])  # once for the run and for whom it is of
    assert (run.count, run.mean, node.count, node.mean, node.mean_all) == (3, 1.5, 2, 2.0, 4.0)
    again = EpisodeStats()
    again.load(stats.save())
    assert (again.mean, again.mean_all, again.count) == (stats.mean, stats.mean_all, stats.count)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(-1, 1), st.integers(1, 9), st.sampled_from([0.0, 0.5])), max_size=400)
    )
)
def test_the_last_that_count_say_as_much_as_all(turns: list[list[Episode]]) -> None:
    all_, some = EpisodeStats(), EpisodeStats()
    for episodes in turns:
        all_.ended(episodes)
        last = last_that_count(episodes)
        some.ended(last, count=len(episodes))
        assert len(last) <= 200
        assert last[-100:] == episodes[-100:]
    assert some.save() == all_.save()


def test_when_nobody_explores_least_the_highest_rank_moves_down() -> None:
    roster = Roster(rungs=4)
    roster.hello("a", "a", "b1", 1, [], 0.0)
    roster.hello("b", "b", "b1", 1, [], 0.0)
    last = roster.hello("c", "c", "b1", 2, [], 0.0)
    before = list(last.seats)
    assert [seat.rank for seat in before] == [2, 3]
    assert roster.reseated(10.0) is None
    roster.goodbye("a", "left", 10.0)
    assert roster.reseated(10.0) is None
    assert roster.reseated(12.0) is None
    assert roster.reseated(12.1) is last
    assert [seat.rank for seat in last.seats] == [0, 2]
    assert not {seat.seed for seat in last.seats} & {seat.seed for seat in before}
    assert last.moved
    assert roster.reseated(20.0) is None


def test_nobody_moves_while_someone_explores_least_or_comes_back_in_time() -> None:
    roster = Roster(rungs=4)
    wide = roster.hello("wide", "w", "b1", 1, [], 0.0, slots=4)  # ranks of four slots hold all four rungs
    roster.hello("b", "b", "b1", 1, [], 0.0, slots=4)
    roster.goodbye("wide", "left", 0.0)
    assert not wide.seats
    assert [roster.reseated(float(second)) for second in range(10)] == [None] * 10
    narrow = Roster(rungs=4)
    narrow.hello("a", "a", "b1", 1, [], 0.0)
    narrow.hello("b", "b", "b1", 1, [], 0.0)
    narrow.goodbye("a", "left", 0.0)
    assert narrow.reseated(0.0) is None
    assert narrow.hello("a", "a", "b2", 1, [], 1.0).seats[0].rank == 0
    assert narrow.reseated(5.0) is None
    narrow.goodbye("a", "left", 6.0)
    assert narrow.reseated(6.0) is None, "the two seconds begin anew"
    alone = Roster(rungs=4)
    assert alone.reseated(0.0) is None
    assert alone.reseated(9.0) is None


def test_which_players_have_a_slot_that_explores_least() -> None:
    assert [rank for rank in range(12) if levels_of(rank, 1, 4)[0] == 0.0] == [0, 4, 8]
    assert [rank for rank in range(6) if levels_of(rank, 2, 4)[0] == 0.0] == [0, 2, 4]
    assert all(levels_of(rank, 4, 4)[0] == 0.0 for rank in range(10))
    assert all(levels_of(rank, 1, 1)[0] == 0.0 for rank in range(10))


def test_only_gone_members_can_be_forgotten() -> None:
    roster = Roster()
    roster.hello("a", "a", "b1", 1, [], 0.0)
    roster.forget("a")
    assert "a" in roster.members
    roster.goodbye("a", "left", 1.0)
    roster.forget("a")
    assert "a" not in roster.members


def _gave(produced: int, pending: int = 0) -> Ledger:
    ledger = Ledger()
    ledger.booted("b")
    ledger.reported("b", Books(produced=produced, stored=produced - pending, pending=pending), 10, 1)
    return ledger


def test_the_longest_gone_are_folded_and_the_totals_stay() -> None:
    ledgers = {f"k{index}": _gave(produced=index, pending=1) for index in range(1, 11)}
    before = merged([ledger.total() for ledger in ledgers.values()])
    others = Ledger()
    assert fold_oldest(ledgers, others, {"k1", "k5"}, keep=3) == ["k2", "k3", "k4", "k6", "k7"]
    assert list(ledgers) == ["k1", "k5", "k8", "k9", "k10"]
    after = merged([others.total(), *(ledger.total() for ledger in ledgers.values())])
    assert after.balanced()
    assert (after.produced, after.stored) == (before.produced, before.stored)
    assert (after.pending, after.dropped_reasons) == (5, {DIED: 5})
    assert (others.total_steps, others.total_episodes) == (50, 5)
    assert fold_oldest(ledgers, others, {"k1", "k5"}, keep=3) == []


def test_what_gave_nothing_and_what_gave_something() -> None:
    silent = Ledger()
    silent.booted("b")
    assert not silent.gave
    unheard = Ledger()
    unheard.booted("b")
    unheard.stored("b", 1)  # a bundle was stored before its first heartbeat
    assert unheard.gave
    assert _gave(1).gave
