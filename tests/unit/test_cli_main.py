"""The command itself: one line for each mistake, the right exit code, quick help, docs that are not stale."""

from __future__ import annotations

import errno
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

import p2prl
from p2prl.cli import main as cli
from p2prl.errors import NoHostFound, NotAdmitted, UpgradeNeeded

ROOT = Path(__file__).resolve().parents[2]
RUN = "import sys; from p2prl.cli.main import main; sys.exit(main())"


def environment() -> dict[str, str]:
    paths = os.pathsep.join(str(ROOT / folder) for folder in (".", "agents", "envs"))
    return {**os.environ, "PYTHONPATH": paths}


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *args],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["hst"], "did you mean host?"),
        (["zzz"], "there are: host, join"),
        (["host", "--plyers", "3"], "did you mean --players?"),
        (["host", "--players", "-1"], "--players"),
        (["host", "--players", "many"], "--players"),
        (["host", "--envs", "0"], "--envs"),
        (["host", "--shards", "0"], "--shards"),
        (["host", "--shards", "33"], "--shards"),
        (["host", "--port", "0"], "--port"),
        (["host", "--port", "65500"], "--port"),
        (["host", "--seed", "-1"], "--seed"),
        (["host", "--stop-steps", "0"], "--stop-steps"),
        (["host", "--stop-time", "0"], "--stop-time"),
        (["host", "--name", ""], "--name"),
        (["host", "--name", "x" * 64], "--name"),
        (["host", "--name", "a\x1b[2J"], "--name"),
        (["host", "--name", "a/b"], "looks like a path"),
        (["host", "--set"], "--set"),
        (["host", "--set", "nonsense"], "key=value"),
        (["host", "--set", "replay.bach=3"], "did you mean replay.batch?"),
        (["host", "--gpu", "--device", "cpu"], "contradict"),
        (["host", "--device", "cudda"], "did you mean cuda?"),
        (["host", "cartpol"], "did you mean cartpole"),
        (["host", "no/such.toml"], "cannot read"),
        (["host", "--resume", "--results", "no-such-folder"], "no such folder"),
        (["join", "a", "b"], "b"),
        (["join", "--players", "0"], "--players"),
        (["join", "--wait", "-1"], "--wait"),
        (["ls", "--timeout", "0"], "--timeout"),
        (["eval", "-n", "0"], "--episodes"),
        (["experiments", "cartpol"], "did you mean cartpole"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    args: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("p2prl: ")
    assert captured.err.count("\n") == 1
    assert "\x1b" not in captured.err
    assert told in captured.err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["host", "--agent", "dqnn"], "dqn"),
        (["host", "--set", "agent.gama=0.9"], "did you mean agent.gamma?"),
        (["host", "--set", "agent.gamma=high"], "agent.gamma"),
        (["host", "--set", "gamma=0.9"], "did you mean agent.gamma?"),
        (["host", "--env", "CartPol-v1"], "CartPole"),
    ],
)
def test_agents_and_environments_are_judged_before_anything_starts(
    args: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(args) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("kind", [NoHostFound, NotAdmitted, UpgradeNeeded])
def test_an_error_of_ours_is_one_line_and_its_exit_code(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", _raising(kind("why\nand \x1b[31mwhat next")))
    assert cli.main(["ls"]) == kind.exit_code
    assert capsys.readouterr().err == "p2prl: why and ?[31mwhat next\n"


def test_an_unexpected_error_is_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", _raising(ZeroDivisionError("x")))
    assert cli.main(["ls"]) == 1
    assert (
        capsys.readouterr().err == "p2prl: unexpected ZeroDivisionError: x; run again with -v to see where\n"
    )


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "app", _raising(KeyboardInterrupt()))
    assert cli.main(["ls"]) == 130
    assert capsys.readouterr() == ("", "")


def _raising(error: BaseException) -> Any:
    def app(**_: object) -> None:
        raise error

    return app


@pytest.mark.parametrize(
    "args", [["-v", "host", "cartpol"], ["host", "-v", "cartpol"], ["host", "cartpol", "-v"]]
)
def test_v_adds_the_traceback_wherever_it_stands(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(args) == 2
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.splitlines()[-1].startswith("p2prl: no preset")


def test_version_and_bare_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"p2prl {p2prl.__version__}\n"
    assert cli.main([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from p2prl.cli.main import main; main(['--help']); main(['host', '--help'])\n"
        "heavy = {'numpy', 'zmq', 'zeroconf', 'gymnasium', 'torch', 'rich', 'p2prl.core', 'p2prl.nodes'}\n"
        "sys.stderr.write(' '.join(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    assert "--stop-return" in done.stdout


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "experiments", "cartpole"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert told == ""


def test_a_preset_is_printed_as_toml_that_loads(tmp_path: Path) -> None:
    from p2prl.settings import find_experiment

    done = command("experiments", "cartpole")
    file = tmp_path / "mine.toml"
    file.write_text(done.stdout, encoding="utf-8")
    assert done.returncode == 0
    assert find_experiment(str(file)) == find_experiment("cartpole")


def test_experiments_prints_a_file_too_and_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 7\n")
    done = command("experiments", str(file))
    assert (done.returncode, "seed = 7" in done.stdout) == (0, True)
    file.write_text("seed = \n")
    done = command("experiments", str(file))
    assert done.returncode == 2
    assert done.stderr.startswith(f"p2prl: {file} is not TOML")


def test_experiments_lists_presets_agents_and_environments() -> None:
    done = command("experiments")
    assert done.returncode == 0, done.stderr
    for word in (
        "cartpole-cem",
        "CartPole-v1 with dqn",
        "  cem ",
        "agent.gamma = ",
        "  chain",
        "any Gymnasium id",
    ):
        assert word in done.stdout, word


def test_docs_are_what_the_commands_say() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gen-cli-docs"), "--check"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_flag_has_help_and_is_in_the_docs() -> None:
    docs = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    root: Any = typer.main.get_command(cli.app)
    for name, found in root.commands.items():
        section = docs[docs.index(f"## `p2prl {name}`") :].partition("\n## ")[0]
        for param in found.params:
            assert param.help, (name, param.name)
            flags = param.opts if param.param_type_name == "option" else [param.metavar.replace("|", "\\|")]
            assert all(re.search(re.escape(flag) + r"[ `]", section) for flag in flags), (name, flags)


# --- streams that cannot be written


def redirected(how: str, *args: str, buffered: bool) -> subprocess.CompletedProcess[str]:
    """The command in a shell that redirects it."""
    env = {name: value for name, value in environment().items() if name != "PYTHONUNBUFFERED"}
    if not buffered:
        env["PYTHONUNBUFFERED"] = "1"
    line = f"exec {shlex.join([sys.executable, '-c', RUN, *args])} {how}"
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=env, timeout=60, check=False
    )


full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without /dev/full")


@full_disk
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("args", [["--version"], ["host", "--help"], ["experiments"], []])
def test_a_full_disk_as_stdout_is_one_line_and_exit_1(args: list[str], buffered: bool) -> None:
    done = redirected(">/dev/full", *args, buffered=buffered)
    assert done.stderr == f"p2prl: standard output cannot be written: {os.strerror(errno.ENOSPC)}\n"
    assert done.returncode == 1


@full_disk
def test_where_no_error_can_be_told_the_exit_code_says_it() -> None:
    done = redirected("2>/dev/full", "--bogus", buffered=True)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.skipif(os.name == "nt", reason="sh closes streams so")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_from_the_start_is_no_error(closed: str) -> None:
    done = redirected(closed, "experiments", "cartpole", buffered=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert ("[env]" in done.stdout) is (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_a_streams_encoding_lacks_is_no_error(encoding: str) -> None:
    told = (
        "import sys; from p2prl.cli.streams import standard_streams as s\nwith s(): print('кабинет ▁▃█ ok')"
    )
    env = {**environment(), "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, env=env, timeout=60, check=False)
    assert done.stdout.split() == [b"???????", b"???", b"ok"]
    assert done.returncode == 0
