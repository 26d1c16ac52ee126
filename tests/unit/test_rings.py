"""nodes/rings.py, and who is told of them: nodes/charges.py."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.core.schema import Column, SessionSchema
from p2prl.nodes.charges import Plan
from p2prl.nodes.options import HostOptions
from p2prl.nodes.prepare import prepare
from p2prl.nodes.rings import Rings, open_rings
from p2prl.nodes.trainer_config import TrainerConfig
from p2prl.nodes.wiring import ShardConfig
from p2prl.replay.shared import SharedRings, rings_bytes
from p2prl.settings import find_experiment, overlay
from tests.unit.replay_kit import CARTPOLE

only_linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory without a name here")


def planned(tmp_path: Path, *settings: str) -> tuple[Plan, list[ShardConfig], list[int], TrainerConfig]:
    """The plan of a host of dqn; the shards' configs; what the trainer gets; its config."""
    experiment = overlay(find_experiment("cartpole"), ["shards=3", *settings])
    options = HostOptions(experiment, "alone", players=0, results=tmp_path / "results")
    plan = Plan(options, prepare(experiment, options.results, False), 22300)
    charges = plan.charges()
    shards: list[ShardConfig] = []
    for charge in charges:
        config = charge.make_config()
        if isinstance(config, ShardConfig):
            assert list(charge.descriptors) == ([config.rings] if config.rings >= 0 else [])
            shards.append(config)
        elif isinstance(config, TrainerConfig):
            trainer, given = config, list(charge.descriptors)
        else:
            assert not charge.descriptors
    return plan, shards, given, trainer


#: Of a ring of 64 sessions.
BYTES = 64 * CARTPOLE.session_bytes()


def open_files() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def rings() -> Iterator[Rings]:
    """Two of 64 sessions each."""
    made = open_rings(CARTPOLE, "uniform", 2, BYTES)
    assert made is not None
    yield made
    made.close()


@only_linux
@pytest.mark.usefixtures("home")
def test_shards_share_their_memory_with_the_trainer(tmp_path: Path) -> None:
    plan, shards, given, trainer = planned(tmp_path)
    [writes], reads = {shard.rings for shard in shards}, trainer.rings
    assert given == [reads]
    assert writes != reads
    assert [(shard.index, shard.shards) for shard in shards] == [(0, 3), (1, 3), (2, 3)]
    assert trainer.shards == 3
    assert os.fstat(writes).st_ino == os.fstat(reads).st_ino
    assert trainer.shard_bytes * 3 >= trainer.replay.capacity_bytes
    assert {shard.capacity_bytes for shard in shards} == {trainer.shard_bytes}
    assert plan.check_config(tmp_path).rings == -1, "that process gets none"
    for descriptor in (writes, reads):
        assert not os.get_inheritable(descriptor), "any child would have it"
        assert os.fstat(descriptor).st_nlink == 0
    plan.close()
    for descriptor in (writes, reads):
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(descriptor)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("why", ["no memfd_create", "forbidden", "no /proc", "prioritised"])
def test_elsewhere_samples_go_through_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    opened = os.open

    def forbidden(name: str, flags: int) -> int:
        raise PermissionError(errno.EPERM, name)

    if why == "no memfd_create":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif why == "forbidden":
        monkeypatch.setattr(os, "memfd_create", forbidden, raising=False)
    elif why == "no /proc":
        monkeypatch.setattr(
            os, "open", lambda path, *how: opened("/none" if "/proc/" in str(path) else path, *how)
        )
    settings = ["replay.kind=prioritised"] if why == "prioritised" else []
    gc.collect()  # what other tests left is not to be closed meanwhile
    before = open_files() if sys.platform == "linux" else 0
    plan, shards, given, trainer = planned(tmp_path, *settings)
    assert not before or open_files() == before, "a descriptor was left open"
    assert [shard.rings for shard in shards] == [-1, -1, -1]
    assert trainer.rings == -1
    assert given == []
    plan.close()


def test_there_are_none_for_queues_and_pictures() -> None:
    frames = Column("obs", "uint8", (4, 84, 84), extra_row=True)
    assert open_rings(CARTPOLE, "queue", 2, BYTES) is None
    assert open_rings(SessionSchema(4, (frames, *CARTPOLE.columns[1:])), "uniform", 2, BYTES) is None
    made = open_rings(CARTPOLE, "uniform", 2, BYTES)
    assert (made is not None) == (sys.platform == "linux")
    if made is not None:
        made.close()


@only_linux
def test_nobody_changes_its_size_and_the_trainers_descriptor_does_not_write(rings: Rings) -> None:
    size = rings_bytes(CARTPOLE, 2, 64)
    assert os.fstat(rings.writes).st_size == os.fstat(rings.reads).st_size == size
    for descriptor in (rings.writes, rings.reads):
        for other in (0, size - 1, size + 1):
            with pytest.raises(OSError, match=r".") as caught:
                os.ftruncate(descriptor, other)
            assert caught.value.errno in (errno.EPERM, errno.EINVAL, errno.EBADF)
    with pytest.raises(OSError, match=r".") as caught:
        os.pwrite(rings.reads, b"x", 0)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(PermissionError):
        mmap.mmap(rings.reads, size, access=mmap.ACCESS_WRITE)
    # Each start of a shard takes it as it is.
    for _ in range(2):
        written = SharedRings(CARTPOLE, 2, 64, rings.writes, writes=True)
        written.stamps[0] = 7
    assert SharedRings(CARTPOLE, 2, 64, rings.reads).stamps[0] == 7


_PASSES_ON = """
import subprocess, sys
from p2prl.nodes.rings import keep_to_itself
ring, keeps = int(sys.argv[1]), sys.argv[2] == "keeps"
if keeps:
    keep_to_itself(ring)
look = "import os, sys; os.fstat(int(sys.argv[1]))"
sys.exit(subprocess.run([sys.executable, "-c", look, str(ring)], close_fds=False, stderr=subprocess.DEVNULL).returncode)
"""


@only_linux
@pytest.mark.parametrize("keeps", [True, False])
def test_what_a_child_starts_does_not_get_it(rings: Rings, keeps: bool) -> None:
    argv = [sys.executable, "-c", _PASSES_ON, str(rings.reads), "keeps" if keeps else "does not"]
    assert subprocess.run(argv, pass_fds=[rings.reads], check=False).returncode == (1 if keeps else 0)


_CANNOT_MAP = """
import resource, sys
from p2prl.learn.contracts import ReplaySpec
from p2prl.learn.gathering import Gatherer
from p2prl.errors import LimitsForbid
from tests.unit.replay_kit import CARTPOLE
spec = ReplaySpec(ticks=CARTPOLE.ticks, batch=8, capacity_bytes=10**6, min_ticks=0)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
try:
    Gatherer(CARTPOLE, spec, int(sys.argv[1]), 1, int(sys.argv[2]))
except LimitsForbid as error:
    sys.exit(str(error))
"""


@only_linux
def test_a_trainer_without_address_space_for_it_says_what_to_do() -> None:
    places = 1_000_000
    rings = open_rings(CARTPOLE, "uniform", 1, places * CARTPOLE.session_bytes())
    assert rings is not None
    argv = [sys.executable, "-c", _CANNOT_MAP, str(rings.reads), str(places)]
    done = subprocess.run(argv, pass_fds=[rings.reads], check=False, capture_output=True, text=True)
    rings.close()
    assert done.returncode == 1
    assert done.stderr.startswith("the trainer cannot map the replay's ")
    assert "set replay.capacity_bytes lower" in done.stderr
