"""What libraries warn of: one line a text, without colours and without the source line."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium as gym
import pytest

from p2prl.python_warnings import Once, one_line_each, plain

CHILD = """
import warnings
import gymnasium as gym
from p2prl.nodes.process import configure_logging
configure_logging(verbose=False)
for text in ("The obs is odd", "The obs is odd", "Another"):
    warnings.simplefilter("always")
    gym.logger.warn(text)
"""


def test_a_child_says_each_text_once_on_a_line() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["WARNING The obs is odd", "WARNING Another"]


def test_a_warning_is_one_line_whatever_it_holds() -> None:
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        one_line_each(said.append)
        gym.logger.warn("two\nlines")
        warnings.warn("two lines", stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert said == ["two lines", "old"]


def test_a_command_signs_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from p2prl.cli import main as cli

    def app(**_: object) -> None:
        gym.logger.warn("odd")

    monkeypatch.setattr(cli, "app", app)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert cli.main(["ls"]) == 0
    assert capsys.readouterr() == ("", "p2prl: warning: odd\n")


def test_colours_go_and_the_rest_stays() -> None:
    assert plain("\x1b[1;33mWARN: [33m\x1b[0m") == "WARN: [33m"


def test_a_flood_of_texts_is_kept_within_bounds() -> None:
    once = Once()
    assert sum(once.first(str(number)) for number in range(5000)) == 1000
    assert not once.first("7")
