"""nodes/best.py: the state behind a candidate is kept until its evaluation comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from p2prl.core import messages as m
from p2prl.nodes import checkpoint
from p2prl.nodes.best import BestKeeper
from p2prl.nodes.checkpoint import BEST, Meta, Snapshot


class Trainer:
    """A learner whose memory is what it saves, as torch's tensors are."""

    def __init__(self, folder: Path, eval_episodes: int = 20, goal: float | None = None) -> None:
        self.folder, self.disk_full = folder, False
        self.memory = {"w": np.zeros(3)}
        self.version, self.play = 0, (None, 0)
        self.keeper = BestKeeper(folder, eval_episodes, goal, self.write)
        self.now = 0.0

    def snapshot(self) -> Snapshot:
        mean, episodes = self.play
        meta = Meta(
            version=self.version, updates=self.version, sampled=0, return_mean=mean, return_episodes=episodes
        )
        return Snapshot(meta, self.memory, self.memory)

    def write(self, state: Snapshot, name: str, keep_old: str) -> bool:
        if self.disk_full:
            return False
        checkpoint.save(self.folder, state.meta, state.learner, state.weights, name=name, keep_old=keep_old)
        return True

    def hear(self, wanted: bool = False, evaluation: m.Evaluation | None = None) -> None:
        self.now += 1.0
        mean, episodes = self.play
        progress = m.RunProgress(
            steps=0,
            episodes=0,
            return_mean=mean,
            return_episodes=episodes,
            candidate_wanted=wanted,
            evaluation=evaluation,
        )
        self.keeper.heard(progress, self.now, self.snapshot)

    def publish(self, changed: bool = True) -> bool:
        """True if it was a candidate."""
        self.version += 1
        if changed:
            self.memory["w"] += 1.0
        candidate = self.keeper.wanted
        self.keeper.published(self.now, self.snapshot().copy() if candidate else None, changed)
        return candidate

    def best(self) -> checkpoint.Checkpoint:
        return checkpoint.load(self.folder / BEST)


def evaluation(version: int, mean: float, episodes: int = 20) -> m.Evaluation:
    return m.Evaluation(
        version=version,
        episodes=episodes,
        return_mean=mean,
        return_low=mean - 1,
        return_high=mean + 1,
        length_mean=9.0,
        steps=0,
    )


def test_best_is_the_very_state_that_was_evaluated(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    assert not trainer.publish(), "nobody wants one"
    trainer.hear(wanted=True)
    assert trainer.publish()
    for _ in range(5):
        assert not trainer.publish(), "one at a time"
        trainer.hear()
    trainer.hear(evaluation=evaluation(2, 10.0))
    best = trainer.best()
    assert (best.meta.version, best.meta.eval_mean, best.meta.eval_episodes) == (2, 10.0, 20)
    assert (best.meta.eval_low, best.meta.eval_high) == (9.0, 11.0)
    assert best.learner["w"].tolist() == best.weights["w"].tolist() == [2.0] * 3


def test_each_evaluation_counts_once_and_only_for_its_own_state(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.hear(wanted=True)
    trainer.publish()
    trainer.hear(evaluation=evaluation(99, 50.0))
    assert not (tmp_path / BEST).exists(), "of a trainer before this one"
    trainer.hear(evaluation=evaluation(1, 10.0))
    written = (tmp_path / BEST / "DONE").stat().st_mtime_ns
    trainer.hear(evaluation=evaluation(1, 10.0))
    assert (tmp_path / BEST / "DONE").stat().st_mtime_ns == written


def test_a_candidate_that_was_lost_on_the_way_comes_again_with_or_without_new_weights(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.hear(wanted=True)
    assert trainer.publish()
    for _ in range(2):
        trainer.hear(wanted=True)
        assert not trainer.keeper.wanted, "it may be under way still"
    trainer.hear(wanted=True)
    assert trainer.keeper.overdue
    assert trainer.publish(changed=False)
    trainer.hear(evaluation=evaluation(2, 10.0))
    trainer.now += 10.0
    trainer.hear(wanted=True)
    assert not trainer.keeper.overdue, "the same weights again would tell nothing new"
    assert trainer.keeper.wanted


def test_few_episodes_are_for_the_curve_alone(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.hear(wanted=True)
    trainer.publish()
    trainer.hear(evaluation=evaluation(1, 10.0, episodes=4))
    assert not (tmp_path / BEST).exists()


def test_what_the_disk_did_not_take_is_not_the_bar(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.disk_full = True
    trainer.hear(wanted=True)
    trainer.publish()
    trainer.hear(evaluation=evaluation(1, 10.0))
    trainer.disk_full = False
    trainer.now += 10.0
    trainer.hear(wanted=True)
    trainer.publish()
    trainer.hear(evaluation=evaluation(2, 5.0))
    assert trainer.best().meta.version == 2


def test_at_the_goal_best_is_what_reached_it(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, goal=100.0)
    trainer.hear(wanted=True)
    trainer.publish()
    trainer.hear(evaluation=evaluation(1, 120.0))
    trainer.publish()
    trainer.keeper.goal_reached(trainer.snapshot)
    assert trainer.best().meta.version == 1, "an evaluated one that reached it is better known"
    other = Trainer(tmp_path / "other", goal=100.0)
    other.hear(wanted=True)
    other.publish()
    other.hear(evaluation=evaluation(1, 80.0))
    other.publish()
    other.keeper.goal_reached(other.snapshot)
    assert other.best().meta.version == 2


def test_the_bar_is_that_of_the_checkpoint_that_is_there(tmp_path: Path) -> None:
    first = Trainer(tmp_path)
    first.hear(wanted=True)
    first.publish()
    first.hear(evaluation=evaluation(1, 10.0))
    again = Trainer(tmp_path)
    again.keeper.resume()
    again.version = 7
    again.hear(wanted=True)
    again.publish()
    again.hear(evaluation=evaluation(8, 9.0))
    assert again.best().meta.version == 1
    nothing = Trainer(tmp_path / "none")
    nothing.keeper.resume()
    assert nothing.keeper.best.mean is None


def test_what_play_took_the_place_of_comes_back_also_after_a_resume(tmp_path: Path) -> None:
    for resumed in (False, True):
        folder = tmp_path / str(resumed)
        trainer = Trainer(folder)
        trainer.hear(wanted=True)
        trainer.publish()
        trainer.hear(evaluation=evaluation(1, 7.0))
        trainer.play = (10.0, 100)
        trainer.publish()
        trainer.hear()
        assert trainer.best().meta.version == 2
        assert checkpoint.candidates(folder) == [folder / BEST], "what is kept is no candidate for a resume"
        if resumed:
            trainer = Trainer(folder)
            trainer.keeper.resume()
            trainer.version, trainer.play = 2, (10.0, 100)
        trainer.now += 10.0
        trainer.hear(wanted=True)
        trainer.publish()
        trainer.hear(evaluation=evaluation(3, 3.0))
        best = trainer.best()
        assert (best.meta.version, best.meta.eval_mean) == (1, 7.0)
        assert best.weights["w"].tolist() == [1.0] * 3
        trainer.publish()
        trainer.hear()
        assert trainer.best().meta.version == 1, "play flatters"
        assert not (folder / checkpoint.KEPT).exists()


def test_without_evaluations_play_writes_at_most_each_two_seconds(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, eval_episodes=0)
    trainer.play = (5.0, 100)
    versions = []
    for _ in range(6):
        trainer.publish()
        trainer.hear()
        versions.append(trainer.best().meta.version)
    assert versions == [1, 1, 3, 3, 5, 5]
