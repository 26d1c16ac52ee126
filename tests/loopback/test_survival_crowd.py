"""Many who come at once, and a host that is away for long. Rows of reliability.md."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import kit
from tests.conftest import wait_until
from tests.loopback import survival_kit as survival

CODE = "17-acorn-ladder"
#: Twenty steps a second each: what costs a machine here is that so many processes start.
SLOWLY = (*survival.PACED, "--set", "env.args.tick_s=0.05")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("joiners", [12, pytest.param(30, marks=pytest.mark.slow)])
def test_many_joiners_come_at_once(tmp_path: Path, joiners: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A class of laptops that are opened at the same moment, with one code for all."""
    with (
        survival.hosted(
            tmp_path, "--players", "0", "--code", CODE, settings=(*SLOWLY, *survival.OFTEN), open_=False
        ) as run,
        ExitStack() as stack,
    ):
        watch = survival.Watch()
        names = [f"laptop{number}" for number in range(joiners)]
        members = [stack.enter_context(run.join("--code", CODE, name=name)) for name in names]
        for member in members:
            member.wait_for("progress", lambda e: e["bundles"]["stored"] >= 3, 240.0)
        took_s = watch.seconds()

        def all_work() -> bool:
            states = {node["name"]: (node["state"], node["standing"]) for node in run.status()["nodes"]}
            return states == dict.fromkeys(names, ("working", "admitted"))

        wait_until(all_work, survival.RECOVERY_S, "all of them are shown at work")
        ranks = {node["player_reports"][0]["rank"] for node in run.status()["nodes"]}
        assert ranks == set(range(joiners)), "two play the same seat"
        assert not run.status()["refused_frames"]
        assert run.host.end(survival.END_S) == 0
        assert [member.wait(survival.END_S) for member in members] == [0] * joiners
    acknowledged = 0
    kept = run.kept()
    for name, member in zip(names, members, strict=True):
        left = member.last("left")
        assert left is not None
        assert left["reason"] == "stopped"
        assert kit.balanced(left["bundles"])
        assert left["bundles"]["refused"] == left["bundles"]["dropped"] == 0
        survival.nothing_lost(kept, run.key(name), left["bundles"]["stored"])
        survival.in_order(kept, run.key(name), left["bundles"])
        acknowledged += left["bundles"]["stored"]
    survival.told(capsys, f"{joiners} joiners at once", acknowledged, took_s)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("absent_s", [8, pytest.param(600, marks=pytest.mark.slow)])
def test_what_is_played_while_the_host_is_away_arrives_once(
    tmp_path: Path, absent_s: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host dies with all its processes. One joiner plays on; another dies too, and is started again afterwards."""
    with ExitStack() as stack:
        run = stack.enter_context(survival.hosted(tmp_path, "--players", "0"))
        steady, killed = (stack.enter_context(run.join(name=name)) for name in ("steady", "killed"))
        for member in (steady, killed):
            survival.more_stored(member)
        survival.kill_all(survival.family(run.host))
        acknowledged = {
            name: survival.stored(member) for name, member in (("steady", steady), ("killed", killed))
        }
        survival.pause(absent_s)
        for member in (steady, killed):
            played = survival.last(member)
            assert played["spooled"] > 5 * absent_s, "players waited"  # of 12 bundles a second
            assert kit.balanced(played["bundles"])
        on_disk = {
            "steady": survival.last(steady)["bundles"]["produced"],
            "killed": survival.last(killed)["bundles"]["produced"],
        }
        survival.kill_all(survival.family(killed))
        flags = ("--resume", "--results", str(run.results), "--players", "0")
        watch = survival.Watch()
        again = stack.enter_context(survival.hosted(tmp_path, *flags, base=run.base))
        back = stack.enter_context(run.join(name="killed"))
        members = {"steady": steady, "killed": back}
        for name, member in members.items():
            member.wait_for(
                "progress",
                lambda e, n=on_disk[name]: e["bundles"]["stored"] >= n and not e["spooled"],
                survival.RECOVERY_S + absent_s,
            )
        took_s = watch.seconds()
        for name, member in members.items():
            assert member.end(survival.END_S) == 0
            books = (member.last("left") or {})["bundles"]
            assert kit.balanced(books)
            assert books["refused"] == books["stale"] == 0
            # A bundle that was just being handed over when its member was killed may be lost, and is counted.
            assert books["dropped"] <= (2 if name == "killed" else 0)
            kept = again.kept()
            survival.nothing_lost(kept, run.key(name), max(acknowledged[name], books["stored"]))
        survival.in_order(kept, run.key("steady"), (steady.last("left") or {})["bundles"])
        assert again.host.end(survival.END_S) == 0
    survival.told(capsys, f"host away for {absent_s} s", len(kept), took_s)
