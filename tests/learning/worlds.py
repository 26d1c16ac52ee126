"""Small environments in which what a policy earns that has learned nothing is known, and the best is too."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from p2prl.learn.contracts import Array

Info = dict[str, Any]
#: What `Gym.reset` may be given.
Options = dict[str, Any] | None


class Junction(gym.Env[Any, Any]):
    """A hint at the start, four ticks in which nothing is seen, and a sign: right is what the hint and the sign say
    together (their exclusive or). One look at either tells nothing, so without memory every other choice is wrong.
    """

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self._hint, self._sign = (int(bit) for bit in self.np_random.integers(2, size=2))
        self._tick = 0
        return np.array([self._hint, 1 - self._hint, 0, 0], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, Info]:
        self._tick += 1
        at_sign = self._tick == 5
        obs = np.array([0, 0, at_sign, at_sign and self._sign], np.float32)
        over = self._tick == 6
        return obs, float(over and action == self._hint ^ self._sign), over, False, {}


class Lock(gym.Env[Any, Any]):
    """A combination lock: each place has one action that leads on, the other one ends the episode. The last gives 1.

    Which action it is has no pattern, so nothing can be carried over from place to place. A random policy opens one in
    2^length. After the Blind Cliffwalk of Schaul et al. 2016 (arXiv:1511.05952, section 3.1).
    """

    action_space = spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length = length
        self.combination = np.random.default_rng(length).integers(2, size=length)
        #: The places, and where an episode ends.
        self.observation_space = spaces.Discrete(length + 1)
        self._place = 0

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self._place = 0
        return 0, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, Info]:
        if action != self.combination[self._place]:
            return self.length, 0.0, True, False, {}
        self._place += 1
        opened = self._place == self.length
        return self._place, float(opened), opened, False, {}

    def best(self, gamma: float) -> Array:
        """The optimal values `[length, 2]` of its places."""
        values = np.zeros((self.length, 2))
        values[np.arange(self.length), self.combination] = gamma ** np.arange(self.length - 1, -1, -1)
        return values


class Game(gym.Env[Any, Any]):
    """Eight rounds that have nothing to do with each other; each earns its share of 1."""

    ROUNDS = 8

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self._round = 0
        return self.deal(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        earned = self.score(action) / self.ROUNDS
        self._round += 1
        return self.deal(), earned, False, self._round == self.ROUNDS, {}

    def deal(self) -> Any:
        """The next round's observation."""
        raise NotImplementedError

    def score(self, action: Any) -> float:
        """What an action is worth in this round, at most 1."""
        raise NotImplementedError


class Echo(Game):
    """Do what you see, in any space. A policy that does not look is right in a part of n choices once in n times; of a
    number in [-1, 1] that it cannot see, it is best at 0, which is 1/2 off on average.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = self.action_space = space
        self._shown: Any = None

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Any, Info]:
        if seed is not None:
            self.observation_space.seed(seed)
        return super().reset(seed=seed)

    def deal(self) -> Any:
        self._shown = self.observation_space.sample()
        return self._shown

    def score(self, action: Any) -> float:
        return float(np.mean(_alike(self.observation_space, self._shown, action)))


def _alike(space: spaces.Space[Any], shown: Any, done: Any) -> list[float]:
    """Of each part in [0, 1]."""
    if isinstance(space, spaces.Dict):
        return [part for key, inner in space.items() for part in _alike(inner, shown[key], done[key])]
    if isinstance(space, spaces.Box):
        return np.ravel(1 - np.abs(shown - done).clip(0, 1)).tolist()
    return np.ravel(np.equal(shown, done)).astype(float).tolist()


class Picture(Game):
    """A bright block somewhere in a quarter of a dark picture: name the quarter. Who does not look is right in 1/4."""

    HEIGHT, WIDTH, CHANNELS, BLOCK = 20, 28, 3, 6
    observation_space = spaces.Box(0, 255, (HEIGHT, WIDTH, CHANNELS), np.uint8)
    action_space = spaces.Discrete(4)

    def deal(self) -> Any:
        self._quarter = int(self.np_random.integers(4))
        low, right = divmod(self._quarter, 2)
        half = np.array([self.HEIGHT, self.WIDTH]) // 2
        top, left = half * (low, right) + self.np_random.integers(half - self.BLOCK + 1)
        picture = self.np_random.integers(0, 40, self.observation_space.shape, dtype=np.uint8)
        picture[top : top + self.BLOCK, left : left + self.BLOCK] = 255
        return picture

    def score(self, action: Any) -> float:
        return float(action == self._quarter)


class Faint(Game):
    """One bit, far from 0 and in a unit of a thousandth, beside two numbers of hundreds that mean nothing. Who does not
    see the bit is right in half of the rounds.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def deal(self) -> Any:
        self._bit = int(self.np_random.integers(2))
        return np.array([5 + self._bit / 1000, *self.np_random.normal(0, 300, 2)], np.float32)

    def score(self, action: Any) -> float:
        return float(action == self._bit)


class Coin(Game):
    """Action 1 tosses a coin for a whole round's earnings or nothing; action 0 always gets half of them."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(2)

    def deal(self) -> Any:
        return 0

    def score(self, action: Any) -> float:
        return float(self.np_random.integers(2)) if action else 0.5


def chain_values(length: int, step_reward: float, gamma: float) -> Array:
    """The optimal values `[length - 1, 2]` of p2prl_envs.chain without a time limit, of all places but the goal."""
    right = np.ones(length - 1)
    for place in range(length - 3, -1, -1):
        right[place] = step_reward + gamma * right[place + 1]
    left = step_reward + gamma * right[np.maximum(np.arange(length - 1) - 1, 0)]
    return np.stack([left, right], axis=1)


class Crowd(Game):
    """Twelve of a kind, each shown three numbers, and each to name the place of its largest: chance is right in 1/3.

    What is right for one is right for all, which one network for all rows need learn but once.
    """

    MANY = 12
    observation_space = spaces.Box(0, 1, (MANY, 3), np.float32)
    action_space = spaces.MultiDiscrete([3] * MANY)

    def deal(self) -> Any:
        self._shown = self.np_random.random((self.MANY, 3), np.float32)
        return self._shown

    def score(self, action: Any) -> float:
        return float(np.mean(self._shown.argmax(axis=1) == action))
