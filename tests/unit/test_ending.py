"""nodes/ending.py: what a run was to stop at, and whether it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.config import Experiment, StopConfig
from p2prl.errors import UsageError
from p2prl.nodes import broker_file
from p2prl.nodes.ending import check_goes_on, note_reached, reached, somebody_plays
from p2prl.nodes.options import HostOptions
from p2prl.nodes.prepare import Prepared, RunFile, open_folder
from tests.unit import cli_samples
from tests.unit.test_rewind import save


@pytest.mark.parametrize(
    ("stop", "figures", "reason"),
    [
        (StopConfig(), (10**9, 500.0, 100), None),
        (StopConfig(mean_return=475.0), (10, 475.0, 100), "return"),
        (StopConfig(mean_return=475.0), (10, 474.9, 100), None),
        (StopConfig(mean_return=475.0), (10, 500.0, 99), None),
        (StopConfig(mean_return=0.0), (10, 0.0, 100), "return"),
        (StopConfig(mean_return=-100.0), (10, None, 0), None),
        (StopConfig(steps=10), (10, None, 0), "steps"),
        (StopConfig(steps=10), (9, None, 0), None),
        (StopConfig(steps=0), (9, None, 0), None),
    ],
)
def test_when_it_is_reached(
    stop: StopConfig, figures: tuple[int, float | None, int], reason: str | None
) -> None:
    found = reached(stop, *figures)
    assert (found and found[0]) == reason


@pytest.mark.parametrize(
    ("nodes", "plays"),
    [
        ([], False),
        ([{"state": "working", "players": 1}], True),
        ([{"state": "gone", "players": 1}, {"state": "away", "players": 2}], True),
        ([{"state": "gone", "players": 1}, {"state": "working", "players": 0}], False),
    ],
)
def test_who_is_waited_for_at_the_end(nodes: list[dict[str, object]], plays: bool) -> None:
    rows = [cli_samples.node(index, **fields) for index, fields in enumerate(nodes)]
    assert somebody_plays(cli_samples.status(nodes=rows)) == plays
    assert somebody_plays(None), "nobody knows"


def run(folder: Path, mean: float, steps: int) -> Path:
    folder.mkdir()
    saved = broker_file.Saved(shard_steps={0: steps}, episodes={"count": [300.0], "best": [mean] * 100})
    broker_file.save(folder, saved)
    return folder


def look(folder: Path, stop: StopConfig, file: RunFile, back_to: Path | None = None) -> None:
    options = HostOptions(Experiment(stop=stop), "h", results=folder, resume=True, back_to=back_to)
    check_goes_on(options, Prepared(None, None, folder, file))  # type: ignore[arg-type]


def test_a_run_that_is_there_is_not_resumed_and_the_way_on_is_said(tmp_path: Path) -> None:
    file, folder = RunFile("r", "n", 1.0), run(tmp_path / "run", 480.0, 5000)
    with pytest.raises(UsageError, match=r"mean_return = 475.*480.0.*--stop-return R.*--no-stop"):
        look(folder, StopConfig(mean_return=475.0), file)
    with pytest.raises(UsageError, match=r"stop.steps = 4000.*5,000 steps.*--stop-steps N"):
        look(folder, StopConfig(steps=4000), file)
    for stop in (StopConfig(), StopConfig(mean_return=490.0, steps=6000), StopConfig(time_s=1.0)):
        look(folder, stop, file)


def test_what_ended_after_the_end_does_not_hide_it(tmp_path: Path) -> None:
    """The last players' episodes had lowered the mean."""
    folder, stop = run(tmp_path / "run", 470.0, 5000), StopConfig(mean_return=475.0)
    note_reached(Prepared(None, None, folder, RunFile("r", "n", 1.0)), 476.0)  # type: ignore[arg-type]
    _, file = open_folder(Experiment(), folder, resume=True)
    assert file.reached_return == 476.0
    with pytest.raises(UsageError, match=r"476\.0"):
        look(folder, stop, file)
    look(folder, StopConfig(mean_return=480.0), file)
    assert file.reached_return is None, "it goes on: that is over"
    look(folder, stop, file)


def test_from_an_earlier_checkpoint_its_own_figures_count(tmp_path: Path) -> None:
    folder, stop = run(tmp_path / "run", 480.0, 5000), StopConfig(mean_return=475.0)
    early = save(folder, 10, 1, return_mean=30.0, return_episodes=100)
    late = save(folder, 20, 2, return_mean=479.0, return_episodes=100)
    look(folder, stop, RunFile("r", "n", 1.0), early)
    with pytest.raises(UsageError, match="479"):
        look(folder, stop, RunFile("r", "n", 1.0), late)
