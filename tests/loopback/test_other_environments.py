"""A joiner whose environment has the host's name and is another task; and environments that change under a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from p2prl.packages import install_command
from tests import kit

#: An environment of one's own, as a person would write it.
GAME = """
import gymnasium as gym
import numpy as np

class Game(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, ({size},))
    action_space = gym.spaces.Discrete({actions})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self.look(), {{}}

    def step(self, action):
        self.left -= 1
        return self.look(), 1.0, self.left == 0, False, {{}}

    def look(self):
        return self.np_random.uniform(-1, 1, {size}).astype("float32")

gym.register("Game-v0", entry_point=Game)
"""


def write_game(folder: Path, size: int = 3, actions: int = 2) -> Path:
    """A folder with game.py in it, of these spaces."""
    folder.mkdir(exist_ok=True)
    (folder / "game.py").write_text(GAME.format(size=size, actions=actions))
    return folder


@pytest.mark.parametrize("agent", ["cem", "es"])
@pytest.mark.parametrize(
    ("size", "actions", "told"),
    [
        (3, 3, "action is Discrete(3), the host's is Discrete(2)"),
        (4, 2, "observation is Box(4,), the host's is Box(3,)"),
    ],
)
def test_a_joiner_with_other_spaces_is_refused_whatever_the_agent_stores(
    tmp_path: Path, agent: str, size: int, actions: int, told: str
) -> None:
    """cem and es store neither observations nor actions: nothing that they send would tell."""
    base = kit.free_base()
    here = write_game(tmp_path / "here")
    there = write_game(tmp_path / "there", size, actions)
    flags = ("--env", "game:Game-v0", "--agent", agent, "--players", "0")
    with (
        kit.host(tmp_path, *flags, port=base, cwd=here) as host,
        kit.join(tmp_path, target=f"127.0.0.1:{base}", cwd=there) as joiner,
    ):
        assert joiner.wait(30) == 1
        assert (
            f"game:Game-v0 differs from the host's: {told}; use the module that the host has" in joiner.stderr
        )
        host.wait_for_line("joiner: schema: game:Game-v0 differs from the host's")
        assert host.end() == 0
    assert "Traceback" not in joiner.stderr


#: What a person may have written instead of GAME, and the one line that says what is wrong with it.
BROKEN = [
    (
        "import gymnasium as gym",
        "raise RuntimeError('module broke')",
        "the module game cannot be imported: RuntimeError: module broke (game.py line 2)",
    ),
    (
        "return self.look(), {}",
        "raise KeyError('place')",
        "game:Game-v0: reset raised KeyError: 'place' (game.py line 12)",
    ),
    (
        "return self.look(), {}",
        "return self.look()",
        "game:Game-v0: reset() must give (observation, info), gave one value, of the type ndarray",
    ),
    (
        ", self.left == 0, False, {}",
        ", self.left == 0, {}",
        "game:Game-v0: step() must give (observation, reward, terminated, truncated, info), gave 4 values",
    ),
    (
        "self.left -= 1",
        "1 / 0",
        "game:Game-v0: step raised ZeroDivisionError: division by zero (game.py line 15)",
    ),
    (
        "class Game(gym.Env):",
        "class Game(gym.Env):\n    def __init__(self): raise OSError('no port')\n",
        "game:Game-v0 cannot be made: OSError: no port (game.py line 6)",
    ),
]


@pytest.mark.parametrize(("old", "new", "told"), BROKEN)
def test_a_host_tries_its_environment_before_it_starts(tmp_path: Path, old: str, new: str, told: str) -> None:
    here = write_game(tmp_path / "here")
    text = (here / "game.py").read_text()
    (here / "game.py").write_text(text.replace(old, new))
    results = tmp_path / "results"
    done = kit.run(
        tmp_path, "host", "--env", "game:Game-v0", "--agent", "cem", "--results", str(results), cwd=here
    )
    assert done.returncode in (1, 2)
    assert done.stderr.splitlines() == [f"p2prl: {told}"]
    assert not results.exists()


def test_a_joiner_tries_its_environment_before_it_plays(tmp_path: Path) -> None:
    base = kit.free_base()
    here, there = write_game(tmp_path / "here"), write_game(tmp_path / "there")
    text = (there / "game.py").read_text()
    (there / "game.py").write_text(
        text.replace("import gymnasium as gym", "raise RuntimeError('module broke')")
    )
    flags = ("--env", "game:Game-v0", "--agent", "cem", "--players", "0")
    with (
        kit.host(tmp_path, *flags, port=base, cwd=here) as host,
        kit.join(tmp_path, target=f"127.0.0.1:{base}", cwd=there) as joiner,
    ):
        assert joiner.wait(30) == 1
        assert joiner.errors[-1] == (
            "p2prl: the module game cannot be imported: RuntimeError: module broke (game.py line 2)"
        )
        assert host.end() == 0
    assert "Traceback" not in joiner.stderr


def test_an_environment_that_changed_under_a_run_is_named_by_resume_and_eval(tmp_path: Path) -> None:
    base = kit.free_base()
    here = write_game(tmp_path / "here")
    flags = ("--env", "game:Game-v0", "--agent", "cem", "--players", "1", "--stop-steps", "5000")
    with kit.host(tmp_path, *flags, port=base, cwd=here) as host:
        results = Path(host.wait_for("started")["results"])
        assert host.wait(60) == 0
    write_game(here, size=4)
    told = (
        f"p2prl: game:Game-v0 has changed since {results.name} began: observation was Box(3,) of float32, and is "
        "Box(4,) of float32 now; put it back as it was, or start a new run"
    )
    again = ("--resume", "--results", str(results), "--players", "0")
    with kit.host(tmp_path, *again, port=base, cwd=here) as resumed:
        assert resumed.wait(30) == 2
    assert resumed.errors == [told]
    done = kit.run(tmp_path, "eval", str(results), "-n", "2", cwd=here)
    assert (done.returncode, done.stderr.splitlines()) == (2, [told])


def test_a_host_without_torch_is_refused_before_anything_starts(tmp_path: Path) -> None:
    results = tmp_path / "results"
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from p2prl.cli.main import main\n"
        f"sys.exit(main(['host', 'chain', '--results', {str(results)!r}]))"
    )
    env = {**os.environ, "P2PRL_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"p2prl: training dqn needs torch: {install_command('p2prl[train]')}"]
    assert not results.exists()
