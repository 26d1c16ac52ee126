"""A `--resume` that is refused, or fails, changes nothing in the run's folder."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from tests import kit
from tests.conftest import wait_until
from tests.loopback.survival_kit import END_S, OFTEN, PACED, RECOVERY_S, hosted

SIZED = f"{kit.SAMPLES / 'sized.py'}:Sized"
KEEP_MANY = ("--set", "train.keep_checkpoints=20")
#: What a start may add to, whatever becomes of it.
LOGS = ("host.log", "progress.jsonl", "nodes.jsonl", "broker.json", "run.lock")


def numbered(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("0*"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended, with a few checkpoints."""
    settings = (*PACED, *OFTEN, *KEEP_MANY, "--agent", SIZED, "--players", "1")
    with hosted(tmp_path_factory.mktemp("ended"), settings=settings) as run:
        wait_until(lambda: len(numbered(run.results)) >= 4, RECOVERY_S, "four checkpoints")
        assert run.host.end(END_S) == 0
        return run.results


@pytest.fixture
def run(ended: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ended, tmp_path / "run"))


def contents(run: Path) -> dict[str, bytes]:
    """Of all that says how the run is to go on."""
    paths = [path for path in run.rglob("*") if path.is_file() and path.name not in LOGS]
    kept = [path for path in paths if not {"tensorboard", "replay"} & set(path.relative_to(run).parts)]
    return {str(path.relative_to(run)): path.read_bytes() for path in kept}


def refused(folder: Path, base: int, results: Path, *flags: str) -> tuple[int, str]:
    """The exit code and the last line of a host that does not start."""
    resume = ("--resume", "--results", str(results), "--players", "0", *flags)
    with kit.host(folder, *resume, name=f"h{base}", port=base, cwd=kit.ROOT) as program:
        code = program.wait(RECOVERY_S)
        assert program.of("started") == [] or code == 2
    return code, program.stderr.splitlines()[-1]


def test_settings_that_do_not_fit_are_not_kept(run: Path, tmp_path: Path) -> None:
    before = contents(run)
    code, why = refused(tmp_path, kit.free_base(), run, "--set", "agent.size=2")
    assert code == 2
    assert "does not fit" in why
    assert contents(run) == before
    with hosted(tmp_path, "--resume", "--results", str(run), "--players", "0") as again:
        again.host.wait_for("progress", lambda e: e["trainer"] not in ("starting", "stalled"), RECOVERY_S)
        assert again.host.end(END_S) == 0
        figures_went_on(run, [*again.host.of("progress"), *again.host.of("stopped")])


def figures_went_on(run: Path, told: list[kit.Event]) -> None:
    """From the run's last, also while the trainer was starting."""
    last = int(numbered(run)[-1].name.partition("-")[0])
    rows = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    assert last > 1
    assert len(told) > 1
    for figures in (*told, *rows[-len(told) + 1 :]):
        assert figures["updates"] >= last
        assert figures["lag_mean"] > 0


def test_what_a_start_that_works_was_told_is_kept(run: Path, tmp_path: Path) -> None:
    flags = ("--set", "train.publish_interval_s=0.7", "--players", "0")
    with hosted(tmp_path, "--resume", "--results", str(run), *flags) as again:
        toml, there = run / "experiment.toml", run / "run.json"
        wait_until(lambda: "publish_interval_s = 0.7" in toml.read_text(), RECOVERY_S, "it is kept")
        wait_until(lambda: f'"base_port":{again.base}' in there.read_text(), RECOVERY_S, "the port, too")
        assert again.host.end(END_S) == 0


def test_a_host_that_cannot_start_sets_nothing_aside(run: Path, tmp_path: Path) -> None:
    before, first = contents(run), numbered(run)[0]
    code, why = refused(tmp_path, kit.free_base(), first, "--set", "agent.size=2")
    assert (code, contents(run)) == (2, before)
    assert "does not fit" in why
    base = kit.free_base()
    with socket.create_server(("127.0.0.1", base)):
        code, why = refused(tmp_path, base, first)
    assert (code, contents(run)) == (1, before)
    assert str(base) in why
    assert not (run / "set-aside").exists()


def test_a_killed_run_goes_on_to_its_end_and_an_ended_one_says_how_to_lift_it(tmp_path: Path) -> None:
    settings = (*PACED, *OFTEN, "--players", "1", "--stop-steps", "1000")
    with hosted(tmp_path, settings=settings) as run:
        run.host.wait_for("progress", lambda e: 300 < e["steps"] < 1000, RECOVERY_S)
        run.host.kill()
    with hosted(tmp_path, "--resume", "--results", str(run.results), "--players", "1") as again:
        assert again.host.wait(RECOVERY_S) == 0
        stopped = again.host.last("stopped")
    assert stopped is not None
    assert stopped["reason"] == "steps"
    assert stopped["steps"] >= 1000
    before = contents(run.results)
    code, why = refused(tmp_path, kit.free_base(), run.results)
    assert (code, contents(run.results)) == (2, before), why
    assert "stop.steps = 1000" in why
    assert "--no-stop" in why
    with hosted(tmp_path, "--resume", "--results", str(run.results), "--players", "1", "--no-stop") as on:
        on.host.wait_for("progress", lambda e: e["steps"] > stopped["steps"] + 100, RECOVERY_S)
        assert on.host.end(END_S) == 0
    assert "[stop]" not in (run.results / "experiment.toml").read_text()
