"""cli/eval_progress.py and what feeds it: how far an evaluation is, however slow its environment."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial

import pytest

from p2prl.cli.eval_progress import eval_progress
from p2prl.learn.evaluation import evaluate
from p2prl.nodes.evaluate import Played, _counted
from tests.unit.test_evaluation import SPEC, Rightwards, make


class Clock:
    """A clock that only moves when told."""

    time = 100.0

    def __call__(self) -> float:
        return self.time


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def play(clock: Clock) -> None:
    """Two episodes of an environment that takes 9 s for a step; Ctrl-C in the second."""
    with eval_progress(clock) as progress:
        played = Played(2)
        progress(played)
        for returns in ([], [], [12.0], [12.0]):
            clock.time += 9
            played.steps += 1
            played.returns = returns
            progress(played)
        raise KeyboardInterrupt


def test_on_a_terminal_steps_and_time_are_seen_and_what_was_played_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(KeyboardInterrupt):
        play(Clock())
    drawn = [line.replace("\x1b[K", "").strip() for line in terminal.getvalue().split("\r")]
    assert [line for line in drawn if line] == [
        "0 of 2 episodes, 0 steps, 0 s",
        "0 of 2 episodes, 1 step, 9 s",
        "0 of 2 episodes, 2 steps, 18 s",
        "1 of 2 episodes, 3 steps, 27 s",
        "1 of 2 episodes, 4 steps, 36 s",
        "p2prl: stopped after 1 of 2 episodes, 4 steps, 36 s; mean return of those: 12.0",
    ]


def test_in_a_pipe_a_line_comes_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(Clock())
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.splitlines() == [
        "p2prl: 0 of 2 episodes, 2 steps, 18 s",
        "p2prl: 1 of 2 episodes, 4 steps, 36 s",
        "p2prl: stopped after 1 of 2 episodes, 4 steps, 36 s; mean return of those: 12.0",
    ]


def test_what_ends_by_itself_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with eval_progress(Clock()) as progress:
        progress(Played(2, 1, [1.0, 2.0]))
    assert capsys.readouterr().err == ""
    with pytest.raises(KeyboardInterrupt), eval_progress(Clock()):
        raise KeyboardInterrupt  # before the first step
    assert capsys.readouterr().err == ""


def test_large_figures_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    def play_and_stop(progress: Callable[[Played], None]) -> None:
        progress(Played(10_000, 12_000, [1.0] * 1200))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), eval_progress(Clock()) as progress:
        play_and_stop(progress)
    told = "p2prl: stopped after 1,200 of 10,000 episodes, 12,000 steps, 0 s; mean return of those: 1.0\n"
    assert capsys.readouterr().err == told


def test_each_step_is_told_with_the_episodes_that_are_over() -> None:
    told: list[tuple[int, int, int]] = []
    rows = _counted(
        partial(evaluate, make, SPEC, Rightwards(), 5, 3),
        5,
        lambda played: told.append((played.episodes, played.steps, len(played.returns))),
    )
    assert [steps for _, steps, _ in told] == list(range(sum(length for _, length in rows) + 1))
    over = [over for _, _, over in told]
    assert over == sorted(over)
    assert told[0] == (5, 0, 0)
    assert told[-1] == (5, len(told) - 1, 5)
