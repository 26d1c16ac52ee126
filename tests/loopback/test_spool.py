"""The host is gone for a while: joiners play on, keep what they play on disk, and all of it arrives, once.

Real processes, real kills. What counts in the end is what the shards' logs hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from p2prl.nodes.spool_file import Segments
from p2prl.replay.log import SegmentLog
from p2prl.replay.records import BUNDLE, decode_bundle_record
from tests import kit
from tests.conftest import wait_until

#: A session of 16 ticks of 5 ms is a bundle of 20 kB that nothing compresses: 12 a second from one player.
_GAME = ("--env", "tests.samples:Paced-v0", "--set", "env.args.size=1200", "--envs", "1", "--players", "0")
#: An agent that makes new weights as sessions come.
_TRAINS = f"{kit.SAMPLES / 'drill.py'}:Drill"


class Site:
    """One host and one joiner that come and go. Use it as a context manager."""

    def __init__(self, folder: Path, agent: str = kit.IDLE) -> None:
        self.folder, self.agent = folder, agent
        self.base = kit.free_base()
        self._stack = ExitStack()
        self.host: kit.Program
        self.joiner: kit.Program
        self.results = Path()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.base}"

    def start_host(self, *settings: str) -> kit.Program:
        """The first time with these settings; then it resumes."""
        again = ("--resume", "--results", str(self.results), "--players", "0")
        first = (*_GAME, "--agent", self.agent, *settings)
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
        program = kit.join(self.folder, *flags, target=self.target, agent=self.agent, cwd=kit.ROOT)
        self.joiner = self._stack.enter_context(program)
        return self.joiner

    def spooled(self, bundles: int) -> kit.Event:
        """Wait until so many are on the joiner's disk."""
        return self.joiner.wait_for("progress", lambda e: e["spooled"] >= bundles, timeout=60.0)

    def all_settled(self, before: kit.Event) -> kit.Event:
        """Wait until nothing is on disk, and hardly anything pending, and the joiner made more than `before`."""

        def settled(event: kit.Event) -> bool:
            books, made = event["bundles"], before["bundles"]["produced"]
            return event["spooled"] == 0 and books["produced"] > made and books["pending"] <= 3

        return self.joiner.wait_for("progress", settled, timeout=60.0)

    def end(self) -> tuple[kit.Event, kit.Event]:
        """A clean end of both, joiner first; their last books."""
        assert self.joiner.end() == 0
        with kit.Peer(self.base) as peer:
            wait_until(lambda: {node.state for node in peer.status().nodes} == {"gone"})
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
    site.all_settled(last)
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
    assert f"kept {kept:,} bundles in the spool, for the host at the next `p2prl join`" in site.joiner.stderr
    site.start_host()
    site.start_joiner()
    site.all_settled(left)
    everything_arrived_once(site, left["bundles"]["produced"])


def on_disk(site: Site) -> int:
    return sum(path.stat().st_size for path in (site.folder / "home-joiner" / "spool").rglob("*.spool"))


def spool_full(books: kit.Event) -> int:
    return int(books["dropped_reasons"].get("spool full", 0))


@pytest.mark.parametrize("when_full", ["wait", "drop_oldest"])
def test_a_small_spool_holds_its_bound_and_says_so(tmp_path: Path, when_full: str) -> None:
    with Site(tmp_path) as site:
        site.start_host("--set", "play.window_bundles=4", "--set", f"play.when_full={when_full}")
        site.start_joiner("--spool", "300kB")
        site.joiner.wait_for("progress", lambda e: e["bundles"]["stored"] >= 10, timeout=60.0)
        kill_all(site.host)
        if when_full == "wait":
            full = site.joiner.wait_for("progress", lambda e: "spool is full" in e["reason"], timeout=60.0)
            assert full["state"] == "paused"
            assert "players wait for the host" in full["reason"]
            assert site.joiner.wait_for_line("--spool allows 300 kB")
        else:
            site.joiner.wait_for("progress", lambda e: spool_full(e["bundles"]) >= 20, timeout=60.0)
        full = site.joiner.last()
        assert full is not None
        assert 200_000 < on_disk(site) <= 300_000
        assert full["spooled"] >= 10
        site.start_host()
        site.all_settled(full)
        left, stopped = site.end()
        assert kit.balanced(left)
        assert (spool_full(left) == 0) == (when_full == "wait")
        assert left["stored"] == left["produced"] - left["dropped"]
        assert (stopped["stored"], stopped["dropped"]) == (left["stored"], left["dropped"])
        names = logged(site.results)
        assert set(names.values()) == {1}
        assert len(names) == left["stored"]


