"""scripts/bench: rows that say what was measured and nothing else, bars that can be missed, parts that run."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_parts import codec, judge, peers, pictures, results
from bench_parts.kinds import Bar, Case, Unavailable
from bench_parts.rows import PARTS, Part, chosen

from tests.docs_kit import ROOT

ASKED = [
    "part",
    "case",
    "unit",
    "ours",
    "limit",
    "peer",
    "peer_name",
    "ratio_limit",
    "ratio_peer",
    "bar",
    "ok",
]


def row(**case: Any) -> dict[str, Any]:
    named: Case = {"case": "c", "unit": "u", **case}  # type: ignore[typeddict-item]
    return judge.row("p", named)


# --- rows


def test_a_row_has_what_the_issue_asks_for_in_its_order() -> None:
    assert list(row(ours=[1.0])) == ASKED
    assert list(row(ours=None, peers={"a": None})) == ASKED


def test_figures_are_medians_with_their_range() -> None:
    assert row(ours=[3, 1, 2])["ours"] == {"median": 2, "low": 1, "high": 3}
    assert row(ours=7)["ours"] == {"median": 7, "low": 7, "high": 7}
    assert row(ours=[0.0123456])["ours"]["median"] == 0.01235
    assert row(ours=[123456.7])["ours"]["median"] == 123457
    assert row(ours=None)["ours"] is None
    assert row(ours=[])["ours"] is None


def test_ratios_are_of_medians_with_the_range_of_the_turns() -> None:
    """A slow moment that fell on both is no slow ratio."""
    found = row(ours=[10, 20, 5], limit=[20, 40, 10])
    assert found["ratio_limit"] == {"median": 0.5, "low": 0.5, "high": 0.5}
    assert row(ours=[10, 20], limit=[10])["ratio_limit"] == {"median": 1.5, "low": 1, "high": 2}
    assert row(ours=[1.0])["ratio_limit"] is None
    assert row(limit=[1.0])["ratio_limit"] is None


def test_the_best_peer_is_in_the_row_and_the_others_are_named() -> None:
    found = row(ours=[10.0], peers={"slow": [1.0], "fast": [2.0], "away": None, "empty": []})
    assert found["peer"]["median"] == 2
    assert found["peer_name"] == "fast; slow: 1; away: absent; empty: absent"
    assert found["ratio_peer"]["median"] == 5
    less = row(ours=[10.0], peers={"slow": [2.0], "fast": [1.0]}, bar=Bar(peer=1, lower=True))
    assert less["peer_name"] == "fast; slow: 2"


def test_what_was_not_measured_is_no_figure() -> None:
    found = row(ours=[1.0], peers={"a": None, "b": None}, bar=Bar(peer=10))
    assert (found["peer"], found["ratio_peer"], found["ok"]) == (None, None, None)
    assert found["peer_name"] == "a: absent; b: absent"


@pytest.mark.parametrize(
    ("bar", "ours", "limit", "peer", "ok"),
    [
        (None, [1], [1], [1], None),
        (Bar(), [1], [1], [1], None),
        (Bar(limit=0.5), [5], [10], None, True),
        (Bar(limit=0.5), [4.99], [10], None, False),
        (Bar(limit=0.5), [5], None, None, None),
        (Bar(limit=0.5), None, [10], None, None),
        (Bar(limit=0.5), [4, 5, 50], [10, 10, 10], None, True),
        (Bar(peer=10), [100], None, [10], True),
        (Bar(peer=10), [99], None, [10], False),
        (Bar(peer=10), [99], [1], None, None),
        # What is missed is missed, whatever else was not measured.
        (Bar(limit=0.5, peer=10), [4], [10], None, False),
        (Bar(limit=0.5, peer=10), [5], [10], None, None),
        (Bar(value=0.2, lower=True), [0.2], None, None, True),
        (Bar(value=0.2, lower=True), [0.21], None, None, False),
        (Bar(limit=1, value=83, lower=True), [82], [83], None, True),
        (Bar(limit=1, value=83, lower=True), [82], [81], None, False),
        (Bar(limit=1, value=83, lower=True), [84], [85], None, False),
        ({"limit": 1.5, "lower": True}, [1.4], [1], None, True),
    ],
)
def test_bars(bar: Any, ours: Any, limit: Any, peer: Any, ok: bool | None) -> None:
    assert row(bar=bar, ours=ours, limit=limit, peers={"a": peer})["ok"] is ok


def test_bars_in_words() -> None:
    assert row(bar=Bar(limit=0.5, peer=10))["bar"] == ">= 0.5 x limit, >= 10 x peer"
    assert row(bar=Bar(value=90, lower=True))["bar"] == "<= 90 u"
    assert row()["bar"] == ""


# --- the table and the file


def test_the_table_shows_each_row_and_each_note_once() -> None:
    one = row(ours=[1000, 2000, 3000], limit=[4000, 4000, 4000], bar=Bar(limit=0.9))
    two = row(case="d", ours=None, peers={"Reverb": None})
    text = results.text([one, two], {"p: c": "no such package", "p: d": "no such package"})
    assert "2,000 (1,000-3,000)" in text
    assert "0.5 (0.25-0.75)" in text
    assert "NO" in text
    assert "Reverb: absent" in text
    assert text.count("no such package") == 1
    assert "p: c, p: d: no such package" in text


def test_the_file_holds_one_row_a_case(tmp_path: Path) -> None:
    rows = [row(ours=[1.0]), row(case="d", ours=None)]
    results.write(tmp_path / "out.json", rows)
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == rows
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


# --- parts


def test_parts_are_named_once_and_taken_in_order() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    assert chosen([]) == list(PARTS)
    assert [part.name for part in chosen(["latency", "codec"])] == ["codec", "latency"]
    with pytest.raises(ValueError, match="codek"):
        chosen(["codek"])


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_has_cases_that_begin_when_they_are_asked_for(part: Part) -> None:
    cases = part.cases(quick=True)
    assert isinstance(cases, Iterator)
    assert inspect.isgenerator(cases)
    assert inspect.getgeneratorstate(cases) == inspect.GEN_CREATED


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    return {**os.environ, "PYTHONPATH": path, "P2PRL_BENCH_CACHE": str(tmp_path)}


def bench(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench_parts", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_quick_run_of_the_cheapest_part(tmp_path: Path, environment: dict[str, str]) -> None:
    done = bench(environment, "codec", "--quick", "--json", str(tmp_path / "out.json"))
    assert done.returncode in (0, 1), done.stderr  # what it measured in no time may miss a bar
    rows = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert all(list(one) == ASKED for one in rows)
    cases = {one["case"]: one for one in rows}
    assert cases["CartPole-v1, obs: size"]["ok"] is True
    assert all(any(name.startswith(game) for name in cases) for game in pictures.GAMES)
    for name, one in cases.items():
        absent = one["ours"] is None
        assert absent == (f"codec: {name}" in done.stdout)  # the line that says why


def test_names_and_wrong_names(environment: dict[str, str]) -> None:
    listed = bench(environment, "--list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [part.name for part in PARTS]
    wrong = bench(environment, "codek")
    assert wrong.returncode == 2
    assert "codec" in wrong.stderr


# --- what others are held against


def moving(rows: int, slots: int, breaks: bool) -> np.ndarray[Any, Any]:
    """Stacks of four frames in which a bright spot moves; with breaks an episode begins now and then."""
    rng = np.random.default_rng(1)
    single = np.zeros((slots, rows + 3, 84, 84), np.uint8)
    for slot in range(slots):
        for at in range(rows + 3):
            y, x = rng.integers(84, size=2)
            single[slot, at, y, x] = 255
    stacks = np.stack([single[:, at : at + rows] for at in range(4)], axis=2).swapaxes(0, 1).copy()
    if breaks:
        stacks[2:5, 1] = stacks[2, 1, 0]  # as an episode begins: four times the same
        stacks[rows // 2, 0] = rng.integers(256, size=(4, 84, 84), dtype=np.uint8)
    return stacks


@pytest.mark.parametrize("breaks", [False, True])
def test_the_limit_of_the_codec_loses_nothing(breaks: bool) -> None:
    stacks = moving(9, 3, breaks)
    assert np.array_equal(codec.unstraight(codec.straight(stacks), stacks.shape), stacks)


def test_absent_peers_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PRL_BENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("P2PRL_BASELINES", str(tmp_path / "nothing"))
    session = {"obs": np.zeros((3, 2), np.float32)}
    with peers.opened({"cartpole": [session]}) as others:
        assert set(others.there.values()) == {None}
        assert len(others.why) == 2
        figures: dict[str, list[float]] = {}
        others.measure(lambda peer: pytest.fail("nobody is there"), figures)
    assert row(ours=[1.0], peers=figures)["peer_name"].count("absent") == 2


def test_frames_that_cannot_be_played_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P2PRL_BENCH_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(Unavailable, match=r"ale_py.*--setup"):
        pictures.frames("Pong", rows=2, slots=1)
    assert not list(tmp_path.iterdir())
