"""Going back to a checkpoint: the replay without newer weights' sessions, the counters, what is set aside."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2prl.core import messages as m
from p2prl.errors import CorruptCheckpoint
from p2prl.nodes import broker_file, checkpoint
from p2prl.nodes.rewind import FOLDER, go_back
from p2prl.replay.rewind import rewrite, survey
from p2prl.replay.shard import ShardStore
from tests.unit.replay_kit import CARTPOLE, open_shard, play, push

T = CARTPOLE.ticks


def held(shard: ShardStore) -> set[tuple[int, int]]:
    """(seed, slot) of everything that a uniform shard holds."""
    first = shard.sample(600, 0, 0).columns[0][:, 0] if shard.sessions else np.empty((0, 3))
    return {(int(row[2]), int(row[1])) for row in first}


def served(shard: ShardStore, count: int, current: int = 99) -> list[tuple[int, int]]:
    """(seed, slot) of the next sessions of a queue."""
    return [(int(row[2]), int(row[1])) for row in shard.sample(count, 0, current).columns[0][:, 0]]


def rewound(folder: Path, version: int, steps: int = 0, inserted: int = 0) -> Path:
    """The log without what newer versions played."""
    target = folder.with_name(folder.name + "-new")
    rewrite(folder, target, survey(folder, version), version, T, steps, inserted)
    return target


# --- one shard's log


@pytest.mark.parametrize("segment_bytes", [200, 8 * 1024 * 1024])
def test_what_newer_weights_played_is_left_out_and_the_rest_is_there(
    tmp_path: Path, segment_bytes: int
) -> None:
    shard = open_shard(tmp_path / "log", segment_bytes=segment_bytes)
    for seq in range(9):
        push(shard, seq, version=seq // 3, current=9)
    shard.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    target = rewound(tmp_path / "log", version=1, steps=10**6, inserted=2 * 10**6)
    assert {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()} == before
    for _ in range(2):  # also when its own log is read again
        again = open_shard(target, segment_bytes=segment_bytes)
        assert held(again) == {(seed, slot) for seed in range(6) for slot in range(4)}
        assert (again.steps_total, again.inserted_ticks, again.stored_total) == (10**6, 2 * 10**6, 6)
        for seq in range(9):
            assert push(again, seq, current=9).verdict.status == "duplicate", "left out, and still known"
        again.close()
    again = open_shard(target, segment_bytes=segment_bytes)
    assert push(again, 9, version=9, current=9).verdict.status == "stored"
    assert again.sessions == 28
    again.close()


def test_totals_are_never_less_than_what_is_there(tmp_path: Path) -> None:
    shard = open_shard(tmp_path / "log")
    for seq in range(3):
        push(shard, seq)
    shard.close()
    again = open_shard(rewound(tmp_path / "log", version=0, steps=1, inserted=1))
    assert again.inserted_ticks == 3 * 4 * T
    assert again.steps_total == sum(play(4, seed)[1] for seed in range(3))
    again.close()


def test_older_sessions_find_room_in_a_ring_that_newer_ones_had_filled(tmp_path: Path) -> None:
    """Eight sessions fit; the old ones had been overwritten, but the log still has them."""
    shard = open_shard(tmp_path / "log", sessions=8)
    for seq in range(4):
        push(shard, seq, version=seq, current=9)
    assert held(shard) == {(seed, slot) for seed in (2, 3) for slot in range(4)}
    shard.close()
    again = open_shard(rewound(tmp_path / "log", version=1), sessions=8)
    assert held(again) == {(seed, slot) for seed in (0, 1) for slot in range(4)}
    again.close()


def test_a_queue_goes_on_behind_what_was_taken(tmp_path: Path) -> None:
    shard = open_shard(tmp_path / "log", "queue")
    for seq in range(4):
        push(shard, seq, version=seq, current=9)
    assert served(shard, 6) == [(0, slot) for slot in range(4)] + [(1, 0), (1, 1)]
    shard.close()
    found = survey(tmp_path / "log", 2)
    assert (found.kept, found.slots, found.taken, found.left_out) == (2, 8, 2, 1)
    again = open_shard(rewound(tmp_path / "log", version=2, inserted=100 * T), "queue")
    assert again.inserted_ticks == 100 * T
    assert served(again, 100) == [(1, 2), (1, 3), *((2, slot) for slot in range(4))]
    again.close()


@pytest.mark.parametrize("kind", ["uniform", "queue", "prioritised"])
def test_an_empty_shard_and_one_with_newer_sessions_alone(tmp_path: Path, kind: str) -> None:
    open_shard(tmp_path / "empty", kind).close()
    shard = open_shard(tmp_path / "newer", kind)
    push(shard, 0, version=5, current=5)
    shard.close()
    for name in ("empty", "newer", "never"):
        again = open_shard(rewound(tmp_path / name, version=4, steps=7, inserted=8), kind)
        assert (again.sessions, again.steps_total, again.inserted_ticks) == (0, 7, 8)
        assert push(again, 1, version=6, current=6).verdict.status == "stored"
        again.close()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=12),
    st.integers(0, 4),
    st.integers(0, 12),
    st.sampled_from(["uniform", "queue"]),
)
def test_whatever_was_stored_and_taken(
    tmp_path_factory: pytest.TempPathFactory,
    bundles: list[tuple[int, int]],
    version: int,
    taken: int,
    kind: str,
) -> None:
    folder = tmp_path_factory.mktemp("rewind")
    shard = open_shard(folder / "log", kind, segment_bytes=500)
    for seq, (played_by, slots) in enumerate(bundles):
        push(shard, seq, slots=slots, version=played_by, current=9)
    everything = [(seq, slot) for seq, (_, slots) in enumerate(bundles) for slot in range(slots)]
    gone = served(shard, taken) if kind == "queue" and taken else []
    assert gone == everything[: len(gone)]
    shard.close()
    wanted = [one for one in everything[len(gone) :] if bundles[one[0]][0] <= version]
    again = open_shard(rewound(folder / "log", version), kind, segment_bytes=500)
    if kind == "queue":
        assert served(again, 1000) == wanted
    else:
        assert held(again) == set(wanted)
    again.close()
    shutil.rmtree(folder)


# --- a run's folder


def save(run: Path, updates: int, version: int, name: str = "", **more: object) -> Path:
    meta = checkpoint.Meta(version=version, updates=updates, sampled=10 * updates, **more)  # type: ignore[arg-type]
    arrays = {"w": np.full(2, float(updates))}
    run.mkdir(exist_ok=True)
    return checkpoint.save(run / "checkpoints", meta, arrays, arrays, name=name)


RETURNS = {"count": [40.0], "best": [1.0, 2.0], "all": [3.0]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three checkpoints, at versions 1, 3 and 5, and nine bundles in two shards, of versions 0 to 8."""
    folder = tmp_path / "run"
    for index in range(2):
        shard = open_shard(folder / "replay" / f"shard-{index}")
        for version in range(index, 9, 2):
            push(shard, version, version=version, current=9)
        shard.close()
    save(folder, 10, 1, steps=100, inserted=150, returns=RETURNS, episodes=40)
    save(folder, 30, 3, steps=300, inserted=450)
    save(folder, 50, 5)
    last = m.Evaluation(
        version=4, episodes=20, return_mean=1.0, return_low=1.0, return_high=1.0, length_mean=1.0, steps=9
    )
    saved = broker_file.Saved(
        term=3,
        next_seed=77,
        shard_steps={0: 400, 1: 500},
        weights_version=8,
        episodes={"count": [900.0], "best": [9.0], "all": [9.0]},
        evaluation=last,
    )
    broker_file.save(folder, saved)
    return folder


