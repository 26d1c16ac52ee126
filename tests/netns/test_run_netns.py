"""Whole runs between machines: real commands in network namespaces, each with its own state and files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.conftest import wait_until
from tests.kit import Event, Program, balanced
from tests.netns.lab import Lab

MakeLab = Callable[[int], Lab]
#: A run that costs the machine next to nothing and whose sessions come evenly: one slot that ticks on the wall clock.
CALM = ("--env", "realtime", "--agent", "cem", "--envs", "1", "--shards", "1")
OUTAGE_S = 16.0  # the member is gone to its host after 15 s


def start(lan: Lab, i: int, *arguments: str) -> Program:
    """`p2prl ARGUMENTS --json` on machine `i`, which shares no file with the others."""
    prefix = ("ip", "netns", "exec", lan.namespace(i))
    return Program(*arguments, "--json", home=lan.home(i), cwd=lan.home(i), prefix=prefix)


def host(lan: Lab, i: int, *arguments: str, name: str = "lab") -> Program:
    """A host without players of its own."""
    return start(lan, i, "host", *arguments, "--open", "--players", "0", "--name", name)


def ask(
    lan: Lab, i: int, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A short command on machine `i`, with nobody at a terminal."""
    return lan.run(i, [sys.executable, "-m", "p2prl.cli", *arguments], env, check=False)


def status(lan: Lab, i: int, *target: str) -> Event:
    done = ask(lan, i, "status", *target, "--json")
    assert done.returncode == 0, done.stderr
    shown: Event = json.loads(done.stdout)
    return shown


def rows(lan: Lab, i: int) -> list[Event]:
    """What `p2prl ls` shows on machine `i`."""
    done = ask(lan, i, "ls", "--json", "--timeout", "3")
    assert done.returncode in (0, 3), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def kept(books: Event) -> bool:
    """Nothing is lost: each bundle is stored, or still on its way."""
    return balanced(books) and books["produced"] == books["stored"] + books["pending"] > 0


