"""A joiner whose environment has the host's name and is another task; and environments that change under a run."""

from __future__ import annotations

from pathlib import Path

import pytest

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
