"""core/dedup.py against a plain set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.core.dedup import MAX_BOOTS, MAX_NODES, MAX_SEQ, WINDOW, Dedup


@given(st.lists(st.integers(0, 200), max_size=100))
def test_it_is_a_set_while_numbers_are_near(seqs: list[int]) -> None:
    dedup, model = Dedup(), set[int]()
    for seq in seqs:
        assert dedup.seen("n", "b", seq) == (seq in model)
        dedup.mark("n", "b", seq)
        model.add(seq)
    assert {seq for seq in range(201) if dedup.seen("n", "b", seq)} == model


@given(st.lists(st.integers(0, MAX_SEQ - 1), max_size=30))
def test_what_was_marked_is_seen_whatever_the_jumps(seqs: list[int]) -> None:
    dedup = Dedup()
    for seq in seqs:
        dedup.mark("n", "b", seq)
    assert all(dedup.seen("n", "b", seq) for seq in seqs)
    assert all(len(item.bits) <= WINDOW // 8 for item in dedup.snapshot())


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("ab"), st.integers(0, 50)), max_size=60))
def test_a_snapshot_restores_everything(marks: list[tuple[str, str, int]]) -> None:
    dedup = Dedup()
    for node, boot, seq in marks:
        dedup.mark(node, boot, seq)
    again = Dedup(dedup.snapshot())
    for node in "xyz":
        for boot in "ab":
            for seq in range(51):
                assert (
                    again.seen(node, boot, seq) == dedup.seen(node, boot, seq) == ((node, boot, seq) in marks)
                )


_SEQS = st.lists(st.integers(0, 40) | st.integers(MAX_SEQ - 40, MAX_SEQ - 1), max_size=30)


@given(_SEQS, _SEQS)
def test_a_snapshot_adds_to_what_is_remembered(first: list[int], second: list[int]) -> None:
    one, other, both = Dedup(), Dedup(), Dedup()
    for dedup, seqs in ((one, first), (other, second), (both, [*first, *second])):
        for seq in seqs:
            dedup.mark("n", "b", seq)
    one.restore(other.snapshot())
    for seq in (*range(41), *range(MAX_SEQ - 40, MAX_SEQ)):
        assert one.seen("n", "b", seq) == both.seen("n", "b", seq)


def test_gaps_stay_open_within_the_window_and_close_beyond_it() -> None:
    dedup = Dedup()
    dedup.mark("n", "b", 0)
    dedup.mark("n", "b", WINDOW)
    assert not dedup.seen("n", "b", 1)
    dedup.mark("n", "b", WINDOW + 1)
    assert dedup.seen("n", "b", 1)
    assert not dedup.seen("n", "b", 2)


def test_nodes_and_boots_are_apart() -> None:
    dedup = Dedup()
    dedup.mark("n", "b", 5)
    assert not dedup.seen("n", "c", 5)
    assert not dedup.seen("m", "b", 5)


def test_the_least_recently_used_boot_and_node_are_forgotten_first() -> None:
    dedup = Dedup()
    for boot in range(MAX_BOOTS):
        dedup.mark("n", f"b{boot}", 0)
    dedup.mark("n", "b0", 1)
    dedup.mark("n", "new", 0)
    assert dedup.seen("n", "b0", 0)
    assert not dedup.seen("n", "b1", 0)
    for node in range(MAX_NODES):
        dedup.mark(f"m{node}", "b", 0)
    assert not dedup.seen("n", "b0", 0)
    assert dedup.seen("m0", "b", 0)
    assert len(dedup.snapshot()) == MAX_NODES
