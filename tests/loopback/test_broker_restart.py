"""The broker is killed with -9: everyone finds the new one, and the weights go on."""

from __future__ import annotations

from pathlib import Path

from p2prl.core import messages as m
from p2prl.net.keys import load_or_create
from tests import kit
from tests.conftest import wait_until
from tests.loopback.trust_kit import CODE, house


def _kill(host: kit.Program) -> None:
    """With -9, and until its children have noticed."""
    children = host.children()
    host.kill()
    wait_until(lambda: not any(child.is_running() for child in children), 10)


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
    uptimes = [event["uptime_s"] for event in host.of("progress")]
    assert uptimes == sorted(uptimes), "the host has been up all the while"


def test_a_member_of_a_killed_host_plays_for_the_next_run_on_the_same_host(tmp_path: Path) -> None:
    with kit.host(tmp_path, "chain", "--players", "0") as first:
        old = first.wait_for("started")
        with kit.join(tmp_path) as joiner:
            first.wait_for("progress", lambda e: e["steps"] > 500)
            _kill(first)
            with kit.host(tmp_path, "chain", "--players", "0") as second:
                new = second.wait_for("started")
                assert new["run_id"] != old["run_id"]
                joiner.wait_for("joined", lambda e: e["run_id"] == new["run_id"])
                second.wait_for("progress", lambda e: e["steps"] > 500 and e["updates"] > 0)
                [row] = kit.status(tmp_path)["nodes"]
                assert row["state"] == "working"
                assert kit.balanced(row["bundles"])
                assert second.end() == 0
            assert joiner.wait() == 0
    assert "the host began another run" in joiner.stderr


def test_a_member_of_a_killed_host_waits_for_it_though_a_second_one_of_the_same_teacher_is_there(
    tmp_path: Path,
) -> None:
    """A machine's hosts have one key, and the second would do for the search."""
    beside = ("--results", str(tmp_path / "beside"))
    with (
        kit.host(tmp_path, "chain", *beside, "--players", "0", port=kit.BASE_PORT + 100) as other,
        kit.host(tmp_path, "chain", "--players", "0") as first,
    ):
        other.wait_for("started")
        old = first.wait_for("started")
        with kit.join(tmp_path) as joiner:
            first.wait_for("progress", lambda e: e["steps"] > 500)
            _kill(first)
            joiner.wait_for_line("hosts another run")
            with kit.host(tmp_path, "--resume", "--players", "0") as again:
                again.wait_for("started")
                joiner.wait_for("joined", lambda e: e["run_id"] == old["run_id"] and e["term"] > 1)
                again.wait_for("progress", lambda e: e["steps"] > 1000)
                assert again.end() == 0
            assert joiner.wait() == 0
        assert {event["run_id"] for event in joiner.of("joined")} == {old["run_id"]}
        assert other.end() == 0


def test_what_the_owner_was_answered_holds_though_the_broker_is_killed_at_once(tmp_path: Path) -> None:
    """By hand: until the owner's command had ended, the broker would have written its file by itself."""
    with house(tmp_path, "--code", CODE) as place:
        spy = place.admitted("spy")
        for undo, standing in ((False, "quarantined"), (True, "admitted")):
            [broker] = place.program.children("broker")
            with place.peer(keys=load_or_create(place.home / "owner.key")) as owner:
                answer = owner.ask(m.QuarantineAsk(key=spy.public, undo=undo), m.NodesReply)
                broker.kill()
            assert [node.standing for node in answer.nodes if node.key == spy.public] == [standing]
            wait_until(lambda: len(place.program.children("broker")) == 1, 20, "another broker is started")
            assert place.nodes()["spy"]["standing"] == standing
