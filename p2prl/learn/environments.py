"""What all who step environments share: how an observation is laid out, how a slot is seeded, how a failure is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from p2prl.core.spaces import EnvSpec, Leaf, Space, leaves
from p2prl.errors import P2prlError
from p2prl.learn.contracts import Array, Tree
from p2prl.learn.spaces import split

MakeEnv = Callable[[], "gym.Env[Any, Any]"]
#: A leaf's name, and how to read it out of one observation.
Writer = tuple[str, Callable[[Any], Any]]


class EnvironmentFailed(P2prlError):
    """An environment raised, or answered with something outside its own spaces' shapes.

    Attributes:
        slot: which slot of the player; None for all of them, where they are one environment.
    """

    def __init__(self, message: str, slot: int | None) -> None:
        super().__init__(message)
        self.slot = slot


class NotFinite(ValueError):
    """An environment gave NaN or infinity where a number belongs; the text says where and which."""


def slot_seed(seed: int, slot: int, failures: int = 0) -> int:
    """A seed for `reset(seed=)`: 31 bits, because that is what the pickiest generators take.

    Args:
        failures: environments that failed so far, so that a slot does not run into the same failure again.
    """
    key = (slot, failures) if failures else (slot,)
    state = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint32)
    return int(state[0]) >> 1


def writers_of(space: Space, prefix: str) -> list[Writer]:
    """Each leaf's name, and how to read it out of one observation."""
    paths = [(name, name[len(prefix) + 1 :]) for name, _ in leaves(space, prefix)]
    return [(name, _reader(space, path.split(".") if path else [])) for name, path in paths]


def _reader(space: Space, path: Sequence[str]) -> Callable[[Any], Any]:
    if isinstance(space, Leaf):
        return lambda obs: obs
    key: Any = path[0] if isinstance(space.items, dict) else int(path[0])
    inner = _reader(space.items[key], path[1:])
    return lambda obs: inner(obs[key])


def write(rows: Sequence[tuple[Array, Callable[[Any], Any]]], slot: int, obs: Any) -> None:
    """Put an observation into row `slot` of each leaf's array `[slots, ...]`."""
    for row, read in rows:
        row[slot] = read(obs)


def check_shapes(spec: EnvSpec, obs: Tree, slot: int) -> None:
    """Once per environment: a wrong shape would else be broadcast in silence. Raises EnvironmentFailed."""
    try:
        shapes = {name: np.shape(part) for name, part in split(spec.observation, "obs", obs).items()}
    except (KeyError, IndexError, TypeError) as error:
        raise failure(spec.id, slot, "reset", error) from error
    for name, leaf in leaves(spec.observation, "obs"):
        if shapes[name] != leaf.shape:
            text = f"{spec.id}: slot {slot}: reset gave {name} the shape {shapes[name]}, its space says {leaf.shape}"
            raise EnvironmentFailed(text, slot)


def check_finite(name: str, values: Array) -> None:
    """Raises NotFinite if an observation's leaf holds NaN or infinity."""
    bad = ~np.isfinite(values)
    if bad.any():
        index = ", ".join(map(str, np.argwhere(bad)[0]))
        raise NotFinite(f"{name}{f'[{index}]' if index else ''} = {float(values[bad].flat[0])}")


def failure(env_id: str, slot: int | None, where: str, error: Exception) -> EnvironmentFailed:
    """One line about what an environment raised in `reset` or `step`; `error` is its cause.

    Args:
        slot: None for all of them.
    """
    text = " ".join(str(error).split())
    did = "gave" if isinstance(error, NotFinite) else f"raised {type(error).__name__}:"
    who = env_id if slot is None else f"{env_id}: slot {slot}"
    failed = EnvironmentFailed(f"{who}: {where} {did} {text}", slot)
    failed.__cause__ = error
    return failed
