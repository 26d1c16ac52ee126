"""Playing greedily, to see what a policy is worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from p2prl.core.spaces import EnvSpec, leaves
from p2prl.learn.contracts import Actor, Array, State
from p2prl.learn.environments import MakeEnv, failure, slot_seed, write, writers_of
from p2prl.learn.spaces import for_env, join

#: Takes an episode's index and one rendered frame, uint8 `[height, width, 3]`.
TakeFrame = Callable[[int, Array], None]

_SLOTS_AT_ONCE = 16


def evaluate(
    make_env: MakeEnv,
    spec: EnvSpec,
    actor: Actor,
    episodes: int,
    seed: int,
    frames: TakeFrame | None = None,
) -> list[tuple[float, int]]:
    """Play greedily, several episodes at a time.

    Args:
        episodes: how many; each has its own seed, so the same `seed` gives the same list.
        frames: takes each rendered frame. Needs environments made with `render_mode="rgb_array"`, which then play one
            episode after the other.

    Returns:
        (return, length) per episode, in order.

    Raises:
        EnvironmentFailed: an environment raised.
    """
    slots = 1 if frames else max(1, min(episodes, _SLOTS_AT_ONCE))
    lanes = [_Lane(make_env(), spec, slot, seed, frames) for slot in range(slots)]
    try:
        return _evaluate(lanes, spec, actor, episodes)
    finally:
        for lane in lanes:
            lane.env.close()


def _evaluate(lanes: list[_Lane], spec: EnvSpec, actor: Actor, episodes: int) -> list[tuple[float, int]]:
    waiting = iter(range(episodes))
    results: dict[int, tuple[float, int]] = {}
    slots = len(lanes)
    rows = {
        name: np.zeros((slots, *leaf.shape), leaf.dtype) for name, leaf in leaves(spec.observation, "obs")
    }
    writers = [(rows[name], read) for name, read in writers_of(spec.observation, "obs")]
    state = actor.start(slots)
    start = {name: values.copy() for name, values in state.items()}
    to_env = for_env(lanes[0].env.action_space)
    for lane in lanes:
        write(writers, lane.slot, lane.begin(next(waiting, None)))
    while any(lane.episode is not None for lane in lanes):
        actions, state, _ = actor.act(join(spec.observation, "obs", rows), state, None)
        native = to_env(actions)
        for lane in lanes:
            if lane.episode is None:
                continue
            obs = lane.step(native[lane.slot])
            if lane.over:
                results[lane.episode] = (lane.total, lane.length)
                _put_back(state, start, lane.slot)
                obs = lane.begin(next(waiting, None))
            if obs is not None:
                write(writers, lane.slot, obs)
    return [results[episode] for episode in range(episodes)]


class _Lane:
    """One slot of an evaluation; `episode` is None when there is nothing left for it to play."""

    def __init__(
        self, env: gym.Env[Any, Any], spec: EnvSpec, slot: int, seed: int, frames: TakeFrame | None
    ) -> None:
        self.env, self.slot = env, slot
        self.episode: int | None = None
        self.total, self.length, self.over = 0.0, 0, False
        self._spec, self._seed, self._frames = spec, seed, frames

    def begin(self, episode: int | None) -> Any:
        self.episode, self.total, self.length, self.over = episode, 0.0, 0, False
        if episode is None:
            return None
        try:
            obs, _ = self.env.reset(seed=slot_seed(self._seed, episode))
            self._show()
        except Exception as error:
            raise failure(self._spec.id, self.slot, "reset", error) from error
        return obs

    def step(self, action: Any) -> Any:
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            self._show()
        except Exception as error:
            raise failure(self._spec.id, self.slot, "step", error) from error
        self.total += float(reward)
        self.length += 1
        self.over = bool(terminated or truncated)
        return obs

    def _show(self) -> None:
        if self._frames is not None and self.episode is not None:
            self._frames(self.episode, np.asarray(self.env.render()))


def _put_back(state: State, start: State, slot: int) -> None:
    for name, rows in state.items():
        rows[slot] = start[name][slot]
