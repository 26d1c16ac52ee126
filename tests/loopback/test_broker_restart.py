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
