"""Flags and prompts about who may join: what is typed becomes options, and a slip costs no guess."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2prl.cli import credentials
from p2prl.cli import main as cli
from p2prl.cli.credentials import ask_code, given_code
from p2prl.cli.units import seconds
from p2prl.errors import UsageError
from p2prl.nodes import host as host_node
from p2prl.nodes import join as join_node
from p2prl.nodes.options import HostOptions, JoinOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options that the commands would have run with."""
    options: list[Any] = []

    def run(given: Any, reporter: object) -> int:
        options.append(given)
        return 0

    monkeypatch.setattr(host_node, "run_host", run)
    monkeypatch.setattr(join_node, "run_join", run)
    monkeypatch.delenv(credentials.CODE_VARIABLE, raising=False)
    return options


def host_options(asked: list[Any], *arguments: str) -> HostOptions:
    assert cli.main(["host", *arguments]) == 0
    found = asked.pop()
    assert isinstance(found, HostOptions)
    return found


def join_options(asked: list[Any], *arguments: str) -> JoinOptions:
    assert cli.main(["join", *arguments]) == 0
    found = asked.pop()
    assert isinstance(found, JoinOptions)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


# --- p2prl host


def test_a_host_has_a_code_of_its_own_making_unless_told_otherwise(asked: list[Any]) -> None:
    options = host_options(asked)
    assert (options.open, options.code, options.code_uses, options.code_ttl_s) == (False, None, None, None)
    assert options.approve is False


