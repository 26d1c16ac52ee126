"""The key file and the locks, with real files and real processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from p2prl.errors import AlreadyRunning, P2prlError
from p2prl.net.keys import (
    fingerprint,
    load_or_create,
    member_lock,
    new_key_pair,
    run_lock,
    state_folder,
)

ONE_LINE = r"\A[^\n]+\Z"


def test_the_key_is_made_once_and_then_kept(tmp_path: Path) -> None:
    first = load_or_create(tmp_path / "new" / "key.json")
    assert load_or_create(tmp_path / "new" / "key.json") == first
    assert zmq.curve_public(first.secret.encode()).decode() == first.public
    assert len(first.public) == len(first.secret) == 40


@pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
def test_only_the_owner_can_read_the_key(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_secret_is_not_shown() -> None:
    keys = new_key_pair()
    assert keys.secret not in repr(keys)


def test_racing_processes_get_one_key(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    code = (
        "import sys, pathlib; from p2prl.net.keys import load_or_create\n"
        "print(load_or_create(pathlib.Path(sys.argv[1])).public)"
    )
    run = [sys.executable, "-c", code, str(path)]
    with ThreadPoolExecutor(4) as pool:
        outputs = set(
            pool.map(lambda _: subprocess.run(run, capture_output=True, check=True).stdout, range(4))
        )
    assert outputs == {load_or_create(path).public.encode() + os.linesep.encode()}
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


@pytest.mark.parametrize("damage", ["empty", "text", "mismatch", "short", "not z85", "extra"])
def test_a_damaged_key_is_named_and_left_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "key.json"
    keys = load_or_create(path)
    content = {
        "empty": "",
        "text": "no json",
        "mismatch": json.dumps({"public": new_key_pair().public, "secret": keys.secret}),
        "short": json.dumps({"public": keys.public, "secret": keys.secret[:35]}),
        "not z85": json.dumps({"public": keys.public, "secret": "\u00e4" * 40}),
        "extra": json.dumps({"public": keys.public, "secret": keys.secret, "x": 1}),
    }[damage]
    path.write_text(content, encoding="utf-8")
    with pytest.raises(P2prlError, match=ONE_LINE) as caught:
        load_or_create(path)
    assert str(path) in str(caught.value)
    assert "damaged" in str(caught.value)
    assert path.read_text(encoding="utf-8") == content


def test_a_key_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(P2prlError, match="cannot be written") as caught:
        load_or_create(tmp_path / "file" / "key.json")
    assert "\n" not in str(caught.value)


def test_a_key_that_is_a_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "key.json").mkdir()
    with pytest.raises(P2prlError, match="cannot be read"):
        load_or_create(tmp_path / "key.json")


def test_fingerprints_are_short_and_differ() -> None:
    prints = {fingerprint(new_key_pair().public) for _ in range(50)}
    assert len(prints) == 50
    assert all(len(text) == 9 and text[4] == "-" and not set("ilou") & set(text) for text in prints)
    assert fingerprint("a" * 40) == fingerprint("a" * 40)


def test_the_state_folder_is_where_p2prl_home_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PRL_HOME", str(tmp_path / "deep" / "home"))
    assert state_folder() == tmp_path / "deep" / "home"
    assert state_folder().is_dir()
    if os.name == "posix":
        assert stat.S_IMODE(state_folder().stat().st_mode) == 0o700


def test_the_state_folder_follows_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P2PRL_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "windows"))
    if sys.platform.startswith("linux"):
        assert state_folder() == tmp_path / "xdg" / "p2prl"
    elif sys.platform == "darwin":
        assert state_folder().is_relative_to(tmp_path / "user")


def test_a_state_folder_that_cannot_be_made_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("P2PRL_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(P2prlError, match="P2PRL_HOME"):
        state_folder()


# --- locks ----------------------------------------------------------------------------------------


@contextmanager
def other_process(folder: Path, lock: str = "member_lock") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is ended."""
    code = (
        f"import sys, pathlib; from p2prl.net.keys import {lock}\n"
        f"held = {lock}(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_member_is_told_who_is_first(tmp_path: Path) -> None:
    with (
        other_process(tmp_path) as other,
        pytest.raises(AlreadyRunning, match=rf"process {other.pid}.*P2PRL_HOME") as caught,
    ):
        member_lock(tmp_path)
    assert caught.value.exit_code == 6
    assert "\n" not in str(caught.value)


def test_a_second_host_of_a_run_is_told_who_is_first(tmp_path: Path) -> None:
    with (
        other_process(tmp_path, "run_lock") as other,
        pytest.raises(AlreadyRunning, match=f"process {other.pid}"),
    ):
        run_lock(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_kill_9_lets_the_folder_go(tmp_path: Path) -> None:
    with other_process(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait(timeout=10)
        member_lock(tmp_path).release()


def test_a_lock_is_released_once_and_can_be_taken_again(tmp_path: Path) -> None:
    lock = member_lock(tmp_path)
    with pytest.raises(AlreadyRunning):
        member_lock(tmp_path)
    lock.release()
    lock.release()
    with member_lock(tmp_path), pytest.raises(AlreadyRunning):
        member_lock(tmp_path)
    member_lock(tmp_path).release()


def test_member_and_run_locks_do_not_meet(tmp_path: Path) -> None:
    with member_lock(tmp_path), run_lock(tmp_path):
        pass


def test_a_folder_that_is_gone_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(P2prlError, match="cannot be locked"):
        member_lock(tmp_path / "file" / "deep")
