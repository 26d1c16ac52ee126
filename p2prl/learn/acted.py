"""What an actor gives, held against its contract: once, at the first act, so that the play loop has no part in it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from p2prl.core.spaces import EnvSpec, leaves
from p2prl.learn.contracts import Actor, State
from p2prl.learn.promises import BrokenContract, given
from p2prl.learn.spaces import split

_ACT = "it must return (actions, state, extras)"


def started(actor: Actor, slots: int) -> State:
    """What `start(slots)` gives. Raises BrokenContract if that is no state."""
    state = actor.start(slots)
    if not isinstance(state, dict):
        raise BrokenContract(f"start gave {given(state)}: it must return a dict of arrays, or {{}}")
    for name, rows in state.items():
        if not isinstance(rows, np.ndarray) or rows.shape[:1] != (slots,):
            raise BrokenContract(f"start gave {name!r} as {given(rows)}: it must be an array of {slots} rows")
    return state


def check_act(
    answer: object,
    spec: EnvSpec,
    start: State,
    slots: int,
    fields: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Raises BrokenContract if this is not what `act` has to give for so many slots.

    Args:
        start: what `start` gave.
        fields: the shape of a row of each of the agent's fields; None where nobody looks at them.
    """
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise BrokenContract(f"act gave {given(answer)}: {_ACT}")
    actions, state, extras = answer
    try:
        parts = split(spec.action, "action", actions)
    except (KeyError, IndexError, TypeError) as error:
        text = f"act gave {given(actions)} for actions: it must have the parts of the action space"
        raise BrokenContract(text) from error
    for name, leaf in leaves(spec.action, "action"):
        _check_rows(f"the {name}" if "." in name else "actions", parts[name], (slots, *leaf.shape))
    if not isinstance(state, dict) or state.keys() != start.keys():
        names = sorted(state) if isinstance(state, dict) else given(state)
        raise BrokenContract(
            f"act gave the state {names}: {_ACT}, and start() gave the state {sorted(start)}"
        )
    for name, rows in state.items():
        _check_rows(f"the state {name!r}", rows, start[name].shape)
    if fields is None:
        return
    if not isinstance(extras, Mapping) or extras.keys() != fields.keys():
        names = sorted(extras) if isinstance(extras, Mapping) else given(extras)
        raise BrokenContract(f"act gave the fields {names}: {_ACT}, and fields() says {sorted(fields)}")
    for name, shape in fields.items():
        _check_rows(f"the field {name!r}", extras[name], (slots, *shape))


def _check_rows(what: str, rows: object, shape: tuple[int, ...]) -> None:
    if not isinstance(rows, np.ndarray) or rows.shape != shape:
        raise BrokenContract(f"act gave {what} as {given(rows)}: it must be an array of shape {shape}")
