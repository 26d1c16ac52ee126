"""An agent that cannot act in an environment's spaces: one line names those that can, for each registered agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces

from p2prl.core.spaces import EnvSpec
from p2prl.errors import UsageError
from p2prl.learn.spaces import plain_space
from p2prl.registry import agent_names, make_agent, resolve_agent
from tests import kit
from tests.unit.test_registry import _forget_modules as _forget_modules
from tests.unit.test_registry import installed as installed

BOX = spaces.Box(-1, 1, (3,))
ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "float box": BOX,
    "integer box": spaces.Box(0, 9, (2,), "int32"),
    "multi discrete": spaces.MultiDiscrete([2, 3]),
    "multi binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(go=spaces.Discrete(2), turn=BOX),
    "tuple of boxes": spaces.Tuple([BOX, BOX]),
    "nested": spaces.Dict(arm=spaces.Dict(grip=spaces.MultiBinary(2), move=spaces.Box(0, 5, (), "uint8"))),
}
SPECS = {
    name: EnvSpec("Test-v0", plain_space(BOX, "obs", "Test-v0"), plain_space(space, "action", "Test-v0"))
    for name, space in ACTIONS.items()
}


def fits(agent: str, spec: EnvSpec) -> bool:
    """By its own word."""
    cls = resolve_agent(agent)
    try:
        cls(spec, cls.Settings())
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("space", SPECS)
@pytest.mark.parametrize("agent", agent_names())
def test_an_agent_that_cannot_act_there_names_all_that_can(agent: str, space: str) -> None:
    spec = SPECS[space]
    able = [name for name in agent_names() if fits(name, spec)]
    if agent in able:
        make_agent(resolve_agent(agent), spec, {})
        return
    with pytest.raises(UsageError) as caught:
        make_agent(resolve_agent(agent), spec, {})
    line = str(caught.value)
    assert "Test-v0" in line, "it says which environment"
    assert line.endswith(f"; agents that can: {', '.join(able)}" if able else "; no installed agent can")
    assert "\n" not in line
    own = line.partition(";")[0]
    others = [name for name in agent_names() if name != agent]
    assert not [name for name in others if name in own.replace(",", " ").split()], (
        "that is for the line's end"
    )


def test_some_agent_fits_and_some_does_not() -> None:
    """Else the test above would test nothing."""
    table = [fits(agent, spec) for agent in agent_names() for spec in SPECS.values()]
    assert any(table)
    assert not all(table)


def test_settings_that_do_not_fit_each_other_are_no_matter_of_spaces() -> None:
    class Picky(resolve_agent("cem")):  # type: ignore[misc]
        def __init__(self, env: EnvSpec, settings: Any) -> None:
            super().__init__(env, settings)
            if settings.population < 3:
                raise UsageError("population is too small")

    with pytest.raises(UsageError, match=r"^population is too small$"):
        make_agent(Picky, SPECS["discrete"], {"population": 2})


def test_other_peoples_agents_are_named_and_their_broken_ones_are_not(installed: Path) -> None:
    cls = resolve_agent("dqn")  # and so is tinybot
    with pytest.raises(UsageError) as caught:
        make_agent(cls, SPECS["float box"], {})
    assert not [name for name in ("lost", "needy", "half", "tinybot") if name in str(caught.value)]

    class Nothing(cls):  # type: ignore[misc, valid-type]
        def __init__(self, env: EnvSpec, settings: Any) -> None:
            raise UsageError("nothing can")

    with pytest.raises(UsageError) as caught:
        make_agent(Nothing, SPECS["discrete"], {})
    assert "tinybot" in str(caught.value)


def test_naming_them_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from p2prl.errors import UsageError\n"
        "from p2prl.registry import make_agent, resolve_agent\n"
        "from tests.unit.test_unfit_agents import SPECS\n"
        "try:\n    make_agent(resolve_agent('dqn'), SPECS['float box'], {})\n"
        "except UsageError as error:\n    print(error, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=kit.ROOT
    )
    assert done.stdout.strip().endswith("False")
    assert "agents that can: " in done.stdout


@pytest.mark.parametrize("agent", agent_names())
def test_the_command_line_says_it_in_one_line(agent: str, tmp_path: Path) -> None:
    space = next((name for name, spec in SPECS.items() if not fits(agent, spec)), None)
    if space is None:
        pytest.skip(f"{agent} can act everywhere")
    flags = ("--env", "tests.samples:Acts-v0", "--set", f"env.args.space={space}", "--agent", agent)
    done = kit.run(tmp_path, "host", *flags, "--results", str(tmp_path / "results"), cwd=kit.ROOT)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("p2prl: ")
    assert "agents that can: " in line or line.endswith("; no installed agent can")
    assert not (tmp_path / "results").exists()
