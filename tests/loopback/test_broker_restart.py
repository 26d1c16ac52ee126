"""The broker is killed with -9: everyone finds the new one, and the weights go on."""

from __future__ import annotations

from pathlib import Path

from tests import kit
from tests.conftest import wait_until


def test_weights_and_members_come_back_after_the_broker_was_killed(tmp_path: Path) -> None:
    with kit.host(tmp_path, "chain", "--players", "0") as host:
        host.wait_for("started")
        with kit.join(tmp_path) as joiner:
            before = host.wait_for("progress", lambda e: e["weights_version"] >= 3 and e["steps"] > 500)
            [broker] = host.children("broker")
            broker.kill()
            joiner.wait_for("joined", lambda e: e["term"] == 2)
            version = before["weights_version"]
            host.wait_for("progress", lambda e: e["weights_version"] > version + 3)

            def plays_with_new_weights() -> bool:
                rows = kit.status(tmp_path)["nodes"]
                return (
                    len(rows) == 1 and rows[0]["state"] == "working" and rows[0]["weights_version"] > version
                )

            wait_until(plays_with_new_weights, 20)
            # A newcomer gets them with its welcome, so the new broker has them.
            with kit.join(tmp_path, name="late") as late:
                late.wait_for("progress", lambda e: e["weights_version"] > version and e["steps"] > 0)
        assert host.end() == 0
    versions = [event["weights_version"] for event in host.of("progress")]
    assert versions == sorted(versions), "a version came back"
    steps = [event["steps"] for event in host.of("progress")]
    assert steps == sorted(steps), "steps were forgotten"


def test_a_member_of_a_killed_host_plays_for_the_next_run_on_the_same_host(tmp_path: Path) -> None:
    with kit.host(tmp_path, "chain", "--players", "0") as first:
        old = first.wait_for("started")
        with kit.join(tmp_path) as joiner:
            first.wait_for("progress", lambda e: e["steps"] > 500)
            children = first.children()
            first.kill()
            wait_until(lambda: not any(child.is_running() for child in children), 10)
            with kit.host(tmp_path, "chain", "--players", "0") as second:
                new = second.wait_for("started")
                assert new["run_id"] != old["run_id"]
                joiner.wait_for("joined", lambda e: e["run_id"] == new["run_id"])
                second.wait_for("progress", lambda e: e["steps"] > 500 and e["updates"] > 0)
                [row] = kit.status(tmp_path)["nodes"]
                assert row["state"] == "working"
                assert kit.balanced(row["bundles"])
                assert second.end() == 0
            assert joiner.wait(10) == 0
    assert "the host began another run" in joiner.stderr