@pytest.mark.parametrize("place", [0, 5000], ids=["head", "payload"])
def test_a_broken_place_in_the_spool_costs_one_bundle(site: Site, place: int) -> None:
    kill_all(site.host)
    last = site.spooled(30)
    kill_all(site.joiner)
    [segment] = (site.folder / "home-joiner" / "spool").rglob("*.spool")
    segments = Segments(segment.parent, 1)
    segments.look()
    data = bytearray(segment.read_bytes())
    data[list(segments.entries(1))[15].offset + place] ^= 0xFF
    segment.write_bytes(data)
    site.start_joiner()
    site.start_host()
    site.all_settled(last)
    left, stopped = site.end()
    assert left["dropped_reasons"] == {"unreadable": 1}
    assert stopped["dropped_reasons"] == {"unreadable": 1}
    assert left["stored"] == left["produced"] - 1 == stopped["stored"]
    assert left["produced"] > last["bundles"]["produced"]
    names = logged(site.results)
    assert set(names.values()) == {1}
    assert len(names) == left["stored"]
    assert site.joiner.stderr.count("cannot be read") == 1


@pytest.mark.skipif(not hasattr(psutil, "RLIMIT_FSIZE"), reason="limits of files' sizes need Linux")
def test_while_the_hosts_disk_is_full_the_member_keeps_what_it_has_also_over_its_own_end(
    tmp_path: Path,
) -> None:
    with Site(tmp_path) as site:
        site.start_host("--set", "play.window_bundles=4")
        site.start_joiner()
        site.joiner.wait_for("progress", lambda e: e["bundles"]["stored"] >= 10, timeout=60.0)
        shards = site.host.children("shard")
        for shard in shards:  # its log may grow no more, as on a full disk
            shard.rlimit(psutil.RLIMIT_FSIZE, (1000, psutil.RLIM_INFINITY))
        site.host.wait_for("progress", lambda e: any("make room there" in text for text in e["warnings"]))
        paused = site.joiner.wait_for("progress", lambda e: e["state"] == "paused", timeout=30.0)
        assert paused["reason"].startswith("the window is full")
        assert site.joiner.end() == 0
        left = site.joiner.last("left")
        assert left is not None
        kept = left["bundles"]["pending"]
        assert kept >= 4
        assert left["bundles"]["dropped"] == 0

        def told() -> bool:
            [row] = kit.status(tmp_path, site.target)["nodes"]
            return bool(row["state"] == "gone" and row["bundles"]["pending"] == kept)

        wait_until(told, what="the host counts them as pending")
        for shard in shards:
            shard.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
        site.start_joiner()
        site.all_settled(left)
        everything_arrived_once(site, left["bundles"]["produced"])


def test_what_has_grown_older_than_max_lag_is_counted_and_said_once(tmp_path: Path) -> None:
    with Site(tmp_path, agent=_TRAINS) as site:
        site.start_host("--set", "replay.max_lag=2", "--set", "train.publish_interval_s=0.1")
        site.start_joiner()
        site.joiner.wait_for("progress", lambda e: e["bundles"]["stored"] >= 10, timeout=60.0)
        kill_all(site.host)
        site.spooled(25)
        assert site.joiner.end() == 0
        left, last = site.joiner.last("left"), site.joiner.last()
        assert left is not None
        assert last is not None
        kept, version = left["bundles"]["pending"], last["weights_version"]
        site.start_host()
        with kit.join(tmp_path, name="other", target=site.target, agent=_TRAINS, cwd=kit.ROOT) as other:
            other.wait_for("progress", lambda e: e["weights_version"] > version + 3, timeout=60.0)
            site.start_joiner()
            said = site.joiner.wait_for_line("the spool is empty again")
            site.all_settled(left)
            assert other.end() == 0
        books, _ = site.end()
        told = re.search(
            r"stored (\d+) of (\d+) bundles, (\d+) stale: older than max_lag \(2 versions\)", said
        )
        assert told is not None, said
        stored, ended, stale = map(int, told.groups())
        # What a shard had stored when the host was killed, and could not say any more, is stored.
        assert ended == stored + stale == kept
        assert stored < stale <= books["stale"]
        assert books["produced"] == books["stored"] + books["stale"]
        assert site.joiner.stderr.count("max_lag") == 1
