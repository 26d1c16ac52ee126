"""Learning that goes wrong: said, counted, and neither published nor saved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from p2prl.learn.finite import not_finite
from p2prl.nodes import checkpoint
from p2prl.nodes.guard import MOST_IN_A_ROW
from tests import kit
from tests.conftest import wait_until
from tests.loopback.survival_kit import END_S, RECOVERY_S, hosted
from tests.samples.drill import intact

DIVERGING = f"{kit.SAMPLES / 'diverging.py'}:Diverging"
PACED = ("--env", "tests.samples:Paced-v0", "--agent", DIVERGING, "--envs", "1")
#: An update in two ticks, so that it goes wrong soon, but not before the host has said that it started.
QUICK = (
    *(*PACED, "--set", "agent.samples_per_insert=0.5", "--set", "train.publish_interval_s=0"),
    *("--set", "agent.min_ticks=400"),
    *("--set", "play.eval_share=0"),  # so that nothing is published but what is new
)


def checkpoints(results: Path) -> list[checkpoint.Checkpoint]:
    """All of a run that has ended, `best` too, each of them good."""
    found = [checkpoint.load(path) for path in checkpoint.candidates(results / "checkpoints")]
    for one in found:
        assert not not_finite(one.weights)
        assert not not_finite(one.learner, infinity=False)
        assert intact(one.meta.updates, one.learner, one.weights)
    return found


def test_updates_that_are_skipped_for_good_end_the_run_with_the_last_good_checkpoint_named(
    tmp_path: Path,
) -> None:
    with hosted(tmp_path, "--players", "1", settings=QUICK) as run:
        assert run.host.wait(RECOVERY_S) == 1
        stopped = run.host.last("stopped")
        assert stopped is not None
        assert stopped["reason"] == "error"
        text = stopped["text"]
        assert f"{MOST_IN_A_ROW} updates in a row were skipped, because the loss is nan" in text
        assert "try a lower agent.learning_rate (it is 0.5)" in text
        assert "rewards of tests.samples:Paced-v0" in text
        assert run.host.errors[-1] == f"p2prl: {text}", "one line, and it is the last"
        named = re.search(r"the last good checkpoint is (\S+) \(20 updates\)", text)
        assert named is not None, text
        assert Path(named[1]) in [one.path for one in checkpoints(run.results)]
        assert (stopped["updates"], stopped["updates_skipped"]) == (20, 20)
        before = stopped["weights_version"]
    # It goes on from there once it is well again, and knows what was.
    again = ("--resume", "--results", str(run.results), "--players", "1", "--set", "agent.times=0")
    with hosted(tmp_path, *again) as run:
        shown = run.host.wait_for("progress", lambda e: e["updates"] > 40, RECOVERY_S)
        assert shown["updates_skipped"] == 20
        assert shown["weights_version"] > before
        assert run.host.end(END_S) == 0


def test_a_few_skipped_updates_are_counted_shown_and_not_published(tmp_path: Path) -> None:
    few = MOST_IN_A_ROW - 1
    settings = (*QUICK, "--set", f"agent.times={few}")
    with hosted(tmp_path, "--players", "1", settings=settings) as run:
        shown = run.host.wait_for("progress", lambda e: e["updates"] > 40, RECOVERY_S)
        assert shown["updates_skipped"] == few
        status = run.status()
        assert status["updates_skipped"] == few
        told = f"{few} updates were skipped so far, the last because the loss is nan"
        assert told in status["trainer"]["reason"]
        assert len([line for line in run.host.errors if "an update was skipped" in line]) == 1
        rows = wait_until(lambda: (run.results / "progress.jsonl").read_text().splitlines(), RECOVERY_S)
        assert isinstance(rows, list)
        assert f'"updates_skipped":{few}' in rows[-1]
        assert run.host.end(END_S) == 0
    meta = checkpoints(run.results)[0].meta
    assert meta.skipped == few
    assert meta.version <= meta.updates + 1, "a skipped update was published"


@pytest.mark.parametrize("how", ["weights", "state"])
def test_what_is_not_finite_is_neither_published_nor_saved(tmp_path: Path, how: str) -> None:
    """The agent says nothing of it."""
    often = ("--set", "train.checkpoint_interval_s=0.05", "--set", f"agent.how={how}")
    with hosted(tmp_path, "--players", "1", settings=(*QUICK, *often)) as run:
        assert run.host.wait(RECOVERY_S) == 1
        stopped = run.host.last("stopped")
    assert stopped is not None
    assert stopped["reason"] == "error"
    what = "the weights are" if how == "weights" else "the learner's state is"
    assert (
        f"learning failed: {what} not finite: scale holds nan; the last good checkpoint is" in stopped["text"]
    )
    assert [one.meta.updates for one in checkpoints(run.results) if one.meta.updates <= 20]
    assert "got weights that are not finite" not in run.host.stderr


def test_dqn_skips_what_is_infinite(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    settings = ("--set", "agent.reward_scale=1e39", "--set", "agent.min_ticks=200")
    with hosted(tmp_path, "--players", "1", settings=("chain", *settings)) as run:
        assert run.host.wait(RECOVERY_S) == 1
        stopped = run.host.last("stopped")
    assert stopped is not None
    assert stopped["reason"] == "error"
    assert re.search(
        rf"{MOST_IN_A_ROW} updates in a row were skipped, because the loss is (inf|nan)", stopped["text"]
    )
    assert "try a lower agent.reward_scale (it is 1e+39), and look at the rewards of chain" in stopped["text"]


def test_a_trainer_that_raises_is_shown_with_its_words(tmp_path: Path) -> None:
    settings = (
        "--env",
        "tests.samples:Paced-v0",
        "--agent",
        f"{kit.SAMPLES / 'drill.py'}:Drill",
        "--envs",
        "1",
    )
    with hosted(tmp_path, "--players", "1", "--set", "agent.raises_in=3", settings=settings) as run:
        word = "FloatingPointError: the loss is not a number"

        def shown() -> bool:
            return any("the trainer failed" in text and word in text for text in run.status()["warnings"])

        wait_until(shown, RECOVERY_S, "the trainer's failure is among the warnings")
        assert run.host.end(END_S) == 0


def test_a_learner_that_always_raises_ends_the_run_with_its_error_in_one_line(tmp_path: Path) -> None:
    settings = (
        "--env",
        "tests.samples:Paced-v0",
        "--agent",
        f"{kit.SAMPLES / 'drill.py'}:Drill",
        "--envs",
        "1",
    )
    with hosted(tmp_path, "--players", "1", "--set", "agent.raises_in=1", settings=settings) as run:
        assert run.host.wait(60) == 1
        stopped = run.host.last("stopped")
    assert stopped is not None
    assert stopped["reason"] == "error"
    assert re.fullmatch(
        r"drill.py:Drill: its learner's update raised FloatingPointError: the loss is not a number "
        r"\(drill.py line \d+\); so it went 5 times in a row, without an update",
        stopped["text"],
    )
    assert "Traceback" not in run.host.stderr
    assert len([line for line in run.host.errors if "trainer" in line and "died" in line]) == 4
