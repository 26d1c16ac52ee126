"""A peer in a process of its own: stable-baselines3 learns until the criterion is met. JSON lines on stdout.

    {"event": "point", "steps": 4096, "mean": 31.2, "apart_s": 0.0}      along the way
    {"event": "reached", "steps": 65536, "mean": 475.3, "apart_s": 0.0}  once

`apart_s` are the seconds so far that went into greedy evaluation, which is not counted as training.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

_ALGORITHMS = {"A2C": A2C, "DQN": DQN, "PPO": PPO}
_EVALUATE_EVERY, _EPISODES, _EVAL_SEED, _EVAL_ENVS = 2048, 100, 10_000, 16
_POINT_EVERY = 1000


class Watch(BaseCallback):
    """Ends the training at the criterion, or at a limit."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self._config = config
        self._seen: Any = None
        self._apart_s, self._next_eval, self._next_point = 0.0, _EVALUATE_EVERY, _POINT_EVERY
        self._began = time.monotonic()

    def _on_step(self) -> bool:
        reached = self._greedy() if self._config["kind"] == "greedy" else self._training()
        late = time.monotonic() - self._began - self._apart_s > self._config["seconds"]
        return not (reached or late or self.num_timesteps >= self._config["max_steps"])

    def _training(self) -> bool:
        episodes = self.model.ep_info_buffer
        if not episodes or len(episodes) < _EPISODES or episodes[-1] is self._seen:
            return False
        self._seen = episodes[-1]
        return self._judge(float(np.mean([episode["r"] for episode in episodes])), every=_POINT_EVERY)

    def _greedy(self) -> bool:
        if self.num_timesteps < self._next_eval:
            return False
        self._next_eval += _EVALUATE_EVERY
        began = time.monotonic()
        env = make_vec_env(
            self._config["env"], _EVAL_ENVS, seed=_EVAL_SEED, env_kwargs=self._config["env_args"]
        )
        returns, _ = evaluate_policy(self.model, env, _EPISODES, return_episode_rewards=True)
        env.close()
        self._apart_s += time.monotonic() - began
        return self._judge(float(np.mean(returns)), every=0)

    def _judge(self, mean: float, every: int) -> bool:
        reached = bool(mean >= self._config["threshold"])
        if reached or self.num_timesteps >= self._next_point or not every:
            self._next_point = self.num_timesteps + every
            self._tell("point", mean)
        if reached:
            self._tell("reached", mean)
        return reached

    def _tell(self, event: str, mean: float) -> None:
        line = {"event": event, "steps": self.num_timesteps, "mean": mean, "apart_s": self._apart_s}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def main() -> int:
    """Learn as the one argument, an object, says."""
    config = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    env = make_vec_env(config["env"], config["envs"], seed=config["seed"], env_kwargs=config["env_args"])
    if config["normalise"]:
        env = VecNormalize(env, gamma=config["settings"].get("gamma", 0.99))
    settings = dict(config["settings"])
    for name in config["falling"]:
        settings[name] = _falling(settings[name])
    model = _ALGORITHMS[config["algorithm"]]("MlpPolicy", env, seed=config["seed"], device="cpu", **settings)
    model.set_logger(Logger(None, []))  # its own makes a folder in the temporary one
    model.learn(config["steps"], callback=Watch(config))
    env.close()
    return 0


def _falling(start: float) -> Any:
    """A schedule: from `start` to 0 with the share of steps that is left."""
    return lambda left: left * start


if __name__ == "__main__":
    sys.exit(main())