def back(run: Path, name: str) -> Path:
    """Goes back; returns where the rest is."""
    went = go_back(run, run / "checkpoints" / name, queue=False, ticks=T, shards=2)
    assert went.folder.parent == run / FOLDER
    assert went.name == name
    return went.folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_checkpoint_is_the_last_one_and_later_ones_are_not_lost(run: Path) -> None:
    aside = back(run, "0000000010-v1")
    assert names(run / "checkpoints") == ["0000000010-v1"]
    assert names(aside / "checkpoints") == ["0000000030-v3", "0000000050-v5"]
    assert checkpoint.load(aside / "checkpoints" / "0000000050-v5").meta.updates == 50
    last = checkpoint.load_last(run / "checkpoints")
    assert last is not None
    assert last.meta.updates == 10


def test_counters_are_those_of_the_checkpoint_and_what_must_grow_goes_on(run: Path) -> None:
    before = (run / "broker.json").read_bytes()
    aside = back(run, "0000000010-v1")
    saved = broker_file.load(run)
    assert sum(saved.shard_steps.values()) == 100
    assert saved.episodes == RETURNS
    assert saved.evaluation is None
    assert (saved.term, saved.next_seed, saved.weights_version) == (3, 77, 8)
    assert (aside / "broker.json").read_bytes() == before
    shards = [open_shard(run / "replay" / f"shard-{index}") for index in range(2)]
    assert sum(shard.steps_total for shard in shards) == 100
    assert {index: shard.steps_total for index, shard in enumerate(shards)} == saved.shard_steps
    assert sum(shard.inserted_ticks for shard in shards) == 150
    assert set().union(*map(held, shards)) == {(seed, slot) for seed in (0, 1) for slot in range(4)}
    for shard in shards:
        shard.close()
    old = [open_shard(aside / "replay" / f"shard-{index}") for index in range(2)]
    assert set().union(*map(held, old)) == {(seed, slot) for seed in range(9) for slot in range(4)}
    for shard in old:
        shard.close()


