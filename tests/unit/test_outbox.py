"""The member's window: what is sent where, again, and when it may be forgotten."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from p2prl.core.messages import Books, ShardAddress, Verdict
from p2prl.core.outbox import Effect, Forget, Name, Outbox, Send


def shards(*boots: str) -> list[ShardAddress]:
    return [ShardAddress(index=i, push_port=1, sample_port=2, boot_id=boot) for i, boot in enumerate(boots)]


def stored(*seqs: int, status: str = "stored", reason: str = "") -> list[Verdict]:
    return [Verdict(seq=seq, status=status, reason=reason) for seq in seqs]


def sends(effects: list[Effect]) -> list[tuple[int, int, int]]:
    return [(e.shard, e.seq, e.token) for e in effects if isinstance(e, Send)]


def opened(window_bytes: int = 1000, bundles: int = 10, boots: tuple[str, ...] = ("a", "b")) -> Outbox:
    box = Outbox(window_bytes, bundles)
    box.shards_listed(1, shards(*boots), 0.0)
    return box


def test_new_work_goes_to_the_shard_that_owes_least() -> None:
    box = opened()
    assert sends(box.produced(0, 100, 8, 0.0)) == [(0, 0, 0)]
    assert sends(box.produced(1, 10, 8, 0.0)) == [(1, 0, 1)]
    assert sends(box.produced(2, 10, 8, 0.0)) == [(1, 1, 2)]


def test_a_dead_shard_never_holds_work_for_a_live_one() -> None:
    box = opened(boots=("a", ""))
    for token in range(3):
        assert [shard for shard, _, _ in sends(box.produced(token, 10, 8, 0.0))] == [0]


def test_a_shard_that_hangs_does_not_take_the_others_share_of_the_window() -> None:
    box = opened(window_bytes=100_000, bundles=20)
    rng = random.Random(3)
    for token in range(3000):
        now = token * 0.002
        effects = box.produced(token, 10, 8, now) if box.room else box.ticked(now)
        for shard, seq, _ in sends(effects):
            if shard == 1 and rng.random() < 0.3:
                box.send_failed(
                    1, seq, now
                )  # the live one's socket is full for a moment; the hanging one's never
            elif shard == 1:
                box.settled(1, stored(seq), None, now)
    assert box.books().stored > 2000


def test_a_bundle_leaves_only_on_a_settling_verdict() -> None:
    box = opened(boots=("a",))
    box.produced(7, 10, 8, 0.0)
    assert box.settled(0, stored(0, status="busy"), None, 1.0) == []
    assert box.pending == 1
    assert box.settled(0, stored(0), None, 2.0) == [Forget(7, "stored", "")]
    books = box.books()
    assert (books.produced, books.stored, books.pending) == (1, 1, 0)


def test_busy_is_sent_again_to_the_same_shard_under_the_same_number() -> None:
    box = opened()
    first = sends(box.produced(0, 10, 8, 0.0))
    box.settled(0, stored(0, status="busy"), None, 1.0)
    assert sends(box.ticked(1.1)) == []
    assert sends(box.ticked(1.6)) == first


def test_without_a_verdict_it_is_sent_again_and_more_and_more_rarely() -> None:
    box = opened(boots=("a",))
    box.produced(0, 10, 8, 0.0)
    times = [tenth / 10 for tenth in range(1000) if sends(box.ticked(tenth / 10))]
    assert times[0] == 5.0
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[0] == pytest.approx(10.0)


def test_a_restarted_shard_gets_everything_unsettled_again() -> None:
    box = opened()
    for token in range(4):
        box.produced(token, 10, 8, 0.0)
    again = sends(box.shards_listed(1, shards("a2", "b"), 1.0))
    assert again == [(0, 0, 0), (0, 1, 2)]


def test_a_new_term_sends_again_to_all_shards() -> None:
    box = opened()
    for token in range(4):
        box.produced(token, 10, 8, 0.0)
    assert len(sends(box.shards_listed(2, shards("a", "b"), 1.0))) == 4


def test_after_a_long_silence_everything_goes_again_at_once_and_is_not_waited_for_longer_than_at_first() -> (
    None
):
    box = opened(boots=("a", ""))
    box.produced(0, 10, 8, 0.0)
    now = 0.0
    for _ in range(6):
        while not sends(box.ticked(now)):
            now += 1.0
    now += 1.0
    assert sends(box.host_back(now)) == [(0, 0, 0)]
    assert sends(box.ticked(now + 4.9)) == []
    assert sends(box.ticked(now + 5.0)) == [(0, 0, 0)]
    box.shards_listed(1, shards("", ""), now + 6.0)
    assert box.host_back(now + 7.0) == [], "nobody is there"


def test_duplicate_settles_as_stored_and_is_counted_beside() -> None:
    box = opened(boots=("a",))
    box.produced(0, 10, 8, 0.0)
    box.settled(0, stored(0, status="duplicate"), None, 1.0)
    box.settled(0, stored(0, status="duplicate"), None, 1.0)
    books = box.books()
    assert (books.stored, books.duplicate, books.pending) == (1, 2, 0)
    assert books.balanced()


def test_the_window_is_bounded_in_bytes_and_bundles() -> None:
    box = opened(window_bytes=100, bundles=3, boots=("a",))
    assert box.room
    box.produced(0, 100, 8, 0.0)
    assert not box.room
    box.settled(0, stored(0), None, 0.0)
    for token in range(1, 4):
        assert box.room
        box.produced(token, 1, 8, 0.0)
    assert not box.room


def test_one_bundle_larger_than_the_window_still_goes() -> None:
    box = opened(window_bytes=10, boots=("a",))
    assert box.room
    assert len(sends(box.produced(0, 1000, 8, 0.0))) == 1


def test_a_grant_holds_new_work_back_but_not_what_is_sent_again() -> None:
    box = opened(boots=("a",))
    box.granted(8, 0.0)
    assert len(sends(box.produced(0, 10, 8, 0.0))) == 1
    assert sends(box.produced(1, 10, 8, 0.0)) == []
    assert len(sends(box.shards_listed(2, shards("a2"), 0.0))) == 1
    released = box.settled(0, stored(0), 8, 1.0)
    assert sends(released) == [(0, 1, 1)]


def test_the_last_bundles_of_a_member_that_leaves_go_whatever_the_grant() -> None:
    box = opened(boots=("a",))
    box.granted(8, 0.0)
    for token in range(3):
        box.produced(token, 10, 8, 0.0)
    assert (box.in_flight, box.in_window) == (1, 3)
    box.leaving = True
    assert sends(box.ticked(0.1)) == [(0, 1, 1), (0, 2, 2)]
    assert (box.in_flight, box.in_window) == (3, 3)


def test_behind_a_closed_gate_one_waiting_bundle_is_enough() -> None:
    box = opened(boots=("a",))
    box.granted(8, 0.0)
    box.produced(0, 10, 8, 0.0)
    assert box.room
    box.produced(1, 10, 8, 0.0)
    assert not box.room
    box.settled(0, stored(0), 8, 1.0)
    assert box.room


def test_any_positive_grant_admits_one_bundle() -> None:
    box = opened(boots=("a",))
    box.granted(1, 0.0)
    assert len(sends(box.produced(0, 10, 800, 0.0))) == 1


def test_a_blocked_socket_is_left_alone_for_a_moment() -> None:
    box = opened(boots=("a",))
    box.produced(0, 10, 8, 0.0)
    box.send_failed(0, 0, 0.0)
    assert sends(box.produced(1, 10, 8, 0.001)) == []
    assert sends(box.ticked(0.5)) == [(0, 0, 0), (0, 1, 1)]


def test_refusals_and_stale_are_settled_with_their_reason() -> None:
    box = opened(boots=("a",))
    for token in range(3):
        box.produced(token, 10, 8, 0.0)
    box.settled(0, stored(0, status="refused", reason="not_finite"), None, 0.0)
    box.settled(0, stored(1, status="stale"), None, 0.0)
    box.dropped("window full", 2)
    books = box.books()
    assert books.refused_reasons == {"not_finite": 1}
    assert (books.produced, books.refused, books.stale, books.dropped, books.pending) == (5, 1, 1, 2, 1)
    assert books.balanced()


# --- bundles that wait outside, in the spool


def test_what_waits_outside_is_pending_and_comes_in_when_it_is_taken() -> None:
    box = opened(boots=("a",))
    for _ in range(3):
        box.put_outside()
    assert (box.books().produced, box.books().pending, box.in_window, box.pending) == (3, 3, 0, 3)
    assert sends(box.taken_in(7, 10, 8, None, 0.0)) == [(0, 0, 7)]
    assert (box.in_window, box.pending) == (1, 3)
    box.given_up("spool full")
    box.grown_stale()
    assert box.settled(0, stored(0), None, 0.0) == [Forget(7, "stored", "")]
    books = box.books()
    assert (books.produced, books.stored, books.stale, books.pending) == (3, 1, 1, 0)
    assert books.dropped_reasons == {"spool full": 1}
    assert books.balanced()


def test_books_go_on() -> None:
    before = Books(
        produced=20, stored=9, pending=4, refused=3, stale=2, dropped=2, duplicate=5,
        refused_reasons={"not_finite": 3}, dropped_reasons={"member died": 2},
    )  # fmt: skip
    box = Outbox(1000, 10, books=before)
    assert box.books() == before
    box.dropped("window full", 1)
    assert before.dropped_reasons == {"member died": 2}
    assert box.books().balanced()


def test_a_bundle_of_an_earlier_boot_keeps_its_name() -> None:
    box = opened()
    box.put_outside()
    [sent] = box.taken_in(3, 10, 8, Name(1, "old", 41), 0.0)
    assert sent == Send(1, 41, 3, "old")
    assert box.ticked(5.0) == [sent]
    assert box.shards_listed(1, shards("a", "b2"), 6.0) == [sent]
    assert box.settled(1, stored(41), None, 7.0) == [], "another bundle, of this boot"
    assert box.settled(0, stored(41), None, 7.0, boot_id="old") == [], "another shard"
    assert box.settled(1, stored(41), None, 7.0, boot_id="older") == []
    assert box.settled(1, stored(41), None, 7.0, boot_id="old") == [Forget(3, "stored", "")]


def test_boots_do_not_share_numbers() -> None:
    box = opened(boots=("a",))
    for _ in range(2):
        box.put_outside()
    box.taken_in(1, 10, 8, Name(0, "old", 0), 0.0)
    assert sends(box.taken_in(2, 10, 8, None, 0.0)) == [(0, 0, 2)]
    box.send_failed(0, 0, 0.0, "old")
    assert sends(box.ticked(0.5)) == [(0, 0, 1)]
    box.settled(0, stored(0, status="duplicate"), None, 1.0, boot_id="old")
    assert (box.pending, box.books().duplicate) == (1, 1)
    box.settled(0, stored(0, status="duplicate"), None, 1.0, boot_id="stranger")
    assert box.books().duplicate == 1


def test_an_earlier_boots_bundle_waits_for_its_shard_but_not_for_the_grant() -> None:
    box = opened(boots=("a", ""))
    box.granted(0, 0.0)
    box.put_outside()
    box.put_outside()
    assert box.taken_in(1, 10, 8, Name(1, "old", 5), 0.0) == []
    assert sends(box.ticked(100.0)) == []
    assert sends(box.shards_listed(1, shards("a", "b"), 101.0)) == [(1, 5, 1)]
    assert sends(box.taken_in(2, 10, 8, Name(0, "old", 5), 101.0)) == [(0, 5, 2)]
    box.put_outside()
    assert sends(box.taken_in(3, 10, 8, None, 101.0)) == []


def test_up_means_that_a_shard_is_there() -> None:
    box = Outbox(1000, 10)
    assert not box.up
    box.shards_listed(1, shards("", "b"), 0.0)
    assert box.up
    box.shards_listed(1, shards("", ""), 0.0)
    assert not box.up


def test_where_sessions_must_be_fresh_nobody_plays_ahead_of_the_grant() -> None:
    """What was played before there is room waits, and grows old; here players wait instead."""
    for fresh in (False, True):
        box = Outbox(1000, 10, fresh=fresh)
        box.shards_listed(1, shards("a"), 0.0)
        box.granted(0, 0.0)
        assert (box.room, box.gated) == (not fresh, fresh)
        box.granted(8, 0.0)
        assert (box.room, box.gated) == (True, False)
        assert len(sends(box.produced(0, 100, 8, 0.0))) == 1
        assert (box.room, box.gated) == (not fresh, fresh)
        assert box.settled(0, stored(0), 8, 0.1)
        assert (box.room, box.gated) == (True, False)


def test_what_players_are_at_needs_room_beside_what_was_sent() -> None:
    box = Outbox(1000, 10, fresh=True)
    box.shards_listed(1, shards("a"), 0.0)
    assert box.grants(1_000), "no limit was named"
    box.granted(16, 0.0)
    assert [box.grants(ahead) for ahead in (0, 8, 16)] == [True, True, False]
    assert sends(box.produced(0, 100, 8, 0.0))
    assert [box.grants(ahead) for ahead in (0, 8)] == [True, False]


@pytest.mark.parametrize("seed", range(20))
def test_lossy_shards_store_everything_once(seed: int) -> None:
    """Messages and receipts are lost at random, shards restart: all arrives, once, and the books always balance."""
    rng = random.Random(seed)
    box = Outbox(2000, 20)
    boots = ["a0", "b0"]
    box.shards_listed(1, shards(*boots), 0.0)
    kept: list[set[int]] = [set(), set()]
    arrived: dict[int, int] = {}
    now, made, total = 0.0, 0, 200
    effects: list[Effect] = []
    for _ in range(20_000):
        now += 0.05
        if made < total and box.room:
            effects += box.produced(made, rng.randrange(50, 200), 8, now)
            made += 1
        effects += box.ticked(now)
        if rng.random() < 0.02:
            which = rng.randrange(2)
            boots[which] = f"{which}{now}"
            effects += box.shards_listed(1, shards(*boots), now)
        batch, effects = effects, []
        for effect in batch:
            if isinstance(effect, Send) and rng.random() < 0.7:
                known = effect.seq in kept[effect.shard]
                if not known:
                    kept[effect.shard].add(effect.seq)
                    arrived[effect.token] = arrived.get(effect.token, 0) + 1
                if rng.random() < 0.7:
                    status = "duplicate" if known else "stored"
                    effects += box.settled(effect.shard, stored(effect.seq, status=status), None, now)
        assert box.books().balanced()
        if made == total and box.pending == 0:
            break
    assert arrived == dict.fromkeys(range(total), 1)
    assert box.books().stored == total


def test_a_socket_that_takes_messages_again_gets_what_waited_for_it_at_once() -> None:
    box = Outbox(10_000, 10, block_s=60.0)
    [first] = [*box.shards_listed(1, shards("boot"), 0.0), *box.produced(1, 100, 8, 0.0)]
    assert isinstance(first, Send)
    box.send_failed(0, first.seq, 0.0)
    assert box.produced(2, 100, 8, 0.5) == []
    assert [effect.token for effect in box.writable(0, 1.0) if isinstance(effect, Send)] == [1, 2]
    assert box.writable(0, 1.5) == []
    assert box.writable(7, 1.5) == []
