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


def difference(ours: EnvSpec, theirs: EnvSpec) -> str:
    """The first thing in which our environment is another task than a host's, in words; empty if it is the same one.

    The bounds of an observed Box do not count: to leave them is common and harmless, and a library's next version may
    correct them.

    >>> box, other = (Leaf("box", "float32", (size,), (0.0,), (1.0,)) for size in (4, 3))
    >>> difference(EnvSpec("A", box, box), EnvSpec("A", other, box))
    "observation is Box(4,), the host's is Box(3,)"
    """
    pairs = (
        ("observation", ours.observation, theirs.observation),
        ("action", ours.action, theirs.action),
    )
    for name, one, other in pairs:
        if told := _space_difference(name, one, other):
            return told
    if ours.reward_range != theirs.reward_range:
        return f"reward_range is {_pair(ours.reward_range)}, the host's is {_pair(theirs.reward_range)}"
    if ours.max_episode_steps != theirs.max_episode_steps:
        limits = [
            f"{spec.max_episode_steps} steps" if spec.max_episode_steps else "none" for spec in (ours, theirs)
        ]
        return f"the time limit is {limits[0]}, the host's is {limits[1]}"
    return ""


def _space_difference(name: str, ours: Space, theirs: Space) -> str:
    here, there = list(leaves(ours, name)), list(leaves(theirs, name))
    if type(ours) is not type(theirs) or [part for part, _ in here] != [part for part, _ in there]:
        return f"{name} is {in_words(ours)}, the host's is {in_words(theirs)}"
    for (part, one), (_, other) in zip(here, there, strict=True):
        free = name == "observation" and one.kind == other.kind == "box"
        if (one.kind, one.dtype, one.shape) == (other.kind, other.dtype, other.shape) and (
            free or (one.low, one.high) == (other.low, other.high)
        ):
            continue
        words = [in_words(leaf) for leaf in (one, other)]
        if words[0] == words[1]:
            words = [f"{in_words(leaf)} of {leaf.dtype}" for leaf in (one, other)]
        if words[0] == words[1]:
            words = [f"{in_words(leaf)} {_bounds(leaf)}" for leaf in (one, other)]
        return f"{part} is {words[0]}, the host's is {words[1]}"
    return ""


def in_words(space: Space) -> str:
    """A space as Gymnasium's users write it, without the bounds of a Box.

    >>> one, other = Leaf("discrete", "uint8", (), (0.0,), (2.0,)), Leaf("box", "float32", (3,), (0.0,), (1.0,))
    >>> in_words(TupleSpace((one, other)))
    'Tuple(Discrete(3), Box(3,))'
    """
    if isinstance(space, DictSpace):
        return f"Dict({', '.join(f'{key}: {in_words(item)}' for key, item in space.items.items())})"
    if isinstance(space, TupleSpace):
        return f"Tuple({', '.join(in_words(item) for item in space.items)})"
    if space.kind == "discrete":
        first, last = int(space.low[0]), int(space.high[0])
        return f"Discrete({last - first + 1}{f', start={first}' if first else ''})"
    if space.kind == "multi_discrete" and len(space.low) == 1 and space.low[0] == 0 and len(space.shape) == 1:
        sizes = [int(high) + 1 for high in space.high]
        return f"MultiDiscrete({sizes * space.shape[0] if len(sizes) == 1 else sizes})"
    names = {"box": "Box", "multi_discrete": "MultiDiscrete", "multi_binary": "MultiBinary"}
    return f"{names.get(space.kind, space.kind)}{space.shape}"


def spaces_in_words(spec: EnvSpec) -> dict[str, str]:
    """Each leaf of an environment's spaces in words, by its dotted name, for a file that people may read.

    >>> box = Leaf("box", "float32", (4,), (0.0,), (1.0,))
    >>> spaces_in_words(EnvSpec("A", box, box))
    {'observation': 'Box(4,) of float32', 'action': 'Box(4,) of float32'}
    """
    named = (*leaves(spec.observation, "observation"), *leaves(spec.action, "action"))
    return {
        name: f"{in_words(leaf)} of {leaf.dtype}" if leaf.kind == "box" else in_words(leaf)
        for name, leaf in named
    }


def _bounds(leaf: Leaf) -> str:
    """The bounds, all of them if they are few."""
    low, high = (", ".join(f"{value:g}" for value in side[:4]) for side in (leaf.low, leaf.high))
    return f"from {low} to {high}"


def _pair(declared: tuple[float, float] | None) -> str:
    return f"{declared[0]:g} to {declared[1]:g}" if declared else "not declared"
