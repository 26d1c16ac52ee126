"""The agent in docs/write-an-agent.md keeps the contract that the page explains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from p2prl_envs.chain import make_chain

from p2prl.errors import UsageError
from p2prl.learn.contracts import Agent
from p2prl.learn.spaces import env_spec
from p2prl.registry import make_agent, resolve_agent
from p2prl.testing import check_agent
from tests import docs_kit


@pytest.fixture
def tabular(tmp_path: Path) -> type[Agent]:
    return resolve_agent(f"{docs_kit.tabular_agent(tmp_path)}:Tabular")


def _spec(env: gym.Env[Any, Any], name: str) -> Any:
    try:
        return env_spec(env, name)
    finally:
        env.close()


def test_it_keeps_the_contract_in_the_chain(tabular: type[Agent]) -> None:
    check_agent(tabular, _spec(make_chain(), "chain"))


def test_the_check_on_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    docs_kit.tabular_agent(tmp_path)
    page = docs_kit.read(docs_kit.ROOT / "docs" / "write-an-agent.md")
    check = tmp_path / "check.py"
    check.write_text(docs_kit.block_that_begins_with(page, "import gymnasium"), encoding="utf-8")
    done = subprocess.run([sys.executable, str(check)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_refuses_spaces_that_have_no_table(tabular: type[Agent]) -> None:
    with pytest.raises(UsageError, match="needs one Discrete observation"):
        make_agent(tabular, _spec(gym.make("CartPole-v1"), "CartPole-v1"), {})


def test_truncation_bootstraps_and_termination_does_not(tabular: type[Agent]) -> None:
    """What the page says about flags is what its agent does."""
    learner = make_agent(tabular, _spec(make_chain(), "chain"), {"learning_rate": 1.0}).learner("cpu", 0)
    learner.load({"table": np.full((5, 2), 10.0)})
    states = np.array([[[0], [1]]] * 2, np.uint8).reshape(2, 2)
    batch = {
        "obs": states + np.array([[0], [2]], np.uint8),
        "action": np.array([[1], [1]], np.uint8),
        "reward": np.ones((2, 1), np.float32),
        "flags": np.array([[2], [1]], np.uint8),
        "version": np.zeros(2, np.int64),
    }
    learner.update(batch)
    table = learner.weights()["table"]
    assert table[0, 1] == pytest.approx(1.0 + 0.95 * 10.0)
    assert table[2, 1] == pytest.approx(1.0)
