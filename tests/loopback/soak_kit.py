"""A long run that members come to and leave, and what its processes hold meanwhile. For tests/loopback/test_soak.py."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from p2prl.core import messages as m
from tests import kit
from tests.conftest import wait_until
from tests.loopback import survival_kit as survival

#: A small environment, a learner in torch, a ring that is full after seconds, and checkpoints that come often.
CHAIN = (
    *("chain", "--players", "1", "--set", "agent.capacity_bytes=1_000_000"),
    *("--set", "train.checkpoint_interval_s=2"),
)
#: What may come on top of what was there after the warm-up: allocators round up, and a timer has a file open for a
#: moment. Files are open files and connections; threads and ports may not grow at all. Of paths, because the best
#: checkpoint may be new, and one that is being written lies beside those that are kept.
SLACK_BYTES, SLACK_SHARE, SLACK_FILES, SLACK_PATHS = 12_000_000, 0.10, 6, 16
#: Two segments of 8 MiB for each of two shards, with one more that is being written.
REPLAY_BYTES = 6 * 8 * 1024 * 1024
#: Of files that tell how a run went, and so grow as long as it lasts: bytes of each second.
RECORD_BYTES_PER_S = 8_000
#: Bundles that a visitor gives before it leaves.
_GIVES = 5
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Use:
    """What a process holds: bytes of its own pages (of all in memory where the system does not tell), and the rest."""

    memory: int
    files: int
    threads: int
    ports: int

    def __or__(self, other: Use) -> Use:
        """The larger of both, each."""
        return Use(*(max(pair) for pair in zip(_numbers(self), _numbers(other), strict=True)))

    def beyond(self, before: Use) -> str:
        """In what this is more than what was before, with the slack; empty if in nothing."""
        most = Use(
            round(before.memory * (1 + SLACK_SHARE)) + SLACK_BYTES,
            before.files + SLACK_FILES,
            before.threads,
            before.ports,
        )
        names = ("bytes", "open files", "threads", "ports")
        triples = zip(names, _numbers(self), _numbers(before), _numbers(most), strict=True)
        return ", ".join(
            f"{now:,} {name} after {then:,}" for name, now, then, bound in triples if now > bound
        )


def _numbers(use: Use) -> tuple[int, int, int, int]:
    return use.memory, use.files, use.threads, use.ports


def used(process: psutil.Process) -> Use:
    """What it holds now."""
    info = process.memory_full_info()
    connections = process.net_connections("inet")
    files = process.num_fds() if os.name == "posix" else process.num_handles()
    return Use(
        memory=getattr(info, "uss", info.rss),
        files=files,
        threads=process.num_threads(),
        ports=sum(connection.status == psutil.CONN_LISTEN for connection in connections),
    )


@dataclass
class Soak:
    """One run, and the two members that come and go: one by SIGTERM, the other by kill -9.

    Attributes:
        visits: how many are over.
    """

    folder: Path
    run: survival.Run
    steady: kit.Program
    peer: kit.Peer
    visits: int = 0
    _watched: dict[str, psutil.Process] = field(default_factory=dict)

    def processes(self) -> Mapping[str, psutil.Process]:
        """Those that are to stay, by name: they are looked up once, so that one that was replaced is missed."""
        if not self._watched:
            for owner, program in (("host", self.run.host), ("steady", self.steady)):
                counts: dict[str, int] = {}
                self._watched[owner] = psutil.Process(program.pid)
                for child in program.children():
                    role = child.cmdline()[-1]
                    counts[role] = counts.get(role, 0) + 1
                    self._watched[f"{owner}: {role} {counts[role]}"] = child
        return self._watched

    def use(self) -> dict[str, Use]:
        """Of each of them, now."""
        return {name: used(process) for name, process in self.processes().items()}

    def visit(self) -> None:
        """A member comes, gives something, and goes; the books balance all the while."""
        name, number = ("polite", "killed")[self.visits % 2], self.visits
        before = self._given(name)
        with self.run.join(name=name, agent="") as member:
            wait_until(
                lambda: self._given(name) >= before + _GIVES,
                _PATIENCE_S,
                f"bundles of {name}, visit {number}",
            )
            if name == "polite":
                assert member.end(survival.END_S) == 0
                left = member.last("left")
                assert left is not None
                assert kit.balanced(left["bundles"])
            else:
                survival.kill_all(survival.family(member))
        self.visits += 1

    def _given(self, name: str) -> int:
        return sum(node.bundles.stored for node in self.status().nodes if node.name == name)

    def status(self) -> m.StatusReply:
        """The run as it is now; every book in it balances."""
        status = self.peer.status()
        for books in (status.bundles, *(node.bundles for node in status.nodes)):
            out = books.stored + books.pending + books.refused + books.stale + books.dropped
            assert books.produced == out, books
        return status

    def ring_is_full(self) -> bool:
        """Both shards let old sessions go."""
        shards = self.status().shards
        return len(shards) == 2 and all(shard.evicted > 0 for shard in shards)

    # --- what lies on the disk

    def records(self) -> int:
        """Bytes of files that tell how the run went."""
        return sum(size for path, size in self._files() if _is_record(path))

    def replay(self) -> int:
        """Bytes of the shards' logs."""
        return sum(size for path, size in self._files() if "replay" in path.parts)

    def others(self) -> list[str]:
        """What else lies there, and in the temporary folder."""
        places = [path for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith("p2prl-")]
        kept = [path for path, _ in self._files() if not _is_record(path) and "replay" not in path.parts]
        return [str(path) for path in (*places, *kept)]

    def _files(self) -> Iterator[tuple[Path, int]]:
        # Not rglob: a folder that goes meanwhile, as an old checkpoint does, is no error to os.walk.
        for folder, folders, files in os.walk(self.folder):
            for path in (Path(folder, name) for name in (*folders, *files)):
                try:
                    yield path, path.stat().st_size
                except FileNotFoundError:
                    continue  # it was of a moment


def _is_record(path: Path) -> bool:
    return path.suffix in (".jsonl", ".log") or path.name.startswith("events.out")


@contextmanager
def soaking(folder: Path) -> Iterator[Soak]:
    """A host with a player, one member that stays, and whoever visits."""
    with survival.hosted(folder, settings=CHAIN) as run, run.join(name="steady", agent="") as steady:
        survival.more_stored(steady)
        with kit.Peer(run.base) as peer:
            yield Soak(folder, run, steady, peer)


def passed(since: float, seconds: float) -> bool:
    """Whether so many seconds are over since that moment."""
    return time.monotonic() - since >= seconds
