"""nodes/going_on.py and packages.own_command: a line for people to copy works as it stands."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import p2prl
from p2prl.cli.reporters import stopped_lines
from p2prl.config import Experiment
from p2prl.nodes.ending import ended_at_once
from p2prl.nodes.going_on import flags_again, resume_command
from p2prl.nodes.options import HostOptions
from p2prl.nodes.report import HostStopped
from p2prl.packages import own_command
from tests.unit import cli_samples as samples

LOOPBACK = HostOptions(Experiment(), "attic", players=2, interfaces=("127.0.0.1",), base_port=47900)


def script(folder: Path) -> Path:
    """An executable `p2prl` there."""
    folder.mkdir()
    path = folder / "p2prl"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="a script with a #! line")
def test_p2prl_is_named_so_that_the_same_one_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = script(tmp_path / "here"), script(tmp_path / "other one")
    monkeypatch.setenv("PATH", str(here.parent))
    assert own_command(str(here)) == "p2prl", "a shell finds this one"
    assert own_command(str(other)) == f'"{other}"', "a shell would find another"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("p2prl") is None
    assert own_command(str(here)) == str(here)
    monkeypatch.chdir(tmp_path)
    assert own_command("here/p2prl") == "here/p2prl"
    for library in ("", "-c", "/usr/bin/pytest", "tests/p2prl.py"):
        assert own_command(library) == "p2prl"


def test_p2prl_that_was_started_as_a_module_is_named_as_one() -> None:
    module = Path(p2prl.__file__).with_name("cli") / "__main__.py"
    command = shlex.split(own_command(str(module)))
    assert command == [sys.executable, "-m", "p2prl.cli"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("p2prl ")


def test_a_run_comes_back_where_it_was_and_lets_in_whom_it_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = flags_again(LOOPBACK)
    assert again == " --players 2 --port 47900 --interface 127.0.0.1"
    assert flags_again(HostOptions(Experiment(), "attic")) == ""
    assert flags_again(HostOptions(Experiment(), "attic", open=True)) == " --open"
    limited = HostOptions(Experiment(), "attic", approve=True, interfaces=("eth0", "my lan"))
    assert flags_again(limited) == " --interface eth0 --interface 'my lan' --approve"

    started_as = str(tmp_path / "bin" / "p2prl")
    monkeypatch.setattr(sys, "argv", [started_as])
    for name in ("experiment.toml", "run.json"):
        (tmp_path / name).touch()
    (tmp_path / "checkpoints").mkdir()
    command = resume_command(tmp_path, again)
    assert command == f"{started_as} host --resume --results {tmp_path}{again}"
    assert ended_at_once(tmp_path, LOOPBACK).endswith(f"to go on:   {command}")
    end, started = HostStopped("signal", "", None), replace(samples.STARTED, results=tmp_path, further=again)
    assert stopped_lines(end, started)[-1] == f"to go on:   {command}"
