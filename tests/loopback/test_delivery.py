"""What a real member played arrives, once, whatever is killed or stopped meanwhile (design section 4)."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from p2prl.core.messages import StatusReply
from p2prl.replay.log import SegmentLog
from p2prl.replay.records import BUNDLE, decode_bundle_record
from tests import kit
from tests.conftest import wait_until

BUNDLES = 3000
#: Of one session, which is one bundle here: 17 observations of 1,200 bytes that nothing compresses.
TICKS, BUNDLE_BYTES = 16, 20_400


class Run:
    """A host without players, and one joiner whose environment hangs once BUNDLES bundles are full."""

    def __init__(self, host: kit.Program, joiner: kit.Program, peer: kit.Peer) -> None:
        self.host, self.joiner, self.peer = host, joiner, peer
        self.results = Path(host.wait_for("started")["results"])

    def stored(self, bundles: int) -> StatusReply:
        """Wait until the shards hold so many."""

        def look() -> StatusReply | None:
            status = self.peer.status()
            return status if sum(shard.stored for shard in status.shards) >= bundles else None

        found = wait_until(look, 60.0, f"{bundles} bundles stored; joiner: {self.joiner.last()}")
        assert isinstance(found, StatusReply)
        return found

    def kill(self, *roles: str) -> None:
        """kill -9 every process of these roles at once."""
        victims = [child for role in roles for child in self.host.children(role)]
        for victim in victims:
            victim.kill()

    def all_arrived(self) -> tuple[int, int]:
        """Wait for the end, and check every book: the member's, the broker's, the shards', and the logs on disk.

        Returns:
            Duplicates that the member was told of, and that the shards counted since they started last.
        """
        self.stored(BUNDLES)
        settled = self.joiner.wait_for("progress", lambda e: e["bundles"]["stored"] == BUNDLES)["bundles"]
        assert settled["produced"] == BUNDLES
        assert settled["pending"] == settled["refused"] == settled["stale"] == settled["dropped"] == 0
        wait_until(lambda: [node.bundles.stored for node in self.peer.status().nodes] == [BUNDLES])
        status = self.peer.status()
        assert status.nodes[0].bundles.balanced()
        assert sum(shard.stored for shard in status.shards) == BUNDLES
        assert self.joiner.end() == 0
        assert self.host.end() == 0
        left, stopped = self.joiner.last("left"), self.host.last("stopped")
        assert left is not None
        assert stopped is not None
        for books in (left["bundles"], stopped["bundles"]):
            assert books["stored"] == books["produced"] == BUNDLES
        logged = names_logged(self.results)
        assert len(logged) == BUNDLES
        assert set(logged.values()) == {1}
        return left["bundles"]["duplicate"], sum(shard.duplicate for shard in status.shards)


def names_logged(results: Path) -> Counter[tuple[str, str, int, int]]:
    """How often each bundle (shard, node's boot, sequence number, payload's bytes) is in the shards' logs."""
    names: Counter[tuple[str, str, int, int]] = Counter()
    for folder in sorted((results / "replay").glob("shard-*")):
        log = SegmentLog(folder, 64_000_000, lambda: b"")
        for kind, body in log.records():
            if kind == BUNDLE:
                bundle = decode_bundle_record(body)
                assert abs(len(bundle.payload) - BUNDLE_BYTES) < 500
                names[folder.name, bundle.boot_id, bundle.seq, hash(bytes(bundle.payload))] += 1
        log.close()
    return names


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Under way, with a third of the bundles stored."""
    with started(tmp_path) as run:
        run.stored(BUNDLES // 3)
        yield run


@contextmanager
def started(tmp_path: Path) -> Iterator[Run]:
    """A Run that has just begun."""
    base = kit.free_base()
    settings = (
        "--env",
        "tests.samples:Noise-v0",
        "--agent",
        str(kit.SAMPLES / "idle.py:Idle"),
        "--envs",
        "1",
    )
    limit = ("--set", f"env.args.limit={BUNDLES * TICKS}")
    with ExitStack() as stack:
        host = stack.enter_context(
            kit.host(tmp_path, *settings, *limit, "--players", "0", name=f"h{base}", port=base, cwd=kit.ROOT)
        )
        host.wait_for("started")
        joiner = stack.enter_context(
            kit.join(tmp_path, target=f"127.0.0.1:{base}", agent=kit.IDLE, cwd=kit.ROOT)
        )
        yield Run(host, joiner, stack.enter_context(kit.Peer(base)))


def test_broker_and_both_shards_are_killed(run: Run) -> None:
    before = run.stored(BUNDLES // 2)
    run.kill("broker", "shard")
    assert sum(shard.stored for shard in before.shards) < BUNDLES
    told, counted = run.all_arrived()
    # Receipts of a shard that reached the new broker before the member did are not passed on.
    assert told <= counted


def test_one_of_two_shards_is_killed(run: Run) -> None:
    run.stored(BUNDLES // 2)
    run.host.children("shard")[0].kill()
    told, counted = run.all_arrived()
    assert told == counted


def test_a_shard_is_stopped_for_eight_seconds(run: Run) -> None:
    victim = run.host.children("shard")[0]
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        stopped = run.peer.status()
        run.stored(sum(shard.stored for shard in stopped.shards) + BUNDLES // 6)  # the other takes it all
        wait_until(lambda: "silent" in [shard.state for shard in run.peer.status().shards])
        wait_until(lambda: run.peer.status().uptime_s >= stopped.uptime_s + 8.0)
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    told, counted = run.all_arrived()
    assert told == counted
