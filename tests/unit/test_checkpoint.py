"""Checkpoints are whole or not there, whatever kills their writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2prl.errors import CorruptCheckpoint, P2prlError
from p2prl.nodes import checkpoint
from p2prl.nodes.checkpoint import BEST, Meta


def save(folder: Path, updates: int, name: str = "") -> Path:
    learner = {"step": np.array(updates), "m": np.arange(updates, dtype=np.float64)}
    weights = {"w": np.full((2, 3), updates, np.float32).T}
    meta = Meta(version=updates * 2, updates=updates, sampled=7, return_mean=float(updates))
    return checkpoint.save(folder, meta, learner, weights, name=name)


def updates(found: checkpoint.Checkpoint | None) -> int:
    assert found is not None
    return found.meta.updates


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "deleted" / "checkpoints", 5)
    found = checkpoint.load(save(tmp_path / "checkpoints", 5))
    assert found.meta == Meta(version=10, updates=5, sampled=7, return_mean=5.0)
    assert found.learner["step"].shape == ()
    np.testing.assert_array_equal(found.learner["m"], np.arange(5.0))
    np.testing.assert_array_equal(found.weights["w"], np.full((3, 2), 5, np.float32))
    assert found.weights["w"].dtype == np.float32


def test_how_far_training_was_is_told_in_words() -> None:
    assert Meta(version=10, updates=1, sampled=7).told() == "1 update, weights version 10"
    assert Meta(version=-1, updates=0, sampled=0).told() == "before the first update"


def test_none_at_all_is_none_or_an_error_that_says_when(tmp_path: Path) -> None:
    assert checkpoint.load_last(tmp_path / "absent") is None
    with pytest.raises(P2prlError, match="no checkpoint"):
        checkpoint.require(tmp_path)


@pytest.mark.parametrize("file", ["learner.safetensors", "weights.safetensors", "meta.json", "DONE"])
@pytest.mark.parametrize("how", ["gone", "cut", "changed"])
def test_a_damaged_one_is_passed_over_and_named(
    tmp_path: Path, file: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    bad = save(tmp_path, 2) / file
    data = bad.read_bytes()
    if how == "gone":
        bad.unlink()
    else:
        bad.write_bytes(data[:-1] if how == "cut" else bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(CorruptCheckpoint, match=bad.parent.name):
        checkpoint.load(bad.parent)
    assert updates(checkpoint.load_last(tmp_path)) == 1
    assert bad.parent.name in caplog.text


def test_none_readable_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    (save(tmp_path, 1) / "DONE").unlink()
    with pytest.raises(CorruptCheckpoint, match="no readable checkpoint"):
        checkpoint.load_last(tmp_path)


def test_pruning_leaves_the_newest_and_the_best(tmp_path: Path) -> None:
    save(tmp_path, 1, BEST)
    for number in (9, 10, 100):
        save(tmp_path, number)
    checkpoint.prune(tmp_path, 2)
    names = [path.name for path in checkpoint.candidates(tmp_path)]
    assert names == ["0000000100-v200", "0000000010-v20", BEST]
    checkpoint.prune(tmp_path, 0)
    assert updates(checkpoint.load_last(tmp_path)) == 100


def test_damaged_ones_do_not_outlive_what_is_written_after_them(tmp_path: Path) -> None:
    """They are newer by name: pruning would keep them, and delete each new one as soon as it is written."""
    save(tmp_path, 1)
    for number in (20, 21, 22):
        (save(tmp_path, number) / "DONE").unlink()
    found = checkpoint.load_last(tmp_path)
    assert found is not None
    checkpoint.set_aside(tmp_path, found)
    assert len(list(tmp_path.glob(".*.damaged"))) == 3
    for number in (2, 3, 4):
        save(tmp_path, number)
        checkpoint.prune(tmp_path, 2)
    assert updates(checkpoint.load_last(tmp_path)) == 4
    assert [path.name for path in checkpoint.candidates(tmp_path)] == ["0000000004-v8", "0000000003-v6"]
    assert len(list(tmp_path.glob(".*.damaged"))) == 3


def test_where_none_is_damaged_none_is_set_aside(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    save(tmp_path, 1, BEST)
    before = sorted(tmp_path.iterdir())
    found = checkpoint.load_last(tmp_path)
    assert found is not None
    checkpoint.set_aside(tmp_path, found)
    assert sorted(tmp_path.iterdir()) == before


def test_the_best_is_replaced_and_preferred_when_asked(tmp_path: Path) -> None:
    save(tmp_path, 3)
    save(tmp_path, 1, BEST)
    save(tmp_path, 2, BEST)
    assert updates(checkpoint.require(tmp_path, prefer_best=True)) == 2
    assert updates(checkpoint.require(tmp_path)) == 3
    assert not list(tmp_path.glob(".*"))


class Killed(BaseException):
    """As kill -9: nothing after it is done."""


@pytest.mark.parametrize("moment", range(3))
def test_a_kill_while_the_best_is_replaced_loses_no_best(
    tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 5)
    save(tmp_path, 1, BEST)
    rename, calls = Path.rename, [0]

    def dying(path: Path, target: Any) -> Path:
        if calls[0] == moment:
            raise Killed
        calls[0] += 1
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", dying)
    if moment < 2:
        with pytest.raises(Killed):
            save(tmp_path, 2, BEST)
    else:  # and after both renames, before the old one was deleted
        monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, **more: None)
        save(tmp_path, 2, BEST)
    monkeypatch.undo()
    best = 2 if moment == 2 else 1
    # A reader beside the writer finds it, and touches nothing.
    before = sorted(tmp_path.iterdir())
    assert updates(checkpoint.load_last(tmp_path, prefer_best=True)) == best
    assert updates(checkpoint.load_last(tmp_path)) == 5
    assert sorted(tmp_path.iterdir()) == before
    # The next writer mends it.
    checkpoint.prune(tmp_path, 1)
    checkpoint.tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000005-v10", BEST]
    assert updates(checkpoint.load(tmp_path / BEST)) == best


def test_tidying_leaves_nothing_unfinished_and_all_that_is_whole(tmp_path: Path) -> None:
    checkpoint.tidy(tmp_path / "absent")
    save(tmp_path, 1)
    for name in (".0000000002-v4.part", ".best.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "learner.safetensors").write_bytes(b"half")
    checkpoint.tidy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["0000000001-v2"]
