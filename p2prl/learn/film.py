"""Stacks of pictures, each picture once: where Gymnasium's FrameStackObservation is an environment's outermost wrapper.

What it does can be done with less work here, past it: of each step only the newest picture is taken, and that nothing
but a reset breaks the sequence need not be found out again when a bundle is packed.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np

from p2prl.learn.contracts import Array


class Film:
    """The pictures of one slot, bundle after bundle.

    Attributes:
        stack: pictures of a row.
    """

    def __init__(self, first: Array, rows: int) -> None:
        """
        Args:
            first: the first row, uint8 `[stack, *picture]`.
            rows: of a bundle, at least two; the last one is the next bundle's first.
        """
        self.stack, self._rows = len(first), rows
        self._picture = first.shape[1:]
        self._begin(first)

    def _begin(self, first: Array) -> None:
        self._kept = np.empty((self._rows + self.stack - 1, *self._picture), np.uint8)
        self._kept[: self.stack] = first
        #: How many pictures there are without the row under way, and with it; whether that breaks the sequence.
        self._end = self._next = self.stack
        self._is_broken = False
        self._breaks: list[bool] = []

    def newest(self, picture: Any) -> Array:
        """The row under way is the one before, moved up by one, and this picture; gives the row, to be copied.

        Raises:
            ValueError: it is no such picture.
        """
        if not isinstance(picture, np.ndarray) or (picture.shape, picture.dtype) != (self._picture, np.uint8):
            shape, kind = np.shape(picture), getattr(picture, "dtype", type(picture).__name__)
            raise ValueError(f"{kind}{list(shape)} where a picture of uint8{list(self._picture)} is due")
        self._kept[self._end] = picture
        self._next, self._is_broken = self._end + 1, False
        return self._kept[self._next - self.stack : self._next]

    def whole(self, row: Any) -> Any:
        """The row under way is this one, `[stack, *picture]`, whatever was before; gives it."""
        self._next, self._is_broken = self._end + self.stack, True
        needed = self._next + self._rows - len(self._breaks) - 2
        if needed > len(self._kept):
            kept = np.empty((needed, *self._picture), np.uint8)
            kept[: self._end] = self._kept[: self._end]
            self._kept = kept
        self._kept[self._end : self._next] = row
        return row

    def turn(self) -> None:
        """The row under way is as it will stay; until here it could be said anew."""
        self._breaks.append(self._is_broken)
        self._end = self._next

    def take(self) -> tuple[Array, list[bool]]:
        """The bundle's pictures, and which rows but its first break the sequence; the next bundle begins."""
        kept, breaks = self._kept[: self._end], self._breaks
        self._begin(kept[-self.stack :])
        return kept, breaks


class OwnFrames(gym.ObservationWrapper[Any, Any, Any]):
    """Copies observations for the stack around it, which keeps them: an environment may give one array each time."""

    def observation(self, observation: Any) -> Any:
        """A copy."""
        return deepcopy(observation)


def with_own_frames(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """The environment, each of whose FrameStackObservation stacks copies; players that step past one need none."""
    layer = env
    while isinstance(layer, gym.Wrapper):
        if type(layer) is gym.wrappers.FrameStackObservation and type(layer.env) is not OwnFrames:
            layer.env = OwnFrames(layer.env)
        layer = layer.env
    return env


def taken(step: Callable[[Any], Any], take: Callable[[Any], Any], action: Any) -> tuple[Any, ...]:
    """A step whose observation goes through one of a Film's methods."""
    obs, reward, terminated, truncated, info = step(action)
    return take(obs), reward, terminated, truncated, info


def stacked(env: gym.Env[Any, Any]) -> int:
    """How many observations Gymnasium's FrameStackObservation stacks here; 0 if it is not the outermost wrapper.

    Those that environments.bare_step steps past do not count.
    """
    while type(env) in (gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing):
        env = env.env  # type: ignore[attr-defined]
    return int(env.stack_size) if type(env) is gym.wrappers.FrameStackObservation else 0
