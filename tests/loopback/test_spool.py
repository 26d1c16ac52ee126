"""The host is gone for a while: joiners play on, keep what they play on disk, and all of it arrives, once.

Real processes, real kills. What counts in the end is what the shards' logs hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from p2prl.replay.log import SegmentLog
from p2prl.replay.records import BUNDLE, decode_bundle_record
from tests import kit
from tests.conftest import wait_until

#: A session of 16 ticks of 5 ms is a bundle of 20 kB that nothing compresses: 12 a second from one player.
_GAME = ("--env", "tests.samples:Paced-v0", "--set", "env.args.size=1200", "--envs", "1", "--players", "0")


class Site:
    """One host and one joiner that come and go. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = kit.free_base()
        self._stack = ExitStack()
        self.host: kit.Program
        self.joiner: kit.Program
        self.results = Path()

    def start_host(self, *settings: str) -> kit.Program:
        """The first time with these settings; then it resumes."""
        again = ("--resume", "--results", str(self.results), "--players", "0")
        first = (*_GAME, "--agent", kit.IDLE, *settings)
        program = kit.host(
            self.folder,
            *(again if self.results.name else first),
            name=f"h{self.base}",
            port=self.base,
            cwd=kit.ROOT,
        )
        self.host = self._stack.enter_context(program)
        self.results = Path(self.host.wait_for("started", timeout=60.0)["results"])
        return self.host

    def start_joiner(self, *flags: str) -> kit.Program:
        program = kit.join(self.folder, *flags, target=f"127.0.0.1:{self.base}", agent=kit.IDLE, cwd=kit.ROOT)
        self.joiner = self._stack.enter_context(program)
        return self.joiner

    def spooled(self, bundles: int) -> kit.Event:
        """Wait until so many are on the joiner's disk."""
        return self.joiner.wait_for("progress", lambda e: e["spooled"] >= bundles, timeout=60.0)

    def all_settled(self) -> kit.Event:
        """Wait until nothing is pending nor on disk any more, and the joiner plays on."""
        before = self.joiner.last()
        produced = before["bundles"]["produced"] if before else 0

        def settled(event: kit.Event) -> bool:
            books = event["bundles"]
            return event["spooled"] == 0 and books["produced"] > produced and books["pending"] <= 3

        return self.joiner.wait_for("progress", settled, timeout=60.0)

    def end(self) -> tuple[kit.Event, kit.Event]:
        """A clean end of both, joiner first; their last books."""
        assert self.joiner.end() == 0
        assert self.host.end() == 0
        left, stopped = self.joiner.last("left"), self.host.last("stopped")
        assert left is not None
        assert stopped is not None
        return left["bundles"], stopped["bundles"]

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.__exit__(None, None, None)


def kill_all(program: kit.Program) -> None:
    """kill -9 a command and all of its processes at once."""
    family = [psutil.Process(program.pid), *program.children()]
    for process in family:
        process.kill()
    program.kill()
    wait_until(lambda: not any(process.is_running() for process in family[1:]), 10.0)


def logged(results: Path) -> Counter[int]:
    """How often each bundle, told apart by its payload, is in the shards' logs."""
    found: Counter[int] = Counter()
    for folder in sorted((results / "replay").glob("shard-*")):
        log = SegmentLog(folder, 64_000_000, lambda: b"")
        for kind, body in log.records():
            if kind == BUNDLE:
                found[hash(bytes(decode_bundle_record(body).payload))] += 1
        log.close()
    return found


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Iterator[Site]:
    """A host and a joiner whose bundles arrive."""
    with Site(tmp_path) as site:
        site.start_host()
        site.start_joiner()
        site.joiner.wait_for("progress", lambda e: e["bundles"]["stored"] >= 10, timeout=60.0)
        yield site


def everything_arrived_once(site: Site, before: int) -> None:
    """All books say so, and the logs. `before`: bundles that were surely made before the last start."""
    left, stopped = site.end()
    for books in (left, stopped):
        assert kit.balanced(books)
    assert left["produced"] == left["stored"] > before
    assert (stopped["produced"], stopped["stored"]) == (left["produced"], left["stored"])
    names = logged(site.results)
    assert set(names.values()) == {1}
    assert len(names) == left["stored"]


def test_host_and_joiner_are_killed_and_all_arrives_once(site: Site) -> None:
    kill_all(site.host)
    grows = site.spooled(30)
    assert site.spooled(60)["bundles"]["produced"] > grows["bundles"]["produced"], "the joiner plays on"
    kill_all(site.joiner)
    last = site.joiner.last()
    assert last is not None
    again = site.start_joiner()
    again.wait_for_line("127.0.0.1")  # looks for its host
    site.start_host()
    site.all_settled()
    assert "bundles (" in again.stderr
    assert "found in the spool" in again.stderr
    everything_arrived_once(site, last["bundles"]["produced"])
    assert not list((site.folder / "home-joiner" / "spool").iterdir())


def test_a_joiner_that_is_stopped_while_its_host_is_gone_brings_it_next_time(site: Site) -> None:
    kill_all(site.host)
    site.spooled(30)
    assert site.joiner.end() == 0
    left = site.joiner.last("left")
    assert left is not None
    kept = left["bundles"]["pending"]
    assert kept >= 30
    assert (
        f"{kept} bundles are kept in the spool; they go to the host with the next `p2prl join`"
        in site.joiner.stderr
    )
    site.start_host()
    site.start_joiner()
    site.all_settled()
    everything_arrived_once(site, left["bundles"]["produced"])
