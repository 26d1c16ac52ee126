"""scripts/learn: rows that can be run, figures that are counted right, a page that is made from them."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learn_matrix import judge, pictures, results
from learn_matrix.kinds import Bar, Criterion, Forced, Host, Limits, Row, Run, Sb3
from learn_matrix.rows import HOLDS_TO, ROWS, chosen
from learn_matrix.svg import Line, chart

from p2prl.cli.build import ExperimentFlags, check_installed, effective_experiment
from p2prl.errors import MissingPackage
from tests.docs_kit import ROOT

CRITERION = Criterion(475)


def row(name: str = "cartpole-ppo", bar: Bar | None = None) -> Row:
    return Row(name, "ppo", "CartPole-v1", Host("cartpole-ppo"), CRITERION, Limits(1, 1), bar=bar or Bar())


def runs(*steps: int | None) -> list[Run]:
    """A second for each thousand steps; None never came there."""
    return [
        Run(seed, end="too late") if n is None else Run(seed, n, n / 1000, lag_mean=1.0)
        for seed, n in enumerate(steps)
    ]


def judged(
    bar: Bar, ours: list[Run], peer: list[Run] | None = None, others: dict[str, Any] | None = None
) -> dict[str, Any]:
    return judge.result(row(bar=bar), ours, peer, CRITERION, "the peer", "", others or {})


# --- rows


def test_names_are_unique_and_seeds_are_three_at_least() -> None:
    assert len({one.name for one in ROWS}) == len(ROWS)
    assert all(len(set(one.seeds)) >= 3 for one in ROWS)


def _hosts() -> list[Host]:
    return [what for one in ROWS for what in (one.ours, one.peer) if isinstance(what, Host)]


@pytest.mark.parametrize("ours", _hosts(), ids=lambda ours: ours.experiment)
def test_experiments_of_rows_exist(ours: Host) -> None:
    assignments = [
        f"{key}={json.dumps(value) if not isinstance(value, str) else value}"
        for key, value in ours.settings.items()
    ]
    flags = ExperimentFlags(
        ours.experiment, env=ours.env or None, agent=ours.agent or None, assignments=assignments
    )
    try:
        check_installed(effective_experiment(flags))
    except MissingPackage as error:
        pytest.skip(str(error))


def test_a_name_may_be_the_beginning_of_many() -> None:
    assert [one.name for one in chosen(["cartpole-ppo"])] == ["cartpole-ppo"]
    assert {one.name for one in chosen(["lag-ppo"])} == {
        one.name for one in ROWS if one.name.startswith("lag-ppo-")
    }
    assert chosen([]) == list(ROWS)
    assert all(one.short for one in chosen([], short=True))
    with pytest.raises(ValueError, match="cartpol"):
        chosen(["cartpol"])


SHORT = [one for one in ROWS if one.short]


def of_learning(one: Row) -> tuple[str, str]:
    """The file and the name of a short row's test."""
    file, _, name = one.short.partition("::")
    return f"tests/learning/test_learning_{file}", name


@pytest.fixture(scope="module")
def not_slow() -> set[str]:
    """The tests in all these files that are not slow, each with its parameters and without."""
    files = sorted({of_learning(one)[0] for one in SHORT})
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not slow", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout
    there = {line for line in collected.stdout.splitlines() if "::" in line}
    return there | {line.partition("[")[0] for line in there}


@pytest.mark.parametrize("one", SHORT, ids=lambda one: one.name)
def test_a_short_row_has_a_test_that_is_not_slow(one: Row, not_slow: set[str]) -> None:
    assert "::".join(of_learning(one)) in not_slow


def test_bars_name_rows_that_come_before() -> None:
    seen: set[str] = set()
    for one in ROWS:
        assert not one.bar.like or one.bar.like in seen
        seen.add(one.name)


def test_what_is_claimed_of_lag_is_what_the_issue_asks() -> None:
    asked = {one.name for one in ROWS if isinstance(one.ours, Forced) and one.ours.lag in (0, 5, 20)}
    assert asked == {f"lag-{agent}-{lag}" for agent in HOLDS_TO for lag in (0, 5, 20)}


# --- figures


def test_figures_are_medians_and_ranges() -> None:
    found = judge.figures(runs(3000, 1000, 2000))
    assert (found["steps_median"], found["steps_range"]) == (2000, [1000, 3000])
    assert (found["seconds_median"], found["seconds_range"]) == (2.0, [1.0, 3.0])


