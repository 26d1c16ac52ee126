"""The live view on a terminal: calm, and log lines stand above it whole. A small emulator is the judge."""

from __future__ import annotations

import io
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from p2prl.cli.lines import left_line
from p2prl.cli.reporters import LiveHost, LiveMember, stopped_lines
from p2prl.cli.screen import Screen
from p2prl.core.messages import Books
from p2prl.nodes.report import HostStopped, Left
from tests.unit import cli_samples as samples

_TOKEN = re.compile(r"\x1b\[(\??\d*(?:;\d+)*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")

_WIDTH = 80


class Clock:
    """A clock that only moves when told."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def terminal() -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=_WIDTH, height=24, legacy_windows=False, _environ={}
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def screen_of(text: str) -> list[str]:
    """What a terminal would show: lines, cursor up, erase line; anything else that moves fails the test."""
    lines, row = [""], 0
    column = 0
    for match in _TOKEN.finditer(text):
        number, code, carriage, newline, plain = match.groups()
        if code == "A":
            row -= int(number or 1)
            assert row >= 0
        elif code == "K":
            lines[row] = ""
        elif code:
            assert code in "mhl", match[0]
        elif carriage:
            column = 0
        elif newline:
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif plain:
            for char in plain:
                if column == _WIDTH:
                    row, column = row + 1, 0
                    lines += [""] * (row + 1 - len(lines))
                lines[row] = lines[row][:column].ljust(column) + char + lines[row][column + 1 :]
                column += 1
    return [line.rstrip() for line in lines]


def test_log_lines_stand_above_the_view_and_the_view_is_there_once() -> None:
    console, clock = terminal(), Clock()
    view = LiveHost(console, now=clock)
    view.started(samples.STARTED)
    for second in range(5):
        clock.time += 1
        view.status(samples.status(steps=1000 + second))
        view.log("info", "shard 0", f"line {second}a " + "x" * 100)
        view.log("error", "member", f"line {second}b")
        assert f"1,00{second}" in "\n".join(screen_of(written(console))), "the view is the newest one"
    view.status(samples.status(steps=1004))
    view.stopped(HostStopped("signal", "", samples.status(steps=1004)))
    lines = screen_of(written(console))
    text = "\n".join(lines)
    order = [text.index(f"line {second}{letter}") for second in range(5) for letter in "ab"]
    title = next(index for index, line in enumerate(lines) if line.startswith("cartpole-1129"))
    assert order == sorted(order)
    assert max(order) < text.index(lines[title])
    assert text.count("node (4)") == 1
    assert "1,004" in text[text.index(lines[title]) :]
    assert "1,003" not in text
    assert "stopped: signal" in text
    assert "p2prl host --resume" not in text, "there is no checkpoint"


def test_it_redraws_at_most_twice_a_second_however_much_is_told() -> None:
    console, clock = terminal(), Clock()
    view = LiveHost(console, now=clock)
    for _ in range(400):
        clock.time += 0.01
        view.status(samples.status())
        view.log("info", "shard 0", "flood")
    drawings = written(console).count("node (4)")
    assert 4 <= drawings <= 9, drawings
    view.close()
    assert written(console).count("flood") == 400, "nothing that was told is lost"


def test_the_echo_of_ctrl_c_does_not_tear_the_view() -> None:
    console, clock = terminal(), Clock()
    view = LiveHost(console, now=clock)
    view.status(samples.status(nodes=[samples.node(1, reason="x" * 200)], warnings=[]))
    console.file.write("^C")
    clock.time += 1
    view.status(samples.status(warnings=["y " * 100]))
    view.close()
    lines = screen_of(written(console))
    assert sum(line.startswith("cartpole-1129") for line in lines) == 1


def test_an_error_is_told_at_once() -> None:
    console, clock = terminal(), Clock()
    view = LiveHost(console, now=clock)
    clock.time += 1
    view.status(samples.status())
    view.log("info", "host", "later")
    assert "later" not in written(console)
    view.log("error", "host", "now")
    assert "now" in written(console)
    view.close()


def test_debug_lines_only_with_v() -> None:
    for verbose in (False, True):
        console = terminal()
        view = LiveMember(console, verbose=verbose, now=Clock())
        view.log("debug", "member", "inner life")
        view.close()
        assert ("inner life" in written(console)) is verbose


def test_a_hostile_log_line_is_defused() -> None:
    console = terminal()
    screen = Screen(console, Clock())
    screen.log("warning", samples.HOSTILE, samples.HOSTILE)
    screen.close()
    text = "\n".join(screen_of(written(console)))  # fails on any control that is not rich's own
    assert "?[2J" in text
    assert "[red]x[/red]" in text
    assert "\x1b[2J" not in written(console)
    assert "\x1b]" not in written(console)


def test_no_thread_runs_and_closing_twice_is_fine() -> None:
    before = threading.active_count()
    console = terminal()
    with LiveMember(console, now=Clock()) as view:
        view.joined(samples.JOINED)
        view.status(samples.member())
        view._screen.draw()
        assert threading.active_count() == before
        view.left(samples.LEFT)
        view.close()
    assert "left: stopped (the mean return was reached); 1,230 of 1,251 bundles stored" in written(console)
    assert written(console).count("\x1b[?25l") == written(console).count("\x1b[?25h"), "the cursor is back"


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    view = LiveHost(console, now=Clock())
    view.status(samples.status())
    view.close()
    codes = re.findall(r"\x1b\[([\d;]*)m", written(console))
    assert not [code for code in codes if re.search(r"\b(3[0-8]|4[0-8]|9[0-7])\b", code)]


def put_checkpoint(run: Path, updates: int) -> None:
    """A finished one, of which nobody reads the arrays."""
    folder = run / "checkpoints" / "0000000001-v1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(f'{{"version": 1, "updates": {updates}, "sampled": 1}}')
    (folder / "DONE").write_text("{}")
    for name in ("experiment.toml", "run.json"):
        (run / name).touch()


def test_an_errors_text_is_left_to_the_commands_last_line() -> None:
    assert stopped_lines(HostStopped("error", "learning failed", None), None) == ["stopped: error"]
    assert left_line(Left("error", "boom", samples.BOOKS)) == "left: error; 1,230 of 1,251 bundles stored"
    books = Books(produced=1, stored=1)
    assert left_line(Left("signal", "", books)) == "left: signal; 1 of 1 bundle stored"


def test_what_to_do_next_is_said_where_there_is_something_to_go_on_with(tmp_path: Path) -> None:
    started = replace(samples.STARTED, results=tmp_path / "my run")
    end = HostStopped("return", "mean return 500.0", None)
    assert stopped_lines(end, started) == stopped_lines(end, None) == ["stopped: return (mean return 500.0)"]
    (tmp_path / "my run" / "checkpoints" / "0000000002-v2").mkdir(parents=True)  # never finished
    assert len(stopped_lines(end, started)) == 1
    for name in ("experiment.toml", "run.json"):
        (tmp_path / "my run" / name).touch()
    assert stopped_lines(HostStopped("time", "4 s", samples.status(episodes=0)), started) == [
        "stopped: time (after 4 s, no episode ended yet)",
        f"to go on:   p2prl host --resume --results '{tmp_path}/my run' --no-stop",
    ]
    assert len(stopped_lines(HostStopped("error", "it is broken", None), started)) == 1
    put_checkpoint(tmp_path / "my run", updates=0)
    assert [line[:10] for line in stopped_lines(end, started)] == ["stopped: r", "to go on: "], (
        "eval refuses it"
    )
    put_checkpoint(tmp_path / "my run", updates=1)
    lines = stopped_lines(HostStopped("return", "mean return 500.0", None), started)
    assert lines[0] == "stopped: return (mean return 500.0)"
    assert lines[1].endswith(f"p2prl eval '{tmp_path}/my run'")
    assert lines[2].endswith(f"p2prl host --resume --results '{tmp_path}/my run' --no-stop"), (
        "or it ends at once"
    )
    (tmp_path / "my run" / "run.json").unlink()
    assert len(stopped_lines(end, started)) == 1, "somebody deletes the folder: neither command would work"
    put_checkpoint(tmp_path / "my run", updates=1)
    lines = stopped_lines(HostStopped("signal", "", None), started)
    assert lines[2].endswith(f"p2prl host --resume --results '{tmp_path}/my run'")
