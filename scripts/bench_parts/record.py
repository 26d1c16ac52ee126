"""Writes down what half-trained policies do: python -m bench_parts.record Pong=RUN_DIR [Breakout=RUN_DIR ...]

The newest checkpoint of each run plays its game in pictures, exploring as it did in training, and what it did goes into
half_trained.json; games that are not named stay there as they are. docs/performance.md says how the runs are made.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bench_parts import pictures
from bench_parts.console import ENV, PLACES, Console
from bench_parts.half_trained import FILE, LETTERS, Marks, told
from p2prl.learn.contracts import Explore
from p2prl.learn.spaces import env_spec
from p2prl.nodes import checkpoint
from p2prl.registry import make_agent, resolve_agent
from p2prl.settings import EXPERIMENT_FILE, latest_run, load_experiment

Array = np.ndarray[Any, np.dtype[Any]]
#: A slot's first row comes so many ticks later than that of the slot before: not all are beginnings of episodes.
_LEAD, _SLOTS, _ROWS = 128, 8, 257
#: Over which a score is a mean.
_EPISODES = 20


class Policy:
    """A run's newest: it has no memory, and explores as it did in training.

    Attributes:
        steps: of training.
        actions: how many there are.
    """

    def __init__(self, game: str, folder: Path) -> None:
        run = latest_run(folder)
        experiment = load_experiment(run / EXPERIMENT_FILE)
        if experiment.env.id != ENV or dict(experiment.env.args) != {"game": game}:
            raise SystemExit(f"{run} played {experiment.env.id} with {dict(experiment.env.args)}, not {game}")
        chosen = checkpoint.require(run / "checkpoints")
        env = Console(game)
        spec, self.actions = env_spec(env, ENV), env.action_space.n  # type: ignore[attr-defined]
        env.close()
        agent = make_agent(resolve_agent(experiment.agent.name), spec, dict(experiment.agent.settings))
        self.steps, self._places, self._actor = chosen.meta.steps, PLACES[game], agent.actor()
        self._actor.load(chosen.weights)

    def act(self, seen: Array, rng: np.random.Generator) -> int:
        """One action for what is seen of the console's memory."""
        action, _, _ = self._actor.act(seen[None], self._actor.start(1), Explore(rng, np.zeros(1)))
        return int(np.asarray(action)[0])

    def play(self, game: str, slot: int) -> dict[str, Any]:
        """What it does in a slot, as half_trained.py reads it."""
        lead = _LEAD * slot
        env, marks, due = pictures.make(game), Marks(lead), []
        before = ram = np.zeros(128, np.uint8)
        rng, actions = np.random.default_rng(slot), []

        def act() -> int:
            # At an episode's first tick it sees a change from the one before: one tick, of no weight.
            actions.append(self.act(self._places.see(ram, before), rng))
            return actions[-1]

        for row, _ in enumerate(pictures.ticks(env, slot, act), start=1):
            before, ram = ram, env.unwrapped.ale.getRAM()
            if (mark := marks.take(ram)) is not None:
                due.append(mark)
            if row == lead + _ROWS:
                break
        env.close()
        return {"lead": lead, "marks": due, "actions": "".join(LETTERS[action] for action in actions)}


def game_of(game: str, folder: Path) -> dict[str, Any]:
    """What the file says of a game."""
    policy = Policy(game, folder)
    return {
        "steps": policy.steps,
        "episodes": _EPISODES,
        "return": _mean_return(game, policy.act),
        "random_return": _mean_return(game, lambda _, rng: int(rng.integers(policy.actions))),
        "slots": [policy.play(game, slot) for slot in range(_SLOTS)],
    }


def _mean_return(game: str, act: Callable[[Array, np.random.Generator], int]) -> float:
    env, rng = Console(game), np.random.default_rng(0)
    returns = []
    for episode in range(_EPISODES):
        (seen, _), total, over = env.reset(seed=episode), 0.0, False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(act(seen, rng))
            total, over = total + reward, terminated or truncated
        returns.append(total)
    env.close()
    return float(np.mean(returns))


def main(words: list[str]) -> None:
    """Each word is GAME=RUN_DIR."""
    found = told(FILE) if FILE.is_file() else {"games": {}}
    if found["games"] and found["ale_py"] != version("ale-py"):
        raise SystemExit(
            f"{FILE.name} was recorded with ale-py {found['ale_py']}: record all games anew, or none"
        )
    for word in words:
        game, _, folder = word.partition("=")
        if game not in PLACES or not Path(folder).is_dir():
            raise SystemExit(f"{word}: say GAME=RUN_DIR, with a game of {', '.join(PLACES)}")
        found["games"][game] = game_of(game, Path(folder))
    text = json.dumps({"ale_py": version("ale-py"), "games": found["games"]}, indent=1)
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