def test_best_stays_if_it_is_older_and_goes_aside_if_it_is_newer(run: Path) -> None:
    save(run, 20, 2, name=checkpoint.BEST, eval_mean=5.0)
    aside = back(run, "0000000030-v3")
    assert names(run / "checkpoints") == ["0000000010-v1", "0000000030-v3", "best"]
    assert broker_file.load(run).evaluation is None, "of version 4"
    aside = back(run, "0000000010-v1")
    assert names(run / "checkpoints") == ["0000000010-v1"]
    assert names(aside / "checkpoints") == ["0000000030-v3", "best"]


def test_back_to_the_best_one(run: Path) -> None:
    """It gets a name by which it is the last one, and stays the best."""
    save(run, 20, 2, name=checkpoint.BEST, eval_mean=5.0, eval_episodes=20)
    back(run, "best")
    assert names(run / "checkpoints") == ["0000000010-v1", "0000000020-v2", "best"]
    last = checkpoint.load_last(run / "checkpoints")
    assert last is not None
    assert (last.path.name, last.meta.eval_mean) == ("0000000020-v2", 5.0)


def test_an_older_checkpoint_that_says_less_will_do(run: Path) -> None:
    path = run / "checkpoints" / "0000000030-v3"
    shutil.rmtree(path)
    save(run, 30, 3, steps=300, episodes=12, return_mean=7.0)
    back(run, "0000000030-v3")
    saved = broker_file.load(run)
    assert saved.episodes == {"count": [12.0]}
    shards = [open_shard(run / "replay" / f"shard-{index}") for index in range(2)]
    assert sum(shard.inserted_ticks for shard in shards) == 300, "steps are about ticks"
    for shard in shards:
        shard.close()


def test_of_a_queue_what_was_sampled_and_what_waits_is_what_was_inserted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shard = open_shard(folder / "replay" / "shard-0", "queue")
    for version in range(4):
        push(shard, version, version=version, current=9)
    shard.sample(2, 0, 9)
    shard.close()
    save(folder, 10, 2, steps=100, inserted=10**6)
    go_back(folder, folder / "checkpoints" / "0000000010-v2", queue=True, ticks=T, shards=1)
    again = open_shard(folder / "replay" / "shard-0", "queue")
    waiting = (3 * 4 - 2) * T
    assert again.inserted_ticks == 10 * 10 + waiting
    assert len(served(again, 100)) * T == waiting
    again.close()


def test_a_damaged_checkpoint_changes_nothing(run: Path) -> None:
    path = run / "checkpoints" / "0000000030-v3"
    (path / "weights.safetensors").write_bytes(b"")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(CorruptCheckpoint, match="v3"):
        back(run, "0000000030-v3")
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_one_that_cannot_be_read_is_set_aside_with_the_later_ones(run: Path) -> None:
    (run / "checkpoints" / "0000000050-v5" / "meta.json").write_bytes(b"{")
    aside = back(run, "0000000030-v3")
    assert names(aside / "checkpoints") == ["0000000050-v5"]


def test_where_there_is_no_replay_yet(tmp_path: Path) -> None:
    save(tmp_path / "run", 10, 1, steps=100)
    back(tmp_path / "run", "0000000010-v1")
    assert msgspec.json.decode((tmp_path / "run" / "broker.json").read_bytes())["shard_steps"] == {}
