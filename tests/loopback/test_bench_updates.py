"""scripts/bench: updates of a run beside its learner's alone."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from bench_parts import updates

from tests.conftest import wait_until

pytest.importorskip("torch")


@pytest.mark.parametrize("name", updates.TRAININGS)
def test_the_limit_updates_on_batches_of_the_agents_own_size(name: str) -> None:
    what = updates.TRAININGS[name]
    batches, agent = updates.ready(what)
    replay = agent.replay()
    assert replay.batch == what.settings["batch"]
    for batch in batches:
        rows = replay.window or replay.ticks
        assert batch["obs"].shape == (replay.batch, rows + 1, 4)
        assert batch["flags"].shape == (replay.batch, rows)
        assert batch["version"].shape == (replay.batch,)
    assert not (batches[0]["obs"] == batches[1]["obs"]).all()
    assert agent.learner("cpu", 1).update(batches[0]).skipped == ""


def test_beside_its_limit_another_process_plays_until_it_was_measured(home: Path) -> None:
    what = updates.TRAININGS["dqn, 2x256 units, batches of 64"]
    with updates.playing(what):
        [player] = (one for one in psutil.Process().children() if one.nice() > psutil.Process().nice())
        spent = player.cpu_times().user
        assert updates.bare(what, 0.1) > 0
        wait_until(lambda: player.cpu_times().user > spent, 10, "play")
    assert not player.is_running()


def test_a_run_is_measured_while_its_player_plays(home: Path) -> None:
    what = updates.TRAININGS["dqn, 2x256 units, batches of 64"]
    made, played = updates.running(what, 0.3)
    assert made > 0
    assert played > 0
