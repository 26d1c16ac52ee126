"""replay/prioritised.py against a plain table of priorities; and a shard with one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.core.schema import RESET
from p2prl.errors import LimitsForbid, RemoteProtocolError
from p2prl.replay.prioritised import FIRST, PrioritisedStore, priorities_from_frames, priority_bytes
from p2prl.replay.storage import Drawn, Sample
from tests.unit.replay_kit import CARTPOLE, open_shard, play, push

T, BYTES, OBS, FLAGS = CARTPOLE.ticks, CARTPOLE.session_bytes(), 0, 3
NOBODY: frozenset[str] = frozenset()


def ring(sessions: int, window: int = 1, seed: int = 0) -> PrioritisedStore:
    return PrioritisedStore(CARTPOLE, sessions * BYTES, window, np.random.default_rng(seed))


def drawn(sample: Sample) -> Drawn:
    assert sample.drawn is not None
    return sample.drawn


def places_of(sample: Sample) -> list[tuple[int, int, int]]:
    """(seed, slot, tick) of each sample's first row, as `play` wrote them into the observations."""
    first = sample.columns[OBS][:, 0]
    return [(int(row[2]), int(row[1]), int(row[0])) for row in first]


class Model:
    """What should be there: (seed, slot, tick) -> priority, by node, the newest `capacity` sessions."""

    def __init__(self, capacity: int, window: int) -> None:
        self.capacity, self.window = capacity, window
        self.sessions: list[tuple[str, dict[tuple[int, int, int], float]]] = []
        self.highest = 0.0

    def add(self, seed: int, slots: int, node: str) -> None:
        flags = play(slots, seed)[0]["flags"]
        priority = self.highest or FIRST
        for slot in range(slots):
            ticks = range(T - self.window + 1) if self.window else [0]
            real = [tick for tick in ticks if not self.window or not flags[tick, slot] & RESET]
            self.sessions.append((node, {(seed, slot, tick): priority for tick in real}))

    def live(self, out: frozenset[str] = NOBODY) -> dict[tuple[int, int, int], float]:
        held = self.sessions[-self.capacity :]
        return {place: value for node, session in held if node not in out for place, value in session.items()}

    def hear(self, highest: float) -> None:
        if not self.highest and highest:
            for _, session in self.sessions:
                session.update(dict.fromkeys(session, float(np.float32(highest))))
        self.highest = max(self.highest, highest)

    def prioritise(self, places: list[tuple[int, int, int]], values: list[float]) -> None:
        held = [session for _, session in self.sessions[-self.capacity :]]
        for place, value in zip(places, values, strict=True):
            for session in held:
                if place in session:
                    session[place] = value


def check(store: PrioritisedStore, model: Model, out: frozenset[str]) -> None:
    live = model.live(out)
    sample = store.sample(150, model.window, 0)
    assert store.mass() == len(live)
    assert store.total == pytest.approx(sum(live.values()), rel=1e-6)
    if not live:
        assert sample.count == 0
        return
    assert sample.count == 150
    assert drawn(sample).total == store.total
    for place, priority in zip(places_of(sample), drawn(sample).priorities, strict=True):
        assert live[place] == priority
    assert list(sample.versions) == [seed for seed, _, _ in places_of(sample)]


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 5), st.sampled_from("abc")),
    st.tuples(st.just("quarantine"), st.frozensets(st.sampled_from("abcd")), st.just("")),
    st.tuples(st.just("prioritise"), st.integers(1, 12), st.just("")),
    st.tuples(st.just("keep"), st.integers(1, 12), st.just("")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, min_size=1, max_size=20), st.integers(1, 9), st.integers(0, T), st.integers(0, 99))
