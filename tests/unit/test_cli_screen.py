"""The live view on a terminal: calm, and log lines stand above it whole. A small emulator is the judge."""

from __future__ import annotations

import io
import re
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from p2prl.cli.lines import left_line
from p2prl.cli.reporters import LiveHost, LiveMember, stopped_lines
from p2prl.cli.screen import Screen
from p2prl.core.messages import Books
from p2prl.nodes.report import HostStopped, Left, Silence
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


class Emulator:
    """What a terminal would show: lines, cursor up, erase line; anything else that moves fails the test.

    Made narrower it wraps what stands there, made wider it joins that again, as most terminals do.
    """

    def __init__(self) -> None:
        self.width, self.lines, self.row, self.column = _WIDTH, [""], 0, 0
        #: Rows that go on in the next one.
        self.wrapped: set[int] = set()

    def feed(self, text: str) -> None:
        for match in _TOKEN.finditer(text):
            number, code, carriage, newline, plain = match.groups()
            if code == "A":
                self.row -= int(number or 1)
                assert self.row >= 0
            elif code == "K":
                self.lines[self.row] = ""
                self.wrapped.discard(self.row)
            elif code:
                assert code in "mhl", match[0]
            elif carriage:
                self.column = 0
            elif newline:
                self._next_row()
            for char in plain or "":
                self._put(char)

    def _next_row(self) -> None:
        self.row, self.column = self.row + 1, 0
        self.lines += [""] * (self.row + 1 - len(self.lines))

    def _put(self, char: str) -> None:
        if self.column == self.width:
            self.wrapped.add(self.row)
            self._next_row()
        line = self.lines[self.row]
        self.lines[self.row] = line[: self.column].ljust(self.column) + char + line[self.column + 1 :]
        self.column += 1

    def resize(self, width: int) -> None:
        old, cursor = self.lines, (self.row, self.column)
        lines: list[str] = []
        wrapped, start = set(), 0
        for index in range(len(old)):
            if index in self.wrapped:
                continue
            whole = "".join(old[start : index + 1])
            first = len(lines)
            lines += [whole[at : at + width] for at in range(0, max(1, len(whole)), width)]
            wrapped |= set(range(first, len(lines) - 1))
            if start <= cursor[0] <= index:
                at = sum(map(len, old[start : cursor[0]])) + cursor[1]
                self.row = first + max(0, at - 1) // width
                self.column = at - (self.row - first) * width
            start = index + 1
        self.width, self.lines, self.wrapped = width, lines, wrapped

    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.lines]


def screen_of(text: str) -> list[str]:
    emulator = Emulator()
    emulator.feed(text)
    return emulator.shown()


@pytest.mark.parametrize("narrow", [79, 60, 40, 27])
def test_a_window_that_is_resized_shows_one_view(narrow: int) -> None:
    console, clock, emulator, heard = terminal(), Clock(), Emulator(), 0

    def see() -> list[str]:
        nonlocal heard
        text = written(console)
        emulator.feed(text[heard:])
        heard = len(text)
        return emulator.shown()

    for view, reply, title in (
        (LiveHost(console, now=clock), samples.status(warnings=["y " * 100]), "cartpole-1129"),
        (LiveMember(console, now=clock), samples.member(reason="because " * 30), "p2prl member"),
    ):
        console.print("what stood there before", end="\n")
        for width in (_WIDTH, narrow, 120, narrow, _WIDTH):
            console.width = width
            console.height = 60
            emulator.resize(width)
            clock.time += 1
            view.status(reply)  # type: ignore[arg-type]
            lines = see()
            assert sum(line.startswith(title) for line in lines) == 1, (width, lines)
            before = max(index for index, line in enumerate(lines) if line.startswith("what stood"))
            below = next(index for index, line in enumerate(lines) if line.startswith(title))
            assert below > before, "nothing above the view is erased"
            assert not any(lines[before + 1 : below]), "nothing of an old view is left"
        view.close()
        see()


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
    assert "stopped here" in text
    assert "stopped: signal" not in text
    assert "p2prl host --resume" not in text, "there is no checkpoint"


