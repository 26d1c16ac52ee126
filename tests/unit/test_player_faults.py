"""p2prl.nodes.player_faults: whose fault it is that a player ends, and whether another one would fare better."""

from __future__ import annotations

from typing import get_args

import pytest

from p2prl.core.messages import FailureKind, Fault
from p2prl.errors import AgentRaised, MissingPackage, P2prlError, UsageError
from p2prl.learn.environments import BrokenEnvironment, EnvironmentFailed
from p2prl.nodes.player_faults import SchemaDiffers, failure_kind, hopeless

ERRORS = {
    MissingPackage("no torch", "torch"): ("missing_package", True, True),
    SchemaDiffers("other columns"): ("schema", True, True),
    BrokenEnvironment("reset gave one value"): ("environment", True, False),
    EnvironmentFailed("step raised OSError", 0): ("environment", False, False),
    AgentRaised("act raised IndexError"): ("agent", False, False),
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("at", get_args(FailureKind))
def test_what_says_itself_whose_fault_it_is(error: P2prlError, at: FailureKind) -> None:
    kind, at_start, later = ERRORS[error]
    assert failure_kind(error, at) == kind
    assert (hopeless(error, started=False), hopeless(error, started=True)) == (at_start, later)


@pytest.mark.parametrize("at", get_args(FailureKind))
def test_any_other_is_blamed_on_what_was_at_work(at: FailureKind) -> None:
    for error in (UsageError("no such module"), P2prlError("it does not fit")):
        assert failure_kind(error, at) == at
    assert hopeless(UsageError("no such module"), started=False)
    assert not hopeless(UsageError("no such module"), started=True), "it was there a moment ago"


def test_a_host_takes_each_kind() -> None:
    kinds = get_args(Fault.__annotations__["kind"]) or str(Fault.__annotations__["kind"])
    assert all(kind in kinds for kind in get_args(FailureKind))
