"""Forty members behind one slow link: what is published to them, and when the last of them has loaded it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.netns.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
MEMBERS, BASE = 40, 47800
KBIT, EACH_S = 50_000, 2.0
#: Publications until all have joined; each that is looked at begins on an idle link.
WARM = 3


@dataclass(frozen=True)
class Publication:
    """One that all members loaded.

    Attributes:
        version: from 0.
        size_bytes: of one member's.
        whole: it is a keyframe, not a change.
        took_s: from before it was encoded to loaded at the last member.
        sent_bytes: what the host's machine had sent in all by then.
    """

    version: int
    size_bytes: int
    whole: bool
    took_s: float
    sent_bytes: int

    @property
    def least_s(self) -> float:
        """What the bytes need at the link's rate."""
        return MEMBERS * self.size_bytes * 8 / (1000 * KBIT)


def publications(lan: Lab, count: int) -> list[Publication]:
    """Those of the first `count` that all have loaded, of a host on machine 0 and the members on machine 1.

    While they join they may skip some.
    """
    lan.rate_limit(0, KBIT)
    host = _started(lan, 0, "host", BASE, EACH_S, count)
    told = _events(host)
    key = next(told)["key"]
    members = _started(lan, 1, "members", lan.address(0), BASE, key, MEMBERS)
    published: dict[int, dict[str, Any]] = {}
    found: dict[int, Publication] = {}
    for loaded in _events(members):
        version = loaded["loaded"]
        while version not in published:
            event = next(told)
            published[event["version"]] = event
        event = published[version]
        took_s = loaded["t"] - event["t"]
        found[version] = Publication(version, event["size_bytes"], event["whole"], took_s, lan.sent_bytes(0))
        if version == count - 1:
            return [found[at] for at in sorted(found)]
    raise RuntimeError(f"the members ended after {len(found)} of {count} publications")


def _started(lan: Lab, machine: int, *arguments: object) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "tests.netns.weights_crowd", *map(str, arguments)]
    more = {"PYTHONPATH": f"{ROOT}:{ROOT / 'envs'}:{ROOT / 'agents'}", "TMPDIR": str(lan.home(machine))}
    return lan.popen(machine, program, more, stdout=subprocess.PIPE, cwd=lan.home(machine))


def _events(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
