"""A run that stops at a mean return leaves a `best` that reached it."""

from __future__ import annotations

from pathlib import Path

from p2prl.nodes import checkpoint
from tests import kit
from tests.loopback.survival_kit import RECOVERY_S, hosted

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
