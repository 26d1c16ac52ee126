"""A path is told from a host's name without a search, and what is there is named; so are files in a folder's place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p2prl.cli.main import main
from p2prl.display import draw_without_window
from p2prl.errors import MissingPackage, UsageError
from p2prl.nodes.locate import Search
from p2prl.nodes.video import VideoFolder, check_encoder, check_folder
from p2prl.places import existing_folder, looks_like_path, refuse_path, tidy


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder of its own, and a folder to stand in."""
    monkeypatch.setenv("P2PRL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with two checkpoints, and no best one."""
    for name in ("0000000010-v2", "0000000020-v4", ".part"):
        (tmp_path / "runs" / "run" / "checkpoints" / name).mkdir(parents=True)
    return tmp_path / "runs" / "run"


@pytest.mark.parametrize("text", ["a/b", "./a", ".", "..", "~", "~/runs", "C:\\runs\\a", ".hidden"])
def test_what_is_a_path(text: str) -> None:
    assert looks_like_path(text)
    with pytest.raises(UsageError, match="is a path"):
        refuse_path(text)


@pytest.mark.parametrize("text", ["lab", "192.0.2.7", "192.0.2.7:47800", "[fe80::1%eth0]:47800", "lab.local"])
def test_what_is_not(text: str) -> None:
    assert not looks_like_path(text)
    refuse_path(text)


def test_a_folder_that_is_not_there_is_said_with_what_is(run: Path) -> None:
    with pytest.raises(UsageError, match="no such folder") as caught:
        existing_folder(run / "checkpoints" / "best")
    assert str(caught.value).endswith("checkpoints holds 0000000010-v2, 0000000020-v4")
    with pytest.raises(UsageError, match=r"runs holds run$"):
        existing_folder(run.parent / "rum" / "checkpoints")
    (run / "file").touch()
    with pytest.raises(UsageError, match="is not a folder"):
        existing_folder(run / "file")


def test_a_folder_of_the_home_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(run.parent))
    assert existing_folder("~/run") == run


@pytest.mark.parametrize("command", ["eval", "test"])
@pytest.mark.parametrize("text", ["./nothere", "runs/run/checkpoints/best", "~/no-such-folder-of-mine"])
def test_a_mistyped_folder_is_told_at_once(
    command: str, text: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2prl.net.discovery.Browser", None)  # nobody listens for hosts
    assert main([command, text]) == 2
    assert capsys.readouterr().err.startswith("p2prl: no such folder: ")


@pytest.mark.parametrize("command", ["status", "join", "nodes", "code", "invite", "admit x --host"])
def test_a_path_is_no_host(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), str(run)]) == 2
    assert "is a path; wanted is a host's name" in capsys.readouterr().err


def test_the_advice_is_the_command_that_was_typed() -> None:
    nobody: Any = SimpleNamespace(problem="", hosts=list)
    for command in ("p2prl status", "p2prl eval", "p2prl admit x --host"):
        search = Search(target="lab", wait_s=1.0, command=command)
        assert search._what_is_missing(nobody).endswith(f"`{command} ADDRESS` works without mDNS")


@pytest.mark.parametrize("flag", ["--record", "--video"])
def test_a_file_where_videos_are_to_go(flag: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for there in (file, file / "below"):
        for refuses in (check_folder, lambda path, name: VideoFolder(path, 30, name)):
            with pytest.raises(UsageError, match=f"^{flag}: .*file is a file"):
                refuses(there, flag)
    check_folder(tmp_path / "new" / "one", flag)
    assert not (tmp_path / "new").exists()


def test_eval_says_so_before_it_looks_for_a_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["eval", "127.0.0.1:1", "--record", "file"]) == 2
    assert "--record: file is a file" in capsys.readouterr().err


def test_a_missing_encoder_names_the_flag_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for flag in ("--record", "--video"):
        with pytest.raises(MissingPackage, match=f"^{flag} needs a video encoder"):
            check_encoder(flag)


def test_pictures_are_drawn_without_a_window_where_none_can_open() -> None:
    for platform, given, told in (
        ("linux", {}, "dummy"),
        ("linux", {"SDL_VIDEODRIVER": "x11"}, "x11"),
        ("linux", {"DISPLAY": ":0"}, None),
        ("win32", {}, None),
    ):
        environ: dict[str, str] = dict(given)
        draw_without_window(platform, environ)
        assert environ.get("SDL_VIDEODRIVER") == told


def test_a_path_is_shown_without_detours(tmp_path: Path, run: Path) -> None:
    assert tidy(Path("runs/../runs/run")) == run.resolve()
    assert tidy(Path("runs")) == tmp_path / "runs"
