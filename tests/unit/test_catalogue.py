"""`p2prl experiments`: what can start here, laid out so that it fits."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest

from p2prl.cli.catalogue import columns, entry, usable_ids
from tests.unit.test_cli_main import ROOT, RUN, environment


def spec(entry_point: Any) -> Any:
    return SimpleNamespace(entry_point=entry_point)


def _raise_gone(*_: object, **__: object) -> None:
    """What Gymnasium has in the place of what left it."""


HERE = "tests.unit.test_catalogue:Nothing"


def test_only_the_newest_version_that_can_start_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in ("mujoco", "jax") else real(name)
    )
    registry = {
        "Pole-v0": spec(HERE),
        "Pole-v2": spec(HERE),
        "Pole-v10": spec(HERE),
        "Fell-v1": spec(HERE),
        "Fell-v2": spec(_raise_gone),
        "Gone-v2": spec(_raise_gone),
        "Made-v0": spec(lambda: None),
        "Ant-v5": spec("gymnasium.envs.mujoco.ant_v5:AntEnv"),
        "tabular/Jack-v0": spec("gymnasium.envs.tabular.blackjack:BlackJackJaxEnv"),
        "Far-v0": spec("no_such_package_anywhere.envs:Far"),
        "Many-v0": spec(None),
        "plain": spec(HERE),
        "odd-version": spec(HERE),
    }
    assert usable_ids(registry) == ["Fell-v1", "Made-v0", "Pole-v10", "odd-version", "plain"]


def test_of_gymnasiums_own_nothing_that_is_gone_or_old() -> None:
    ids = usable_ids(gym.registry)
    assert {"CartPole-v1", "Acrobot-v1", "FrozenLake-v1"} <= set(ids)
    assert not {"CartPole-v0", "Ant-v2", "Hopper-v3", "GymV21Environment-v0"} & set(ids)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_columns_fit_and_lose_nothing(width: int) -> None:
    names = [f"Environment{number}-v{number}" for number in range(37)]
    lines = columns(names, width)
    assert max(map(len, lines)) <= max(width, 2 + len(names[-1]))
    assert sorted(" ".join(lines).split()) == sorted(names)
    assert len(lines) <= -(-37 // max(1, width // 20)) + 1
    assert columns([], width) == []


def test_an_entry_goes_on_below_between_words() -> None:
    assert entry("  name", "one two three four five six", 30, 8) == [
        "  name  one two three four",
        "        five six",
    ]
    assert entry("  a-long-name", "one", 30, 8) == ["  a-long-name", "        one"]
    assert entry("  name", "", 30, 8) == ["  name"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_command_fits_the_terminal(width: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, "experiments"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment(), "COLUMNS": str(width)},
        timeout=60,
        check=True,
    )
    assert [line for line in done.stdout.splitlines() if len(line) > width] == []
    assert "Ant-v2" not in done.stdout
    assert "CartPole-v1" in done.stdout
