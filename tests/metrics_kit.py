"""docs/metrics.md as data, and the scalars that the code gives: what a test compares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from p2prl_envs.chain import make_chain

from p2prl.core.messages import Evaluation
from p2prl.errors import UsageError
from p2prl.learn.contracts import Batch, Learner, Update
from p2prl.learn.spaces import env_spec
from p2prl.nodes.recorder import evaluation_scalars, scalars
from p2prl.registry import make_agent, resolve_agent
from p2prl.settings import find_experiment, preset_names
from tests import docs_kit
from tests.learning.bare import Bare
from tests.unit import cli_samples

PAGE = docs_kit.ROOT / "docs" / "metrics.md"
#: Small and quick, where an agent has such settings.
_SMALL: dict[str, Any] = {
    "hidden": [8], "min_ticks": 64, "samples_per_insert": 16.0, "ticks": 8, "batch": 8, "population": 4,
    "epochs": 1, "minibatch": 32, "capacity_bytes": 4_000_000,
}  # fmt: skip
#: Enough for what is read only now and then.
_UPDATES = 120


@dataclass(frozen=True)
class Row:
    """One scalar, as the page explains it."""

    name: str
    unit: str
    meaning: str
    worry: str


def page() -> dict[str, list[Row]]:
    """The rows of each section, by its heading: `The run`, and each agent's name."""
    found: dict[str, list[Row]] = {}
    heading = ""
    for line in docs_kit.read(PAGE).splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
        row = re.fullmatch(r"\| `([\w/]+)` \|(.*)\|(.*)\|(.*)\|", line)
        if row is not None:
            found.setdefault(heading, []).append(Row(*(part.strip() for part in row.groups())))
    return found


def run_scalars() -> set[str]:
    """Those that every run gives sooner or later, beside its learner's. New ones of the recorder are added here."""
    greedy = Evaluation(
        version=1, episodes=1, return_mean=0.0, return_low=0.0, return_high=0.0, length_mean=1.0, steps=1
    )
    return {*scalars(cli_samples.status(metrics={})), *evaluation_scalars(greedy)}


def complaint(section: str, explained: Iterable[str], given: Iterable[str]) -> str:
    """What to do to the page's section, in words; empty if it names just what the code gives."""
    explained, given = set(explained), set(given)
    lines = [f"| `{name}` | unit | meaning | when to worry |" for name in sorted(given - explained)]
    told = [f"add to docs/metrics.md, section `{section}`:", *lines] if lines else []
    gone = sorted(explained - given)
    told += (
        [f"take out of section `{section}`, or mend the code: nothing gives {', '.join(gone)}"]
        if gone
        else []
    )
    return "\n".join(told)


# --- what learners say


class Listening:
    """A learner, and the names of all the metrics that it gave."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.names: set[str] = set()
        self.updates = 0

    def update(self, batch: Batch) -> Update:
        update = self._learner.update(batch)
        self.updates += 1
        self.names |= update.metrics.keys()
        return update

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)


def metrics_of(agent: str) -> set[str]:
    """All metrics that an agent's learner gives, with its settings as they are and with each of its features on."""
    small, *others = variants(resolve_agent(agent).Settings)
    names = _played(agent, small)
    for settings in [*others, *({**preset, **small} for preset in _presets(agent))]:
        with suppress(UsageError):  # a setting that does not go with the others
            names |= _played(agent, settings)
    return names


def _presets(agent: str) -> Iterator[Mapping[str, Any]]:
    """The settings that presets give this agent, where features go together."""
    for name in preset_names():
        found = find_experiment(name).agent
        if found.name == agent:
            yield found.settings


def variants(kind: type[msgspec.Struct]) -> Iterator[dict[str, Any]]:
    """Small settings; then the same with each switch turned, each other word of a list, each 0 made something."""
    fields = msgspec.structs.fields(kind)
    small = {field.name: _SMALL[field.name] for field in fields if _takes(kind, field.name)}
    yield small
    types = {field.name: field.type for field in msgspec.inspect.type_info(kind).fields}  # type: ignore[attr-defined]
    for field in fields:
        if field.name not in small:
            for value in _others(types[field.name], getattr(kind(), field.name)):
                yield {**small, field.name: value}


def _takes(kind: type[msgspec.Struct], name: str) -> bool:
    """True if the small value is one for this setting: `hidden` is a number of units here, a list of layers there."""
    try:
        return name in _SMALL and bool(msgspec.convert({name: _SMALL[name]}, kind))
    except msgspec.ValidationError:
        return False


def _others(kind: msgspec.inspect.Type, default: Any) -> list[Any]:
    if isinstance(kind, msgspec.inspect.BoolType):
        return [not default]
    if isinstance(kind, msgspec.inspect.LiteralType):
        return [value for value in kind.values if value != default]
    if isinstance(kind, msgspec.inspect.IntType) and default == 0:
        return [1]
    if isinstance(kind, msgspec.inspect.FloatType) and default == 0:
        return [0.5]
    return []


def bare(name: str, settings: Mapping[str, Any]) -> Bare:
    """An agent that learns in this process, in a chain, whose episodes are short."""
    env = make_chain(length=3, max_steps=6)
    spec = env_spec(env, "chain")
    env.close()
    agent = make_agent(resolve_agent(name), spec, settings)
    return Bare(agent, lambda: make_chain(length=3, max_steps=6), spec, slots=8, seed=1)


def _played(name: str, settings: Mapping[str, Any]) -> set[str]:
    run = bare(name, settings)
    listening: Any = Listening(run.learner)
    run.learner = listening
    run.run(target=float("inf"), max_updates=_UPDATES, max_steps=40_000)
    assert listening.updates >= _UPDATES, f"{name} made {listening.updates} updates only"
    return set(listening.names)
