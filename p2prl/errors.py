"""What can go wrong, and the exit code that each kind ends a command with.

    P2prlError (1)
    ├── UsageError (2)            what the person typed: a flag, a name, a value
    ├── NoHostFound (3)           nobody, or nobody of ours, answers
    ├── NotAdmitted (4)           the host refused this node
    ├── UpgradeNeeded (5)         the two sides speak different protocol numbers
    ├── AlreadyRunning (6)        this folder, or this state folder, is in use
    ├── LimitsForbid (7)          the machine's owner does not allow it
    ├── MissingPackage (1)        an environment or agent that is not installed here
    ├── CorruptCheckpoint (1)     no readable checkpoint
    ├── AgentRaised (1)           an agent's own code raised
    ├── LearningFailed (1)        loss, gradients or weights are not finite, and stay so
    └── ProtocolError (1)
        ├── LocalProtocolError    our bug: we were about to say something illegal
        └── RemoteProtocolError   theirs: what arrived is malformed; `reason` is what is counted

Each message is one line: whose fault it is, and what to do next.
"""

from __future__ import annotations


class P2prlError(Exception):
    """Base of all errors that p2prl raises on purpose."""

    exit_code = 1


class UsageError(P2prlError):
    """The person asked for something that does not exist; the text names the nearest valid ones."""

    exit_code = 2


class NoHostFound(P2prlError):
    """No host answered in time."""

    exit_code = 3


class NotAdmitted(P2prlError):
    """The host does not let this node in."""

    exit_code = 4


class UpgradeNeeded(P2prlError):
    """The protocol numbers differ; the text says which side to upgrade."""

    exit_code = 5


class AlreadyRunning(P2prlError):
    """Another process holds the lock on the folder."""

    exit_code = 6


class LimitsForbid(P2prlError):
    """The machine's limits forbid running."""

    exit_code = 7


class MissingPackage(P2prlError):
    """An environment or agent cannot be imported here.

    Attributes:
        package: what to install, as pip names it (the best guess that can be made).
    """

    def __init__(self, message: str, package: str = "") -> None:
        super().__init__(message)
        self.package = package


class CorruptCheckpoint(P2prlError):
    """A checkpoint is unreadable, truncated or not marked as done."""


class LearningFailed(P2prlError):
    """The loss, the gradients or the weights are not finite, and will not mend themselves."""


class ProtocolError(P2prlError):
    """Something illegal in the conversation between two nodes."""


class LocalProtocolError(ProtocolError):
    """We were about to break the protocol: a bug of ours."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal.

    Attributes:
        reason: a short word, from a closed list, under which it is counted.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class AgentRaised(P2prlError):
    """An agent's own code raised.

    Attributes:
        fruitless: its learner raised before it had made a single update.
    """

    def __init__(self, message: str, fruitless: bool = False) -> None:
        super().__init__(message)
        self.fruitless = fruitless