def test_a_ring_draws_what_a_plain_table_of_priorities_says(
    actions: list[tuple[str, object, str]], capacity: int, window: int, seed: int
) -> None:
    """Bundles come, older ones go, priorities come at once or late, quarantines come and go."""
    store, model, out = ring(capacity, window, seed), Model(capacity, window), NOBODY
    rng = np.random.default_rng(seed)
    kept: list[Sample] = []
    for number, (action, what, node) in enumerate(actions):
        if action == "add":
            assert isinstance(what, int)
            store.add(len(model.sessions), play(what, number)[0], number, node)
            model.add(number, what, node)
        elif action == "quarantine":
            assert isinstance(what, frozenset)
            out = what
            store.quarantine(out)
        else:
            assert isinstance(what, int)
            kept.append(store.sample(what, window, 0))
            if action == "prioritise":
                for sample in kept:  # some of them may be long gone
                    values = rng.integers(1, 100, sample.count).astype(np.float32) / 8
                    highest = max([model.highest, *values.tolist()])
                    for one in (store, model):
                        one.hear(highest)
                    store.prioritise(drawn(sample).ids, values)
                    model.prioritise(places_of(sample), values.tolist())
                kept.clear()
        check(store, model, out)


def test_draws_are_as_likely_as_their_priorities() -> None:
    store = ring(50, 3)
    for seed in range(10):
        store.add(5 * seed, play(5, seed)[0], seed)
    for _ in range(40):  # give nearly every place a priority of its own
        sample = store.sample(400, 3, 0)
        store.prioritise(
            drawn(sample).ids, np.array([1 + (7 * hash(p) % 13) for p in places_of(sample)], np.float32)
        )
    counts: Counter[tuple[int, int, int]] = Counter()
    priorities: dict[tuple[int, int, int], float] = {}
    draws = 100_000
    for _ in range(draws // 500):
        sample = store.sample(500, 3, 0)
        counts.update(places_of(sample))
        priorities.update(zip(places_of(sample), drawn(sample).priorities.tolist(), strict=True))
    assert len(priorities) == store.mass()
    assert len(set(priorities.values())) == 13
    expected = {place: draws * value / store.total for place, value in priorities.items()}
    statistic = sum((counts[place] - mean) ** 2 / mean for place, mean in expected.items())
    freedom = len(expected) - 1
    # As of independent draws, and six standard deviations above; the seed is fixed.
    assert statistic < freedom + 6 * (2 * freedom) ** 0.5


def test_priorities_that_come_after_their_session_is_gone_change_nothing() -> None:
    store = ring(4)
    store.add(0, play(4, 0)[0], 0)
    late = drawn(store.sample(50, 1, 0))
    store.add(4, play(4, 1)[0], 1)  # in the very same places
    before = store.total
    assert store.prioritise(late.ids, np.full(50, 1000, np.float32)) == 0
    assert store.total == before


def test_new_sessions_get_the_highest_priority_seen_in_any_shard() -> None:
    store = ring(100)
    store.add(0, play(3, 0)[0], 0)
    first = drawn(store.sample(5, 1, 0))
    assert set(first.priorities) == {np.float32(FIRST)}
    store.hear(0.25)  # the first that was seen: so far all were alike, and are so still
    assert set(drawn(store.sample(50, 1, 0)).priorities) == {np.float32(0.25)}
    store.prioritise(first.ids, np.full(5, 0.125, np.float32))
    store.hear(8.0)
    store.hear(0.5)  # a trainer that began anew does not know better
    store.add(3, play(3, 1)[0], 1)
    sample = store.sample(500, 1, 0)
    by_seed = {seed: set() for seed in (0, 1)}  # type: dict[int, set[float]]
    for (seed, _, _), priority in zip(places_of(sample), drawn(sample).priorities.tolist(), strict=True):
        by_seed[seed].add(priority)
    assert by_seed[1] == {8.0}
    assert by_seed[0] <= {0.125, 0.25}


@pytest.mark.parametrize(
    ("ids", "priorities", "reason"),
    [
        ([[0, 0]], [np.nan], "not_finite"),
        ([[0, 0]], [np.inf], "not_finite"),
        ([[0, 0]], [-1.0], "not_finite"),
        ([[0, 0]], [0.0], "not_finite"),
        ([[0, -1]], [1.0], "malformed"),
        ([[0, 10**6]], [1.0], "malformed"),
        ([[0, 0], [0, 4 * T]], [1.0, 1.0], "malformed"),
    ],
)
def test_priorities_that_cannot_be_are_refused_as_a_whole(
    ids: list[list[int]], priorities: list[float], reason: str
) -> None:
    store = ring(4)
    store.add(0, play(4, 0)[0], 0)
    before = store.total
    with pytest.raises(RemoteProtocolError) as caught:
        store.prioritise(np.array(ids, np.int64), np.array(priorities, np.float32))
    assert caught.value.reason == reason
    assert store.total == before


def test_a_place_that_cannot_be_drawn_gets_no_priority() -> None:
    store = ring(1)
    flags = np.zeros((T, 1), np.uint8)
    flags[3] = RESET
    store.add(0, {**play(1)[0], "flags": flags}, 0)
    assert store.prioritise(np.array([[0, 3], [0, 4]], np.int64), np.array([9.0, 9.0], np.float32)) == 1
    assert store.total == (T - 2) * FIRST + 9.0
    assert 3 not in {tick for _, _, tick in places_of(store.sample(200, 1, 0))}


@pytest.mark.parametrize("highest", [float("nan"), float("inf"), -1.0])
def test_a_highest_priority_that_cannot_be_is_refused(highest: float) -> None:
    with pytest.raises(RemoteProtocolError):
        ring(4).hear(highest)


def test_another_window_than_that_of_the_priorities_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="priorities are for 2"):
        ring(4, 2).sample(5, 1, 0)


