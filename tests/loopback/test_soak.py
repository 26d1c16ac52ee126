"""A long run on a small environment (G4, case 38): nothing grows once it is warm, and the books balance.

The same test runs for seconds in the ordinary suite, and for an hour among the slow ones: P2PRL_SOAK_S says how long.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests import kit
from tests.conftest import wait_until
from tests.loopback import soak_kit as kit_of_soak
from tests.loopback import survival_kit as survival
from tests.loopback.soak_kit import Soak, Use, soaking, used

SOAK_S = float(os.environ.get("P2PRL_SOAK_S", "3600"))
#: Of the time, at most so much to warm up.
WARM_SHARE, WARM_MOST_S = 0.2, 120.0
SETTLE_S = 30.0


@pytest.mark.timeout(SOAK_S + 900)
@pytest.mark.parametrize("seconds", [4.0, pytest.param(SOAK_S, marks=pytest.mark.slow, id="soak")])
def test_nothing_grows_while_members_come_and_go(
    tmp_path: Path, seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    with soaking(tmp_path) as soak:
        before, paths = warmed_up(soak, min(WARM_SHARE * seconds, WARM_MOST_S))
        began, records, visits = time.monotonic(), soak.records(), soak.visits
        while not kit_of_soak.passed(began, seconds):
            soak.visit()
        soak.visit()  # a polite one may follow a killed one's, whose folder it takes away
        if soak.visits % 2 == 0:
            soak.visit()
        settled(soak, before)
        tell(capsys, soak, before, seconds, soak.visits - visits)
        took_s = time.monotonic() - began
        assert soak.records() - records < kit_of_soak.RECORD_BYTES_PER_S * took_s
        assert soak.replay() < kit_of_soak.REPLAY_BYTES
        wait_until(
            lambda: len(soak.others()) <= paths + kit_of_soak.SLACK_PATHS,
            SETTLE_S,
            f"{paths} paths as before",
        )
        assert [shard.starts for shard in soak.status().shards] == [1, 1]
        ended_well(soak)


def warmed_up(soak: Soak, warm_s: float) -> tuple[dict[str, Use], int]:
    """What each process held at most, and how many paths, until rings are full and visits came of both kinds."""
    began, before, paths = time.monotonic(), soak.use(), 0
    while soak.visits < 4 or not soak.ring_is_full() or not kit_of_soak.passed(began, warm_s):
        soak.visit()
        now, paths = soak.use(), max(paths, len(soak.others()))
        before = {name: use | before[name] for name, use in now.items()}
    return before, paths


def settled(soak: Soak, before: Mapping[str, Use]) -> None:
    """Nobody holds more than before, once the last visitor's connections are gone."""
    since, found = time.monotonic(), grown(soak.use(), before)

    def look() -> bool:
        nonlocal found
        found = grown(soak.use(), before)
        return not found or kit_of_soak.passed(since, SETTLE_S)

    wait_until(look, 2 * SETTLE_S)
    assert found == {}


def grown(now: Mapping[str, Use], before: Mapping[str, Use]) -> dict[str, str]:
    """Who holds more than before, and of what."""
    found = {name: use.beyond(before[name]) for name, use in now.items()}
    return {name: text for name, text in found.items() if text}


def ended_well(soak: Soak) -> None:
    """All end as asked, with books that balance, of which nothing is missing."""
    assert soak.steady.end(survival.END_S) == 0
    assert soak.run.host.end(survival.END_S) == 0
    books = [(soak.steady.last("left") or {})["bundles"], (soak.run.host.last("stopped") or {})["bundles"]]
    assert all(kit.balanced(one) for one in books), books
    assert books[0]["refused"] == books[0]["dropped"] == books[1]["refused"] == 0, books


def tell(
    capsys: pytest.CaptureFixture[str], soak: Soak, before: Mapping[str, Use], seconds: float, visits: int
) -> None:
    """Who held what, for whoever runs it."""
    lines = [f"{seconds:g} s, {visits} visits, weights version {soak.status().weights_version}"]
    for name, use in soak.use().items():
        then = before[name]
        lines.append(
            f"{name:<18} {then.memory / 1e6:6.1f} -> {use.memory / 1e6:6.1f} MB, files {then.files} -> {use.files}, "
            f"threads {then.threads} -> {use.threads}, ports {then.ports} -> {use.ports}"
        )
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")


def test_what_grows_is_seen(tmp_path: Path) -> None:
    """The measure itself: each thing that this process holds more of."""
    process = psutil.Process()
    before = used(process)
    assert used(process).beyond(before) == ""
    files = [(tmp_path / str(number)).open("w") for number in range(kit_of_soak.SLACK_FILES + 1)]
    held = b"x" * (kit_of_soak.SLACK_BYTES + round(before.memory * kit_of_soak.SLACK_SHARE) + 5_000_000)
    text = used(process).beyond(before)
    assert "open files" in text
    assert "bytes" in text
    assert len(held) > 0
    for file in files:
        file.close()
    more = Use(before.memory, before.files, before.threads + 1, before.ports + 1)
    assert "threads" in more.beyond(before)
    assert "ports" in more.beyond(before)
