"""The scalars of a real run, as TensorBoard reads them, are those that docs/metrics.md explains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import kit, metrics_kit

RUN, AGENT = "The run", "dqn"


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By tag: (step, value), in the order in which they were written."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events.*")):
        for event in loader.LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_each_scalar_of_a_real_run_is_explained(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    base = kit.free_base()
    flags = ("chain", "--agent", AGENT, "--players", "1", "--set", "agent.epsilon_updates=50")
    with kit.host(tmp_path, *flags, name=f"h{base}", port=base) as host:
        results = Path(host.wait_for("started")["results"])
        host.wait_for(
            "progress",
            lambda e: None not in (e["return_mean"], e["eval_return_mean"]) and e["updates"] > 100,
            90.0,
        )
        assert host.end(40.0) == 0
        stopped = host.last("stopped")
    assert stopped is not None
    found = points(results / "tensorboard")
    page = metrics_kit.page()
    learner = {tag for tag in found if tag.startswith("learner/")}
    for section, names in ((AGENT, learner), (RUN, found.keys() - learner)):
        told = metrics_kit.complaint(section, {row.name for row in page[section]} & names, names)
        assert not told, told
    assert learner
    assert not metrics_kit.run_scalars() - found.keys(), "a run that learns gives them all"
    # Over environment steps, and what is told at the end is the last point.
    for name in ("steps_per_s", "episodes", "return_mean_all"):
        steps = [step for step, _ in found[f"play/{name}"]]
        assert steps == sorted(steps)
        assert steps[-1] == stopped["steps"]
    assert found["train/updates"][-1][1] == stopped["updates"]
    assert found["train/updates_skipped"][-1][1] == 0
