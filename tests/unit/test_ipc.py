"""Folders for Unix sockets go with their owners, also with those that were killed."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("Unix sockets", allow_module_level=True)

from p2prl.net import ipc


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with a short path, as there is room for 100 letters only."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def new_folder() -> Path:
    folder = ipc.new_folder()
    assert folder is not None
    return folder


def listening(folder: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(ipc.socket_in(folder)))
    server.listen()
    return server


def test_what_a_killed_process_left_is_removed_and_what_lives_stays(scratch: Path) -> None:
    killed, alive, young, old, foreign = (new_folder() for _ in range(5))
    assert alive.stat().st_mode & 0o777 == 0o700
    listening(killed).close()
    assert ipc.socket_in(killed).is_socket()
    with listening(alive):
        os.utime(old, (0, 0))
        os.utime(foreign, (0, 0))
        (foreign / "somebody's").touch()
        os.utime(foreign, (0, 0))
        ipc.sweep()
        assert set(scratch.iterdir()) == {alive, young, foreign}
    ipc.sweep()
    assert not alive.exists()
    assert (foreign / "somebody's").exists()


def test_a_path_that_is_too_long_gives_none(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = scratch / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert ipc.new_folder() is None
    assert not list(deep.iterdir())
