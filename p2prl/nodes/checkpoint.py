"""Checkpoints: whole or not there.

    checkpoints/<updates>-v<version>/{learner,weights}.safetensors, meta.json, DONE

A checkpoint is written beside its final place, each file's hash goes into DONE, and the folder is renamed last. What
has no DONE, or another hash, is not a checkpoint: the newest good one is used instead, and named. The trainer sets
aside those that were passed over, as `.<name>.damaged`: they would outrank what it writes from then on.

A folder cannot be replaced in one step: while a new `best` takes the place of the old one, that is `.best.old`. A
reader takes it then for `best`, and the next trainer puts it back. `.best.evaluated` is the best evaluated one: it is
kept while `best` is one that play's mean return was the reason for (core/best.py).
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from p2prl.errors import CorruptCheckpoint, P2prlError, UsageError
from p2prl.nodes.files import fsync_folder, write_atomically
from p2prl.settings import EXPERIMENT_FILE, RUN_FILE
from p2prl.words import many

log = logging.getLogger("p2prl")

Arrays = Mapping[str, npt.NDArray[Any]]
_FILES = ("learner.safetensors", "weights.safetensors", "meta.json")
BEST = "best"
#: In a run's folder: what hosts that went back to an earlier checkpoint took away (rewind.py).
SET_ASIDE = "set-aside"
_PART, _OLD, _DAMAGED = ".part", ".old", ".damaged"
_BEST_OLD = f".{BEST}{_OLD}"
KEPT = f".{BEST}.evaluated"


class Meta(msgspec.Struct, frozen=True):
    """`meta.json`: the counters of a run at a checkpoint.

    Attributes:
        sampled: ticks taken so far: one a window, all those of a whole session.
        inserted: ticks inserted so far, as far as the trainer knew.
        left: ticks that had left a queue; None if the trainer did not know.
        lost: of a queue, sessions that left it so far and that no checkpoint learned from.
        return_mean: mean return of the last `return_episodes` episodes of the least exploring slots, or None.
        returns: the last episodes' returns (core/episodes.py), so that a run can go on from here.
        eval_mean, eval_low, eval_high: of `eval_episodes` greedy episodes with these very weights, and the 95 %
            confidence interval; None if they were not evaluated.
        skipped: updates that changed nothing, beside `updates`.
    """

    version: int
    updates: int
    sampled: int
    steps: int = 0
    episodes: int = 0
    return_mean: float | None = None
    return_episodes: int = 0
    skipped: int = 0
    inserted: int = 0
    left: int | None = None
    lost: int = 0
    returns: dict[str, list[float]] = {}
    eval_mean: float | None = None
    eval_low: float | None = None
    eval_high: float | None = None
    eval_episodes: int = 0

    def told(self) -> str:
        """How far training was, for people."""
        if not self.updates:  # and perhaps no weights yet, whose version is then -1
            return "before the first update"
        return f"{many(self.updates, 'update')}, weights version {self.version}"


class Snapshot(msgspec.Struct, frozen=True):
    """A state of the learner that may become a checkpoint."""

    meta: Meta
    learner: Mapping[str, npt.NDArray[Any]]
    weights: Mapping[str, npt.NDArray[Any]]

    def copy(self) -> Snapshot:
        """One that later updates do not change: what a learner saves may be its own memory."""
        learner, weights = (
            {name: np.array(value) for name, value in arrays.items()}
            for arrays in (self.learner, self.weights)
        )
        return Snapshot(self.meta, learner, weights)


class Checkpoint(msgspec.Struct, frozen=True):
    """What a checkpoint folder holds."""

    path: Path
    meta: Meta
    learner: dict[str, Any]
    weights: dict[str, Any]


def save(
    folder: Path, meta: Meta, learner: Arrays, weights: Arrays, *, name: str = "", keep_old: str = ""
) -> Path:
    """Write a checkpoint under `folder`; returns its path.

    Args:
        name: instead of the name that sorts by updates; replaces one of the same name.
        keep_old: the name under which the one that is replaced stays; empty if it goes.

    Raises:
        OSError: the disk is full or not writable; nothing half-written counts.
    """
    folder.mkdir(exist_ok=True)  # a run's folder that was deleted does not come back with this alone in it
    final = folder / (name or f"{meta.updates:010d}-v{meta.version}")
    part = folder / f".{final.name}{_PART}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        _fill(part, meta, learner, weights)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)  # where space is short, what is of no use must not take any
        raise
    if final.exists():
        old = folder / f".{final.name}{_OLD}"
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
        part.rename(final)
        if keep_old:
            shutil.rmtree(folder / keep_old, ignore_errors=True)
            old.rename(folder / keep_old)
        shutil.rmtree(old, ignore_errors=True)
    else:
        part.rename(final)
    fsync_folder(folder)
    return final


def restore_kept(folder: Path) -> None:
    """`best` is the one that was kept again. Raises OSError."""
    old = folder / _BEST_OLD
    shutil.rmtree(old, ignore_errors=True)
    (folder / BEST).rename(old)
    (folder / KEPT).rename(folder / BEST)
    shutil.rmtree(old, ignore_errors=True)
    fsync_folder(folder)


def drop_kept(folder: Path) -> None:
    """The one that was kept is of no use any more."""
    shutil.rmtree(folder / KEPT, ignore_errors=True)


def _fill(part: Path, meta: Meta, learner: Arrays, weights: Arrays) -> None:
    part.mkdir()
    _save_arrays(learner, part / _FILES[0])
    _save_arrays(weights, part / _FILES[1])
    (part / _FILES[2]).write_bytes(msgspec.json.encode(meta))
    done = {file: _hash(part / file) for file in _FILES}
    write_atomically(part / "DONE", msgspec.json.encode(done), durable=True)


def _save_arrays(arrays: Arrays, path: Path) -> None:
    try:
        save_file({key: _contiguous(value) for key, value in arrays.items()}, path)
    except SafetensorError as error:  # its own error for a full disk
        raise OSError(f"{path.name} cannot be written: {error}") from error


def _contiguous(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Not ascontiguousarray: that makes a scalar array one-dimensional.
    return np.array(value, order="C")


def tidy(folder: Path) -> None:
    """Mend what a writer that was killed left behind. Only for the one process that writes here, at its start.

    What was moved away and has no successor comes back; unfinished folders go.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.glob(f".*{_OLD}")):
        final = folder / path.name[1 : -len(_OLD)]
        if final.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.rename(final)
            log.warning(
                "a kill had interrupted the writing of checkpoint %s: the one before it is back", final
            )
    for path in folder.glob(f".*{_PART}"):
        shutil.rmtree(path, ignore_errors=True)