def test_windows_longer_than_a_session_have_no_place() -> None:
    store = ring(4, T + 1)
    store.add(0, play(3)[0], 0)
    assert (store.mass(), store.total) == (0, 0.0)


def test_a_capacity_that_no_machine_has_is_refused_with_its_size() -> None:
    with pytest.raises(LimitsForbid, match=r"set replay\.capacity_bytes lower"):
        PrioritisedStore(CARTPOLE, 1 << 60, 1, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("count", "frames"),
    [
        (2, []),
        (2, [bytes(32)]),
        (2, [bytes(32), bytes(8), bytes(8)]),
        (2, [bytes(31), bytes(8)]),
        (2, [bytes(32), bytes(4)]),
        (3, [bytes(32), bytes(8)]),
        (0, [bytes(16), b""]),
    ],
)
def test_frames_that_are_no_priorities_are_refused(count: int, frames: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        priorities_from_frames(count, frames)
    assert caught.value.reason == "malformed"


def test_the_memory_of_priorities_is_that_of_the_tree() -> None:
    store = ring(1000, 2)
    assert priority_bytes(CARTPOLE, 1000 * BYTES, 2) == sum(level.nbytes for level in store._tree._levels)
    assert priority_bytes(CARTPOLE, 1000 * BYTES, 0) < priority_bytes(CARTPOLE, 1000 * BYTES, 2)


# --- a shard


def test_after_a_restart_all_begins_anew_at_the_maximum(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, "prioritised")
    for seq in range(3):
        push(shard, seq)
    ids = drawn(shard.sample(60, 1, 0)).ids
    shard.hear(5.0)
    shard.prioritise(ids, np.full(60, 0.5, np.float32))
    assert len(set(drawn(shard.sample(200, 1, 0)).priorities)) > 1
    held = shard.mass()
    shard.close()
    again = open_shard(tmp_path, "prioritised")
    assert (again.mass(), again.highest) == (held, 0.0)
    again.hear(5.0)  # as the trainer's first question says
    push(again, 3)
    assert set(drawn(again.sample(200, 1, 0)).priorities) == {np.float32(5.0)}
    again.close()


def test_priorities_for_another_kind_of_replay_are_refused(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    push(shard, 0)
    assert shard.sample(5, 1, 0).drawn is None
    with pytest.raises(RemoteProtocolError, match="a uniform replay"):
        shard.prioritise(np.zeros((1, 2), np.int64), np.ones(1, np.float32))
    shard.hear(3.0)
    assert shard.highest == 0.0
    shard.close()