@pytest.mark.parametrize("joiners", [1, 4])
def test_a_run_is_solved_by_remote_players_alone(
    lab: MakeLab, joiners: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lan = lab(1 + joiners)
    with ExitStack() as machines:
        trainer = machines.enter_context(host(lan, 0, "cartpole-cem", "--stop-return", "300"))
        trainer.wait_for("started")
        lan.drop(0, "tcp dport { 47810, 47812 }")  # no session comes in until all are there
        began = time.monotonic()
        members = [
            machines.enter_context(start(lan, i, "join", "--players", "1", "--name", f"laptop{i}"))
            for i in range(1, 1 + joiners)
        ]
        for member in members:
            member.wait_for("progress", lambda e: e["bundles"]["produced"] > 0, timeout=60)
        lan.undrop(0)
        opened_s = time.monotonic() - began
        assert trainer.wait(90) == 0
        assert [member.wait() for member in members] == [0] * joiners
        solved_s = time.monotonic() - began
    with capsys.disabled():
        sys.stdout.write(
            f"\n{joiners} joiners, from `join` on: all play {opened_s:.1f} s, solved {solved_s:.1f} s\n"
        )
    stopped = trainer.last("stopped")
    assert stopped is not None
    assert stopped["reason"] == "return"
    assert stopped["return_mean"] >= 300
    lefts = [member.last("left") for member in members]
    assert all(left is not None and left["reason"] == "stopped" for left in lefts)
    assert all(left is not None and balanced(left["bundles"]) for left in lefts)
    assert all(left is not None and left["bundles"]["produced"] > 0 for left in lefts)
    assert sum(left["bundles"]["produced"] for left in lefts if left) == stopped["bundles"]["produced"]
    assert balanced(stopped["bundles"])
    assert stopped["bundles"]["refused"] == 0


def test_each_host_and_each_node_is_one_row_however_many_ways_lead_to_it(lab: MakeLab) -> None:
    """G1, case 8."""
    lan = lab(2)
    lan.second_lan()
    with (
        host(lan, 0, *CALM) as trainer,
        start(lan, 1, "join", "--players", "1", "--name", "laptop") as member,
    ):
        trainer.wait_for("progress", lambda e: e["steps"] > 0, timeout=60)
        [row] = rows(lan, 1)
        assert row["name"] == "lab"
        assert {lan.address(0), f"10.78.{lan.subnet}.1"} <= set(row["addresses"])
        [node] = status(lan, 1)["nodes"]
        assert (node["name"], node["state"], node["players"]) == ("laptop", "working", 1)
        assert trainer.end() == 0
        assert member.wait() == 0


def test_two_hosts_of_one_name_live_side_by_side_and_are_told_apart(lab: MakeLab) -> None:
    """G1, case 13."""
    lan = lab(3)
    with host(lan, 0, *CALM) as first, host(lan, 1, *CALM) as second:
        runs = {one.wait_for("started")["run_id"] for one in (first, second)}

        def both() -> list[Event] | None:
            found = rows(lan, 2)
            names = {row["name"] for row in found}
            return found if len(found) == 2 and {"lab", "lab-2"} == names else None

        found = wait_until(both, timeout=40, what="two rows with two names")
        assert isinstance(found, list)
        assert {row["run_id"] for row in found} == runs
        by_name = {row["name"]: row for row in found}

        unsaid = ask(lan, 2, "join")
        assert unsaid.returncode == 2
        assert unsaid.stdout == ""
        assert len(unsaid.stderr.splitlines()) == 1
        for row in found:
            assert f"{row['name']} {row['addresses'][0]}:{row['base_port']}" in unsaid.stderr

        with start(lan, 2, "join", "lab-2", "--players", "1") as member:
            joined = member.wait_for("joined")
            assert joined["run_id"] == by_name["lab-2"]["run_id"]
            member.wait_for("progress", lambda e: e["bundles"]["stored"] > 0, timeout=60)
            chosen, other = (first, second) if joined["address"] == lan.address(0) else (second, first)
            assert (other.code, (other.last() or {})["steps"]) == (None, 0)
            assert [one.end() for one in (other, chosen)] == [0, 0]
            assert member.wait() == 0


def test_without_multicast_an_address_will_do_and_is_remembered(lab: MakeLab) -> None:
    lan = lab(2)
    lan.drop(1, "udp dport 5353")
    with host(lan, 0, *CALM) as trainer:
        run = trainer.wait_for("started")["run_id"]
        assert ask(lan, 1, "ls", "--timeout", "1").returncode == 3
        for target in ([lan.address(0)], []):  # by address, and then by what it remembers
            with start(lan, 1, "join", *target, "--players", "1") as member:
                joined = member.wait_for("joined")
                assert (joined["run_id"], joined["address"]) == (run, lan.address(0))
                member.wait_for("progress", lambda e: e["bundles"]["stored"] > 0)
                assert member.end() == 0
        assert trainer.end() == 0


def test_a_cable_that_is_pulled_for_a_while_costs_nothing(lab: MakeLab) -> None:
    lan = lab(2)
    with (
        host(lan, 0, *CALM) as trainer,
        start(lan, 1, "join", "--players", "1", "--name", "laptop") as member,
    ):
        member.wait_for("progress", lambda e: e["bundles"]["stored"] > 0, timeout=60)
        [seat] = status(lan, 0)["nodes"][0]["player_reports"]
        lan.link_down(1)
        pulled = time.monotonic()
        member.wait_for("progress", lambda e: e["state"] == "away")
        member.wait_for_line(f"no answer from {lan.address(0)} port 47800 for .* dialling again")
        trainer.wait_for("progress", lambda e: e["steps"] > 0 and e["nodes"] == 0)
        wait_until(lambda: time.monotonic() - pulled >= OUTAGE_S, timeout=OUTAGE_S)
        gone = trainer.last() or {}
        played = (member.last() or {})["bundles"]["produced"]
        lan.link_up(1)
        back = member.wait_for(
            "progress", lambda e: e["state"] == "working" and e["bundles"]["stored"] > played, timeout=40
        )
        assert kept(back["bundles"])
        trainer.wait_for("progress", lambda e: e["nodes"] == 1 and e["steps"] > gone["steps"])
        [node] = status(lan, 0)["nodes"]
        assert node["state"] == "working"
        assert kept(node["bundles"])
        [report] = node["player_reports"]
        assert (report["restarts"], report["rank"]) == (0, seat["rank"])  # the player never noticed
        assert trainer.end() == 0
        assert member.wait() == 0
    left, stopped = member.last("left"), trainer.last("stopped")
    assert left is not None
    assert stopped is not None
    assert kept(left["bundles"])
    assert balanced(stopped["bundles"])
    assert stopped["bundles"]["produced"] == left["bundles"]["produced"]
    assert stopped["bundles"]["stored"] >= left["bundles"]["stored"]
    assert stopped["bundles"]["refused"] == stopped["bundles"]["stale"] == 0


def test_a_host_that_vanished_without_a_word_is_away_and_holds_nobody(lab: MakeLab) -> None:
    """G1, case 5, with a connection that stays half open: no packet tells the joiner that the host died."""
    lan = lab(2)
    with host(lan, 0, *CALM) as trainer, start(lan, 1, "join", "--players", "1") as member:
        member.wait_for("progress", lambda e: e["bundles"]["stored"] > 0, timeout=60)
        lan.link_down(0)
        for pid in inhabitants(lan, 0):
            os.kill(pid, signal.SIGKILL)
        assert trainer.wait() == -signal.SIGKILL
        away = member.wait_for("progress", lambda e: e["state"] == "away")
        assert "lab was not heard for" in away["reason"]
        member.wait_for_line(f"no answer from {lan.address(0)} port 47800")
        assert member.end() == 0
    left = member.last("left")
    assert left is not None
    assert kept(left["bundles"])


def inhabitants(lan: Lab, i: int) -> list[int]:
    listed = subprocess.run(
        ["ip", "netns", "pids", lan.namespace(i)], capture_output=True, text=True, check=True
    )
    return [int(pid) for pid in listed.stdout.split()]