def set_aside(folder: Path, good: Checkpoint) -> None:
    """Move those that `load_last` passed over for `good` out of the way. Only for the one process that writes here.

    They are newer by name, so pruning would keep them and delete what is written now.
    """
    newer = candidates(folder)
    for path in newer[: newer.index(good.path)] if good.path in newer else ():
        aside = folder / f".{path.name}{_DAMAGED}"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            path.rename(aside)
        except OSError as error:
            log.warning("damaged checkpoint %s cannot be set aside: %s", path, error.strerror)


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints; `best` stays."""
    for path in candidates(folder)[max(1, keep) :]:
        if not _is_best(path):
            shutil.rmtree(path, ignore_errors=True)


def candidates(folder: Path) -> list[Path]:
    """Folders that may be checkpoints, newest first, `best` last."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if not any(_is_best(path) for path in found) and (folder / _BEST_OLD).is_dir():
        found.append(folder / _BEST_OLD)
    return sorted(found, key=lambda path: (not _is_best(path), path.name), reverse=True)


def _is_best(path: Path) -> bool:
    return path.name in (BEST, _BEST_OLD)


def of_run(path: Path) -> Path | None:
    """The path made absolute, if it is the folder of one checkpoint of a run, finished or not; else None."""
    there = path.absolute()
    inside = there.is_dir() and there.parent.name == "checkpoints"
    return there if inside and (there.parent.parent / EXPERIMENT_FILE).is_file() else None


