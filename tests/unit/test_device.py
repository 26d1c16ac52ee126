"""Which device a trainer computes on, and what it imports to find out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from p2prl.errors import UsageError
from p2prl.nodes.device import choose_device
from p2prl.registry import is_accelerated, resolve_agent

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
