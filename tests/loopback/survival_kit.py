"""What the tests of survival share: a run that costs next to nothing, kills, and a look at what the shards kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from p2prl.net.keys import load_or_create
from p2prl.nodes import checkpoint
from p2prl.replay.log import SegmentLog
from p2prl.replay.records import BUNDLE, decode_bundle_record
from p2prl.wire.frames import decode_bundle_header
from tests import kit
from tests.conftest import wait_until
from tests.samples.drill import intact

DRILL = f"{kit.SAMPLES / 'drill.py'}:Drill"
#: One slot of noise that ticks 200 times a second, and a learner whose state shows whether any of it was lost.
PACED = ("--env", "tests.samples:Paced-v0", "--agent", DRILL, "--envs", "1")
#: Checkpoints come often, so that a kill falls between two of them and into one.
OFTEN = ("--set", "train.checkpoint_interval_s=0.3")
#: How long anything may take to recover before its test fails; what it took is printed.
RECOVERY_S = 60.0
#: The promise is 5 s, and a quiet machine keeps it; what must fail is a command that hangs.
END_S = 40.0


@dataclass(frozen=True)
class Kept:
    """One bundle in a shard's log. `digest` tells payloads apart: they are noise."""

    node: str
    boot_id: str
    rank: int
    serial: int
    slots: int
    digest: int


@dataclass
class Run:
    """A host, and what is needed to start it again and to look into it."""

    folder: Path
    base: int
    host: kit.Program
    results: Path

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.base}"

    def join(self, *arguments: str, name: str = "joiner", agent: str = DRILL) -> kit.Program:
        return kit.join(self.folder, *arguments, name=name, target=self.target, agent=agent, cwd=kit.ROOT)

    def key(self, name: str = "joiner") -> str:
        """A joiner's public key."""
        return load_or_create(self.folder / f"home-{name}" / "node.key").public

    def status(self) -> kit.Event:
        """As the host's owner sees it."""
        done = kit.run(self.folder, "status", self.target, "--json", name=f"h{self.base}")
        assert done.returncode == 0, done.stderr
        found: kit.Event = json.loads(done.stdout)
        return found

    def row(self, name: str = "joiner") -> kit.Event:
        [found] = [node for node in self.status()["nodes"] if node["name"] == name]
        return found

    def kept(self) -> list[Kept]:
        """Every bundle in the shards' logs, read from a copy: their owners may be writing."""
        copy = self.folder / "copy"
        shutil.copytree(self.results / "replay", copy)
        try:
            return list(_kept(copy))
        finally:
            shutil.rmtree(copy)


def _kept(replay: Path) -> Iterator[Kept]:
    for folder in sorted(replay.glob("shard-*")):
        log = SegmentLog(folder, 64_000_000, lambda: b"")
        for kind, body in log.records():
            if kind == BUNDLE:
                bundle = decode_bundle_record(body)
                header = decode_bundle_header(bundle.header)
                digest = hash(bytes(bundle.payload))
                yield Kept(bundle.node, bundle.boot_id, header.rank, header.serial, header.slots, digest)
        log.close()


@contextmanager
def hosted(
    folder: Path, *flags: str, base: int = 0, settings: tuple[str, ...] = (*PACED, *OFTEN), open_: bool = True
) -> Iterator[Run]:
    """A host that has started; with `--resume` among the flags, one that goes on."""
    base = base or kit.free_base()
    settings = () if "--resume" in flags else settings
    with kit.host(
        folder, *settings, *flags, name=f"h{base}", port=base, cwd=kit.ROOT, open_=open_
    ) as program:
        yield Run(folder, base, program, Path(program.wait_for("started", timeout=RECOVERY_S)["results"]))


# --- what is known of a run


def last(program: kit.Program) -> kit.Event:
    found = program.last()
    assert found is not None
    return found


def stored(program: kit.Program) -> int:
    """Bundles whose receipt this member has."""
    return int(last(program)["bundles"]["stored"])


def more_stored(program: kit.Program, bundles: int = 5, timeout: float = RECOVERY_S) -> kit.Event:
    """Wait until this member has receipts for so many bundles more."""
    wanted = (stored(program) if program.of("progress") else 0) + bundles
    return program.wait_for("progress", lambda e: e["bundles"]["stored"] >= wanted, timeout)


def nothing_lost(kept: Iterable[Kept], key: str, acknowledged: int) -> None:
    """No bundle of this node that was acknowledged is missing in the logs, and none is there twice."""
    digests = Counter(one.digest for one in kept if one.node == key)
    assert set(digests.values()) <= {1}, "a bundle is stored twice"
    assert len(digests) >= acknowledged, f"{acknowledged} were acknowledged, {len(digests)} are there"


def in_order(kept: Iterable[Kept], key: str, books: kit.Event) -> None:
    """A node with one player, which played all the while: each number once, and no more missing than are pending."""
    serials = sorted(one.serial for one in kept if one.node == key)
    assert len(serials) == len(set(serials))
    assert set(serials) <= set(range(1, books["produced"] + 1))
    assert len(serials) >= books["produced"] - books["pending"]


def checkpoints_intact(results: Path) -> int:
    """Check that no checkpoint lacks anything of what was learned; returns the newest one's updates."""
    newest = 0
    for path in checkpoint.candidates(results / "checkpoints"):
        try:
            found = checkpoint.load(path)
        except checkpoint.CorruptCheckpoint:
            continue  # it is being replaced, or pruned
        assert intact(found.meta.updates, found.learner, found.weights), path
        newest = max(newest, found.meta.updates)
    return newest


# --- kills


def family(program: kit.Program) -> list[psutil.Process]:
    """A command and all its processes."""
    return [psutil.Process(program.pid), *program.children()]


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """kill -9, all at once, and wait until they are gone."""
    processes = list(processes)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(processes, 10.0)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


class Watch:
    """Measures what a row of docs/reliability.md says."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._began


def told(
    capsys: pytest.CaptureFixture[str], fault: str, acknowledged: int, recovered_s: float | None
) -> None:
    """The row's figures, for whoever runs the test; `recovered_s` None where all went on meanwhile."""
    took = "all went on" if recovered_s is None else f"recovered after {recovered_s:.1f} s"
    text = f"{fault}: 0 lost of {acknowledged} acknowledged bundles; {took}"
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


def pause(seconds: float) -> None:
    """Let time pass where that is what a test is about."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 10.0)


def until(condition: Callable[[], object], what: str, timeout: float = RECOVERY_S) -> object:
    return wait_until(condition, timeout, what)
