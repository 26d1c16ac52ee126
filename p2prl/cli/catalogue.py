"""Which of Gymnasium's ids can be expected to start here, without importing any; and lists that fit a terminal."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

#: What Gymnasium's own families need beside it, by the package that has them.
_NEEDS = {
    "gymnasium.envs.box2d": "Box2D",
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.phys2d": "jax",
    "gymnasium.envs.tabular": "jax",
}
_GAP = 2
_LEAST = 20


def usable_ids(registry: Mapping[str, Any]) -> list[str]:
    """The newest version of each id that can be expected to start, sorted.

    Args:
        registry: id -> Gymnasium's EnvSpec.
    """
    newest: dict[str, tuple[int, str]] = {}
    installed: dict[str, bool] = {}
    for env_id, spec in registry.items():
        name, dash, version = env_id.rpartition("-v")
        number = int(version) if dash and version.isdecimal() else -1
        if _can_start(spec.entry_point, installed):
            base = name if number >= 0 else env_id
            newest[base] = max(newest.get(base, (-1, "")), (number, env_id))
    return sorted(env_id for _, env_id in newest.values())


def _can_start(entry_point: Any, installed: dict[str, bool]) -> bool:
    """False for what is gone, for what needs a package that is missing, and for what is no single environment.

    Args:
        installed: what was found out so far, by package.
    """
    if entry_point is None:  # there is a vector environment only
        return False
    if callable(entry_point):
        # In the place of those that left Gymnasium it has functions that raise.
        return not getattr(entry_point, "__name__", "").startswith("_raise_")
    module = str(entry_point).partition(":")[0]
    needs = [package for family, package in _NEEDS.items() if module.startswith(f"{family}.")]
    return all(_installed(package, installed) for package in (module.partition(".")[0], *needs))


def _installed(package: str, known: dict[str, bool]) -> bool:
    if package not in known:
        try:
            known[package] = importlib.util.find_spec(package) is not None
        except (ImportError, ValueError):  # as of a module that was put together by hand
            known[package] = False
    return known[package]


def columns(names: Sequence[str], width: int, indent: int = 2) -> list[str]:
    """The names in as many columns as `width` has room for, read downwards.

    >>> columns(["a", "b", "cc", "d", "e"], 12)
    ['  a   cc  e', '  b   d']
    """
    if not names:
        return []
    cell = max(map(len, names)) + _GAP
    across = max(1, (width - indent + _GAP) // cell)
    down = -(-len(names) // across)
    rows = [names[row::down] for row in range(down)]
    return [" " * indent + "".join(name.ljust(cell) for name in row).rstrip() for row in rows]


def entry(left: str, text: str, width: int, column: int) -> list[str]:
    """A name with what it is, from `column` on; what does not fit goes on below, between words.

    >>> entry("  a", "one two three", 30, 8)
    ['  a     one two three']
    """
    lines = textwrap.wrap(text, max(_LEAST, width - column), break_on_hyphens=False, break_long_words=False)
    if not lines:
        return [left]
    beside = len(left) < column
    first = [left.ljust(column) + lines[0]] if beside else [left, " " * column + lines[0]]
    return first + [" " * column + line for line in lines[1:]]