def test_a_hosts_flags_say_who_may_come_in(asked: list[Any]) -> None:
    flags = ("--code", "017 Maple_OTTER", "--code-uses", "30", "--code-ttl", "90m", "--approve")
    options = host_options(asked, *flags)
    assert (options.code, options.code_uses, options.code_ttl_s) == ("17-maple-otter", 30, 5400.0)
    assert options.approve is True
    assert host_options(asked, "--open").open is True


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--code", "17-mapel-otter"], "--code: no code has the word 'mapel'; did you mean maple"),
        (["--code", ""], "--code: the join code is empty"),
        (["--code", "secret"], "--code: 'secret' is not a join code"),
        (["--code-uses", "0"], "--code-uses"),
        (["--code-ttl", "soon"], "--code-ttl 'soon': expected a time, as in 90 (seconds), 15m, 2h or 1d"),
        (["--code-ttl", "0"], "--code-ttl '0': must be from 1s to 366d"),
        (
            ["--open", "--code", "17-maple-otter"],
            "--open lets in any machine, so --code would change nothing",
        ),
        (["--open", "--code-uses", "3"], "--code-uses would change nothing"),
        (["--open", "--code-ttl", "1h", "--approve"], "so --code-ttl and --approve would change nothing"),
    ],
)
def test_a_hosts_mistake_is_told_before_anything_starts(
    flags: list[str], told: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refusal(capsys, "host", *flags)
    assert asked == []


# --- p2prl join


def test_a_joiner_without_a_terminal_has_nobody_to_ask(asked: list[Any]) -> None:
    options = join_options(asked)
    assert (options.code, options.token, options.ask_code, options.choose) == (None, None, None, None)
    assert options.spool_bytes == 1_000_000_000


class _Terminal:
    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


def test_a_joiner_on_a_terminal_is_asked_unless_it_speaks_json(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal())
    assert join_options(asked).ask_code is None, "its output is read by a program"
    monkeypatch.setattr("sys.stdout", _Terminal())
    monkeypatch.setenv("TERM", "dumb")
    options = join_options(asked)
    assert options.ask_code is ask_code
    assert options.choose is not None
    assert join_options(asked, "--json").ask_code is None


def test_a_code_comes_from_a_flag_a_file_or_the_environment(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "code.txt"
    file.write_bytes(b"\xef\xbb\xbf 17 maple otter \r\nof the room upstairs\n")
    assert join_options(asked, "--code", "17.maple.otter").code == "17-maple-otter"
    assert join_options(asked, "--code-file", str(file)).code == "17-maple-otter"
    monkeypatch.setenv("P2PRL_CODE", "3 tiger wolf")
    assert join_options(asked).code == "3-tiger-wolf"
    assert join_options(asked, "--code", "17-maple-otter").code == "17-maple-otter", "a flag goes first"
    assert join_options(asked, "--code-file", str(file)).code == "17-maple-otter"
    options = join_options(asked, "--token", "p2prl-token")
    assert (options.code, options.token) == (None, "p2prl-token")
    monkeypatch.setenv("P2PRL_CODE", " ")
    assert join_options(asked).code is None


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500MB", 500_000_000), ("1GiB", 1 << 30), ("2g", 2 * 10**9)]
)
def test_the_spools_size_is_read_as_every_size_is(text: str, size: int, asked: list[Any]) -> None:
    assert join_options(asked, "--spool", text).spool_bytes == size


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--code", "17-maple-oter"], "--code: no code has the word 'oter'; did you mean otter"),
        (["--code", "17-maple-otter", "--code-file", "x"], "--code and --code-file are each a way in"),
        (["--code", "17-maple-otter", "--token", "x"], "--code and --token are each a way in"),
        (["--code-file", "no-such-file"], "--code-file no-such-file cannot be read: No such file"),
        (["--spool", "much"], "--spool = 'much': expected bytes"),
        (["--spool", "-1"], "--spool"),
    ],
)
def test_a_joiners_mistake_is_told_before_a_host_is_looked_for(
    flags: list[str], told: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refusal(capsys, "join", *flags)
    assert asked == []


def test_what_is_no_code_is_told_with_its_source(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "code.txt"
    file.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read: it is not UTF-8 text" in refusal(capsys, "join", "--code-file", str(file))
    file.write_bytes(b"")
    assert f"--code-file {file}: the join code is empty" in refusal(capsys, "join", "--code-file", str(file))
    file.write_bytes(b"\n17-maple-otter\n")
    assert "the join code is empty" in refusal(capsys, "join", "--code-file", str(file))
    assert f"--code-file {tmp_path} cannot be read" in refusal(capsys, "join", "--code-file", str(tmp_path))
    monkeypatch.setenv("P2PRL_CODE", "17-mapel-otter")
    assert "P2PRL_CODE: no code has the word 'mapel'" in refusal(capsys, "join")


def test_only_a_files_beginning_is_read(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"17-maple-otter\n" + b"x" * 10_000_000)
    assert given_code(None, file, None, {}) == "17-maple-otter"


# --- the prompt


def typed(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """What a person types at the prompt; returns the prompts that they saw."""
    prompts: list[str] = []
    lines: Iterator[str] = iter(answers)

    def read(prompt: str) -> str:
        prompts.append(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    return prompts


def test_a_slip_is_told_with_the_nearest_word_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = typed(monkeypatch, "", "17-mapel-otter", " 17 Maple Otter ")
    assert ask_code("attic\x1b[2J at 192.0.2.20") == "17-maple-otter"
    assert len(prompts) == 3
    assert "attic?[2J at 192.0.2.20" in prompts[0]
    told = capsys.readouterr().out.splitlines()
    assert "empty" in told[0]
    assert "did you mean maple" in told[1]


def test_the_end_of_input_and_ctrl_c_end_the_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "nonsense")
    with pytest.raises(UsageError, match="no join code was typed"):
        ask_code("attic")

    def interrupted(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask_code("attic")


# --- times


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        (" 15 M ", 900.0),
        ("1.5h", 5400.0),
        ("1d", 86_400.0),
        ("366d", 366 * 86_400.0),
    ],
)
def test_times_are_read(text: str, found: float) -> None:
    assert seconds("--ttl", text) == found


@pytest.mark.parametrize(
    "text", ["", "m", "1w", "-5", "1e3", "nan", "inf", "0.5", "367d", "9" * 400, "1h30m"]
)
def test_what_is_no_time_is_refused_by_the_flags_name(text: str) -> None:
    with pytest.raises(UsageError, match="--ttl"):
        seconds("--ttl", text)
