"""One's own agent: a file by relative path, an actor that raises, settings that do not fit a checkpoint."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from tests import docs_kit, kit

_SAMPLES = str(kit.ROOT / "tests" / "samples")


def test_a_relative_agent_file_is_found_again_by_eval_and_resume(tmp_path: Path) -> None:
    agent = docs_kit.tabular_agent(tmp_path)
    name = f"{agent.name}:Tabular"
    flags = ("--env", "chain", "--agent", name, "--players", "1", "--stop-steps", "3000")
    base = kit.free_base()
    with kit.host(tmp_path, *flags, port=base, cwd=tmp_path) as first:
        results = Path(first.wait_for("started")["results"])
        assert first.wait(60) == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = kit.run(tmp_path, "eval", str(results), "-n", "2", "--json", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["returns"]) == 2
    text = agent.read_text(encoding="utf-8")
    agent.write_text(text.replace(", state, {}", ""), encoding="utf-8")
    done = kit.run(tmp_path, "eval", str(results), "-n", "2", "--json", cwd=elsewhere)
    assert done.returncode == 1
    assert f"{name}: act gave an array of shape (2,): it must return (actions, state, extras)" in done.stderr
    agent.write_text(text, encoding="utf-8")
    again = ("--resume", "--no-stop", "--results", str(results), "--players", "0", "--stop-time", "1")
    with kit.host(tmp_path, *again, port=base, cwd=elsewhere) as second:
        assert second.wait_for("started")["resumed"]
        assert second.wait(60) == 0


def test_an_agent_that_raises_is_started_again_counted_and_shown_in_one_line(tmp_path: Path) -> None:
    base = kit.free_base()
    agent = f"{_SAMPLES}{os.sep}faulty.py:Faulty"
    with kit.host(
        tmp_path, "--env", "chain", "--agent", agent, "--players", "1", port=base, cwd=kit.ROOT
    ) as host:
        host.wait_for_line("raised ValueError: the hundredth call is one too many")
        shown = host.wait_for("progress", lambda e: e["steps"] > 3000)
        assert kit.balanced(shown["bundles"])
        [row] = kit.status(tmp_path, f"127.0.0.1:{base}")["nodes"]
        assert row["player_reports"][0]["restarts"] >= 1
        assert any("hundredth call" in fault for fault in row["faults"])
        assert host.end(20.0) == 0
    assert "Traceback" not in host.stderr


def test_settings_that_do_not_fit_the_checkpoint_are_refused(tmp_path: Path) -> None:
    base = kit.free_base()
    with kit.host(tmp_path, "cartpole-cem", "--players", "1", "--stop-steps", "20000", port=base) as first:
        results = Path(first.wait_for("started")["results"])
        assert first.wait(60) == 0
    again = ("--resume", "--no-stop", "--results", str(results), "--players", "0", "--set", "agent.hidden=16")
    with kit.host(tmp_path, *again, port=base) as second:
        assert second.wait(30) == 2
    assert "does not fit the agent's settings" in second.stderr
    assert "Traceback" not in second.stderr
    shutil.rmtree(results)


def test_more_slots_than_a_bundle_carries_are_refused_at_once(tmp_path: Path) -> None:
    done = kit.run(tmp_path, "host", "--set", "play.envs=5000", "--results", str(tmp_path / "results"))
    assert done.returncode == 2
    assert "1024" in done.stderr
    assert not (tmp_path / "results").exists()


def test_an_agent_that_acts_outside_its_space_is_named_with_what_it_did(tmp_path: Path) -> None:
    base = kit.free_base()
    agent = f"{_SAMPLES}{os.sep}faulty.py:Reckless"
    with kit.host(
        tmp_path, "--env", "chain", "--agent", agent, "--players", "1", port=base, cwd=kit.ROOT
    ) as host:
        told = host.wait_for_line("faulty.py:Reckless acted outside its space")
        assert re.search(r"an action was [45], and its space says 0 to 1$", told)
        host.wait_for_line("ended 3 times in a row")
        assert host.end(20.0) == 0
    assert "refused a bundle" not in host.stderr
    assert "Traceback" not in host.stderr
    assert len(host.errors) < 30


def test_an_actor_that_breaks_its_contract_is_named_with_what_it_gave(tmp_path: Path) -> None:
    base = kit.free_base()
    agent = f"{_SAMPLES}{os.sep}faulty.py:Terse"
    with kit.host(
        tmp_path, "--env", "chain", "--agent", agent, "--players", "1", port=base, cwd=kit.ROOT
    ) as host:
        told = host.wait_for_line("faulty.py:Terse: act gave")
        assert re.search(r"gave an array of shape \(\d+,\): it must return \(actions, state, extras\)$", told)
        assert host.end(20.0) == 0
    assert "Traceback" not in host.stderr


def test_a_learner_that_forgets_its_return_is_named_and_ends_the_run(tmp_path: Path) -> None:
    base = kit.free_base()
    agent = f"{_SAMPLES}{os.sep}faulty.py:Forgetful"
    with kit.host(
        tmp_path, "--env", "chain", "--agent", agent, "--players", "1", port=base, cwd=kit.ROOT
    ) as host:
        host.wait_for_line("faulty.py:Forgetful: its learner's update gave None: it must return an Update")
        assert host.wait(60) == 1
    assert "Traceback" not in host.stderr
