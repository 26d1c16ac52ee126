"""Who has a port that is taken: told from real listeners."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from p2prl.errors import P2prlError
from p2prl.nodes.claim import claim_block, free, moved
from p2prl.nodes.own_host import Noted, drop_base, note_base, noted_bases, noted_hosts
from p2prl.nodes.port_holder import command, holder
from tests.kit import free_base

_LISTEN = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[-1])))
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(port: int, *words: str) -> Iterator[int]:
    """A program that listens, as `python *words PORT`; gives its process id."""
    command = [sys.executable, *(words or ("-c", _LISTEN)), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        yield program.pid
        assert program.stdin is not None
        program.stdin.close()


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PRL_HOME", str(tmp_path))


def test_a_host_is_told_by_its_process_and_its_run() -> None:
    base = free_base()
    with listening(base + 1) as _:
        note_base(base, "cartpole-1")  # this process is the listener's parent, as a host is its broker's
        with pytest.raises(P2prlError) as caught:
            free(base, 1)
    assert str(caught.value) == (
        f"the TCP port {base + 1} is taken by `p2prl host` (process {os.getpid()}, run cartpole-1); "
        "choose another block with --port BASE"
    )


def test_a_host_that_moves_to_the_next_block_says_because_of_whom() -> None:
    base = free_base()
    with listening(base + 10):
        note_base(base, "cartpole-1")
        claim = claim_block(base, 1)
        try:
            assert moved(claim, 1).startswith(
                f"the ports from {base} on are taken by `p2prl host` (process {os.getpid()}, run cartpole-1); "
                f"using the block from {claim.base} on"
            )
        finally:
            claim.release()


def test_a_host_of_another_state_folder_is_known_by_its_command(tmp_path: Path) -> None:
    base = free_base()
    program = tmp_path / "p2prl"
    program.write_text(_LISTEN)
    with listening(base, str(program), "host") as pid:
        assert holder([base], base) == f"`p2prl host` (process {pid})"


def test_a_program_that_has_p2prl_and_host_among_its_words_is_none(tmp_path: Path) -> None:
    base = free_base()
    program = tmp_path / "p2prl-notes" / "serve.py"
    program.parent.mkdir()
    program.write_text(_LISTEN)
    with listening(base, str(program), "--bind", "host") as pid:
        assert holder([base], base) == f"{psutil.Process(pid).name()} (process {pid})"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("p2prl host chain", "host"),
        ("p2prl -v host", "host"),
        ("/usr/bin/python3 -X dev -W error -u /home/a/.venv/bin/p2prl host --port 5000", "host"),
        (r"C:\py\python.exe C:\py\Scripts\p2prl.exe host", "host"),
        ("python3 -m p2prl host", "host"),
        ("python3 -m p2prl.cli.main host", "host"),
        ("p2prl join host", "join"),
        ("python3 -m http.server --bind p2prl host", ""),
        ("python3 /srv/p2prl-notes/serve.py --bind host", ""),
        ("python3 /srv/p2prl/serve.py p2prl host", ""),
        ("python3 -c pass p2prl host", ""),
        ("python3 -m", ""),
        ("", ""),
    ],
)
def test_which_command_of_p2prl_a_process_was_started_with(words: str, told: str) -> None:
    assert command(words.split()) == told


def test_a_process_that_has_a_killed_hosts_id_is_not_named_by_its_run() -> None:
    base = free_base()
    with listening(base) as pid:
        folder = Path(os.environ["P2PRL_HOME"]) / "hosting" / "ports"
        folder.mkdir(parents=True)
        started = psutil.Process(pid).create_time()
        for note, named in ((started, True), (started - 60, False)):
            (folder / str(base)).write_bytes(msgspec.json.encode(Noted(pid, "old run", note)))
            assert ("old run" in holder([base], base)) is named
            assert ("old run" in holder([], base)) is named


def test_another_program_is_told_by_its_name() -> None:
    base = free_base()
    with listening(base) as pid:
        name = psutil.Process(pid).name()
        assert holder([base], base) == f"{name} (process {pid})"


def test_a_host_that_only_begins_to_start_is_told_too() -> None:
    base = free_base()
    assert holder([], base) == "another `p2prl host`"
    note_base(base, "cartpole-1")
    assert holder([], base) == f"`p2prl host` (process {os.getpid()}, run cartpole-1)"
    drop_base(base)
    assert holder([], base) == "another `p2prl host`"


def test_who_cannot_be_told_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not say whose a port is, as macOS, and what listens does not answer as a host."""

    def denied(kind: str) -> list[object]:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", denied)
    base = free_base()
    with socket.create_server(("127.0.0.1", base)), pytest.raises(P2prlError) as caught:
        free(base, 1)
    assert f"the TCP port {base} is taken on this machine; choose" in str(caught.value)


def test_a_note_of_an_older_version_or_a_damaged_one_is_no_trouble() -> None:
    base = free_base()
    note_base(base, "cartpole-1")
    path = Path(os.environ["P2PRL_HOME"]) / "hosting" / "ports" / str(base)
    path.write_bytes(b"")
    assert noted_bases() == [base]
    assert noted_hosts() == {}
