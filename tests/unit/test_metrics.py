"""docs/metrics.md explains each scalar that the code gives, and no other."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from p2prl.cli.shapes import run_status, totals
from p2prl.core.messages import Evaluation
from p2prl.nodes.recorder import evaluation_scalars, progress_row, scalars
from p2prl.registry import agent_names
from tests import docs_kit, metrics_kit
from tests.unit.cli_samples import status

ROWS = metrics_kit.page()
RUN = "The run"


def test_the_scalars_of_a_run() -> None:
    told = metrics_kit.complaint(RUN, [row.name for row in ROWS[RUN]], metrics_kit.run_scalars())
    assert not told, told


def in_progress(row: dict[str, Any], name: str) -> Any:
    """A scalar's value in a line of progress.jsonl, found as docs/metrics.md says."""
    group, _, name = name.partition("/")
    if group in ("bundles", "learner"):
        return row[group][name]
    return row[f"eval_{name}" if group == "eval" else name]


def test_progress_has_each_scalar_that_is_explained() -> None:
    learners = {row.name: float(index) for index, row in enumerate(ROWS["dqn"])}
    greedy = Evaluation(
        version=1, episodes=2, return_mean=3.0, return_low=4.0, return_high=5.0, length_mean=6.0, steps=7
    )
    metrics = {name.removeprefix("learner/"): value for name, value in learners.items()}
    now = status(metrics=metrics, evaluation=greedy)
    row = progress_row(now)
    drawn = {**scalars(now), **evaluation_scalars(greedy)}
    names = [one.name for one in (*ROWS[RUN], *ROWS["dqn"])]
    assert {name: in_progress(row, name) for name in names} == {name: drawn[name] for name in names}
    assert row["eval_steps"] == 7
    asked = {**run_status(now), **totals(now)}  # in a status `nodes` is a list
    asked["learner"] = asked["trainer"]["metrics"]
    assert {name: in_progress(asked, name) for name in names} == {name: drawn[name] for name in names}


def test_a_learners_metrics_stand_under_learner() -> None:
    assert scalars(status(metrics={"loss": 0.5}))["learner/loss"] == 0.5


@pytest.mark.parametrize("agent", agent_names())
def test_the_metrics_of_each_agent(agent: str) -> None:
    if agent not in ("cem", "es"):
        pytest.importorskip("torch")
    given = {f"learner/{name}" for name in metrics_kit.metrics_of(agent)}
    told = metrics_kit.complaint(agent, [row.name for row in ROWS.get(agent, [])], given)
    assert not told, told


def test_each_section_is_of_the_run_or_of_an_agent() -> None:
    assert set(ROWS) == {RUN, *agent_names()}


def test_what_is_explained_is_explained() -> None:
    rows = [row for section in ROWS.values() for row in section]
    assert len(rows) > 30
    assert not [row.name for row in rows if not row.meaning or row.meaning == "meaning"]
    assert not [row.name for row in rows if row.worry == "when to worry" or row.unit == "unit"]
    for section, found in ROWS.items():
        names = [row.name for row in found]
        assert len(names) == len(set(names)), section
        assert all(name.startswith("learner/") == (section != RUN) for name in names)


def test_settings_and_scalars_that_it_names_exist() -> None:
    text = docs_kit.read(metrics_kit.PAGE)
    scalars_ = {row.name for section in ROWS.values() for row in section}
    assert not set(re.findall(r"`((?:play|train|bundles|learner|eval)/(?!NAME)\w+)`", text)) - scalars_


def test_an_agents_page_leads_here() -> None:
    for agent in agent_names():
        page = docs_kit.read(docs_kit.ROOT / "docs" / "agents" / f"{agent}.md")
        assert f"(../metrics.md#{agent})" in page, agent


def test_a_complaint_says_exactly_what_to_do() -> None:
    told = metrics_kit.complaint("dqn", ["learner/loss", "learner/old"], ["learner/loss", "learner/new"])
    assert told.splitlines() == [
        "add to docs/metrics.md, section `dqn`:",
        "| `learner/new` | unit | meaning | when to worry |",
        "take out of section `dqn`, or mend the code: nothing gives learner/old",
    ]
    assert metrics_kit.complaint("dqn", ["a"], ["a"]) == ""


def test_each_feature_of_an_agent_is_tried() -> None:
    class Settings(msgspec.Struct, frozen=True):
        hidden: tuple[int, ...] = (64,)
        double: bool = True
        core: str = "none"
        bonus: float = 0.0
        rate: float = 0.1
        burn_in: int = 0

    tried = list(metrics_kit.variants(Settings))
    small = {"hidden": [8]}
    assert tried == [small, {**small, "double": False}, {**small, "bonus": 0.5}, {**small, "burn_in": 1}]
