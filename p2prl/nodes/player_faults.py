"""What ends a player: whose fault it is, and whether another try may help."""

from __future__ import annotations

from p2prl.core import messages as m
from p2prl.core.schema import SessionSchema
from p2prl.errors import AgentRaised, MissingPackage, P2prlError, UsageError
from p2prl.learn.environments import BrokenEnvironment, EnvironmentFailed


class SchemaDiffers(P2prlError):
    """This machine's environment or agent gives other columns than the host's."""


def other_columns(ours: SessionSchema, theirs: SessionSchema) -> str:
    """Which columns of a session are not those of the host's."""
    here, there = ({column.name: column for column in schema.columns} for schema in (ours, theirs))
    names = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    return f"other fields ({', '.join(names)})" if names else "its fields in another order"


def failure_kind(error: BaseException, at: m.FailureKind) -> m.FailureKind:
    """Whose fault an error is.

    Args:
        at: whose code, or setting, was at work, for an error that does not say it itself.
    """
    if isinstance(error, MissingPackage):
        return "missing_package"
    if isinstance(error, SchemaDiffers):
        return "schema"
    if isinstance(error, (EnvironmentFailed, BrokenEnvironment)):
        return "environment"
    return "agent" if isinstance(error, AgentRaised) else at


def hopeless(error: BaseException, started: bool) -> bool:
    """True if the next player would fail just so: what is not here, or is something else than what was asked for.

    Args:
        started: this player had made its environments and its actor, so the next one may too.
    """
    return isinstance(error, (MissingPackage, SchemaDiffers)) or (
        isinstance(error, UsageError) and not started
    )
