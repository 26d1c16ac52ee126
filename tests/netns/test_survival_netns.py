"""A run through bad weather: machines that freeze, cables that come and go, a host that moves.

Rows of docs/reliability.md.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import psutil
import pytest

from tests.conftest import wait_until
from tests.kit import Event, Program, balanced
from tests.loopback.survival_kit import family, last, pause
from tests.netns.lab import INTERFACE, Lab
from tests.netns.test_run_netns import CALM, host, inhabitants, kept, start, status

MakeLab = Callable[[int], Lab]
#: Longer than the 15 s after which a silent member is gone to its host.
OUTAGE_S, LONG_S = 20.0, 60.0
#: How long a flapping cable is in, and how long it is out.
IN_S, OUT_S = 4.0, 3.0
#: What G2's cases 14 and 21 allow.
RECOVERY_S = 30.0


def tell_all(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        os.kill(process.pid, number)


def recovered(member: Program, since: Event) -> Callable[[Event], bool]:
    """Works again, with newer weights than any that there were, and has brought in more."""
    newest = max(event["current_version"] for event in member.of("progress"))
    stored = since["bundles"]["stored"]
    return lambda e: (
        e["state"] == "working" and e["weights_version"] > newest and e["bundles"]["stored"] > stored
    )


def said(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("outage_s", [OUTAGE_S, pytest.param(LONG_S, marks=pytest.mark.slow)])
def test_bad_weather(lab: MakeLab, outage_s: float, capsys: pytest.CaptureFixture[str]) -> None:
    """At once: one joiner is frozen for a while, one unplugged, one has a loose cable, and one has nothing of it."""
    names = ("calm", "frozen", "unplugged", "loose")
    lan = lab(5)
    with ExitStack() as machines:
        trainer = machines.enter_context(host(lan, 0, *CALM))
        trainer.wait_for("started")
        members = {
            name: machines.enter_context(
                start(lan, i, "join", lan.address(0), "--players", "1", "--name", name)
            )
            for i, name in enumerate(names, 1)
        }
        for member in members.values():
            member.wait_for("progress", lambda e: e["bundles"]["stored"] > 0, timeout=60)
        calm = last(members["calm"])
        frozen = family(members["frozen"])
        tell_all(frozen, signal.SIGSTOP)
        lan.link_down(1 + names.index("unplugged"))
        began = time.monotonic()
        while time.monotonic() - began < outage_s:
            lan.link_down(1 + names.index("loose"))
            pause(OUT_S)
            lan.link_up(1 + names.index("loose"))
            pause(IN_S)
        before = {name: last(member) for name, member in members.items()}
        conditions = {name: recovered(member, before[name]) for name, member in members.items()}
        tell_all(frozen, signal.SIGCONT)
        lan.link_up(1 + names.index("unplugged"))
        ended = time.monotonic()
        took = {}
        for name in names:
            members[name].wait_for("progress", conditions[name], timeout=RECOVERY_S)
            took[name] = time.monotonic() - ended
        # The one that had nothing of it played on all the while.
        assert last(members["calm"])["steps"] - calm["steps"] > 0.8 * outage_s * 100
        wait_until(
            lambda: all(node["state"] == "working" for node in status(lan, 0)["nodes"]),
            RECOVERY_S,
            "all work",
        )
        for node in status(lan, 0)["nodes"]:
            assert kept(node["bundles"]), node
            assert node["player_reports"][0]["restarts"] == 0
        assert trainer.end() == 0
        for member in members.values():
            assert member.wait() == 0
    said(capsys, "back at work after " + ", ".join(f"{name} {took[name]:.1f} s" for name in names))
    stopped = trainer.last("stopped")
    assert stopped is not None
    lefts = [member.last("left") for member in members.values()]
    assert all(left is not None and kept(left["bundles"]) for left in lefts)
    assert balanced(stopped["bundles"])
    assert stopped["bundles"]["produced"] == sum(left["bundles"]["produced"] for left in lefts if left)
    assert stopped["bundles"]["stored"] >= sum(left["bundles"]["stored"] for left in lefts if left)


def move(lan: Lab, i: int, last_byte: int) -> str:
    """Give machine `i` another address; returns it."""
    new = f"10.77.{lan.subnet}.{last_byte}"
    for arguments in (
        ("addr", "flush", "dev", INTERFACE, "scope", "global"),
        ("addr", "add", f"{new}/24", "broadcast", "+", "dev", INTERFACE),
        ("route", "replace", "224.0.0.0/4", "dev", INTERFACE),
    ):
        lan.run(i, ["ip", *arguments])
    return new


def test_a_host_that_died_comes_back_at_another_address_and_port(
    lab: MakeLab, capsys: pytest.CaptureFixture[str]
) -> None:
    """G2, case 14: nobody touches the joiners."""
    lan = lab(3)
    with ExitStack() as machines:
        members = []
        with host(lan, 0, *CALM) as first:
            run_id = first.wait_for("started")["run_id"]
            members = [
                machines.enter_context(start(lan, i, "join", "lab", "--players", "1", "--name", f"laptop{i}"))
                for i in (1, 2)
            ]
            for member in members:
                member.wait_for("progress", lambda e: e["bundles"]["stored"] > 3, timeout=60)
            for pid in inhabitants(lan, 0):
                os.kill(pid, signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL
        before = [last(member) for member in members]
        new = move(lan, 0, 200)
        again = machines.enter_context(
            start(lan, 0, "host", "--resume", "--open", "--players", "0", "--port", "48900")
        )
        began = time.monotonic()
        assert again.wait_for("started")["run_id"] == run_id
        joined = [
            member.wait_for("joined", lambda e: e["base_port"] == 48900, timeout=RECOVERY_S)
            for member in members
        ]
        assert {event["address"] for event in joined} == {new}
        for member, then in zip(members, before, strict=True):
            member.wait_for("progress", recovered(member, then), timeout=RECOVERY_S)
        took_s = time.monotonic() - began
        shown = status(lan, 0)
        assert shown["run"]["term"] == 2
        for node in shown["nodes"]:
            assert node["state"] == "working"
            assert kept(node["bundles"])
        assert again.end() == 0
        for member in members:
            assert member.wait() == 0
            left = member.last("left")
            assert left is not None
            assert kept(left["bundles"])
    said(capsys, f"both at work {took_s:.1f} s after the host was started elsewhere")