def is_run(folder: Path) -> bool:
    """True if `p2prl eval` and `p2prl host --resume` can do something with this folder."""
    return all((folder / name).is_file() for name in (EXPERIMENT_FILE, RUN_FILE))


def run_of_aside(path: Path) -> tuple[Path, Path] | None:
    """The run's folder and that of the checkpoints, if the path is, or is in, what a host that went back set aside."""
    there = path.absolute()
    for folder in (there, *there.parents):
        run = folder.parent.parent
        if folder.parent.name == SET_ASIDE and (run / EXPERIMENT_FILE).is_file():
            return run, folder / "checkpoints"
    return None


def load(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        CorruptCheckpoint: it is half-written or damaged; says which file.
    """
    try:
        done = msgspec.json.decode((path / "DONE").read_bytes(), type=dict[str, str])
        for file in _FILES:
            if done.get(file) != _hash(path / file):
                raise CorruptCheckpoint(f"{path}: {file} is damaged")
        meta = msgspec.json.decode((path / _FILES[2]).read_bytes(), type=Meta)
        return Checkpoint(path, meta, load_file(path / _FILES[0]), load_file(path / _FILES[1]))
    except FileNotFoundError as error:
        missing = Path(error.filename or "DONE").name
        raise CorruptCheckpoint(f"{path}: {missing} is missing, it was never finished") from error
    except (OSError, msgspec.MsgspecError, SafetensorError, ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path}: {error}") from error


def load_last(folder: Path, *, prefer_best: bool = False) -> Checkpoint | None:
    """The newest good checkpoint under `folder` (or the best one); None if there is none at all.

    Damaged ones are skipped, and named in the log.

    Raises:
        CorruptCheckpoint: there are some, and none is readable.
    """
    paths = candidates(folder)
    if prefer_best:
        paths.sort(key=lambda path: not _is_best(path))
    bad: list[str] = []
    for path in paths:
        try:
            checkpoint = load(path)
        except CorruptCheckpoint as error:
            bad.append(path.name)
            log.warning("checkpoint skipped: %s", error)
            continue
        if bad:
            log.warning("using the last good checkpoint, %s", path)
        return checkpoint
    if bad:
        raise CorruptCheckpoint(
            f"no readable checkpoint in {folder} ({', '.join(bad)}: all damaged); nothing was changed: bring one back "
            "from a copy, or move that folder away to begin training anew with the sessions that are stored"
        )
    return None


def check_fits(last: Checkpoint, weights: Arrays) -> None:
    """Raises UsageError if the checkpoint is of a network of another shape than `weights`, made by the settings."""
    theirs = {name: (array.shape, array.dtype) for name, array in last.weights.items()}
    ours = {name: (np.shape(array), np.asarray(array).dtype) for name, array in weights.items()}
    if theirs != ours:
        names = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
        raise UsageError(
            f"{last.path} does not fit the agent's settings ({', '.join(names[:3])} differ); "
            "resume with the settings that the run was started with, or start a new run"
        )


def before(folder: Path, updates: int) -> Checkpoint | None:
    """The newest good checkpoint under `folder` of fewer updates than these; None if there is none."""
    for path in candidates(folder):
        try:
            found = load(path)
        except CorruptCheckpoint:
            continue  # who resumes from it is told
        if found.meta.updates < updates:
            return found
    return None


def updates_of(folder: Path) -> int | None:
    """How many updates are in the checkpoint that `p2prl eval` would take; None if there is none. Reads no arrays."""
    for path in sorted(candidates(folder), key=lambda path: not _is_best(path)):
        try:
            if (path / "DONE").is_file():
                return msgspec.json.decode((path / _FILES[2]).read_bytes(), type=Meta).updates
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            log.debug("%s is no checkpoint: %s", path, error)
    return None


def require(folder: Path, *, prefer_best: bool = False) -> Checkpoint:
    """As `load_last`, but none at all is an error."""
    checkpoint = load_last(folder, prefer_best=prefer_best)
    if checkpoint is None:
        raise P2prlError(f"no checkpoint in {folder} yet; the first one comes with the first update")
    return checkpoint


def _hash(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
