"""What a person is told who mistyped: in plain words, what is allowed and how it is written."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from typer.main import get_command

from p2prl.cli import main as cli
from p2prl.cli.units import as_time, decimal, time, whole
from p2prl.errors import UsageError

#: Words of programmers, and of typer.
FOREIGN = ("valid", "range", "float", "int ", "str", "x>=", "argument", "INTEGER", "None")


@cache
def commands() -> dict[str, Any]:
    found: dict[str, Any] = getattr(get_command(cli.app), "commands", {})
    return found


def numbers() -> list[tuple[str, str]]:
    """Each command's flags that take a number or a time."""
    return [
        (name, max(one.opts, key=len))
        for name, command in commands().items()
        for one in command.params
        if type(one.type).__name__ == "FuncParamType"
    ]


def required(name: str) -> list[str]:
    """What a command wants beside flags."""
    return ["x" for one in commands()[name].params if one.param_type_name == "argument" and one.required]


def told(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert cli.main(list(args)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("p2prl: ").rstrip("\n")


def test_typer_judges_no_value_itself() -> None:
    """Its texts are not for a teacher: `'2m' is not a valid float range`."""
    kinds = {type(one.type).__name__ for command in commands().values() for one in command.params}
    assert kinds <= {"StringParamType", "BoolParamType", "TyperPath", "FuncParamType"}
    assert ("host", "--stop-time") in numbers()
    assert len(numbers()) > 20


@pytest.mark.parametrize("value", ["two", "-1", "", "nan"])
def test_a_wrong_number_or_time_is_told_with_an_example_that_is_right(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, flag in numbers():
        if (flag, value) == ("--stop-return", "-1"):
            continue  # a return may be
        text = told(capsys, name, *required(name), flag, value)
        assert text.startswith(f"{flag} {value!r}: expected "), text
        assert "as in " in text
        assert not [word for word in FOREIGN if word in text.replace(value, "")], text
        if f"as in {flag} " in text:
            example = text.rpartition(f"as in {flag} ")[2].split()[0]
            [parse] = [one.type.func for one in commands()[name].params if flag in one.opts]
            assert parse(example) >= 0


def test_a_time_is_written_alike_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for name, flag in numbers():
        [option] = [one for one in commands()[name].params if flag in one.opts]
        if option.metavar == "TIME":
            assert option.type.func("2m") == 120.0
            assert option.type.func("90") == 90.0
            assert option.type.func(5.0) == 5.0, "a default is a number already"
    assert "must be from 1s to 366d, as in --stop-time 90" in told(capsys, "host", "--stop-time", "0")
    assert "must be from 0.1s to 10m" in told(capsys, "ls", "--timeout", "20m")


def test_numbers_have_their_bounds() -> None:
    parse = whole("--players", 1, 256, 2)
    assert [parse(text) for text in ("1", "256", "1e2", " 7 ")] == [1, 256, 100, 7]
    assert whole("--seed", 0, None, 7)("12345678901234567891") == 12345678901234567891
    for text in ("0", "257", "1.5", "inf"):
        with pytest.raises(UsageError, match="from 1 to 256, as in --players 2"):
            parse(text)
    assert decimal("--stop-return", 475)("-12.5") == -12.5
    with pytest.raises(UsageError, match="expected a number, as in --stop-return 475"):
        decimal("--stop-return", 475)("inf")
    for length_s in (1.0, 90.0, 900.0, 86_400.0, 5400.0):
        assert time("--ttl")(as_time(length_s)) == length_s


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["admit"], "p2prl admit wants a NODE: a node's name, fingerprint or key"),
        (["admit", "a", "b"], "p2prl admit takes one NODE, and flags; too much: b (see p2prl admit --help)"),
        (["ls", "attic"], "p2prl ls takes flags alone; too much: attic (see p2prl ls --help)"),
        (["host", "--players"], "--players wants a value, as in --players N: own player processes"),
        (["-v", "join", "--wait"], "--wait wants a value, as in --wait TIME: give up (exit 3)"),
        (["host", "--gpu=1"], "--gpu takes no value: leave out what follows it (see p2prl host --help)"),
        (["--code-uses", "2"], "--code-uses is a flag of p2prl host: write it after the command"),
        (["host", "--device", "gpu0"], "--device 'gpu0': must be one of auto, cpu, cuda, mps"),
        (["host", "--name", ""], "as in attic"),
        (["join", "1.2.3"], "as in 192.0.2.7"),
        (["host", "--set", "stop.time_s=2m"], "stop.time_s = '2m': expected a number, as in 0.5"),
    ],
)
def test_what_is_missing_or_too_much_is_told_with_what_is_wanted(
    args: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = told(capsys, *args)
    assert text in shown
    assert not shown.endswith(";")
