"""JSON lines: the fields of docs/cli.md, one object a line, nothing that JSON does not have."""

from __future__ import annotations

import errno
import json
import re
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from p2prl.cli import output, shapes, streams
from p2prl.cli.invite import code_object
from p2prl.cli.nodes import nodes_object
from p2prl.cli.piped import JsonHost, JsonMember, PlainMember
from p2prl.cli.reporters import PlainHost
from p2prl.core.messages import CodeNews, NodeEntry, NodesReply
from p2prl.nodes.report import HostStopped
from tests.unit import cli_samples as samples

DOCS = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
TOTALS = {
    "steps", "steps_per_s", "episodes", "return_mean", "return_episodes", "return_mean_all", "updates",
    "updates_skipped", "sessions_lost",
    "weights_version", "lag_mean", "bundles", "nodes", "eval_return_mean", "eval_return_low", "eval_return_high",
    "eval_length_mean", "eval_version", "eval_episodes",
}  # fmt: skip
BUNDLES = {"produced", "stored", "pending", "refused", "stale", "dropped", "duplicate"}
REASONS = {"refused_reasons", "dropped_reasons"}


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_host_says_started_progress_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = JsonHost()
    reporter.status(
        samples.status(steps=1)
    )  # the broker may answer before the host has said where it listens
    reporter.started(samples.STARTED)
    reporter.status(samples.status())
    reporter.stopped(HostStopped("return", "475.2 >= 475", samples.status(steps=9)))
    started, progress, stopped = lines(capsys)
    assert started.keys() >= {"event", "run_id", "name", "address", "base_port", "results"}
    assert started["results"] == str(samples.STARTED.results)
    assert started["open"] is False
    assert progress.keys() >= TOTALS | {"event"}
    assert (progress["trainer"], progress["trainer_reason"]) == ("training", "")
    assert progress["waiting_nodes"] == []
    assert progress["bundles"].keys() == BUNDLES | REASONS
    assert (progress["steps"], progress["return_mean"], progress["nodes"]) == (1_234_567, 423.71, 4)
    assert stopped.keys() == TOTALS | {"event", "reason", "text"}
    assert (stopped["reason"], stopped["steps"]) == ("return", 9)
    assert [line["event"] for line in (started, progress, stopped)] == ["started", "progress", "stopped"]


def test_a_host_that_never_had_a_status_has_null_figures(capsys: pytest.CaptureFixture[str]) -> None:
    JsonHost().stopped(HostStopped("error", "why", None))
    (stopped,) = lines(capsys)
    assert {stopped[name] for name in TOTALS} == {None}


def test_a_member_says_joined_progress_left(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = JsonMember()
    reporter.joined(samples.JOINED)
    reporter.status(samples.member())
    reporter.left(samples.LEFT)
    joined, progress, left = lines(capsys)
    assert (joined["event"], joined["host"], joined["players"]) == ("joined", "attic", 3)
    assert (progress["state"], progress["steps"], progress["bundles"]["stored"]) == ("working", 123_456, 1230)
    assert (progress["spooled"], progress["spooled_bytes"]) == (0, 0)
    assert progress["players"][1]["reason"] == "boom"
    assert (left["event"], left["reason"], left["bundles"]["produced"]) == ("left", "stopped", 1251)


def test_status_is_one_object_with_run_totals_nodes_and_shards() -> None:
    value = json.loads(output.json_line(shapes.run_status(samples.status())))
    assert value.keys() >= TOTALS | {"run", "shards", "trainer", "warnings"}
    assert value["run"].items() >= {
        ("run_id", "a1b2c3d4"), ("name", "cartpole-1129"), ("env", "CartPole-v1"), ("agent", "dqn"),
        ("term", 1), ("host", "attic"),
    }  # fmt: skip
    wanted = {
        "name",
        "key",
        "address",
        "players",
        "state",
        "reason",
        "steps",
        "steps_per_s",
        "weights_version",
    }
    assert all(node.keys() >= wanted | {"bundles"} for node in value["nodes"])
    assert all(node["bundles"].keys() == BUNDLES | REASONS for node in value["nodes"])
    assert [shard["index"] for shard in value["shards"]] == [0, 1]
    assert "t" not in value


def test_a_node_that_left_is_listed_but_not_counted() -> None:
    reply = samples.status(nodes=[samples.node(0), samples.node(1, state="gone")])
    assert shapes.host_progress(reply)["nodes"] == 1
    assert len(shapes.run_status(reply)["nodes"]) == 2


def test_nan_is_null_and_everything_is_ascii() -> None:
    reply = samples.status(
        steps_per_s=float("nan"),
        metrics={"loss": float("inf")},
        nodes=[samples.node(0, name=samples.HOSTILE)],
    )
    line = output.json_line(shapes.run_status(reply))
    value = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert value["steps_per_s"] is None
    assert value["trainer"]["metrics"]["loss"] is None
    assert line.isascii()
    assert line.isprintable()
    assert value["nodes"][0]["name"] == samples.HOSTILE


def test_logs_go_to_stderr_and_leave_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for reporter in (JsonHost(), JsonMember(), PlainHost(), PlainMember()):
        reporter.log("warning", "shard 0", samples.HOSTILE)
        reporter.log("debug", "shard 0", "hidden")
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert "shard 0: evil?[2J" in captured.err
        assert "\x1b" not in captured.err


class _Gone:
    """A stdout whose reader went away."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def test_a_reader_that_went_away_stops_the_host_once(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    monkeypatch.setattr("sys.stdout", _Gone())
    monkeypatch.setattr(streams, "silence_stdout", lambda: None)
    previous = signal.signal(signal.SIGINT, lambda number, frame: signals.append(number))
    try:
        reporter = JsonHost()
        reporter.started(samples.STARTED)
        assert signals == [], "our own Ctrl-C may be under way: a second signal would mean now"
        for _ in range(5):
            reporter.status(samples.status())
        reporter.stopped(HostStopped("signal", "", None))
    finally:
        signal.signal(signal.SIGINT, previous)
    assert signals == [signal.SIGINT]


class _Full:
    """A stdout on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "full")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "full")


