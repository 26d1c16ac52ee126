"""How the trainer is doing, in the broker's eyes: by its own word, and by its silence. A loud state is said once."""

from __future__ import annotations

import logging

import msgspec

from p2prl.core import messages as m
from p2prl.core.standstill import LOUD, Alarm
from p2prl.nodes.status import TRAINER_SILENT_S, StatusView, node_rows, trainer_state
from p2prl.words import many

log = logging.getLogger("p2prl")

#: How long after its last failure a trainer that was started again is spoken of.
_FAILED_S = 60.0


def absence(report: m.TrainerReport, silent_s: float) -> str:
    """Why players wait for the trainer, for them to be told; empty if it is only behind.

    Args:
        report: its last word.
        silent_s: seconds since then.
    """
    if report.state == "failed":
        return "the trainer failed"
    if report.state == "starting":
        return "the trainer is starting"
    return "the trainer does not answer" if silent_s > TRAINER_SILENT_S else ""


class TrainerWatch:
    """Fed with each report, and asked for the state."""

    def __init__(self) -> None:
        self._alarm = Alarm()
        self._failures = 0
        self._failed_at = -1e9
        self._text = ""
        self._boot = ""

    def greeted(self, last: m.TrainerReport, boot_id: str) -> m.TrainerReport:
        """A trainer introduced itself: the last report as it is now. If it is another one, it is not training yet."""
        if boot_id == self._boot:
            return last
        self._boot = boot_id
        return msgspec.structs.replace(last, state="starting", reason="")

    def reported(self, before: m.TrainerReport, report: m.TrainerReport, now: float) -> None:
        """The trainer said something. `before`: what it had said last."""
        if report.state == "failed" and before.state != "failed":
            self._failures += 1
            self._failed_at, self._text = now, report.reason
        lost = before.updates - report.updates
        if before.state == "starting" and lost > 0:
            text = "went with the trainer that ended: no checkpoint had them. Training goes on from there"
            log.warning("%s %s", many(lost, "update"), text)

    def warnings(self, now: float) -> list[str]:
        """Lines for people, about failures of late."""
        if now - self._failed_at > _FAILED_S:
            return []
        times = f"{self._failures} times" if self._failures > 1 else "once"
        return [f"the trainer failed {times}: {self._text}"]

    def look(self, view: StatusView) -> None:
        """Time passed: say once in the log that training stands still, or that it goes on."""
        nodes = node_rows(view) if view.broker.trainer.state in LOUD else []
        silent_s = view.now - view.broker.trainer_heard
        state, reason = trainer_state(view.broker.trainer, silent_s, nodes)
        line = self._alarm.look(state, reason, view.now)
        if line:
            log.log(logging.WARNING if state in LOUD else logging.INFO, "%s", line)
