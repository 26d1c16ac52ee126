"""Weights to forty members behind one slow link: no more than the link must carry."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.netns.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
MEMBERS, BASE = 40, 47800
KBIT, EACH_S, TIMES = 50_000, 2.0, 9
#: Publications until all have joined; each that is looked at begins on an idle link.
WARM = 4


def started(lan: Lab, machine: int, *arguments: object) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "tests.netns.weights_crowd", *map(str, arguments)]
    more = {"PYTHONPATH": f"{ROOT}:{ROOT / 'envs'}:{ROOT / 'agents'}", "TMPDIR": str(lan.home(machine))}
    return lan.popen(machine, program, more, stdout=subprocess.PIPE, cwd=lan.home(machine))


def events(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def test_forty_members_have_new_weights_about_as_soon_as_the_link_can_carry_them(
    lab: Callable[[int], Lab],
) -> None:
    """The bar: at most 1.5 times what the bytes need, from before they are encoded to loaded at the last member."""
    lan = lab(2)
    lan.rate_limit(0, KBIT)
    host = started(lan, 0, "host", BASE, EACH_S, TIMES)
    key = next(events(host))["key"]
    members = started(lan, 1, "members", lan.address(0), BASE, key, MEMBERS)
    published: dict[int, dict[str, Any]] = {}
    for event in events(host):
        published[event["version"]] = event
        if event["version"] == TIMES - 1:
            break
    loaded: dict[int, float] = {}
    for event in events(members):
        loaded[event["loaded"]] = event["t"]
        if event["loaded"] == TIMES - 1:
            break
    ratios = []
    for version in range(WARM, TIMES):
        assert not published[version]["whole"]
        least_s = MEMBERS * published[version]["size_bytes"] * 8 / (1000 * KBIT)
        ratios.append((loaded[version] - published[version]["t"]) / least_s)
    assert statistics.median(ratios) <= 1.5, ratios
