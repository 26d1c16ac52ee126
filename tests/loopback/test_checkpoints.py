"""Which checkpoints there are: `best` of a run that reached its goal, and the first one."""

from __future__ import annotations

from pathlib import Path

from p2prl.nodes import checkpoint
from tests import kit
from tests.conftest import wait_until
from tests.loopback.survival_kit import END_S, PACED, RECOVERY_S, hosted

SLOW = f"{kit.SAMPLES / 'slow.py'}:Slow"


def test_best_reached_the_goal_though_the_trainer_was_in_the_middle_of_an_update(tmp_path: Path) -> None:
    """The goal is reached with the hundredth episode; the trainer hears of it after the order to end."""
    goal = -1.0
    settings = ("--env", "chain", "--agent", SLOW, "--players", "1", "--stop-return", str(goal))
    with hosted(tmp_path, settings=settings) as run:
        assert run.host.wait(RECOVERY_S) == 0
        stopped = run.host.last("stopped")
    assert stopped is not None
    assert stopped["reason"] == "return"
    best = checkpoint.load(run.results / "checkpoints" / checkpoint.BEST).meta
    assert best.eval_mean is None, "too early for an evaluation"
    assert best.return_episodes == 100
    assert best.return_mean is not None
    assert best.return_mean >= goal
    newest = checkpoint.load_last(run.results / "checkpoints")
    assert newest is not None
    assert newest.meta.updates == best.updates > 0


def test_the_first_checkpoint_comes_with_the_first_weights_that_were_trained(tmp_path: Path) -> None:
    settings = (*PACED, "--players", "1", "--set", "train.checkpoint_interval_s=1000")
    with hosted(tmp_path, settings=settings) as run:
        run.host.wait_for("progress", lambda e: e["updates"] > 0 and e["weights_version"] > 0, RECOVERY_S)
        folder = run.results / "checkpoints"
        wait_until(lambda: checkpoint.updates_of(folder), RECOVERY_S, "a checkpoint")
        assert run.host.end(END_S) == 0
