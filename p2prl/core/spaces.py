"""A plain description of observation and action spaces, that can be sent to another machine.

It covers Gymnasium's Box, Discrete, MultiDiscrete and MultiBinary, and Dict and Tuple of those. A space is a tree;
its leaves have dotted names (`obs`, `obs.camera`, `obs.0`), and sessions store one array per leaf.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Leaf(msgspec.Struct, frozen=True, tag="leaf"):
    """One array of a space.

    Attributes:
        kind: `box`, `discrete`, `multi_discrete` or `multi_binary`.
        dtype: numpy's name of the stored dtype; integers are stored in the smallest one that holds the bounds.
        shape: the shape of one observation or action, without a batch axis; `()` for discrete.
        low, high: inclusive bounds. One number for all elements, or one per element in C order.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class DictSpace(msgspec.Struct, frozen=True, tag="dict"):
    """A mapping of named spaces, in the order of the environment."""

    items: dict[str, Space]


class TupleSpace(msgspec.Struct, frozen=True, tag="tuple"):
    """A sequence of spaces; the leaves are named by position."""

    items: tuple[Space, ...]


Space = Leaf | DictSpace | TupleSpace


class EnvSpec(msgspec.Struct, frozen=True):
    """What an agent is bound to.

    Attributes:
        id: the environment's id, as in `--env`.
        observation, action: its spaces.
        max_episode_steps: the time limit after which it truncates, or None.
        reward_range: the least and the largest reward of one step, where it declares them; either may be infinite.
    """

    id: str
    observation: Space
    action: Space
    max_episode_steps: int | None = None
    reward_range: tuple[float, float] | None = None


def leaves(space: Space, prefix: str) -> Iterator[tuple[str, Leaf]]:
    """Each leaf with its dotted name, in a fixed order.

    >>> box = Leaf("box", "float32", (2,), (0.0,), (1.0,))
    >>> [name for name, _ in leaves(DictSpace({"a": box, "b": TupleSpace((box,))}), "obs")]
    ['obs.a', 'obs.b.0']
    """
    if isinstance(space, Leaf):
        yield prefix, space
    elif isinstance(space, DictSpace):
        for key, item in space.items.items():
            yield from leaves(item, f"{prefix}.{key}")
    else:
        for index, item in enumerate(space.items):
            yield from leaves(item, f"{prefix}.{index}")
