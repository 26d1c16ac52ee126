"""Small files are whole or as they were, and a full disk is said once."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from pathlib import Path

import pytest

from p2prl.net.keys import write_private
from p2prl.nodes.files import DiskTrouble, write_atomically, write_where_named


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


@pytest.mark.skipif(os.name != "posix", reason="no FIFO")
def test_a_fifo_that_a_person_named_is_written_into_and_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_where_named(path, b"for whoever reads", write_private)
        assert os.read(reader, 100) == b"for whoever reads"
    finally:
        os.close(reader)
    assert path.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["fifo"]


@pytest.mark.skipif(os.name != "posix", reason="Windows lets few people make links")
@pytest.mark.parametrize("before", [b"", None])
def test_a_link_that_a_person_named_stays_one_and_what_it_names_is_private(
    tmp_path: Path, before: bytes | None
) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    if before is not None:
        file.write_bytes(before)
        file.chmod(0o644)
    write_where_named(link, b"token", write_private)
    assert link.is_symlink()
    assert file.read_bytes() == b"token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="Windows lets few people make links")
def test_a_link_to_itself_is_an_error_and_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(OSError, match="link"):
        write_where_named(tmp_path / "link", b"x", write_private)
    assert [one.is_symlink() for one in tmp_path.iterdir()] == [True]


def test_what_is_no_file_and_takes_nothing_is_an_error_and_stays(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=re.escape(str(tmp_path))):
        write_where_named(tmp_path, b"x", write_private)
    assert tmp_path.is_dir()
