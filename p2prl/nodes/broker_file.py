"""What a broker must not forget when it is killed: `broker.json` in the run's folder, and `weights-version`."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path

import msgspec

from p2prl.core.invitations import CodeEntry
from p2prl.core.ledger import Ledger
from p2prl.core.messages import Evaluation, TrainerReport
from p2prl.nodes.files import write_atomically

log = logging.getLogger("p2prl")

NAME = "broker.json"
#: The newest version of the weights that anybody may have. Written over in place, at one width and by one call: a
#: kill leaves all of it or nothing. After each update of a quick learner a new file would cost thirty times as much.
VERSION_NAME = "weights-version"
_DIGITS = 16


class Saved(msgspec.Struct):
    """`broker.json`.

    Attributes:
        term: grows with each start.
        next_seed: the first seed that no player was given yet.
        shard_steps: steps stored since the run began, by shard; the shards' logs are what keeps them.
        ledgers, names: by node key; nodes that are gone in the order in which they went.
        others, others_count: nodes that went long ago, together.
        episodes: EpisodeStats.save().
        updates, updates_skipped, sessions_lost, lag_mean: as the trainer told them last; shown until the next is up.
        evaluation: the last one.
        quarantined: why, by node key.
        code: the join code with what is left of its limits; `code_session` says under which start of the host.
    """

    term: int = 0
    next_seed: int = 0
    shard_steps: dict[int, int] = {}
    weights_version: int = -1
    ledgers: dict[str, Ledger] = {}
    names: dict[str, str] = {}
    others: Ledger = msgspec.field(default_factory=Ledger)
    others_count: int = 0
    episodes: dict[str, list[float]] = {}
    updates: int = 0
    updates_skipped: int = 0
    sessions_lost: int = 0
    lag_mean: float = 0.0
    evaluation: Evaluation | None = None
    quarantined: dict[str, str] = {}
    code: CodeEntry | None = None
    code_session: str = ""


def load(folder: Path) -> Saved:
    """What the last broker of this run left; a fresh one if there was none, or if its file is damaged."""
    saved = _load(_path(folder))
    saved.weights_version = max(saved.weights_version, _noted_version(folder))
    return saved


def _load(path: Path) -> Saved:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Saved)
    except FileNotFoundError:
        return Saved()
    except (msgspec.DecodeError, RecursionError) as error:
        log.warning("%s is unreadable (%s): books and ranks begin anew", path.name, error)
        # The term must still grow, or members would take us for the broker they knew.
        return Saved(term=int(time.time()))


def save(folder: Path, saved: Saved, durable: bool = False) -> None:
    """Write it; `durable` as in `write_atomically`. Raises OSError."""
    write_atomically(_path(folder), msgspec.json.encode(saved), durable=durable)


def note_version(folder: Path, version: int) -> None:
    """Before anybody can have these weights: a broker that is killed now must not name older ones. Raises OSError."""
    text = b"%0*d\n" % (_DIGITS, version)
    descriptor = os.open(folder / VERSION_NAME, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
    try:
        if os.write(descriptor, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def _noted_version(folder: Path) -> int:
    """-1 if there is none, or if it cannot be read; `broker.json` is at most a second older."""
    try:
        text = (folder / VERSION_NAME).read_bytes()
    except FileNotFoundError:
        return -1
    except OSError as error:
        log.warning("%s cannot be read: %s", VERSION_NAME, error)
        return -1
    return int(text) if len(text) == _DIGITS + 1 and text[:-1].isdigit() else -1


def last_report(saved: Saved) -> TrainerReport:
    """What there is to tell of training while the trainer starts: its figures of last time."""
    return TrainerReport(
        state="starting",
        updates=saved.updates,
        updates_skipped=saved.updates_skipped,
        sessions_lost=saved.sessions_lost,
        lag_mean=saved.lag_mean,
    )


def note_report(saved: Saved, report: TrainerReport) -> None:
    """What `last_report` is to know."""
    saved.updates, saved.updates_skipped = report.updates, report.updates_skipped
    saved.sessions_lost, saved.lag_mean = report.sessions_lost, report.lag_mean or 0.0


def _path(folder: Path) -> Path:
    return folder / NAME