def test_a_seed_that_never_came_there_is_the_latest() -> None:
    assert judge.figures(runs(3000, None, 2000))["steps_median"] == 3000
    assert judge.figures(runs(3000, None, 2000))["steps_range"] == [2000, None]
    assert judge.figures(runs(3000, None, None))["steps_median"] is None


@pytest.mark.parametrize(
    ("bar", "ours", "peer", "ok"),
    [
        (Bar(), (1000, 2000, 3000), None, True),
        (Bar(), (1000, 2000, None), None, False),
        (Bar(steps=1.3), (1000, 1300, 9000), (900, 1000, 1000), True),
        (Bar(steps=1.3), (1000, 1301, 9000), (900, 1000, 1000), False),
        (Bar(steps=1.3, seconds=1.0), (1000, 1300, 9000), (900, 1000, 1000), False),
        (Bar(steps=1.3), (1000, 1300, 9000), None, None),
        (Bar(steps=1.3), (1000, 1300, 9000), (None, 1000, 1000), True),
        # Its median is not known, but is no less than its fastest seed.
        (Bar(steps=1.3), (1000, 1300, 9000), (None, None, 1000), True),
        (Bar(steps=1.3), (1000, 1301, 9000), (None, None, 1000), None),
        (Bar(seconds=1.0), (1000, 1000, 1000), (None, None, None), None),
        (Bar(alone=True), (1000, 2000, 3000), (None, None, None), True),
        (Bar(alone=True), (1000, 2000, 3000), (None, None, 90_000), False),
        (Bar(none=True), (None, None, None), None, None),
    ],
)
def test_bars(
    bar: Bar, ours: tuple[int | None, ...], peer: tuple[int | None, ...] | None, ok: bool | None
) -> None:
    found = judged(bar, runs(*ours), None if peer is None else runs(*peer))
    assert found["ok"] is ok
    assert bool(found["reason"]) is (ok is not True)


def test_a_peer_that_never_came_there_needs_more_than_it_had() -> None:
    peer = Sb3("PPO", "CartPole-v1", steps=1000)
    one = replace(row(bar=Bar(steps=1.3, seconds=1.0)), peer=peer, limits=Limits(5000, 60))
    for steps, ok in ((1300, True), (1301, None)):
        found = judge.result(one, runs(1, steps, 5000), runs(None, None, None), CRITERION, "", "", {})
        assert found["ok"] is ok, steps


def test_like_another_row_means_a_median_that_is_near() -> None:
    bar, others = Bar(like="one"), {"one": {"steps_range": [1000, 2000], "steps_median": 1500}}
    assert judged(bar, runs(100, 1950, 6000), others=others)["ok"] is True
    assert judged(bar, runs(100, 1951, 1960), others=others)["ok"] is False
    assert judged(bar, runs(100, 200, 300), others=others)["ok"] is True
    assert judged(bar, runs(100, 200, 300))["ok"] is None
    assert judged(bar, runs(100, 200, 300), others={"one": {"steps_range": [1000, None]}})["ok"] is None
    assert judged(bar, runs(100, 200, 300), others={"one": {"steps_range": None}})["ok"] is None


def test_more_players_are_not_slower() -> None:
    bar = Bar(like="one", faster=True)
    others = {"one": {"steps_range": [1000, 9000], "steps_median": 2000, "seconds_median": 2.0}}
    assert judged(bar, runs(1000, 2000, 9000), others=others)["ok"] is True
    assert judged(bar, runs(1000, 2100, 9000), others=others)["ok"] is False


def test_a_row_has_what_the_issue_asks_for_and_no_name_of_a_machine() -> None:
    found = {**judged(Bar(), runs(1, 2, 3)), **judge.circumstances()}
    asked = (
        "agent env seeds threshold steps_median steps_range seconds_median lag_mean "
        "peer peer_steps_median peer_seconds_median bar ok"
    )
    assert set(asked.split()) <= set(found)
    text = json.dumps(found)
    assert platform.node() not in re.split(r"\W+", text)
    assert str(ROOT) not in text


# --- files


def test_rows_are_replaced_one_by_one_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for name, steps in (("cartpole-dqn", 1), ("cartpole-ppo", 2), ("gone", 3), ("cartpole-dqn", 4)):
        results.put(path, {"name": name, "steps_median": steps})
    assert [(one["name"], one["steps_median"]) for one in results.load(path)] == [
        ("cartpole-ppo", 2),
        ("cartpole-dqn", 4),
        ("gone", 3),
    ]


