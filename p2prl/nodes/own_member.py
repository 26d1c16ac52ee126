"""What a host's own member, which is a child process, tells its supervisor."""

from __future__ import annotations

import logging

from p2prl.nodes.process import emit
from p2prl.nodes.report import Joined, Left, MemberStatus

log = logging.getLogger("p2prl")


class ParentReporter:
    """A `MemberReporter`: logs go to stderr, events to the line to the supervisor."""

    def log(self, level: str, source: str, text: str) -> None:
        """A line; the supervisor says that it is the member's."""
        of = "" if source == "member" else f"{source}: "
        log.log(logging.getLevelName(level.upper()), "%s%s", of, text)

    def joined(self, info: Joined) -> None:
        emit("joined", players=info.players)

    def status(self, status: MemberStatus) -> None:
        """The supervisor asks the broker instead."""

    def left(self, info: Left) -> None:
        emit("left", info.text)
