"""Small files are whole or as they were, and a full disk is said once."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from p2prl.nodes.files import DiskTrouble, write_atomically


def test_a_disk_that_is_full_for_long_is_said_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "p2prl")
    trouble = DiskTrouble("books.json")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for _ in range(2):
        trouble.passed()
        for _ in range(100):
            trouble.failed(full)
        trouble.passed()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    begun = ("ERROR", "cannot write books.json: No space left on device; trying again until it can be")
    assert lines == [begun, ("INFO", "books.json is written again")] * 2


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "books.json"
    write_atomically(path, b"old", durable=True)

    def fail(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