def test_the_page_shows_each_row(tmp_path: Path) -> None:
    rows = [
        {
            **judged(Bar(), runs(1000, 2000, None)),
            **judge.circumstances(),
            "picture": "pictures/cartpole-ppo.svg",
        },
        {**judge.unavailable(row("cartpole-es"), "no preset"), **judge.circumstances()},
        {**judged(Bar(), runs(1000)), "name": "lag-ppo-5"},
        {**judged(Bar(), runs(None, None)), "name": "lag-ppo-8"},
    ]
    page = results.page(rows)
    assert "| 2/3 | 2,000 (1,000 to -) |" in page
    assert "| 0/2 | - | - |" in page
    assert "-: no preset" in page
    assert "**no**: seed 2: too late" in page
    assert "](pictures/cartpole-ppo.svg)" in page
    assert "](pictures/lag.svg)" in page


def test_results_and_what_is_made_from_them_are_fresh() -> None:
    """Also: each row is still one of the matrix, and its picture is there."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    done = subprocess.run(
        [sys.executable, "-m", "learn_matrix", "--render", "--check"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.put(path, {**judged(Bar(), runs(1000, 2000, 3000)), **judge.circumstances()})
    command = [sys.executable, "-m", "learn_matrix", "--render", "--out", str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])}
    assert (
        subprocess.run([*command, "--check"], env=environment, capture_output=True, check=False).returncode
        == 1
    )
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    assert subprocess.run([*command, "--check"], env=environment, check=False).returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="no FIFO, and few people may make links")
def test_what_is_no_file_is_not_replaced_and_a_link_stays_one(tmp_path: Path) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "link.json"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "learn_matrix", "--out", str(fifo), "--list"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"--out {fifo} is no file, and it is read and replaced: name a file" in done.stderr
    link.symlink_to(tmp_path / "results.json")
    rows = results.put(link, {**judged(Bar(), runs(1000, 2000, 3000)), **judge.circumstances()})
    assert link.is_symlink()
    assert results.load(tmp_path / "results.json") == rows


# --- pictures


def _texts(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_charts_are_well_formed_and_inside_their_frame() -> None:
    lines = [
        Line([(0, -500.0), (90_000, -80.5)], "#000000", "a < b"),
        Line([(10, -90.0)], "#ff0000", "b", dots=True),
    ]
    picture = chart("title & more", "steps", "return", lines)
    assert {"title & more", "a < b", "b", "steps", "return", "-100", "80k"} <= set(_texts(picture))
    for point in re.findall(r"(-?[\d.]+),(-?[\d.]+)", " ".join(re.findall(r'points="([^"]*)"', picture))):
        assert 0 <= float(point[0]) <= 640
        assert 0 <= float(point[1]) <= 360


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.3), (0.0, 1.0), (9.0, 500.0), (-500.0, -80.0), (0.0, 1_150_000.0)]
)
def test_charts_have_some_ticks(low: float, high: float) -> None:
    picture = chart("t", "x", "y", [Line([(0, low), (1, high)], "#000000")])
    assert 3 <= picture.count('stroke="#dddddd"') <= 12


def test_seeds_that_never_came_there_are_rings() -> None:
    rows = {
        "lag-ppo-0": {"steps_range": [100, 300], "steps_median": 200},
        "lag-ppo-5": {"steps_range": [100, None], "steps_median": None},
        "lag-dqn-0": {"steps_range": None, "steps_median": None},
    }
    picture = pictures.lag(rows)
    assert picture.count('fill="#ffffff" stroke') == 1
    assert {"ppo", "0", "40"} <= set(_texts(picture))
    assert "dqn" not in _texts(picture)


def test_curves_keep_their_last_point() -> None:
    run = Run(1, 5000, 1.0, curve=[(step, step / 10) for step in range(5000)])
    picture = pictures.curves("t", 475, [run], [], ("ours", ""))
    points = re.findall(r'points="([^"]*)"', picture)[0].split()
    assert len(points) < 200
    assert points[-1].startswith("624")


def test_the_page_names_what_the_bar_forgives(tmp_path: Path) -> None:
    """A median within 1.3 times another's may still lie outside of all its seeds."""

    def one(name: str, *steps: int) -> dict[str, Any]:
        return {**judge.result(row(name), runs(*steps), None, CRITERION, "", "", {}), "picture": ""}

    page = results.page(
        [
            one("lag-ppo-0", 1000, 1100, 1200),
            one("lag-ppo-1", 1100, 1200, 1300),
            one("lag-ppo-2", 1100, 1201, 1300),
        ]
    )
    assert "Medians above the range of their agent's first row: lag-ppo-2.\n" in page
    missing = {**judge.unavailable(row("lag-ppo-0"), "no such package"), "picture": ""}
    assert "first row: none.\n" in results.page([missing, one("lag-ppo-1", 1100, 1200, 1300)])
