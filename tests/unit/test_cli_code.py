"""The join code on a host's screen: there from the start, news of it told once, and the QR code the same."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
import segno
from rich.console import Console

from p2prl.cli import output, qr, shapes
from p2prl.cli.invite import code_object
from p2prl.cli.joincode import JoinCode, dial_command
from p2prl.cli.piped import JsonHost
from p2prl.cli.reporters import LiveHost, PlainHost
from p2prl.core.messages import CodeNews
from tests.unit import cli_samples as samples
from tests.unit.test_cli_screen import Clock, screen_of, written

CODE = CodeNews(code="17-maple-otter", uses=30, ttl_s=7200.0)
COMMAND = "p2prl join 192.0.2.20 --code 17-maple-otter"


# --- JSON and plain lines


def test_the_code_is_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = JsonHost()
    reporter.started(replace(samples.STARTED, open=False))
    reporter.code(CODE)
    reporter.code(CodeNews(code="3-tiger-wolf", reason="guesses"))
    started, first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert started["open"] is False
    assert first == {"event": "code", "code": "17-maple-otter", "uses": 30, "ttl_s": 7200.0, "reason": "new"}
    assert (second["code"], second["uses"], second["reason"]) == ("3-tiger-wolf", None, "guesses")
    assert shapes.host_started(replace(samples.STARTED, open=True))["open"] is True


def test_plain_lines_tell_the_code_once_and_why_it_changed(capsys: pytest.CaptureFixture[str]) -> None:
    host = PlainHost(now=lambda: 100.0)
    host.started(samples.STARTED)
    host.code(CODE)
    host.code(replace_news(CODE, uses=29))
    host.code(CodeNews(code="3-tiger-wolf", uses=29, reason="guesses"))
    host.code(CodeNews(code="", uses=0, reason="used"))
    captured = capsys.readouterr()
    told = captured.out.splitlines()[2:]
    assert told == [
        "join with  p2prl join attic   or   p2prl join 192.0.2.20",
        "join code  17-maple-otter   for 30 more nodes, for 2 h 00 m",
        "join code  3-tiger-wolf   for 29 more nodes",
        "join code  none any more: p2prl code --new makes one",
    ]
    assert "too many wrong guesses: it is now 3-tiger-wolf" in captured.err
    assert "has let in as many nodes as it may; p2prl code --new makes one" in captured.err
    assert captured.err.count("\n") == 2


def replace_news(news: CodeNews, **changes: Any) -> CodeNews:
    import msgspec

    return msgspec.structs.replace(news, **changes)


def test_a_waiting_node_is_told_when_it_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    host = PlainHost(now=lambda: 100.0)
    host.started(samples.STARTED)
    for names in ([], ["ann"], ["ann"], ["ann", "bob"]):
        host.status(samples.status(warnings=[], waiting_nodes=names))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert "1 node waits to be let in (ann): p2prl nodes" in told[0]
    assert "2 nodes wait to be let in (ann, bob): p2prl nodes" in told[1]


def test_a_warning_that_comes_and_goes_is_told_once_until_it_was_gone_for_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    host = PlainHost(now=clock)
    for warnings in (["late"], [], ["late"], []):
        host.status(samples.status(warnings=warnings))
        clock.time += 50.0
    assert capsys.readouterr().err.count("late") == 1
    clock.time += 50.0
    for warnings in ([], ["late"]):
        host.status(samples.status(warnings=warnings))
    assert capsys.readouterr().err.count("late") == 1


def test_the_time_that_is_left_runs_down() -> None:
    clock = Clock()
    code = JoinCode(clock)
    assert code.text() is None
    assert code.take(CODE) == ""
    clock.time += 7195.0
    assert str(code.text()) == "17-maple-otter   for 30 more nodes, for 5 s"
    clock.time += 100.0
    assert str(code.text()).endswith("for 0 s")
    code.take(CodeNews(code="", reason="new"))
    assert code.text() is None, "an open host has none"


# --- the live view


def console(height: int = 50, width: int = 80, **changes: Any) -> Console:
    values: dict[str, Any] = {
        "file": io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True),
        "force_terminal": True,
        "color_system": "truecolor",
        "width": width,
        "height": height,
        "legacy_windows": False,
        "_environ": {},
    }
    return Console(**{**values, **changes})


def seen(terminal: Console) -> str:
    assert isinstance(terminal.file, io.TextIOWrapper)
    raw = terminal.file.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


def test_the_live_view_keeps_the_code_on_the_screen() -> None:
    terminal, clock = (
        Console(
            file=io.StringIO(), force_terminal=True, width=80, height=24, legacy_windows=False, _environ={}
        ),
        Clock(),
    )
    view = LiveHost(terminal, now=clock)
    view.started(samples.STARTED)
    view.code(CODE)
    for _ in range(3):
        clock.time += 1
        view.status(samples.status(40))
    lines = screen_of(written(terminal))
    head = next(index for index, line in enumerate(lines) if line.startswith("cartpole-1129"))
    assert lines[head + 1].startswith("join with p2prl join attic")
    assert lines[head + 2] == "join code 17-maple-otter   for 30 more nodes, for 1 h 59 m"
    view.code(CodeNews(code="3-tiger-wolf", reason="asked"))
    clock.time += 1
    view.status(samples.status(40))
    view.close()
    text = "\n".join(screen_of(written(terminal)))
    assert "another join code was asked for: it is now 3-tiger-wolf" in text
    assert "join code 3-tiger-wolf" in text
    assert "join code 17-maple-otter" not in text


# --- QR


def modules_of(rows: list[str]) -> list[list[bool]]:
    """The dark and light modules that half blocks show."""
    matrix = []
    for row in rows:
        matrix += [[char in "█▀" for char in row], [char in "█▄" for char in row]]
    return matrix


def test_the_drawn_cells_are_the_qr_code() -> None:
    drawn = qr.drawing(COMMAND, console())
    assert drawn is not None
    code = segno.make(COMMAND, micro=False, error="l")
    size = len(code.matrix) + 2 * qr.QUIET
    shown = modules_of(drawn.plain.splitlines())
    assert len(shown) == size + size % 2
    dark = [[bool(module) for module in row] for row in code.matrix]
    inner = [row[qr.QUIET : -qr.QUIET] for row in shown[qr.QUIET : qr.QUIET + len(dark)]]
    assert inner == dark
    quiet = [cell for row in (*shown[: qr.QUIET], *shown[qr.QUIET + len(dark) :]) for cell in row]
    quiet += [cell for row in shown for cell in (*row[: qr.QUIET], *row[-qr.QUIET :])]
    assert not any(quiet)


def test_the_qr_code_is_black_on_white_whatever_the_terminal_is() -> None:
    terminal = console()
    drawn = qr.drawing(COMMAND, terminal)
    assert drawn is not None
    terminal.print(drawn)
    rows = seen(terminal).splitlines()
    assert all(row.startswith("\x1b[38;2;0;0;0;48;2;255;255;255m") for row in rows)
    assert all(row.endswith("\x1b[0m") for row in rows)


@pytest.mark.parametrize(
    "changes",
    [
        {"height": 29},
        {"width": 32},
        {"color_system": None},
        {"no_color": True},
        {"force_terminal": False},
        {"_environ": {"TERM": "dumb"}},
        {"legacy_windows": True},
        {"file": io.TextIOWrapper(io.BytesIO(), encoding="latin-1")},
    ],
)
def test_where_it_cannot_be_scanned_there_is_no_qr_code(changes: dict[str, Any]) -> None:
    assert qr.drawing(COMMAND, console(**changes)) is None


def test_the_qr_code_is_shown_once_above_the_view_and_holds_the_command() -> None:
    terminal, clock = console(), Clock()
    view = LiveHost(terminal, now=clock)
    view.started(samples.STARTED)
    view.code(CODE)
    drawn = qr.drawing(COMMAND, terminal)
    assert drawn is not None
    first = drawn.plain.splitlines()[2]
    for _ in range(2):
        clock.time += 1
        view.status(samples.status())
    view.code(CodeNews(code="3-tiger-wolf", reason="guesses"))
    clock.time += 1
    view.status(samples.status())
    view.close()
    text = seen(terminal)
    assert text.count(first) == 1
    assert text.index(first) < text.index("node (4)")
    assert text.count("38;2;0;0;0;48;2;255;255;255m") == len(drawn.plain.splitlines()), "one QR code only"


def test_the_command_in_the_qr_code_dials_by_address() -> None:
    info = replace(samples.STARTED, address="2001:db8::1", base_port=47900)
    assert dial_command(info) == "p2prl join [2001:db8::1]:47900"
    assert dial_command(samples.STARTED) == "p2prl join 192.0.2.20"


# --- p2prl code


def test_a_code_as_json() -> None:
    value = json.loads(output.json_line(code_object(CODE)))
    assert value == {"code": "17-maple-otter", "uses": 30, "ttl_s": 7200.0}