def test_a_view_of_a_host_that_does_not_answer_says_so_above_what_it_said_last() -> None:
    console, clock = terminal(), Clock()
    view, since = LiveHost(console, now=clock), datetime(2026, 11, 30, 18, 55, 7)
    told = "attic does not answer since 18:55:07; trying again until Ctrl-C"

    clock.time += 1
    view.status(samples.status())
    clock.time += 1
    view.silent(Silence("attic", since.timestamp()))
    lines = screen_of(written(console))
    assert lines.count(told) == 1
    title = next(index for index, line in enumerate(lines) if line.startswith("cartpole-1129"))
    assert title == lines.index(told) + 1
    clock.time += 1
    view.status(samples.status())
    assert told not in screen_of(written(console)), "it answers again"
    view.close()


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
    assert "left: the mean return was reached; 1,230 of 1,251 bundles stored" in written(console)
    assert written(console).count("\x1b[?25l") == written(console).count("\x1b[?25h"), "the cursor is back"


def test_the_last_view_of_a_member_is_that_of_its_end() -> None:
    console, clock = terminal(), Clock()
    view = LiveMember(console, now=clock)
    view.joined(samples.JOINED)
    view.status(samples.member(steps=1000))
    last = samples.member(
        state="stopped", steps=1064, steps_per_s=0.0, players=(), books=Books(produced=9, stored=9)
    )
    view.left(Left("signal", "", last.books, last))
    lines = screen_of(written(console))
    assert "state    stopped" in lines
    assert "steps    1,064   episodes 812" in lines
    assert "bundles  9 stored, 0 pending" in lines
    assert not any("1,000" in line or "working" in line for line in lines)
    assert lines[-2:] == ["left: stopped here; 9 of 9 bundles stored", ""]


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
    assert left_line(Left("signal", "", books)) == "left: stopped here; 1 of 1 bundle stored"
    early = Left("signal", "stopped before a host let this node in", books)
    assert left_line(early) == "left: stopped before a host let this node in; 1 of 1 bundle stored"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("return", "the run reached its mean return"),
        ("steps", "the run reached its steps"),
        ("time", "the run's time is over"),
        ("signal", "the host was stopped"),
        ("error", "the host failed"),
    ],
)
def test_a_member_says_in_words_why_its_run_ended(reason: str, told: str) -> None:
    assert (
        left_line(Left("stopped", reason, Books(produced=1, stored=1)))
        == f"left: {told}; 1 of 1 bundle stored"
    )


def test_what_to_do_next_is_said_where_there_is_something_to_go_on_with(tmp_path: Path) -> None:
    started = replace(samples.STARTED, results=tmp_path / "my run")
    end = HostStopped("return", "mean return 500.0", None)
    assert stopped_lines(end, started) == stopped_lines(end, None) == ["stopped: return (mean return 500.0)"]
    (tmp_path / "my run" / "checkpoints" / "0000000002-v2").mkdir(parents=True)  # never finished
    assert len(stopped_lines(end, started)) == 1
    for name in ("experiment.toml", "run.json"):
        (tmp_path / "my run" / name).touch()
    for stop_time_s, longer in ((4.0, "2m"), (50.0, "4m"), (700.0, "47m"), (900.0, "1h")):
        assert stopped_lines(
            HostStopped("time", "4 s", samples.status(episodes=0), stop_time_s), started
        ) == [
            "stopped: time (after 4 s, no episode ended yet)",
            f"to go on:   p2prl host --resume --results '{tmp_path}/my run' --stop-time {longer}",
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
    for episodes, further in ((0, " --stop-time 4m"), (3, "")):
        lines = stopped_lines(HostStopped("time", "1 m", samples.status(episodes=episodes), 60.0), started)
        assert lines[2].endswith(f"p2prl host --resume --results '{tmp_path}/my run'{further}")
