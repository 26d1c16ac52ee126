"""Which device a trainer computes on, and what it imports to find out."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import msgspec
import numpy as np
import pytest

from p2prl.errors import UsageError
from p2prl.learn.contracts import ReplaySpec
from p2prl.learn.spaces import env_spec
from p2prl.net.keys import KeyPair
from p2prl.nodes.device import choose_device
from p2prl.nodes.named_learner import learner_of
from p2prl.nodes.trainer_config import TrainerConfig
from p2prl.registry import is_accelerated, resolve_agent
from tests.unit.spool_kit import run_spec

_ASK = """
import sys
from p2prl.nodes.device import choose_device
print(choose_device({wanted!r}, "some", {accelerated}), "torch" in sys.modules)
"""


@pytest.mark.parametrize(("wanted", "accelerated"), [("cpu", True), ("cpu", False), ("auto", False)])
def test_nobody_imports_torch_to_learn_that_it_is_the_cpu(wanted: str, accelerated: bool) -> None:
    code = _ASK.format(wanted=wanted, accelerated=accelerated)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cpu", "False"]


@pytest.mark.parametrize("wanted", ["gpu", "cuda", "mps"])
def test_an_agent_in_numpy_has_no_use_for_a_gpu(wanted: str) -> None:
    with pytest.raises(UsageError, match="cem computes on the CPU alone: leave --gpu or --device"):
        choose_device(wanted, "cem", accelerated=False)


def test_agents_say_so_themselves() -> None:
    said = {name: is_accelerated(resolve_agent(name)) for name in ("cem", "es", "dqn", "ppo", "vtrace")}
    assert said == {"cem": False, "es": False, "dqn": True, "ppo": True, "vtrace": True}


def tenth_of_the_least() -> float:
    """Of float32's normal numbers."""
    least = np.finfo(np.float32).tiny
    return float((np.full(1, least) * np.float32(0.1))[0])


def test_a_trainers_thread_takes_denormals_for_0(tmp_path: Path) -> None:
    """Those of Adam's moments cost half of DQN's updates."""
    env = env_spec(gym.make("CartPole-v1"), "CartPole-v1")
    run = msgspec.structs.replace(run_spec(), env=env, agent_name="dqn")
    replay = ReplaySpec(kind="uniform", ticks=8, batch=1, window=1)
    config = TrainerConfig(
        run=run, agent="dqn", replay=replay, keys=KeyPair("", ""), server_key="", host="", base_port=1,
        folder=str(tmp_path), device="cpu", publish_interval_s=1.0, checkpoint_interval_s=1.0, keep_checkpoints=1,
    )  # fmt: skip

    def trained() -> tuple[float, float]:
        before = tenth_of_the_least()
        learner_of(config)
        return before, tenth_of_the_least()

    with ThreadPoolExecutor(1) as other:  # not this thread: it stays so
        before, after = other.submit(trained).result()
    assert (before > 0, after) == (True, 0.0)
    assert tenth_of_the_least() > 0
