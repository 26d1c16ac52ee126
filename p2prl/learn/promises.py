"""What an agent gives, held against its contract (contracts.py): a line says what it gave, and what is expected."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from p2prl.errors import AgentRaised
from p2prl.learn.contracts import Agent, Field, ReplaySpec, Update

_StructT = TypeVar("_StructT", bound=msgspec.Struct)
_LEARNER = ("update", "weights", "save", "load")


class BrokenContract(AgentRaised):
    """An agent gave something else than its contract says; the text begins with which of its methods did."""


@contextlib.contextmanager
def named(agent: str) -> Iterator[None]:
    """Says whose contract is broken in here. Raises AgentRaised."""
    try:
        yield
    except BrokenContract as error:
        raise AgentRaised(f"{agent}: {error}") from error


# --- the agent


def replay_of(agent: Agent) -> ReplaySpec:
    """What `replay` gives. Raises BrokenContract if that is none."""
    return _checked(agent.replay(), ReplaySpec, "replay")


def fields_of(agent: Agent) -> dict[str, Field]:
    """What `fields` gives. Raises BrokenContract if these are none."""
    fields = agent.fields()
    if not isinstance(fields, Mapping):
        raise BrokenContract(f"fields gave {given(fields)}: it must return a dict of Field by name, or {{}}")
    return {name: _checked(field, Field, f"fields: {name!r}") for name, field in fields.items()}


def _checked(answer: Any, kind: type[_StructT], where: str) -> _StructT:
    if not isinstance(answer, kind):
        raise BrokenContract(f"{where} gave {given(answer)}: it must return a {kind.__name__}")
    try:
        return msgspec.convert(msgspec.structs.asdict(answer), kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "").replace("$.", "")
        raise BrokenContract(f"{where} gave a {kind.__name__} with a wrong value: {text}") from error


# --- the learner


def check_learner(learner: object) -> None:
    """Raises BrokenContract if this is no learner."""
    missing = [name for name in _LEARNER if not callable(getattr(learner, name, None))]
    if missing:
        raise BrokenContract(
            f"learner gave {given(learner)}: it must return a Learner, and that lacks {', '.join(missing)}"
        )


def check_update(update: object) -> None:
    """Raises BrokenContract if this is not what `update` has to give."""
    if not isinstance(update, Update):
        raise BrokenContract(f"update gave {given(update)}: it must return an Update")
    if type(update.metrics) is not dict and not isinstance(update.metrics, Mapping):
        raise BrokenContract(
            f"update gave the metrics {given(update.metrics)}: they must be a dict of numbers by name"
        )
    for name, value in update.metrics.items():
        if type(value) is not float and not _is_number(value):
            raise BrokenContract(f"update gave the metric {name!r} as {given(value)}: it must be a number")


def check_arrays(where: str, arrays: object) -> None:
    """Raises BrokenContract if these are not arrays by name; `where` is the method that gave them."""
    if not isinstance(arrays, Mapping):
        raise BrokenContract(f"{where} gave {given(arrays)}: it must return a dict of numpy arrays by name")
    for name, values in arrays.items():
        if not isinstance(name, str):
            raise BrokenContract(f"{where} gave an array with the name {name!r}: names must be text")
        if np.asarray(values).dtype.kind not in "biuf":
            raise BrokenContract(f"{where} gave {name!r} as {given(values)}: it must be a numpy array")


def _is_number(value: object) -> bool:
    if isinstance(value, (str, bytes)):
        return False
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


# --- for people


def given(value: object) -> str:
    """What an agent gave, for people: `None`, an array's shape, or a type."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple):
        return f"{len(value)} values" if len(value) != 1 else "a tuple of one value"
    return f"a value of the type {type(value).__name__}"
