"""What a run leaves in its folder for people: progress.jsonl, nodes.jsonl, TensorBoard files, host.log."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import time
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from p2prl.core.messages import Evaluation, NodeStatus, StatusReply

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

log = logging.getLogger("p2prl")

_NODES_EVERY_S = 10.0
_SCALARS_EVERY_S = 2.0
#: Of greedy episodes, in progress.jsonl with `eval_` before them; null before the first.
_EVALUATION = ("return_mean", "return_low", "return_high", "length_mean", "version", "episodes", "steps")


class Recorder:
    """Appends to the run's files; each line is complete or absent.

    Args:
        back_to: the steps at which the run goes on, if it was set back: TensorBoard leaves out what came after them.
    """

    def __init__(self, folder: Path, back_to: int | None = None) -> None:
        self._folder = folder
        self._progress = (folder / "progress.jsonl").open("ab", buffering=0)
        self._nodes = (folder / "nodes.jsonl").open("ab", buffering=0)
        self._log = (folder / "host.log").open("ab", buffering=0)
        self._nodes_at = self._scalars_at = -1e9
        #: The last rows of nodes that are gone, by key.
        self._gone: dict[str, dict[str, object]] = {}
        self._failed = False
        #: The last evaluation that is in TensorBoard.
        self._evaluated: Evaluation | None = None
        self._board = _open_board(folder / "tensorboard")
        if self._board is not None and back_to is not None:
            _restart(self._board, back_to)

    @property
    def has_board(self) -> bool:
        """False where tensorboard is not installed."""
        return self._board is not None

    def log(self, level: str, source: str, text: str) -> None:
        """A log line."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._write(self._log, f"{stamp} {level.upper()} {source}: {text}\n".encode(errors="replace"))

    def status(self, status: StatusReply, now: float) -> None:
        """A status, about once a second."""
        self._write(self._progress, _line(progress_row(status)))
        if now - self._nodes_at >= _NODES_EVERY_S:
            self._nodes_at = now
            self._write_nodes(status)
        if self._board is not None and now - self._scalars_at >= _SCALARS_EVERY_S:
            self._scalars_at = now
            self._write_scalars(self._board, status)

    def close(self, status: StatusReply | None) -> None:
        """The last rows, and flush."""
        if status is not None:
            self._write(self._progress, _line(progress_row(status)))
            self._write_nodes(status)
            if self._board is not None:
                self._write_scalars(self._board, status)
        for file in (self._progress, self._nodes, self._log):
            file.close()
        if self._board is not None:
            self._board.close()

    def _write_nodes(self, status: StatusReply) -> None:
        gone: dict[str, dict[str, object]] = {}
        for node in status.nodes:
            row = _node_row(node)
            if node.state == "gone":
                gone[node.key] = row
            if node.state != "gone" or self._gone.get(node.key) != row:
                self._write(self._nodes, _line({"time": time.time(), **row}))
        self._gone = gone

    def _write_scalars(self, board: _Board, status: StatusReply) -> None:
        self._add(board, scalars(status), status.steps)
        evaluation = status.evaluation
        if evaluation is not None and evaluation != self._evaluated:
            self._evaluated = evaluation
            self._add(board, evaluation_scalars(evaluation), evaluation.steps)

    def _add(self, board: _Board, values: dict[str, float], steps: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        rows = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        event = Event(wall_time=time.time(), step=steps, summary=Summary(value=rows))
        try:
            board.add(event)
        except OSError as error:
            self._complain(error)

    def _write(self, file: FileIO, data: bytes) -> None:
        try:
            file.write(data)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            log.error("the run's files in %s cannot be written: %s", self._folder, error)


def _node_row(node: NodeStatus) -> dict[str, object]:
    """A line of nodes.jsonl, apart from the time."""
    return {
        "key": node.key,
        "name": node.name,
        "address": node.address,
        "state": node.state,
        "steps": node.steps,
        "episodes": node.episodes,
        "return_mean": node.return_mean,
        "return_mean_all": node.return_mean_all,
        "levels": node.levels,
        "weights_version": node.weights_version,
        "lag": node.lag,
        "bundles": msgspec.to_builtins(node.bundles),
    }


def progress_row(status: StatusReply) -> dict[str, object]:
    """The figures of design section 10's `progress`, and all that `scalars` has, as plain values."""
    return {
        "time": time.time(),
        "steps": status.steps,
        "steps_per_s": status.steps_per_s,
        "episodes": status.episodes,
        "return_mean": status.return_mean,
        "return_mean_all": status.return_mean_all,
        **{f"eval_{name}": getattr(status.evaluation, name, None) for name in _EVALUATION},
        "updates": status.updates,
        "updates_skipped": status.updates_skipped,
        "sessions_lost": status.sessions_lost,
        "weights_version": status.weights_version,
        "lag_mean": status.lag_mean,
        "bundles": msgspec.to_builtins(status.bundles),
        "nodes": sum(node.state != "gone" for node in status.nodes),
        "learner": dict(status.metrics),
    }


def scalars(status: StatusReply) -> dict[str, float]:
    """TensorBoard's scalars by tag, over environment steps."""
    books = status.bundles
    values: dict[str, float] = {
        "play/steps_per_s": status.steps_per_s,
        "play/episodes": float(status.episodes),
        "play/nodes": float(sum(node.state != "gone" for node in status.nodes)),
        "train/updates": float(status.updates),
        "train/updates_skipped": float(status.updates_skipped),
        "train/weights_version": float(status.weights_version),
        "train/lag_mean": status.lag_mean,
        "bundles/stored": float(books.stored),
        "bundles/pending": float(books.pending),
        "bundles/refused": float(books.refused),
        "bundles/stale": float(books.stale),
        "bundles/dropped": float(books.dropped),
        "bundles/duplicate": float(books.duplicate),
    }
    if status.return_mean is not None:
        values["play/return_mean"] = status.return_mean
    if status.return_mean_all is not None:
        values["play/return_mean_all"] = status.return_mean_all
    values.update({f"learner/{name}": value for name, value in status.metrics.items()})
    return values


def evaluation_scalars(evaluation: Evaluation) -> dict[str, float]:
    """Of greedy episodes, over the environment steps at which their weights were published."""
    return {
        "eval/return_mean": evaluation.return_mean,
        "eval/return_low": evaluation.return_low,
        "eval/return_high": evaluation.return_high,
        "eval/length_mean": evaluation.length_mean,
    }


class _Board:
    """A file of TensorBoard's events. Its own writer has a thread, in which a deleted folder is a traceback."""

    def __init__(self, file: FileIO, records: RecordWriter) -> None:
        self._file, self._records = file, records

    def add(self, event: Event) -> None:
        """Append one. Raises OSError."""
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        """No more."""
        self._file.close()


def _open_board(folder: Path) -> _Board | None:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(exist_ok=True)
    # The name is what TensorBoard looks for; the last part tells apart what begins in one second.
    name = (
        f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
    )
    file = (folder / name).open("ab", buffering=0)
    board = _Board(file, RecordWriter(file))
    board.add(Event(wall_time=time.time(), file_version="brain.Event:2"))
    return board


def _restart(board: _Board, steps: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    # TensorBoard drops points that lie beyond the first step of a restart.
    log_start = SessionLog(status=SessionLog.START)
    board.add(Event(wall_time=time.time(), step=steps + 1, session_log=log_start))


def _line(row: dict[str, object]) -> bytes:
    return msgspec.json.encode(row) + b"\n"