def test_a_full_disk_stops_the_host_in_order_and_is_an_error_then(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []

    def run() -> None:
        with streams.standard_streams(), JsonHost() as host:
            host.started(samples.STARTED)
            host.status(samples.status())
            host.stopped(HostStopped("signal", "", None))

    monkeypatch.setattr("sys.stdout", _Full())
    monkeypatch.setattr(streams, "silence_stdout", lambda: None)
    previous = signal.signal(signal.SIGINT, lambda number, frame: signals.append(number))
    try:
        with pytest.raises(streams.OutputLost, match="full"):
            run()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert signals == [signal.SIGINT]


def test_plain_lines_come_every_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    host = PlainHost(now=lambda: now[0])
    host.started(samples.STARTED)
    for _ in range(21):
        host.status(samples.status())
        now[0] += 0.5
    host.stopped(HostStopped("time", "10 s", samples.status()))
    captured = capsys.readouterr()
    told = captured.out.splitlines()
    assert told[0].startswith("started cartpole-1129 as attic on 192.0.2.20, ports from 47800")
    assert told[1] == f"results in {samples.STARTED.results}"
    assert told[2] == "join with  p2prl join attic   or   p2prl join 192.0.2.20"
    assert sum(line.startswith("return 423.7 (of 100)  steps 1,234,567") for line in told) == 3 + 1
    assert told[-1] == "stopped: time (after 10 s)", "without its folder there is nothing to go on with"
    assert captured.err.count("the disk is full") == 1, "a warning is told when it is new"


def test_plain_lines_leave_a_failure_to_the_commands_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    failed = samples.status(
        trainer_state="failed", trainer_reason="boom", warnings=["the trainer failed once: boom"]
    )
    host = PlainHost(now=lambda: 100.0)
    host.started(samples.STARTED)
    host.status(failed)
    host.stopped(HostStopped("error", "boom", failed))
    captured = capsys.readouterr()
    assert "boom" not in captured.out + captured.err
    assert captured.out.splitlines()[-1] == "stopped: error"


def test_a_members_change_of_state_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    member = PlainMember(now=lambda: 100.0)
    for state in ("connecting", "connecting", "working", "away", "away"):
        member.status(samples.member(state=state))
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == ["connecting", "working", "away"]


def test_a_members_reason_that_counts_seconds_is_told_every_five(capsys: pytest.CaptureFixture[str]) -> None:
    second = 0
    member = PlainMember(now=lambda: 100.0 + second)
    for second in range(1, 12):
        member.status(samples.member(state="away", reason=f"vm was not heard for {second} s"))
    member.status(samples.member(state="away", reason="no answer from vm for 12 s"))
    told = capsys.readouterr().out.splitlines()
    seconds = [int(re.findall(r"for (\d+) s", line)[0]) for line in told]
    assert seconds == [1, 6, 11, 12]


def test_docs_name_every_field() -> None:
    text = DOCS.read_text(encoding="utf-8")
    section = text[text.index("## JSON") :]
    named = set(re.findall(r"`(\w+)`", section))
    entry = NodeEntry(key="x" * 40, name="ann", standing="waiting")
    objects = [
        shapes.host_started(samples.STARTED),
        shapes.host_code(CodeNews(code="17-maple-otter")),
        shapes.host_progress(samples.status()),
        shapes.host_stopped(HostStopped("time", "", samples.status())),
        shapes.member_joined(samples.JOINED),
        shapes.member_progress(samples.member()),
        shapes.member_left(samples.LEFT),
        shapes.run_status(samples.status()),
        nodes_object(NodesReply(host_name="attic", open=False, nodes=[entry]), "abcd-efgh"),
        code_object(CodeNews(code="17-maple-otter")),
    ]
    keys = {key for value in objects for key in _keys(value)}
    assert keys - named == set()
    # `further` is part of a line for people alone.
    assert {field.name for field in fields(samples.STARTED)} - {"further"} <= named


def _keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return {key for item in value for key in _keys(item)}
    if not isinstance(value, dict):
        return set()
    below = {k for name, item in value.items() if not name.endswith("_reasons") for k in _keys(item)}
    return set(value) | below
