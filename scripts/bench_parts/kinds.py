"""What parts of the bench give, and what rows are made of.

A part is a module with one function:

    def cases(quick: bool) -> Iterator[Case]

It measures one case after the other and yields each as soon as it is there. `quick`: a second or two a case, to see
that it runs; such figures are of no worth. In a case ours, the limit and the peers are measured in turns, so that the
machine's moods fall on all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

#: One value for each turn; a single one may stand alone. None: it was not measured.
Values = Sequence[float] | float | None


class Unavailable(Exception):
    """This machine has not what a case needs; the text says what, and how to get it."""


@dataclass(frozen=True)
class Bar:
    """What a case must show: all that is not None.

    Attributes:
        limit, peer: ours divided by the limit, or by a peer, is at least this.
        peers: which ones, by the beginnings of their names, each of them; without any the best that was measured.
        value: ours itself is at least this, in the case's unit.
        lower: less is better: each of these is then at most.
    """

    limit: float | None = None
    peer: float | None = None
    peers: tuple[str, ...] = ()
    value: float | None = None
    lower: bool = False

    def text(self, unit: str) -> str:
        """For people; empty if nothing is asked."""
        sign = "<=" if self.lower else ">="
        parts = [
            f"{sign} {self.limit:g} x limit" if self.limit is not None else "",
            f"{sign} {self.peer:g} x {' and '.join(self.peers) or 'peer'}" if self.peer is not None else "",
            f"{sign} {self.value:g} {unit}" if self.value is not None else "",
        ]
        return ", ".join(part for part in parts if part)


class Case(TypedDict, total=False):
    """One case; `case` and `unit` are always there when it is yielded.

    Attributes:
        case: its name. unit: of ours, the limit and the peers alike.
        ours: None if it could not be measured here; `note` says why.
        limit: what the machine allows.
        peers: what others do, by their names with version; None for one that is absent.
        bar: a Bar, or a mapping with a Bar's attributes.
        note: a line for people: what was left out, or why something is absent.
    """

    case: str
    unit: str
    ours: Values
    limit: Values
    peers: Mapping[str, Values]
    bar: Bar | Mapping[str, Any] | None
    note: str


def attempted(named: Case, measure: Callable[[], Case]) -> Case:
    """A case with what `measure` adds to its name; without a figure, and with a note, if it is Unavailable here."""
    try:
        return {**named, **measure()}
    except Unavailable as error:
        return {**named, "ours": None, "note": str(error)}
